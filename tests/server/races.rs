//! Copies of one request at once, on one server and on several.

use std::{collections::HashSet, sync::Arc};

use crate::{
    clients::{Answer, Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Process, Setup, SqliteFile},
};

/// Sends copies of one charge at once, spread over the servers.
async fn send_copies(servers: &[Process], account: &str, key: &str, amount: i64, copies: usize) -> Vec<Answer> {
    let clients: Vec<_> = servers.iter().map(|server| Client::of(&server.url)).collect();
    let gate = Arc::new(tokio::sync::Barrier::new(copies));
    let sent: Vec<_> = (0..copies)
        .map(|copy| {
            let (client, gate) = (clients[copy % clients.len()].clone(), Arc::clone(&gate));
            let (account, key) = (account.to_owned(), key.to_owned());
            tokio::spawn(async move {
                gate.wait().await;
                client.charge(&key, &account, amount).await
            })
        })
        .collect();
    let mut answers = Vec::new();
    for answer in sent {
        answers.push(answer.await.unwrap());
    }
    answers
}

/// One effect, one first answer, and replays of it byte for byte.
fn judge_copies(answers: &[Answer]) {
    let data: HashSet<_> = answers.iter().map(Answer::data).collect();
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(data.len(), 1, "{data:?}");
    assert_eq!(answers.iter().filter(|answer| !answer.replayed).count(), 1);
}

async fn copies_at_once(setup: &Setup, gateway: &Gateway, servers: usize) {
    let servers: Vec<_> = (0..servers).map(|_| setup.start()).collect();
    let account = Client::of(&servers[0].url).open_account().await;
    for (amount, copies) in [(101, 8), (102, 64), (103, 500)] {
        let answers = send_copies(&servers, &account, &new_key(), amount, copies).await;
        judge_copies(&answers);
        assert_eq!(gateway.charges_of(amount).await, 1, "{copies} copies");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_copies_on_one_server_make_one_charge() {
    let (gateway, file) = (Gateway::start(), SqliteFile::create());
    copies_at_once(&Setup::new(&file.url(), &gateway, &["--wait", "30s"]), &gateway, 1).await;
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    copies_at_once(&Setup::new(&database.url, &gateway, &["--wait", "30s"]), &gateway, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_copies_on_three_servers_make_one_charge() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    copies_at_once(&Setup::new(&database.url, &gateway, &["--wait", "30s"]), &gateway, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_do_not_wait_are_told_in_progress() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let servers: Vec<_> =
        (0..2).map(|_| Setup::new(&database.url, &gateway, &["--wait", "0s", "--lease", "10s"]).start()).collect();
    let account = Client::of(&servers[0].url).open_account().await;
    gateway.latency(1_500).await;
    let answers = send_copies(&servers, &account, &new_key(), 104, 20).await;
    let done = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!(done, 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!((answer.status, answer.code().as_deref()), (409, Some("IDEMPOTENCY_IN_PROGRESS")));
        let after = answer.json()["errors"][0]["extensions"]["retryAfterMs"].as_u64().unwrap();
        assert!(after > 0 && after <= 10_000, "{after}");
    }
    assert_eq!(gateway.charges_of(104).await, 1);
}

/// Fifty copies each of two hundred keys, on two servers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_keys_with_many_copies_have_one_effect_each() {
    let database = PostgresDatabase::create("server").await;
    let gateway = Gateway::start();
    let setup = Setup::new(&database.url, &gateway, &["--wait", "30s"]);
    let servers = Arc::new([setup.start(), setup.start()]);
    let account = Client::of(&servers[0].url).open_account().await;
    let permits = Arc::new(tokio::sync::Semaphore::new(8));
    let keys: Vec<_> = (0..200)
        .map(|amount| {
            let (servers, account, permits) = (Arc::clone(&servers), account.clone(), Arc::clone(&permits));
            tokio::spawn(async move {
                let _permit = permits.acquire().await.unwrap();
                let answers = send_copies(&*servers, &account, &new_key(), 1_000 + amount, 50).await;
                judge_copies(&answers);
            })
        })
        .collect();
    for key in keys {
        key.await.unwrap();
    }
    let amounts: Vec<_> = gateway.charges().await.iter().map(|charge| charge["amount"].as_i64().unwrap()).collect();
    let distinct: HashSet<_> = amounts.iter().collect();
    assert_eq!((amounts.len(), distinct.len()), (200, 200));
}

/// Two processes on one SQLite file, with sweepers, and as many keys at once as make them meet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_on_one_file_never_show_its_lock() {
    let (gateway, file) = (Gateway::start(), SqliteFile::create());
    let setup = Setup::new(&file.url(), &gateway, &["--sweep-every", "50ms", "--wait", "30s"]);
    let servers = [setup.start(), setup.start()];
    let account = Client::of(&servers[0].url).open_account().await;
    let sent: Vec<_> = (0..64)
        .zip(servers.iter().cycle())
        .map(|(amount, server)| {
            let client = Client::of(&server.url);
            let account = account.clone();
            tokio::spawn(async move { client.charge(&new_key(), &account, 2_000 + amount).await })
        })
        .collect();
    for answer in sent {
        let answer = answer.await.unwrap();
        assert!(answer.status == 200 && answer.code().is_none(), "{answer:?}");
    }
    assert_eq!(gateway.charges().await.len(), 64);
}

/// Transfers on two servers under every isolation level: no money is made or lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_isolation_level_is_good_enough() {
    const TRANSFER: &str = "mutation ($k: IdempotencyKey!, $in: TransferInput!) { transfer(idempotencyKey: $k, input: $in) { id amount } }";
    for level in ["read committed", "repeatable read", "serializable"] {
        let database = PostgresDatabase::create("server").await;
        database
            .run(&format!("ALTER DATABASE {} SET default_transaction_isolation = '{level}'", database.name()))
            .await;
        let gateway = Gateway::start();
        let setup = Setup::new(&database.url, &gateway, &["--wait", "30s"]);
        let servers = [setup.start(), setup.start()];
        let client = Client::of(&servers[0].url);
        let account = client.open_account().await;
        let answers = send_copies(&servers, &account, &new_key(), 105, 40).await;
        judge_copies(&answers);
        assert_eq!(gateway.charges_of(105).await, 1, "{level}");

        let (from, to) = (client.open_account().await, client.open_account().await);
        let key = new_key();
        let variables = serde_json::json!({ "k": key, "in": { "from": from, "to": to, "amount": 700 } });
        let copies: Vec<_> = (0..30)
            .map(|copy| {
                let (client, variables) = (Client::of(&servers[copy % 2].url), variables.clone());
                tokio::spawn(async move { client.send(TRANSFER, variables).await })
            })
            .collect();
        let mut data = HashSet::new();
        for copy in copies {
            let mut answer = copy.await.unwrap();
            // An isolation failure undoes the transaction, and says so: the same key again.
            while answer.status != 200
                || answer.json()["errors"][0]["extensions"]["retryable"] == serde_json::json!(true)
            {
                assert!(answer.text.contains("retryable\":true"), "{level}: {answer:?}");
                answer = client.send(TRANSFER, variables.clone()).await;
            }
            data.insert(answer.data());
        }
        assert_eq!(data.len(), 1, "{level}: {data:?}");
        let query = format!("{{ account(id: \"{from}\") {{ balance }} }}");
        let balance = client.send(&query, serde_json::json!({})).await.json()["data"]["account"]["balance"].clone();
        assert_eq!(balance, serde_json::json!(100_000 - 700), "{level}");
    }
}
