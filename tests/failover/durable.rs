//! A role whose commits need not be durable, and a server that dies right after the gateway has charged.

use std::time::Duration;

use tokio::time::sleep;

use crate::{
    ALONE,
    clients::{Client, new_key},
    member::{self, Member},
    process::{Gateway, Setup},
    proxy::Proxy,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_charge_stands_on_is_durable_whatever_the_role_says() {
    let _alone = ALONE.lock().await;
    let Some(mut database) = Member::first(false).await else { return };
    database.run("ALTER ROLE postgres SET synchronous_commit = off").await;
    // What is committed so is written within three of these.
    database.run("ALTER SYSTEM SET wal_writer_delay = '10s'").await;
    database.run("ALTER SYSTEM SET autovacuum = off").await;
    database.run("SELECT pg_reload_conf()").await;
    let address = Proxy::start(database.address()).await;
    let gateway = Gateway::start();
    let options = ["--lease", "1s", "--wait", "500ms", "--sweep-every", "200ms", "--on-crash", "resume"];
    let server = Setup::new(&member::url(address.port), &gateway, &options).start();
    let client = Client::of(&server.url);
    let account = client.open_account().await;
    gateway.latency(300).await;
    for amount in 601..604 {
        // The account and the tables are there for good.
        database.run("SET synchronous_commit = on; CREATE TABLE flush (); DROP TABLE flush").await;
        let key = new_key();
        let first = {
            let (client, key, account) = (client.clone(), key.clone(), account.clone());
            tokio::spawn(async move { client.charge(&key, &account, amount).await })
        };
        while gateway.charges_of(amount).await == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        database = database.restart().await;
        address.lead_to(database.address());
        let first = first.await.unwrap();
        let last = client.charge_until_final(&key, &account, amount).await;
        assert_eq!((last.status, last.code()), (200, None), "{last:?}");
        assert_eq!(gateway.charges_of(amount).await, 1, "{first:?}, and then {last:?}");
    }
}
