//! What never comes to an end by itself is ended: a resolver, a reconciler, a server that stops.

use async_graphql::{Context, Error, Result};
use async_graphql_idempotency::GraphQLIdempotency;
use axum::{body::Body, http};
use tower::ServiceExt;

use crate::support::{
    schema::TestSchema,
    world::{CLIENT, Server, client},
    *,
};

mod lapsed;
mod sweeper;

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key).unwrap()
}

/// Where a resolver waits for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    OwnCode,
    LocalStep,
    RemoteStep,
    /// Holding the attempt's transaction.
    Transaction,
}

async fn hang<B: Backend>(ctx: &Context<'_>, gateway: &Gateway, at: Where) -> Result<Receipt> {
    let attempt = ctx.attempt::<Faulty<B::Store>>()?;
    match at {
        Where::OwnCode => effect::<B>(ctx, "act").await?,
        Where::LocalStep => {
            let forever = async |connection: &mut _| {
                B::write(connection, "act").await?;
                std::future::pending::<()>().await;
                Ok::<_, Error>(())
            };
            attempt.local("order", forever).await?;
        }
        Where::RemoteStep => {
            let forever = async |id| {
                gateway.charge(id);
                std::future::pending::<()>().await;
                Ok::<_, Error>(())
            };
            attempt.remote("charge", forever).await?;
        }
        Where::Transaction => {
            let mut held = attempt.transaction().await?;
            B::write(&mut held, "act").await?;
            std::future::pending::<()>().await;
        }
    }
    std::future::pending().await
}

fn hangs<B: Backend>(world: &World<B>, mutation: &'static str, at: Where) -> Arc<AtomicUsize> {
    let is_mended = Arc::new(AtomicUsize::new(0));
    let (mended, gateway) = (Arc::clone(&is_mended), world.gateway.clone());
    world.on(mutation, move |ctx| {
        let (is_mended, gateway) = (mended.load(Ordering::SeqCst) == 1, gateway.clone());
        Box::pin(async move {
            if is_mended {
                effect::<B>(ctx, "act").await?;
                return Ok(Receipt::new("mended"));
            }
            hang::<B>(ctx, &gateway, at).await
        })
    });
    is_mended
}

