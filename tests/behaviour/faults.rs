//! The store fails: at any call, before or after its effect.

use crate::support::{
    world::{Server, client},
    *,
};

/// A mutation of several steps, with one effect of each kind.
fn steps<B: Backend>(world: &World<B>) {
    let gateway = world.gateway.clone();
    world.on("act", move |ctx| {
        let gateway = gateway.clone();
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let order: String = attempt
                .local("order", async |connection| {
                    B::write(connection, "order").await?;
                    Ok::<_, async_graphql::Error>("order".to_owned())
                })
                .await?;
            let charge: String =
                attempt.remote("charge", async |id| Ok::<_, async_graphql::Error>(gateway.charge(id))).await?;
            attempt
                .local("receipt", async |connection| {
                    B::write(connection, "receipt").await?;
                    Ok::<_, async_graphql::Error>(())
                })
                .await?;
            Ok(Receipt::new(format!("{order} {}", charge.len())))
        })
    });
}

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id note } }"#;

/// A new key, and nothing left of the last one.
async fn afresh<B: Backend>(world: &World<B>) -> String {
    world.execute("DELETE FROM effects").await;
    world.execute("DELETE FROM idempotency_records").await;
    world.gateway.forget();
    DOCUMENT.replace("\"k\"", &format!("\"{}\"", uuid::Uuid::new_v4()))
}

/// Fails the n-th call, for every n, until a run goes through without the fault.
async fn every_call<B: Backend>(world: &World<B>, policy: Policy, most: i64, in_full: &'static str) {
    let server = world.server(policy);
    for moment in [Moment::Before, Moment::After] {
        let mut n = 0;
        loop {
            let document = afresh(world).await;
            world.store.fail(n, moment);
            let first = server.run(&document).await;
            // Whoever comes meanwhile may add a call of the store's, so the fault is over first.
            let calls = world.store.calls();
            let struck = world.store.heal();
            let case = format!("call {n} of {calls:?} fails {moment:?}: {:?}", answered(&first));
            settle(world, &server, &document, &first, most, in_full, &case).await;
            if !struck {
                assert_eq!(code(&first), "", "{case}");
                break;
            }
            n += 1;
            assert!(n < 30);
        }
        assert!(n > 1);
    }
}

async fn settle<B: Backend>(
    world: &World<B>,
    server: &Server<B>,
    document: &str,
    first: &async_graphql::Response,
    most: i64,
    in_full: &str,
    case: &str,
) {
    let effects = async || {
        let most = world
            .number("SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM effects GROUP BY label) AS c")
            .await;
        assert!(most <= 1, "{case}: a second effect");
        assert!(world.gateway.charges() <= 1, "{case}: a second charge");
        world.effects().await
    };
    assert!(!answered(first).contains("secret"), "{case}");
    let after_first = effects().await;
    let first_code = code(first);
    match first_code.as_str() {
        "" => assert_eq!(after_first, most, "{case}"),
        "STORE_UNAVAILABLE" | "ROLLED_BACK" => assert_eq!(after_first, 0, "{case}: told that nothing was executed"),
        _ => {}
    }
    // What was begun in the background may go on for a moment; then a retry gets the truth.
    let mut again = String::new();
    for _ in 0..40 {
        let response = server.run(document).await;
        effects().await;
        again = code(&response);
        if again.is_empty() && first_code.is_empty() {
            assert_eq!(answered(first), answered(&response), "{case}");
        }
        if again != "IN_PROGRESS" {
            break;
        }
        tokio::time::sleep(ms(25)).await;
    }
    assert_ne!(again, "IN_PROGRESS", "{case}: stuck");
    assert!(["", "OUTCOME_UNKNOWN"].contains(&again.as_str()) || again == first_code, "{case}: {again}");
    if first_code == "STORE_UNAVAILABLE" || first_code == "ROLLED_BACK" {
        assert_eq!(again, "", "{case}: the key of what was not executed is free");
    }
    // Once every lease is over nothing is in progress.
    world.pass(Duration::from_secs(30)).await;
    server.sweep().await;
    assert_eq!(world.number("SELECT count(*) FROM idempotency_records WHERE state = 'in_progress'").await, 0, "{case}");
    let last = code(&server.run(document).await);
    assert!(["", "OUTCOME_UNKNOWN"].contains(&last.as_str()) || last == first_code, "{case}: {last}");
    assert!(effects().await <= most, "{case}");
    if again.is_empty() {
        assert_eq!(effects().await, most, "{case}: {in_full}");
    }
}

both!(no_fault_of_the_store_makes_a_second_effect_of_a_leased_mutation, world, {
    every_call(&world, Policy::leased().wait(ms(100)), 1, "one effect").await;
});

both!(no_fault_of_the_store_makes_a_second_effect_of_a_transactional_mutation, world, {
    every_call(&world, Policy::transactional().wait(ms(100)), 1, "one effect").await;
});

both!(no_fault_of_the_store_makes_a_second_effect_of_a_mutation_in_steps, world, {
    steps(&world);
    every_call(&world, Policy::leased().wait(ms(100)), 2, "both steps").await;
});

