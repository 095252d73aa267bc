//! Many at once.

use async_graphql::{BatchRequest, BatchResponse};
use futures_util::future::join_all;

use crate::support::*;

fn slow<B: Backend>(world: &World<B>, time: Duration) {
    world.on("act", move |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            tokio::time::sleep(time).await;
            Ok(Receipt::new("slow"))
        })
    });
}

both!(another_payload_is_reuse_at_once_and_the_same_waits, world, {
    slow(&world, ms(1_000));
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document =
            |amount: i32| format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: {amount}) {{ id }} }}"#);
        let first = server.spawn(document(1));
        tokio::time::sleep(ms(250)).await;
        let begun = Instant::now();
        assert_eq!(code(&server.run(document(2)).await), "KEY_REUSED");
        let other = server.run(format!(r#"mutation {{ other(idempotencyKey: "{key}") {{ id }} }}"#)).await;
        assert_eq!(code(&other), "KEY_REUSED");
        assert!(begun.elapsed() < ms(300), "{:?}", begun.elapsed());
        let same = server.run(document(1)).await;
        assert!(replayed(&same, "act"));
        assert!(begun.elapsed() > ms(500));
        assert_eq!(answered(&first.await.unwrap()), answered(&same));
    }
    assert_eq!(world.effects().await, 2);
});

both!(another_process_learns_at_once_of_reuse_and_waits_for_the_same, world, {
    slow(&world, ms(1_000));
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        // SQLite has one writer, and a transaction of another process can only be waited for.
        if key == "t" && !B::POSTGRES {
            continue;
        }
        let (one, two) = (world.server(policy.clone()), world.server(policy));
        let document =
            |amount: i32| format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: {amount}) {{ id }} }}"#);
        let effects = world.effects().await;
        let first = one.spawn(document(1));
        tokio::time::sleep(ms(250)).await;
        let begun = Instant::now();
        assert_eq!(code(&two.run(document(2)).await), "KEY_REUSED", "{key}");
        assert!(begun.elapsed() < ms(300), "{:?}", begun.elapsed());
        let same = two.run(document(1)).await;
        assert!(replayed(&same, "act"));
        assert_eq!(answered(&first.await.unwrap()), answered(&same));
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(a_duplicate_that_has_waited_long_enough_is_told_to_come_back, world, {
    slow(&world, ms(1_200));
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy.clone().wait(ms(200)));
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        let other = world.server_on(world.other_store(4).await, policy.wait(ms(200)), |builder| builder);
        let first = server.spawn(&document);
        tokio::time::sleep(ms(100)).await;
        for (n, server) in [server, other].into_iter().enumerate() {
            let begun = Instant::now();
            let waited = server.run(&document).await;
            // SQLite has one writer, and a transaction of another process can only be waited for.
            if n == 1 && key == "t" && !B::POSTGRES && replayed(&waited, "act") {
                continue;
            }
            assert_eq!(code(&waited), "IN_PROGRESS", "{key} {n}");
            let extensions = waited.errors[0].extensions.as_ref().unwrap();
            let after: u64 = extensions.get("retryAfterMs").unwrap().to_string().parse().unwrap();
            assert!(after > 0 && after <= 30_000);
            assert_eq!(extensions.get("retryable").unwrap().to_string(), "true");
            assert!((ms(150)..ms(900)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        }
        assert_eq!(code(&first.await.unwrap()), "");
    }
    assert_eq!(world.effects().await, 2);
});

both!(a_finished_record_never_goes_back, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document =
            |amount: i32| format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: {amount}) {{ id }} }}"#);
        let first = server.run(document(1)).await;
        let record = world.record(key).await.unwrap();
        let same: Vec<_> = (0..30).map(|_| server.spawn(document(1))).collect();
        let others: Vec<_> = (0..5).map(|n| server.spawn(document(n + 2))).collect();
        let another: Vec<_> = (0..5)
            .map(|_| server.spawn(format!(r#"mutation {{ other(idempotencyKey: "{key}") {{ id }} }}"#)))
            .collect();
        for response in join_all(same).await {
            let response = response.unwrap();
            assert_eq!(answered(&first), answered(&response));
            assert!(replayed(&response, "act"));
        }
        for response in join_all(others).await.into_iter().chain(join_all(another).await) {
            assert_eq!(code(&response.unwrap()), "KEY_REUSED");
        }
        assert_eq!(world.record(key).await.unwrap(), record);
    }
    assert_eq!(world.effects().await, 2);
});

