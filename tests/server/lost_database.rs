//! A server that loses its database.

use std::time::Duration;

use crate::{
    clients::{Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Setup},
    proxy::Proxy,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_before_the_claim_means_no_effect() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let proxy = Proxy::start(database.address()).await;
    let server = Setup::new(&database.url_through(proxy.port), &gateway, &[]).start();
    let client = Client::of(&server.url);
    let account = client.open_account().await;
    proxy.cut();
    let key = new_key();
    let refused = client.charge(&key, &account, 401).await;
    assert_eq!(
        (refused.status, refused.code().as_deref()),
        (503, Some("IDEMPOTENCY_STORE_UNAVAILABLE")),
        "{refused:?}"
    );
    assert_eq!(gateway.charges_of(401).await, 0);
    proxy.mend();
    let done = client.charge_until_final(&key, &account, 401).await;
    assert_eq!((done.status, done.code(), gateway.charges_of(401).await), (200, None, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_away_during_the_charge_causes_no_second_one() {
    for (amount, away) in [(402, 200), (403, 3_000)] {
        let database = PostgresDatabase::create("server").await;
        let gateway = Gateway::start();
        let proxy = Proxy::start(database.address()).await;
        let options = ["--lease", "2s", "--sweep-every", "200ms"];
        let server = Setup::new(&database.url_through(proxy.port), &gateway, &options).start();
        let client = Client::of(&server.url);
        let account = client.open_account().await;
        gateway.latency(500).await;
        let key = new_key();
        let (running, sent) = (client.clone(), (key.clone(), account.clone()));
        let first = tokio::spawn(async move { running.charge(&sent.0, &sent.1, amount).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.cut();
        tokio::time::sleep(Duration::from_millis(away)).await;
        proxy.mend();
        let first = first.await.unwrap();
        // Its true result, or an explicit word that nobody knows.
        assert!(first.code().is_none() || first.json()["errors"][0]["message"].is_string(), "{first:?}");
        let last = client.charge_until_final(&key, &account, amount).await;
        assert_eq!((last.status, last.code()), (200, None), "{last:?}");
        assert_eq!(gateway.charges_of(amount).await, 1);
        assert_eq!(client.charge(&key, &account, amount).await.data(), last.data());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_was_cut_off_while_nobody_took_its_key_over_is_believed() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let proxy = Proxy::start(database.address()).await;
    let options = ["--lease", "1s", "--wait", "100ms", "--sweep-every", "200ms", "--on-crash", "hold"];
    let cut_off = Setup::new(&database.url_through(proxy.port), &gateway, &options).start();
    let sweeping = Setup::new(&database.url, &gateway, &options).start();
    let (first, second) = (Client::of(&cut_off.url), Client::of(&sweeping.url));
    let account = first.open_account().await;
    gateway.latency(3_500).await;
    let key = new_key();
    let (running, sent) = (first.clone(), (key.clone(), account.clone()));
    let owner = tokio::spawn(async move { running.charge(&sent.0, &sent.1, 404).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.cut();
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    assert_eq!(database.states().await.last(), Some(&("needs_recovery".to_owned(), 1)));
    let meanwhile = second.charge(&key, &account, 404).await;
    assert_eq!(meanwhile.code().as_deref(), Some("IDEMPOTENCY_OUTCOME_UNKNOWN"), "{meanwhile:?}");
    proxy.mend();
    let owner = owner.await.unwrap();
    assert_eq!((owner.status, owner.code(), gateway.charges_of(404).await), (200, None, 1), "{owner:?}");
    assert_eq!(second.charge(&key, &account, 404).await.data(), owner.data());
}
