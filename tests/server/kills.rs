//! Two hundred kills at random instants, under clients that retry.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::Value;
use uuid::Uuid;

use crate::{
    clients::{Answer, Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Setup, SqliteFile},
};

const KILLS: u32 = 50;
const CLIENTS: i64 = 16;

/// Anything from 0 to `below`.
fn random(below: u64) -> u64 {
    Uuid::new_v4().as_u64_pair().0 % below
}

async fn kill_at_random(database: &str, on_crash: &str) {
    let gateway = Gateway::start();
    gateway.latency(10).await;
    let options = ["--lease", "300ms", "--wait", "500ms", "--sweep-every", "100ms", "--on-crash", on_crash];
    let setup = Setup::new(database, &gateway, &options);
    let mut server = setup.start();
    let address = server.url.trim_start_matches("http://").trim_end_matches("/graphql").to_owned();
    let client = Client::of(&server.url);
    let account = client.open_account().await;
    let killing = Arc::new(AtomicBool::new(true));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (client, account, killing) = (client.clone(), account.clone(), Arc::clone(&killing));
            tokio::spawn(async move {
                let mut answers = Vec::new();
                let mut amount = 1_000_000 * (number + 1);
                while killing.load(Ordering::Relaxed) {
                    amount += 1;
                    let key = new_key();
                    let answer = client.charge_until_settled(&key, &account, amount).await;
                    answers.push((key, amount, answer));
                }
                answers
            })
        })
        .collect();
    for _ in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(40 + random(260))).await;
        server.kill();
        server = setup.start_on(&address);
    }
    killing.store(false, Ordering::Relaxed);
    let mut answers = Vec::new();
    for client in clients {
        answers.extend(client.await.unwrap());
    }
    // Leases that were left run out, and the sweepers come by.
    tokio::time::sleep(Duration::from_millis(1_500)).await;

    let mut charges: HashMap<i64, usize> = HashMap::new();
    for charge in gateway.charges().await {
        *charges.entry(charge["amount"].as_i64().unwrap()).or_default() += 1;
    }
    let mut held = 0;
    for (key, amount, answer) in &answers {
        let again = client.charge(key, &account, *amount).await;
        assert_eq!(again.data(), answer.data(), "{key}: {answer:?}\n{again:?}");
        let made = charges.get(amount).copied().unwrap_or_default();
        match answer.code().as_deref() {
            None => assert_eq!(made, 1, "{key} {answer:?}"),
            Some("IDEMPOTENCY_OUTCOME_UNKNOWN") if on_crash == "hold" => {
                held += 1;
                assert!(made <= 1, "{key} was charged {made} times");
            }
            Some(other) => panic!("{key}: {other}"),
        }
    }
    assert!(answers.len() >= usize::try_from(CLIENTS).unwrap(), "only {} charges in {KILLS} kills", answers.len());
    assert!(on_crash == "resume" || held > 0, "no kill was in the middle of a charge");
    let states = states(database).await;
    assert!(!states.contains_key("in_progress"), "{states:?}");
    assert_eq!(states.get("needs_recovery").copied().unwrap_or_default(), held, "{states:?}");
}

impl Client {
    /// Like `charge_until_final`, but what is held stays held.
    async fn charge_until_settled(&self, key: &str, account: &str, amount: i64) -> Answer {
        for _ in 0..2_000 {
            if let Ok(answer) = self.try_charge(key, account, amount).await {
                let code = answer.code();
                let retryable = answer.json()["errors"][0]["extensions"]["retryable"] == Value::Bool(true);
                if !retryable
                    || code.as_deref() == Some("IDEMPOTENCY_OUTCOME_UNKNOWN")
                        && self.is_held(key, account, amount).await
                {
                    return answer;
                }
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        panic!("{key} was never answered");
    }

    /// Whether the outcome is still unknown after everyone who could know has had the time to say.
    async fn is_held(&self, key: &str, account: &str, amount: i64) -> bool {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let again = self.try_charge(key, account, amount).await;
        again.is_ok_and(|answer| answer.code().as_deref() == Some("IDEMPOTENCY_OUTCOME_UNKNOWN"))
    }
}

async fn states(database: &str) -> HashMap<String, usize> {
    const STATES: &str = "SELECT CAST(state AS text) FROM idempotency_records";
    let states: Vec<String> = if database.starts_with("sqlite:") {
        let pool = sqlx::SqlitePool::connect(database).await.unwrap();
        sqlx::query_scalar(STATES).fetch_all(&pool).await.unwrap()
    } else {
        let pool = sqlx::PgPool::connect(database).await.unwrap();
        sqlx::query_scalar(STATES).fetch_all(&pool).await.unwrap()
    };
    let mut counts = HashMap::new();
    for state in states {
        *counts.entry(state).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_resume_on_postgres_every_key_is_charged_once() {
    let database = PostgresDatabase::create("server").await;
    kill_at_random(&database.url, "resume").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_hold_on_postgres_no_key_is_charged_twice() {
    let database = PostgresDatabase::create("server").await;
    kill_at_random(&database.url, "hold").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_resume_on_sqlite_every_key_is_charged_once() {
    let file = SqliteFile::create();
    kill_at_random(&file.url(), "resume").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_hold_on_sqlite_no_key_is_charged_twice() {
    let file = SqliteFile::create();
    kill_at_random(&file.url(), "hold").await;
}
