//! Servers whose clocks are wrong.

use std::{process::Command, time::Duration};

use crate::{
    clients::{Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Process, Setup},
};

/// A server that believes it is another time. Its own clock is never asked, so nothing follows from it.
///
/// `faketime` would start the server as a child of its own, which outlives it when it is killed. So it only tells
/// what it puts into the environment; but not what it shares with its children, since that goes with it.
fn start_at(setup: &Setup, offset: &str) -> Process {
    let told = Command::new("faketime").args(["-f", offset, "env"]).output();
    let told = told.expect("faketime makes clocks wrong; tests/run.sh installs it").stdout;
    let told = String::from_utf8(told).unwrap();
    let variables = told.lines().filter_map(|line| line.split_once('='));
    let mut command = setup.command("127.0.0.1:0");
    command.envs(variables.filter(|(name, _)| {
        name.starts_with("FAKETIME") && *name != "FAKETIME_SHARED"
            || ["LD_", "DYLD_"].iter().any(|of| name.starts_with(of))
    }));
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Process::start(command, "listening on ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_changes_nothing() {
    for offset in ["+1h", "-1h"] {
        let database = PostgresDatabase::create("server").await;
        let gateway = Gateway::start();
        let options = ["--lease", "2s", "--wait", "0s", "--retention", "3s", "--sweep-every", "200ms"];
        let setup = Setup::new(&database.url, &gateway, &options);
        let servers = [setup.start(), start_at(&setup, offset)];
        let [right, wrong] = [Client::of(&servers[0].url), Client::of(&servers[1].url)];
        let account = right.open_account().await;
        let mut hours = Vec::new();
        for (owner, other, amount) in [(&right, &wrong, 701), (&wrong, &right, 702)] {
            gateway.latency(1_000).await;
            let key = new_key();
            let (running, sent) = (owner.clone(), (key.clone(), account.clone()));
            let running = tokio::spawn(async move { running.charge(&sent.0, &sent.1, amount).await });
            tokio::time::sleep(Duration::from_millis(500)).await;
            let retry = other.charge(&key, &account, amount).await;
            assert_eq!(retry.code().as_deref(), Some("IDEMPOTENCY_IN_PROGRESS"), "{offset}: {retry:?}");
            let after = retry.json()["errors"][0]["extensions"]["retryAfterMs"].as_u64().unwrap();
            assert!(after > 0 && after <= 2_000, "{offset}: {after}");
            let done = running.await.unwrap();
            let replay = other.charge(&key, &account, amount).await;
            assert_eq!((replay.status, replay.data()), (200, done.data()), "{offset}");
            tokio::time::sleep(Duration::from_millis(3_300)).await;
            let expired = other.charge(&key, &account, amount).await;
            assert_eq!((expired.status, expired.code().as_deref()), (410, Some("IDEMPOTENCY_KEY_EXPIRED")), "{offset}");
            assert_eq!(gateway.charges_of(amount).await, 1);
            let created_at = done.json()["data"]["charge"]["createdAt"].as_str().unwrap().to_owned();
            hours.push(created_at.split(':').next().unwrap().to_owned());
        }
        assert_ne!(hours[0], hours[1], "the clock is not wrong");
        // Killed, it would leave what the wrong clock keeps in shared memory.
        servers.into_iter().for_each(Process::end);
    }
}
