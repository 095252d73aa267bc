//! What a mutation costs: round trips to Postgres, and writes.

use sqlx::{ConnectOptions, Executor, Row};

use crate::support::*;

/// The statements that the world's database has seen since the last reset, with how often.
async fn statements(world: &World<PostgresBackend>) -> Vec<(String, i64)> {
    let mut connection = world.database.options().connect().await.unwrap();
    let rows = connection
        .fetch_all(
            "SELECT query, calls FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
             WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' ORDER BY query",
        )
        .await
        .unwrap();
    rows.iter().map(|row| (row.get::<String, _>(0).trim().to_owned(), row.get(1))).collect()
}

async fn reset(world: &World<PostgresBackend>) {
    let mut connection = world.database.options().connect().await.unwrap();
    connection
        .execute(
            "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)",
        )
        .await
        .unwrap();
}

async fn counted() -> World<PostgresBackend> {
    // One connection, whose own set-up is over before the counting begins.
    let world = World::<PostgresBackend>::with_pool(1).await;
    let mut connection = world.database.options().connect().await.unwrap();
    connection
        .execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        .await
        .expect("the server needs shared_preload_libraries = pg_stat_statements; tests/run.sh starts one with it");
    world.on("act", |_| Box::pin(async { Ok(Receipt::new("1")) }));
    world
}

fn total(statements: &[(String, i64)]) -> i64 {
    statements.iter().map(|(_, calls)| calls).sum()
}

/// Without those that begin and end a transaction.
fn own(statements: &[(String, i64)]) -> i64 {
    let frames = ["BEGIN", "COMMIT", "ROLLBACK"];
    let own = statements.iter().filter(|(query, _)| !frames.contains(&query.as_str()));
    own.map(|(_, calls)| calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_leased_mutation_is_two_statements_and_a_replay_is_one() {
    let world = counted().await;
    let server = world.server(Policy::leased());
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id note }} }}"#);
    server.run(document("warm")).await;
    reset(&world).await;
    assert_eq!(code(&server.run(document("k")).await), "");
    let fresh = statements(&world).await;
    assert_eq!(total(&fresh), 2, "{fresh:#?}");
    reset(&world).await;
    assert!(replayed(&server.run(document("k")).await, "act"));
    let replay = statements(&world).await;
    assert_eq!(total(&replay), 1, "{replay:#?}");
    reset(&world).await;
    let other = server.run(r#"mutation { act(idempotencyKey: "k", amount: 2) { id } }"#).await;
    assert_eq!(code(&other), "KEY_REUSED");
    let reused = statements(&world).await;
    assert_eq!(total(&reused), 1, "{reused:#?}");
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_transactional_mutation_adds_two_statements_to_begin_and_commit_and_a_replay_is_one() {
    let world = counted().await;
    let server = world.server(Policy::transactional());
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id note }} }}"#);
    server.run(document("warm")).await;
    reset(&world).await;
    assert_eq!(code(&server.run(document("k")).await), "");
    let fresh = statements(&world).await;
    assert_eq!(own(&fresh), 2, "{fresh:#?}");
    assert_eq!(total(&fresh), 4, "{fresh:#?}");
    reset(&world).await;
    assert!(replayed(&server.run(document("k")).await, "act"));
    let replay = statements(&world).await;
    assert_eq!(total(&replay), 1, "{replay:#?}");
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_of_what_another_process_finished_is_two_statements_or_one_in_a_transaction() {
    let world = counted().await;
    for (policy, statements_of, frames) in [(Policy::leased(), 2, 0), (Policy::transactional(), 1, 2)] {
        let (one, two) = (world.server(policy.clone()), world.server(policy));
        let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}{frames}") {{ id note }} }}"#);
        assert_eq!(code(&one.run(document("k")).await), "");
        assert_eq!(code(&two.run(document("warm")).await), "");
        reset(&world).await;
        assert!(replayed(&two.run(document("k")).await, "act"));
        let replay = statements(&world).await;
        assert_eq!((own(&replay), total(&replay)), (statements_of, statements_of + frames), "{replay:#?}");
        // From then on it looks first.
        reset(&world).await;
        assert!(replayed(&two.run(document("k")).await, "act"));
        assert_eq!(total(&statements(&world).await), 1);
        assert_eq!(written(&world).await, 0);
    }
    world.done().await;
}

/// How far the statements of one session have written ahead, by their own counts.
async fn written(world: &World<PostgresBackend>) -> i64 {
    let mut connection = world.database.options().connect().await.unwrap();
    let row = connection
        .fetch_one(
            "SELECT coalesce(sum(wal_records), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
             WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%'",
        )
        .await
        .unwrap();
    row.get(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_writes_nothing() {
    let world = counted().await;
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id note }} }}"#);
        reset(&world).await;
        assert_eq!(code(&server.run(&document).await), "");
        assert!(written(&world).await > 0);
        // Postgres prunes a page and sets hint bits on the first look at it, which is its own affair.
        server.run(&document).await;
        reset(&world).await;
        for _ in 0..10 {
            assert!(replayed(&server.run(&document).await, "act"));
        }
        assert_eq!(total(&statements(&world).await), 10);
        assert_eq!(written(&world).await, 0);
    }
    world.done().await;
}

both!(the_protocol_asks_the_store_no_more_than_it_must, world, {
    world.on("act", |_| Box::pin(async { Ok(Receipt::new("1")) }));
    for (policy, key, fresh) in
        [(Policy::leased(), "l", &["claim", "settle"][..]), (Policy::transactional(), "t", &["begin", "commit"])]
    {
        let server = world.server(policy.clone());
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        world.store.heal();
        server.run(&document).await;
        assert_eq!(world.store.calls(), fresh);
        world.store.heal();
        server.run(&document).await;
        assert_eq!(world.store.calls(), ["find"]);
        world.store.heal();
        assert!(replayed(&world.server(policy).run(&document).await, "act"));
        assert_eq!(world.store.calls(), fresh[..1]);
    }
});

both!(duplicates_of_one_process_ask_the_store_once, world, {
    world.on("act", |_| {
        Box::pin(async {
            tokio::time::sleep(ms(200)).await;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::leased());
    world.store.heal();
    let running: Vec<_> = (0..50).map(|_| server.spawn(r#"mutation { act(idempotencyKey: "k") { id } }"#)).collect();
    for response in running {
        assert_eq!(code(&response.await.unwrap()), "");
    }
    assert_eq!(world.store.calls(), ["claim", "settle"]);
});