/// At `max_attempt` the resolver is dropped, its client and whoever waits are told, and the key is as the policy says.
async fn ends_in_time<B: Backend>(world: &World<B>, is_transactional: bool, at: Where) {
    let policy = if is_transactional { Policy::transactional() } else { Policy::leased() };
    let server = world.server(policy.max_attempt(ms(250)));
    for mutation in ["act", "maybe", "late", "lateInside"] {
        let case = format!("{mutation}, transactional: {is_transactional}, {at:?}");
        world.afresh().await;
        let is_mended = hangs(world, mutation, at);
        let only = format!(r#"mutation {{ {mutation}(idempotencyKey: "k") {{ id }} }}"#);
        let both = only.replace(" } }", r#" } other(idempotencyKey: "other") { id } }"#);
        let begun = Instant::now();
        let first = server.spawn(&both);
        tokio::time::sleep(ms(100)).await;
        let duplicate = server.spawn(&only);
        let told = if is_transactional { "ROLLED_BACK" } else { "OUTCOME_UNKNOWN" };
        let first = tokio::time::timeout(ms(3_000), first).await.unwrap_or_else(|_| panic!("{case}: it never ends"));
        assert_eq!(code(&first.unwrap()), told, "{case}");
        assert!(begun.elapsed() > ms(200), "{case}: {:?}", begun.elapsed());
        assert_eq!(world.state("other").await, "succeeded", "{case}: the document goes on");
        let rows = "SELECT count(*) FROM effects WHERE label = 'act'";
        // The duplicate has waited; of what was undone it makes an attempt of its own, which hangs as well.
        assert_eq!(code(&duplicate.await.unwrap()), told, "{case}");
        if is_transactional {
            assert_eq!((world.state("k").await.as_str(), world.number(rows).await), ("none", 0), "{case}");
            is_mended.store(1, Ordering::SeqCst);
            assert_eq!(code(&server.run(&only).await), "", "{case}: free again");
            assert_eq!(world.number(rows).await, 1, "{case}");
        } else {
            let held = world.record("k").await.unwrap();
            assert_eq!(held.state, State::NeedsRecovery, "{case}");
            let reason = if at == Where::RemoteStep { "charge" } else { "dropped" };
            assert!(held.reason.unwrap().contains(reason), "{case}");
            assert_eq!(code(&server.run(&only).await), "OUTCOME_UNKNOWN", "{case}");
            assert_eq!(world.number(rows).await, i64::from(at == Where::OwnCode), "{case}");
        }
        assert!(begun.elapsed() < ms(4_000), "{case}: {:?}", begun.elapsed());
    }
}

both!(a_resolver_that_waits_for_ever_is_ended_when_its_time_is_over, world, {
    ends_in_time(&world, false, Where::OwnCode).await;
    ends_in_time(&world, false, Where::RemoteStep).await;
    ends_in_time(&world, true, Where::OwnCode).await;
});

both!(a_local_step_that_waits_for_ever_is_ended_and_undone_when_its_time_is_over, world, {
    ends_in_time(&world, false, Where::LocalStep).await;
});

both!(a_resolver_that_holds_its_transaction_for_ever_is_ended_and_undone_when_its_time_is_over, world, {
    ends_in_time(&world, true, Where::Transaction).await;
});

both!(an_operator_takes_the_key_of_a_hung_attempt_and_nothing_that_it_still_does_is_kept, world, {
    let (go_on, gateway) = (Arc::new(tokio::sync::Semaphore::new(0)), world.gateway.clone());
    let gate = Arc::clone(&go_on);
    world.on("act", move |ctx| {
        let (gate, gateway) = (Arc::clone(&gate), gateway.clone());
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let slow = async |id| {
                let charge = gateway.charge(id);
                drop(gate.acquire().await.unwrap());
                Ok::<_, Error>(charge)
            };
            attempt.remote("charge", slow).await?;
            Ok(Receipt::new("late"))
        })
    });
    let policy = Policy::leased().lease(ms(600)).renew_every(ms(100)).wait(ms(0));
    let (one, two) =
        (world.server(policy.clone()), world.server_on(world.other_store(4).await, policy, |builder| builder));
    let (operator, me) = (two.idempotency.operator(), client(CLIENT));
    assert!(matches!(operator.take(&me, &key("k"), "nothing there").await, Err(SettleError::NotHeld)));
    let hung = one.spawn(DOCUMENT);
    world.until_state("k", "in_progress").await;
    while world.gateway.charges() == 0 {
        tokio::time::sleep(ms(10)).await;
    }
    operator.take(&me, &key("k"), "the provider does not answer").await.unwrap();
    let taken = world.record("k").await.unwrap();
    assert_eq!(taken.state, State::NeedsRecovery);
    assert!(taken.reason.unwrap().contains("the provider does not answer"));
    assert!(matches!(operator.take(&me, &key("k"), "twice").await, Err(SettleError::NotHeld)));
    // Several renewals later it is still the operator's.
    tokio::time::sleep(ms(300)).await;
    assert_eq!(world.state("k").await, "needs_recovery");
    assert_eq!(code(&two.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    go_on.add_permits(1);
    let late = hung.await.unwrap();
    assert_eq!(code(&late), "OUTCOME_UNKNOWN", "{}", answered(&late));
    assert_eq!(world.state("k").await, "needs_recovery");
    assert_eq!(world.number("SELECT count(*) FROM idempotency_steps WHERE result IS NOT NULL").await, 0);
    let by_hand = Found::Succeeded(serde_json::json!({ "id": "by hand" }));
    two.idempotency.settle(&two.schema, &me, &key("k"), by_hand, "saw the charge").await.unwrap();
    for server in [&one, &two] {
        assert_eq!(answered(&server.run(DOCUMENT).await), r#"{"act":{"id":"by hand"}} []"#);
    }
    assert!(matches!(operator.take(&me, &key("k"), "settled").await, Err(SettleError::NotHeld)));
    B::close(&two.idempotency.store().inner).await;
});

both!(what_an_operator_has_settled_is_told_by_the_process_whose_attempt_still_hangs_too, world, {
    hangs(&world, "act", Where::RemoteStep);
    let policy = Policy::leased().lease(ms(600)).renew_every(ms(100)).wait(ms(200));
    let server = world.server(policy);
    let hung = server.spawn(DOCUMENT);
    while world.gateway.charges() == 0 {
        tokio::time::sleep(ms(10)).await;
    }
    let me = client(CLIENT);
    server.idempotency.operator().take(&me, &key("k"), "the provider does not answer").await.unwrap();
    // By the next renewal at the latest, this process has heard of it.
    tokio::time::sleep(ms(300)).await;
    assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    let by_hand = Found::Succeeded(serde_json::json!({ "id": "by hand" }));
    server.idempotency.settle(&server.schema, &me, &key("k"), by_hand, "saw the charge").await.unwrap();
    assert_eq!(answered(&server.run(DOCUMENT).await), r#"{"act":{"id":"by hand"}} []"#);
    hung.abort();
});

/// A document over HTTP, as a client sends it.
fn sent<B: Backend>(
    service: &GraphQLIdempotency<TestSchema>,
    document: &str,
) -> tokio::task::JoinHandle<serde_json::Value> {
    let body = serde_json::json!({ "query": document }).to_string();
    let request = http::Request::post("/").header("content-type", "application/json").body(Body::from(body)).unwrap();
    let answer = service.clone().oneshot(request);
    tokio::spawn(async move {
        let body = axum::body::to_bytes(answer.await.unwrap().into_body(), 1 << 20).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    })
}

fn service<B: Backend>(server: &Server<B>) -> GraphQLIdempotency<TestSchema> {
    GraphQLIdempotency::new(server.schema.clone(), |_| Some(client(CLIENT)))
}

/// Shuts a server down that has a hung request; what its client was told.
async fn shut_down<B: Backend>(
    world: &World<B>,
    policy: Policy,
    at: Where,
    state: &str,
    effects: i64,
) -> serde_json::Value {
    world.afresh().await;
    let is_mended = hangs(world, "act", at);
    let server = world.server(policy);
    let hanging = service(&server);
    let hung = sent::<B>(&hanging, DOCUMENT);
    tokio::time::sleep(ms(200)).await;
    assert!(!hung.is_finished());
    let begun = Instant::now();
    assert!(!hanging.shutdown(ms(200)).await, "{at:?}");
    assert!((ms(200)..ms(4_000)).contains(&begun.elapsed()), "{at:?}: {:?}", begun.elapsed());
    assert_eq!((world.state("k").await.as_str(), world.effects().await), (state, effects), "{at:?}");
    is_mended.store(1, Ordering::SeqCst);
    let retry = code(&server.run(DOCUMENT).await);
    assert_eq!(retry, if state == "none" { "" } else { "OUTCOME_UNKNOWN" }, "{at:?}");
    hung.await.unwrap()
}

both!(shutdown_ends_at_its_deadline_and_drops_what_hangs, world, {
    let transactional = Policy::transactional;
    shut_down(&world, Policy::leased(), Where::OwnCode, "needs_recovery", 1).await;
    shut_down(&world, Policy::leased(), Where::LocalStep, "needs_recovery", 0).await;
    shut_down(&world, Policy::leased(), Where::RemoteStep, "needs_recovery", 0).await;
    shut_down(&world, transactional(), Where::Transaction, "none", 0).await;
    // Where nothing runs there is nothing to wait for.
    let begun = Instant::now();
    assert!(service(&world.server(transactional())).shutdown(Duration::from_secs(20)).await);
    assert!(begun.elapsed() < ms(1_000));
});

both!(what_shutdown_drops_is_told_by_a_code, world, {
    for (policy, at, state) in
        [(Policy::leased(), Where::RemoteStep, "needs_recovery"), (Policy::transactional(), Where::Transaction, "none")]
    {
        let answer = shut_down(&world, policy, at, state, 0).await;
        let extensions = &answer["errors"][0]["extensions"];
        let told = extensions["code"].as_str().unwrap_or_else(|| panic!("no code: {answer}"));
        assert!(["IDEMPOTENCY_OUTCOME_UNKNOWN", "IDEMPOTENCY_ROLLED_BACK"].contains(&told), "{answer}");
        assert_eq!(extensions["retryable"], true, "{answer}");
    }
});
