//! The suite that every backend has to pass, on ours.

use async_graphql_idempotency::{PostgresStore, store::conformance};

use crate::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_the_laws_under_every_isolation_level_and_shape() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let world = World::<PostgresBackend>::isolated(level).await;
        let store = PostgresBackend::open(&world.database, 8).await;
        let shapes = [
            store.clone(),
            store.clone().transaction_pooling(),
            store.clone().without_advisory_locks(),
            store.clone().transaction_pooling().without_advisory_locks(),
        ];
        for (shape, store) in shapes.iter().enumerate() {
            conformance::check(store, &PostgresBackend::effects(store))
                .await
                .unwrap_or_else(|broken| panic!("{level}, shape {shape}: {broken:?}"));
        }
        store.pool().close().await;
        world.done().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_the_laws() {
    let world = World::<SqliteBackend>::new().await;
    let store = &world.store.inner;
    conformance::check(store, &SqliteBackend::effects(store)).await.unwrap();
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_in_memory_keeps_the_laws() {
    let world = World::<InMemory>::new().await;
    let store = &world.store.inner;
    conformance::check(store, &InMemory::effects(store)).await.unwrap();
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_advisory_locks_none_is_taken_and_a_key_is_executed_once() {
    let world = World::<PostgresBackend>::new().await;
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<PostgresBackend>(ctx, "act").await?;
            let attempt = ctx.attempt::<Faulty<PostgresStore>>()?;
            let mut transaction = attempt.transaction().await?;
            let row: (i64, String) = sqlx::query_as(
                "SELECT (SELECT count(*) FROM pg_locks JOIN pg_database ON oid = database \
                 WHERE locktype = 'advisory' AND datname = current_database()), current_setting('lock_timeout')",
            )
            .fetch_one(&mut *transaction)
            .await?;
            assert_eq!(row, (0, "0".to_owned()));
            tokio::time::sleep(ms(60)).await;
            Ok(Receipt::new("1"))
        })
    });
    let mut servers = Vec::new();
    for _ in 0..3 {
        let store = PostgresBackend::open(&world.database, 4).await.without_advisory_locks();
        servers.push(world.server_on(Faulty::faulty(store), Policy::transactional(), |builder| builder));
    }
    let document = r#"mutation { act(idempotencyKey: "k") { id } }"#;
    let running: Vec<_> = (0..30).map(|copy| servers[copy % 3].spawn(document)).collect();
    for response in futures_util::future::join_all(running).await {
        assert_eq!(answered(&response.unwrap()), r#"{"act":{"id":"1"}} []"#);
    }
    assert_eq!(world.effects().await, 1);
    assert_eq!((world.state("k").await.as_str(), world.records().await), ("succeeded", 1));
    // An error undoes the record too.
    world.on("act", |_| Box::pin(async { Err("no".into()) }));
    assert_eq!(code(&servers[0].run(r#"mutation { act(idempotencyKey: "e") { id } }"#).await), "no");
    assert_eq!(world.state("e").await, "none");
    for server in &servers {
        PostgresBackend::close(&server.idempotency.store().inner).await;
    }
    world.done().await;
}
