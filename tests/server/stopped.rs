//! An owner that is stopped past its lease and continues: it changes nothing, and its client gets the truth.

use std::time::Duration;

use crate::{
    clients::{Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Setup},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_owner_keeps_its_lease() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let options = ["--lease", "1s", "--wait", "100ms", "--sweep-every", "200ms"];
    let servers: Vec<_> = (0..2).map(|_| Setup::new(&database.url, &gateway, &options).start()).collect();
    let (first, second) = (Client::of(&servers[0].url), Client::of(&servers[1].url));
    let account = first.open_account().await;
    gateway.latency(3_000).await;
    let key = new_key();
    let (running, sent) = (first.clone(), (key.clone(), account.clone()));
    let owner = tokio::spawn(async move { running.charge(&sent.0, &sent.1, 301).await });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let retry = second.charge(&key, &account, 301).await;
    assert_eq!(retry.code().as_deref(), Some("IDEMPOTENCY_IN_PROGRESS"), "{retry:?}");
    let owner = owner.await.unwrap();
    assert_eq!((owner.status, gateway.charges_of(301).await), (200, 1));
    assert_eq!(second.charge(&key, &account, 301).await.data(), owner.data());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_owner_that_continues_changes_nothing() {
    for on_crash in ["resume", "hold"] {
        let database = PostgresDatabase::create("server").await;
        let gateway = Gateway::start();
        let options = ["--lease", "1s", "--wait", "100ms", "--sweep-every", "200ms", "--on-crash", on_crash];
        let servers: Vec<_> = (0..2).map(|_| Setup::new(&database.url, &gateway, &options).start()).collect();
        let (first, second) = (Client::of(&servers[0].url), Client::of(&servers[1].url));
        let account = first.open_account().await;
        gateway.latency(600).await;
        let key = new_key();
        let (running, sent) = (first.clone(), (key.clone(), account.clone()));
        let owner = tokio::spawn(async move { running.charge(&sent.0, &sent.1, 302).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        servers[0].signal("-STOP");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let winner = if on_crash == "resume" {
            second.charge_until_final(&key, &account, 302).await
        } else {
            second.charge(&key, &account, 302).await
        };
        let states = database.states().await;
        servers[0].signal("-CONT");
        let late = owner.await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        if on_crash == "resume" {
            // The retry saw what the late owner's client sees, and the record is as it was.
            assert_eq!(winner.code(), None, "{winner:?}");
            assert_eq!((late.data(), late.code()), (winner.data(), None), "{late:?}\n{winner:?}");
            assert_eq!(database.states().await, states);
        } else {
            // Nobody took the key over: the late owner settles it, and its answer is replayed.
            assert_eq!(winner.code().as_deref(), Some("IDEMPOTENCY_OUTCOME_UNKNOWN"), "{winner:?}");
            let again = second.charge(&key, &account, 302).await;
            assert_eq!((late.code(), late.data()), (None, again.data()), "{late:?}\n{again:?}");
            assert!(again.replayed);
        }
        assert_eq!(gateway.charges_of(302).await, 1);
    }
}