both!(a_resumed_mutation_in_steps_is_completed_whatever_call_fails, world, {
    steps(&world);
    let server = world.server(Policy::leased().wait(ms(100)).on_crash(OnCrash::Resume));
    for moment in [Moment::Before, Moment::After] {
        for n in 0..30 {
            let document = afresh(&world).await;
            world.store.fail(n, moment);
            let first = server.run(&document).await;
            let calls = world.store.calls();
            let struck = world.store.heal();
            let case = format!("call {n} of {calls:?} fails {moment:?}: {}", answered(&first));
            let mut last = String::new();
            for _ in 0..40 {
                last = code(&server.run(&document).await);
                if last.is_empty() {
                    break;
                }
                tokio::time::sleep(ms(25)).await;
                world.pass(Duration::from_secs(10)).await;
            }
            assert_eq!(last, "", "{case}");
            assert_eq!(world.gateway.charges(), 1, "{case}");
            assert_eq!(world.texts("SELECT label FROM effects ORDER BY label").await, ["order", "receipt"], "{case}");
            if !struck {
                assert!(n > 4);
                break;
            }
        }
    }
});

/// The store goes away while the resolver runs.
async fn goes_away<B: Backend>(policy: Policy) {
    let world = World::<B>::new().await;
    let store = world.store.clone();
    world.on("act", move |ctx| {
        let store = store.clone();
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            store.down();
            Ok(Receipt::new("1"))
        })
    });
    let transactional = policy.check().is_ok() && format!("{policy:?}").contains("Transactional");
    let server = world.server(policy.wait(ms(if transactional { 2_000 } else { 100 })));
    let first = server.run(DOCUMENT);
    let first = if transactional {
        // Nobody knows whether it was committed, until the store is back.
        let waiting = server.spawn(DOCUMENT);
        tokio::time::sleep(ms(200)).await;
        world.store.heal();
        waiting.await.unwrap()
    } else {
        first.await
    };
    let first_code = code(&first);
    let away = if transactional { String::new() } else { code(&server.run(DOCUMENT).await) };
    world.store.heal();
    if transactional {
        assert_eq!(first_code, "ROLLED_BACK");
        assert_eq!(world.effects().await, 0);
        world.on("act", |ctx| Box::pin(async move { effect::<B>(ctx, "act").await.map(|()| Receipt::new("1")) }));
        assert_eq!(code(&server.run(DOCUMENT).await), "");
    } else {
        assert_eq!(answered(&first), r#"{"act":{"id":"1","note":null}} []"#);
        assert!(["STORE_UNAVAILABLE", "IN_PROGRESS"].contains(&away.as_str()), "{away}");
        // It is stored once the store is back.
        world.until_state("k", "succeeded").await;
        let again = server.run(DOCUMENT).await;
        assert_eq!(answered(&first), answered(&again));
        assert!(replayed(&again, "act"));
    }
    assert_eq!(world.effects().await, 1);
    world.done().await;
}

both!(a_store_that_goes_away_while_the_resolver_runs_costs_no_effect_and_no_lie, world, {
    drop(world.server(Policy::leased()));
    goes_away::<B>(Policy::leased()).await;
    goes_away::<B>(Policy::transactional()).await;
});

both!(a_store_that_is_away_before_the_claim_is_told_and_recovers, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        let effects = world.effects().await;
        world.store.down();
        for _ in 0..3 {
            let response = server.run(&document).await;
            assert_eq!(code(&response), "STORE_UNAVAILABLE");
            assert!(!format!("{response:?}").contains("secret"));
            let extensions = serde_json::to_value(response.errors[0].extensions.as_ref().unwrap()).unwrap();
            assert_eq!(extensions["httpStatus"], 503);
            assert_eq!(extensions["retryable"], true);
            assert!(extensions["retryAfterMs"].as_u64().unwrap() > 0);
        }
        assert_eq!(world.effects().await, effects);
        world.store.heal();
        assert_eq!(code(&server.run(&document).await), "");
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(a_pool_that_gives_no_connection_in_time_is_told_as_an_unavailable_store, world, {
    if B::POSTGRES {
        let store = world.other_store(1).await;
        let owner = async_graphql_idempotency::record::Owner {
            client: client("nobody"),
            key: IdempotencyKey::new("none").unwrap(),
            request_id: uuid::Uuid::nil(),
            attempt: 1,
        };
        let held = store.inner.transaction(&owner).await.unwrap();
        let server = world.server_on(store, Policy::leased(), |builder| builder.store_timeout(ms(300)));
        assert_eq!(code(&server.run(DOCUMENT).await), "STORE_UNAVAILABLE");
        drop(held);
        // What was asked for then is given back, if it was taken at all.
        let mut last = String::new();
        for _ in 0..40 {
            last = code(&server.run(DOCUMENT).await);
            if last.is_empty() {
                break;
            }
        }
        assert_eq!(last, "");
        assert_eq!(world.effects().await, 1);
    }
});

both!(a_final_error_that_could_not_be_recorded_leaves_no_effect, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Err(async_graphql::Error::new("declined").mark(Mark::Final))
        })
    });
    for moment in [Moment::Before, Moment::After] {
        let server = world.server(Policy::transactional());
        world.store.fail_verb("record", moment);
        let first = code(&server.run(DOCUMENT).await);
        assert!(
            ["declined", "STORE_UNAVAILABLE", "ROLLED_BACK", "OUTCOME_UNKNOWN"].contains(&first.as_str()),
            "{first}"
        );
        world.store.heal();
        assert_eq!(code(&server.run(DOCUMENT).await), "declined");
        assert_eq!(world.effects().await, 0);
        world.execute("DELETE FROM idempotency_records").await;
    }
});