/// A batch over a pool of one connection, which the resolver uses too.
async fn batch<B: Backend>(policy: Policy) {
    let world = World::<B>::with_pool(1).await;
    let server = world.server(policy);
    let batch =
        (0..20).map(|n| request(format!(r#"mutation {{ a{n}: act(idempotencyKey: "k") {{ id }} }}"#))).collect();
    let batch = server.schema.execute_batch(BatchRequest::Batch(batch));
    let BatchResponse::Batch(responses) = tokio::time::timeout(Duration::from_secs(4), batch).await.unwrap() else {
        panic!("not a batch");
    };
    for (n, response) in responses.iter().enumerate() {
        assert_eq!(answered(response), format!(r#"{{"a{n}":{{"id":"receipt-1"}}}} []"#));
    }
    assert_eq!(responses.iter().filter(|response| response.extensions.is_empty()).count(), 1);
    assert_eq!(world.effects().await, 1);
    // Different keys take turns.
    let batch =
        (0..20).map(|n| request(format!(r#"mutation {{ act(idempotencyKey: "other-{n}") {{ id }} }}"#))).collect();
    let batch = server.schema.execute_batch(BatchRequest::Batch(batch));
    let responses = tokio::time::timeout(Duration::from_secs(4), batch).await.unwrap();
    assert!(responses.is_ok());
    assert_eq!(world.effects().await, 21);
    world.done().await;
}

both!(a_batch_of_one_mutation_with_one_connection_is_one_effect, world, {
    batch::<B>(Policy::leased()).await;
    batch::<B>(Policy::transactional()).await;
});

/// 100 keys over a pool of five, ten duplicates of each.
async fn crowd<B: Backend>(policy: Policy) {
    let world = World::<B>::with_pool(5).await;
    let server = world.server(policy);
    let running: Vec<_> = (0..300)
        .map(|n| server.spawn(format!(r#"mutation {{ act(idempotencyKey: "{}") {{ id }} }}"#, n % 100)))
        .collect();
    for response in join_all(running).await {
        assert_eq!(code(&response.unwrap()), "");
    }
    assert_eq!(world.effects().await, 100);
    world.done().await;
}

both!(a_hundred_keys_share_five_connections, world, {
    crowd::<B>(Policy::leased()).await;
    crowd::<B>(Policy::transactional()).await;
});

/// Duplicates of a running mutation hold no connection; the mutation itself holds `held`.
async fn waiting<B: Backend>(policy: Policy, held: u32) {
    let world = World::<B>::with_pool(5).await;
    slow(&world, ms(700));
    let server = world.server(policy.clone());
    let document = r#"mutation { act(idempotencyKey: "k") { id } }"#;
    let mut running = vec![server.spawn(document)];
    tokio::time::sleep(ms(150)).await;
    running.extend((0..20).map(|_| server.spawn(document)));
    // Those of another process look at the store now and then; on SQLite they wait for the writer.
    let same_pool = world.server_on(world.store.clone(), policy.clone(), |builder| builder);
    if B::POSTGRES || held == 0 {
        running.extend((0..20).map(|_| same_pool.spawn(document)));
    }
    tokio::time::sleep(ms(150)).await;
    let mut most_idle = 0;
    for _ in 0..20 {
        let (idle, open) = B::idle(&world.store.inner);
        most_idle = most_idle.max(idle + 5 - open);
        tokio::time::sleep(ms(7)).await;
    }
    assert!(most_idle >= 5 - held, "{most_idle} of 5 connections are free");
    for response in join_all(running).await {
        assert_eq!(code(&response.unwrap()), "");
    }
    assert_eq!(world.effects().await, 1);
    world.done().await;
}

both!(waiting_duplicates_hold_no_connection, world, {
    waiting::<B>(Policy::leased(), 0).await;
    waiting::<B>(Policy::transactional(), 1).await;
});

both!(many_processes_make_one_effect, world, {
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let mut servers = Vec::new();
        for _ in 0..4 {
            servers.push(world.server_on(world.other_store(3).await, policy.clone(), |builder| builder));
        }
        let effects = world.effects().await;
        let mut running = Vec::new();
        for key in 0..10 {
            for server in &servers {
                for _ in 0..3 {
                    running
                        .push(server.spawn(format!(r#"mutation {{ act(idempotencyKey: "{prefix}{key}") {{ id }} }}"#)));
                }
            }
        }
        for response in join_all(running).await {
            let code = code(&response.unwrap());
            assert!(["", "IN_PROGRESS"].contains(&code.as_str()), "{code}");
        }
        assert_eq!(world.effects().await, effects + 10);
        for server in &servers {
            B::close(&server.idempotency.store().inner).await;
        }
    }
});

both!(a_concurrent_retry_and_a_later_one_get_the_same, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            tokio::time::sleep(ms(150)).await;
            Ok(Receipt {
                fails: true,
                json: serde_json::json!({"b": 1.0, "a": [1e3, null]}),
                ..Receipt::new(format!("{:?}", Instant::now()))
            })
        })
    });
    world.on("other", |_| {
        Box::pin(async move {
            tokio::time::sleep(ms(150)).await;
            Err(async_graphql::Error::new("declined").mark(Mark::Final))
        })
    });
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        for (name, field) in [("act", "id json swallowed thrown"), ("other", "id")] {
            let document = format!(r#"mutation {{ {name}(idempotencyKey: "{key}{name}") {{ {field} }} }}"#);
            let first = server.spawn(&document);
            tokio::time::sleep(ms(50)).await;
            let concurrent = server.spawn(&document);
            let (first, concurrent) = (first.await.unwrap(), concurrent.await.unwrap());
            let later = server.run(&document).await;
            assert_eq!(answered(&first), answered(&concurrent));
            assert_eq!(answered(&concurrent), answered(&later));
            assert!(replayed(&concurrent, name) && replayed(&later, name));
        }
    }
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_default_isolation_level_makes_one_effect() {
    for level in ["repeatable read", "serializable"] {
        let world = World::<PostgresBackend>::isolated(level).await;
        for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
            let effects = world.effects().await;
            let mut servers = Vec::new();
            for _ in 0..3 {
                servers.push(world.server_on(world.other_store(4).await, policy.clone(), |builder| builder));
            }
            let documents: Vec<_> =
                (0..20).map(|n| format!(r#"mutation {{ act(idempotencyKey: "{prefix}{n}") {{ id }} }}"#)).collect();
            let mut running = Vec::new();
            for document in &documents {
                running.extend(servers.iter().map(|server| server.spawn(document)));
            }
            for response in join_all(running).await {
                // A resolver's own statements may meet a serialization failure, which is told as what it is.
                let code = code(&response.unwrap());
                assert!(["", "ROLLED_BACK", "IN_PROGRESS"].contains(&code.as_str()), "{level}: {code}");
            }
            for document in &documents {
                assert_eq!(code(&servers[0].run(document).await), "");
            }
            assert_eq!(world.effects().await, effects + 20, "{level}");
            for server in &servers {
                PostgresBackend::close(&server.idempotency.store().inner).await;
            }
        }
        world.done().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_with_different_keys_are_not_in_each_others_way_under_any_isolation_level() {
    for level in ["read committed", "repeatable read", "serializable"] {
        let world = World::<PostgresBackend>::isolated(level).await;
        world.on("act", |ctx| {
            Box::pin(async move {
                effect::<PostgresBackend>(ctx, "act").await?;
                // All of them are open at once.
                tokio::time::sleep(ms(30)).await;
                Ok(Receipt::new("1"))
            })
        });
        let server = world.server_on(world.other_store(16).await, Policy::transactional(), |builder| builder);
        for round in 0..4 {
            let running =
                (0..16).map(|n| server.spawn(format!(r#"mutation {{ act(idempotencyKey: "{round}-{n}") {{ id }} }}"#)));
            for response in join_all(running.collect::<Vec<_>>()).await {
                assert_eq!(code(&response.unwrap()), "", "{level}");
            }
        }
        assert_eq!(world.effects().await, 64, "{level}");
        PostgresBackend::close(&server.idempotency.store().inner).await;
        world.done().await;
    }
}
