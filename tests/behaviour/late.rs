//! Late claiming: the field's own validators and guards come first.

use async_graphql::Request;

use crate::support::{
    schema::Right,
    world::{CLIENT, client},
    *,
};

fn with_right(right: bool, document: &str) -> Request {
    Request::new(document).data(client(CLIENT)).data(Right(right))
}

both!(a_refused_caller_takes_no_key_and_the_corrected_retry_runs, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        for field in ["late", "lateInside"] {
            let effects = world.effects().await;
            let key = uuid::Uuid::new_v4().to_string();
            let document =
                |amount: i32| format!(r#"mutation {{ {field}(idempotencyKey: "{key}", amount: {amount}) {{ id }} }}"#);
            assert_eq!(code(&server.execute(with_right(false, &document(1))).await), "FORBIDDEN");
            assert_eq!(world.state(&key).await, "none");
            if field == "late" {
                let invalid = server.execute(with_right(true, &document(1_000))).await;
                assert_eq!(invalid.errors.len(), 1);
                assert_eq!(world.state(&key).await, "none");
            }
            // Corrected and promoted, with the same key.
            let first = server.execute(with_right(true, &document(7))).await;
            assert_eq!(code(&first), "", "{field}");
            let again = server.execute(with_right(true, &document(7))).await;
            assert_eq!(answered(&first), answered(&again));
            assert!(replayed(&again, field));
            // The right is withdrawn.
            let withdrawn = server.execute(with_right(false, &document(7))).await;
            assert_eq!(code(&withdrawn), "FORBIDDEN");
            assert_eq!(withdrawn.data, async_graphql::Value::Null);
            assert!(!replayed(&withdrawn, field));
            let reused = server.execute(with_right(true, &document(8))).await;
            assert_eq!(code(&reused), "KEY_REUSED");
            assert_eq!(world.effects().await, effects + 1, "{field}");
        }
    }
});

both!(a_late_field_that_never_claims_is_misconfigured, world, {
    world.on("lateNever", |_| Box::pin(async { Ok(Receipt::new("s3cret")) }));
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        for _ in 0..2 {
            let response = server.run(r#"mutation { lateNever(idempotencyKey: "k") { id } }"#).await;
            assert_eq!(code(&response), "MISCONFIGURED");
            assert!(!answered(&response).contains("s3cret"));
        }
    }
    assert_eq!(world.records().await, 0);
});

both!(a_late_claim_replays_errors_and_holds_after_a_crash, world, {
    world.on("lateInside", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "late").await?;
            if ctx.item.node.alias.is_some() { panic!("as the test says") } else { Err("declined".into()) }
        })
    });
    let server = world.server(Policy::leased());
    let document = r#"mutation { lateInside(idempotencyKey: "1") { id } }"#;
    let first = server.run(document).await;
    assert_eq!(code(&first), "declined");
    assert_eq!(answered(&first), answered(&server.run(document).await));
    for _ in 0..2 {
        let crashed = server.run(r#"mutation { a: lateInside(idempotencyKey: "2") { id } }"#).await;
        assert_eq!(code(&crashed), "OUTCOME_UNKNOWN");
    }
    assert_eq!(world.effects().await, 2);
});

both!(concurrent_late_duplicates_wait_and_replay, world, {
    world.on("late", |ctx| {
        Box::pin(async move {
            tokio::time::sleep(ms(200)).await;
            effect::<B>(ctx, "late").await?;
            Ok(Receipt::new("1"))
        })
    });
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        let document = format!(r#"mutation {{ late(idempotencyKey: "{key}") {{ id }} }}"#);
        let running: Vec<_> = (0..10).map(|_| server.spawn(&document)).collect();
        for response in futures_util::future::join_all(running).await {
            assert_eq!(answered(&response.unwrap()), r#"{"late":{"id":"1"}} []"#);
        }
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(a_resolver_that_may_not_claim_is_told, world, {
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    world.on("exempt", move |ctx| {
        let told = Arc::clone(&heard);
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>().err().unwrap();
            told.lock().unwrap().push(attempt.to_string());
            let claim = ctx.claim().await.unwrap_err().message;
            told.lock().unwrap().push(claim);
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::leased());
    assert_eq!(code(&server.run("mutation { exempt { id } }").await), "");
    for message in told.lock().unwrap().iter() {
        assert!(message.contains("no attempt is under way"), "{message}");
    }
    assert_eq!(told.lock().unwrap().len(), 2);
});

both!(an_attempt_of_another_store_is_told, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let other = ctx.attempt::<B::Store>().err().unwrap();
            assert!(matches!(other, AttemptError::OtherStore));
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            assert!(matches!(attempt.transaction().await, Err(AttemptError::NotTransactional)));
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::leased());
    assert_eq!(code(&server.run(r#"mutation { act(idempotencyKey: "k") { id } }"#).await), "");
});
