//! Several sweepers at once.

use std::time::Duration;

use crate::{
    clients::{Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Setup},
};

/// A server dies with thirty charges in flight. Three others sweep, one of them dies in the middle of it: each charge
/// is completed once, and no client comes back for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sweepers_complete_each_lost_charge_once() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let idle = Setup::new(&database.url, &gateway, &["--lease", "1s", "--sweep-every", "1h"]);
    let sweeping = Setup::new(&database.url, &gateway, &["--lease", "1s", "--sweep-every", "100ms"]);
    let server = idle.start();
    let client = Client::of(&server.url);
    let account = client.open_account().await;
    gateway.latency(400).await;
    let keys: Vec<_> = (0..30).map(|amount| (new_key(), 501 + amount)).collect();
    let sent: Vec<_> = keys
        .iter()
        .cloned()
        .map(|(key, amount)| {
            let (client, account) = (client.clone(), account.clone());
            tokio::spawn(async move { client.try_charge(&key, &account, amount).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(350)).await;
    server.kill();
    for answer in sent {
        assert!(answer.await.unwrap().is_err(), "the server died before it answered");
    }
    let claimed: i64 = database.number("SELECT count(*) FROM idempotency_records WHERE mutation = 'charge'").await;
    assert!(claimed > 0);
    let mut sweepers: Vec<_> = (0..3).map(|_| sweeping.start()).collect();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    sweepers.pop().unwrap().kill();
    // What the dead sweeper had in hand is lost a second time, and rests for ten seconds before the next try.
    for _ in 0..400 {
        let open = "SELECT count(*) FROM idempotency_records WHERE state NOT IN ('succeeded', 'failed')";
        if database.number(open).await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let open = database.number("SELECT count(*) FROM idempotency_records WHERE state <> 'succeeded'").await;
    assert_eq!(open, 0, "{:?}", database.states().await);
    let client = Client::of(&sweepers[0].url);
    gateway.latency(0).await;
    let mut replays = 0;
    for (key, amount) in &keys {
        let answer = client.charge(key, &account, *amount).await;
        assert_eq!((answer.status, gateway.charges_of(*amount).await), (200, 1), "{answer:?}");
        replays += i64::from(answer.replayed);
    }
    assert_eq!(replays, claimed, "every claimed charge was completed without its client");
}
