//! After a crash: steps, resumption, reconcilers, operators.

use async_graphql::{Error, Request};
use async_graphql_idempotency::record::StepKind;

use crate::support::{
    schema::Right,
    world::{CLIENT, client},
    *,
};

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

fn key(key: &str) -> IdempotencyKey {
    IdempotencyKey::new(key).unwrap()
}

fn resume() -> Policy {
    Policy::leased().on_crash(OnCrash::Resume)
}

/// Three steps; the n-th attempt crashes behind the n-th of them, and the one after all of them goes through.
fn crashing_steps<B: Backend>(world: &World<B>) -> Arc<Mutex<Vec<String>>> {
    let log = Arc::new(Mutex::new(Vec::new()));
    let (logged, gateway) = (Arc::clone(&log), world.gateway.clone());
    world.on("act", move |ctx| {
        let (log, gateway) = (Arc::clone(&logged), gateway.clone());
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let number = attempt.number();
            let note = |what: &str| log.lock().unwrap().push(format!("{what} {number}"));
            let order: String = attempt
                .local("order", async |connection| {
                    note("order");
                    B::write(connection, "order").await?;
                    Ok::<_, Error>(format!("order of {number}"))
                })
                .await?;
            assert!(number > 1, "the first crash");
            let charge: String = attempt
                .remote("charge", async |id| {
                    note("charge");
                    Ok::<_, Error>(gateway.charge(id))
                })
                .await?;
            assert!(number > 2, "the second crash");
            let refund: String = attempt
                .remote_with_lookup(
                    "refund",
                    async |id| {
                        note("lookup");
                        Ok::<_, Error>(gateway.lookup(id))
                    },
                    async |id| {
                        note("refund");
                        let refund = gateway.charge(id);
                        assert!(number > 3, "the third crash, before its result is stored");
                        Ok(refund)
                    },
                )
                .await?;
            Ok(Receipt::new(format!("{order}, {}, {}, {number}", charge == refund, &refund[..6])))
        })
    });
    log
}

both!(a_later_attempt_gets_the_results_of_finished_steps_without_running_them, world, {
    let log = crashing_steps(&world);
    let server = world.server(resume());
    let mut request_ids = Vec::new();
    for number in 1..=3 {
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
        let record = world.record("k").await.unwrap();
        assert_eq!((record.state, record.attempt), (State::NeedsRecovery, number));
        assert!(record.request.is_some());
        request_ids.push(record.request_id);
    }
    let done = server.run(DOCUMENT).await;
    assert_eq!(answered(&done), r#"{"act":{"id":"order of 1, false, charge, 4"}} []"#);
    assert!(!replayed(&done, "act"));
    assert_eq!(
        *log.lock().unwrap(),
        ["order 1", "charge 2", "refund 3", "lookup 4"],
        "each step ran once, and the gateway was asked before it was called again"
    );
    assert_eq!((world.effects().await, world.gateway.charges(), world.gateway.calls()), (1, 2, 2));
    let again = server.run(DOCUMENT).await;
    assert!(replayed(&again, "act"));
    assert_eq!(answered(&done), answered(&again));
    let record = world.record("k").await.unwrap();
    assert_eq!((record.state, record.attempt, record.request), (State::Succeeded, 4, None));
    assert!(request_ids.iter().all(|id| *id == record.request_id));
});

both!(a_sweeper_completes_a_mutation_whose_client_never_comes_back, world, {
    let log = crashing_steps(&world);
    let server = world.server_with(resume(), |builder| {
        builder.keep(|ctx| serde_json::json!({ "right": ctx.data_opt::<Right>().is_some_and(|right| right.0) }))
    });
    let variables = async_graphql::Variables::from_json(serde_json::json!({ "k": "k" }));
    let document =
        "mutation Pay($k: IdempotencyKey!) { first: exempt { id } paid: act(idempotencyKey: $k, amount: 3) { id } }";
    let asked = request(document).variables(variables).operation_name("Pay");
    assert_eq!(code(&server.execute(asked).await), "OUTCOME_UNKNOWN");
    let exempt = world.number("SELECT count(*) FROM effects WHERE label = 'exempt'").await;
    let rebuilt = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&rebuilt);
    let sweeper = server
        .idempotency
        .resume_with(server.schema.clone(), move |request: Request, record, kept| {
            assert_eq!((record.client.as_str(), kept["right"].as_bool()), (CLIENT, Some(true)));
            counted.fetch_add(1, Ordering::SeqCst);
            async { request.data(Right(true)) }
        })
        .backoff(ms(60_000));
    for round in 0..3 {
        let swept = sweeper.run_once().await.unwrap();
        assert_eq!(swept.recovered + swept.held, 1, "{round}");
        world.pass(Duration::from_mins(10)).await;
    }
    assert_eq!(world.state("k").await, "succeeded");
    assert_eq!(rebuilt.load(Ordering::SeqCst), 3);
    assert_eq!(*log.lock().unwrap(), ["order 1", "charge 2", "refund 3", "lookup 4"]);
    // Nothing else of the document ran again.
    assert_eq!(world.number("SELECT count(*) FROM effects WHERE label = 'exempt'").await, exempt);
    // The client comes back after all, under its own alias.
    let late = server.run(r#"mutation { x: act(idempotencyKey: "k", amount: 3) { i: id } }"#).await;
    assert_eq!(answered(&late), r#"{"x":{"i":"order of 1, false, charge, 4"}} []"#);
    assert!(replayed(&late, "x"));
    assert_eq!(world.record("k").await.unwrap().request, None);
    assert_eq!(sweeper.run_once().await.unwrap(), Swept::default());
});

both!(a_resumption_that_crashes_again_and_again_backs_off, world, {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    world.on("act", move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { panic!("as the test says") })
    });
    let server = world.server(resume());
    assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    let sweeper = |batch| {
        let sweeper = server.idempotency.resume_with(server.schema.clone(), async |request: Request, _, _| request);
        sweeper.batch(batch).backoff(ms(60_000))
    };
    let calls = || calls.load(Ordering::SeqCst);
    sweeper(500).run_once().await.unwrap();
    assert_eq!(calls(), 2);
    // Not again before its time.
    sweeper(500).run_once().await.unwrap();
    assert_eq!(calls(), 2);
    world.pass(Duration::from_mins(10)).await;
    // A round ends, however many records crash in it.
    tokio::time::timeout(ms(1_500), sweeper(1).run_once()).await.expect("one round of the sweeper never ends").unwrap();
    assert_eq!(calls(), 3);
});

both!(a_resumption_without_the_client_claims_late_fields_too, world, {
    world.on("late", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            assert!(attempt.number() > 1, "the first crash");
            effect::<B>(ctx, "late").await?;
            Ok(Receipt::new("resumed"))
        })
    });
    let server = world.server(resume());
    let document = r#"mutation { late(idempotencyKey: "k") { id } }"#;
    assert_eq!(code(&server.run(document).await), "OUTCOME_UNKNOWN");
    // Without the right it is refused again, and stays.
    let without = server.idempotency.resume_with(server.schema.clone(), async |request: Request, _, _| request);
    without.run_once().await.unwrap();
    assert_eq!(world.state("k").await, "needs_recovery");
    world.pass(Duration::from_hours(1)).await;
    let with =
        server.idempotency.resume_with(server.schema.clone(), async |request: Request, _, _| request.data(Right(true)));
    with.run_once().await.unwrap();
    assert_eq!(world.state("k").await, "succeeded");
    assert!(replayed(&server.run(document).await, "late"));
    assert_eq!(world.effects().await, 1);
});

both!(a_sweeper_and_a_client_that_resume_at_once_make_one_attempt, world, {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    world.on("act", move |ctx| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            assert!(call > 0, "the first crash");
            effect::<B>(ctx, "act").await?;
            tokio::time::sleep(ms(200)).await;
            Ok(Receipt::new("resumed"))
        })
    });
    let (one, two) = (world.server(resume()), world.server(resume()));
    assert_eq!(code(&one.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    let sweeper = one.idempotency.resume_with(one.schema.clone(), async |request: Request, _, _| request);
    let running: Vec<_> = (0..6).map(|n| if n % 2 == 0 { one.spawn(DOCUMENT) } else { two.spawn(DOCUMENT) }).collect();
    sweeper.run_once().await.unwrap();
    for response in running {
        assert_eq!(answered(&response.await.unwrap()), r#"{"act":{"id":"resumed"}} []"#);
    }
    assert_eq!((calls.load(Ordering::SeqCst), world.effects().await), (2, 1));
});

both!(a_step_that_is_used_twice_is_refused, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            attempt.local("once", async |_| Ok::<_, Error>(1)).await?;
            let again = attempt.remote("once", async |_| Ok::<_, Error>(1)).await.unwrap_err();
            Ok(Receipt::new(again.message))
        })
    });
    let server = world.server(Policy::leased());
    assert!(answered(&server.run(DOCUMENT).await).contains("the step once was used twice in one attempt"));
});

both!(an_attempt_whose_steps_have_changed_is_refused_and_settles_nothing, world, {
    for (n, steps) in [&["b"][..], &["a!"], &["c", "a", "b"], &[], &["a"]].iter().enumerate() {
        let steps = *steps;
        world.on("act", move |ctx| {
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                if attempt.number() == 1 {
                    attempt.local("a", async |_| Ok::<_, Error>(1)).await?;
                    attempt.local("b", async |_| Ok::<_, Error>(1)).await?;
                    panic!("as the test says");
                }
                for step in steps {
                    match step.strip_suffix('!') {
                        Some(step) => attempt.remote(step, async |_| Ok::<_, Error>(1)).await?,
                        None => {
                            attempt
                                .local(step, async |connection| {
                                    B::write(connection, step).await?;
                                    Ok::<_, Error>(1)
                                })
                                .await?
                        }
                    };
                }
                Ok(Receipt::new("guessed"))
            })
        });
        let server = world.server(resume());
        let document = format!(r#"mutation {{ act(idempotencyKey: "{n}") {{ id }} }}"#);
        assert_eq!(code(&server.run(&document).await), "OUTCOME_UNKNOWN");
        let refused = server.run(&document).await;
        assert!(!answered(&refused).contains("guessed"), "{steps:?}");
        assert_eq!(refused.errors.len(), 1, "{steps:?}");
        let record = world.record(&n.to_string()).await.unwrap();
        assert_eq!(record.state, State::NeedsRecovery, "{steps:?}: {}", refused.errors[0].message);
        assert!(record.reason.unwrap().contains("which the code no longer has"), "{steps:?}");
        assert_eq!(world.effects().await, 0, "{steps:?}");
    }
});

both!(a_release_behind_a_finished_step_keeps_it, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let number = attempt.number();
            let by: i32 = attempt
                .local("order", async |connection| {
                    B::write(connection, "order").await?;
                    Ok::<_, Error>(number)
                })
                .await?;
            if number < 3 {
                return Err(Error::new("try again").mark(Mark::Release));
            }
            Ok(Receipt::new(format!("order by {by} in attempt {number}")))
        })
    });
    let server = world.server(Policy::leased());
    for number in 1..=2 {
        assert_eq!(code(&server.run(DOCUMENT).await), "try again");
        let record = world.record("k").await.unwrap();
        assert_eq!((record.state, record.attempt), (State::Released, number));
        // The key still belongs to its request.
        let other = server.run(r#"mutation { act(idempotencyKey: "k", amount: 9) { id } }"#).await;
        assert_eq!(code(&other), "KEY_REUSED");
    }
    assert_eq!(answered(&server.run(DOCUMENT).await), r#"{"act":{"id":"order by 1 in attempt 3"}} []"#);
    assert_eq!(world.effects().await, 1);
});

both!(a_local_step_that_fails_leaves_no_effect_and_no_point, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let failed: Result<(), Error> = attempt
                .local("order", async |connection| {
                    B::write(connection, "order").await?;
                    Err(Error::new("out of stock"))
                })
                .await;
            Err(failed.unwrap_err())
        })
    });
    let server = world.server(Policy::leased());
    assert_eq!(code(&server.run(DOCUMENT).await), "out of stock");
    assert_eq!(world.state("k").await, "failed");
    assert_eq!((world.effects().await, world.number("SELECT count(*) FROM idempotency_steps").await), (0, 0));
});

both!(an_unfinished_remote_step_is_called_again_with_the_same_request_id, world, {
    let ids = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&ids);
    world.on("act", move |ctx| {
        let ids = Arc::clone(&seen);
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let number = attempt.number();
            attempt
                .remote("charge", async |id| {
                    ids.lock().unwrap().push(id);
                    if number == 1 { Err(Error::new("timeout")) } else { Ok(()) }
                })
                .await?;
            attempt
                .remote("mail", async |id| {
                    ids.lock().unwrap().push(id);
                    Ok::<_, Error>(())
                })
                .await?;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(resume());
    assert_eq!(code(&server.run(DOCUMENT).await), "timeout");
    assert_eq!(world.state("k").await, "needs_recovery");
    assert_eq!(code(&server.run(DOCUMENT).await), "");
    let ids = ids.lock().unwrap().clone();
    assert_eq!(ids.len(), 3);
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[1], ids[2]);
});

both!(a_resolver_that_goes_on_behind_a_failed_remote_step_is_not_believed, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            drop(attempt.remote("charge", async |_| Err::<(), _>(Error::new("timeout"))).await);
            Ok(Receipt::new("fine, it seems"))
        })
    });
    let server = world.server(Policy::leased());
    for _ in 0..2 {
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
        assert_eq!(world.state("k").await, "needs_recovery");
    }
});

both!(a_key_is_free_after_a_crash_where_the_policy_says_so, world, {
    let calls = AtomicUsize::new(0);
    world.on("act", move |ctx| {
        let call = calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            assert!(call % 2 == 1, "every other call crashes");
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::leased().on_crash(OnCrash::Release));
    assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    assert_eq!(code(&server.run(DOCUMENT).await), "");
    let swept = DOCUMENT.replace("\"k\"", "\"s\"");
    assert_eq!(code(&server.run(&swept).await), "OUTCOME_UNKNOWN");
    assert_eq!(server.sweep().await.recovered, 1);
    // Free, with its request id: a call of the lost attempt may still be on its way.
    assert_eq!(world.state("s").await, "released");
    assert_eq!(code(&server.run(&swept).await), "");
    assert_eq!(world.effects().await, 2);
});

/// Crashes whenever it is called.
fn crash<B: Backend>(world: &World<B>) {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            panic!("as the test says")
        })
    });
}

both!(a_reconciler_settles_what_it_knows, world, {
    crash(&world);
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let server = world.server_with(Policy::leased(), |builder| {
        builder.reconcile("act", move |record| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert_eq!((record.mutation.as_str(), record.state), ("act", State::NeedsRecovery));
                match record.key.as_str() {
                    "succeeded" => Found::Succeeded(serde_json::json!({
                        "id": "from the gateway", "child": { "id": "c" }, "unasked": 1
                    })),
                    "failed" => Found::Failed(Error::new("declined")),
                    "not started" => unreachable!("no such key"),
                    "fresh" => Found::NotStarted,
                    _ => Found::Unknown,
                }
            }
        })
    });
    let document =
        |key: &str| format!(r#"mutation {{ a: act(idempotencyKey: "{key}") {{ i: id child {{ id }} note }} }}"#);
    for key in ["succeeded", "failed", "fresh", "unknown"] {
        assert_eq!(code(&server.run(document(key)).await), "OUTCOME_UNKNOWN");
    }
    let swept = server.sweep().await;
    assert_eq!((swept.recovered, swept.held, asked.load(Ordering::SeqCst)), (3, 1, 4));
    let succeeded = server.run(document("succeeded")).await;
    assert_eq!(answered(&succeeded), r#"{"a":{"i":"from the gateway","child":{"id":"c"},"note":null}} []"#);
    assert!(replayed(&succeeded, "a"));
    let failed = server.run(document("failed")).await;
    assert_eq!(code(&failed), "declined");
    assert_eq!(serde_json::to_string(&failed.errors[0].path).unwrap(), r#"["a"]"#);
    assert!(replayed(&failed, "a"));
    assert_eq!(code(&server.run(document("unknown")).await), "OUTCOME_UNKNOWN");
    assert_eq!(world.state("fresh").await, "released");
    assert_eq!(world.effects().await, 4);
    assert_eq!(code(&server.run(document("fresh")).await), "OUTCOME_UNKNOWN");
    assert_eq!(world.effects().await, 5, "nothing had happened, so it runs");
    // Repeated failures back off.
    world.execute("DELETE FROM idempotency_records WHERE key = 'fresh'").await;
    assert_eq!(server.sweep().await, Swept::default());
    world.pass(Duration::from_secs(11)).await;
    assert_eq!(server.sweep().await.held, 1);
    world.pass(Duration::from_secs(11)).await;
    assert_eq!(server.sweep().await, Swept::default());
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(server.sweep().await.held, 1);
    assert_eq!(world.record("unknown").await.unwrap().recoveries, 3);
});

both!(an_operator_lists_inspects_and_settles, world, {
    crash(&world);
    let server = world.server(Policy::leased());
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
    for name in ["succeeded", "failed", "released", "given"] {
        assert_eq!(code(&server.run(document(name)).await), "OUTCOME_UNKNOWN");
    }
    server.run(r#"mutation { other(idempotencyKey: "done") { id } }"#).await;
    let operator = server.idempotency.operator();
    let held = Filter { state: Some(State::NeedsRecovery), ..Filter::default() };
    assert_eq!(operator.list(&held).await.unwrap().len(), 4);
    assert_eq!(operator.list(&Filter { limit: 2, ..held.clone() }).await.unwrap().len(), 2);
    let others = Filter { mutation: Some("other".into()), client: Some(client(CLIENT)), ..Filter::default() };
    assert_eq!(operator.list(&others).await.unwrap().len(), 1);
    assert!(operator.list(&Filter { client: Some(client("x")), ..Filter::default() }).await.unwrap().is_empty());
    assert!(
        operator.list(&Filter { older_than: Some(Duration::from_mins(1)), ..held.clone() }).await.unwrap().is_empty()
    );
    let counts = operator.count().await.unwrap();
    assert_eq!(
        counts.iter().map(|count| (count.mutation.as_str(), count.state, count.records)).collect::<Vec<_>>(),
        [("act", State::NeedsRecovery, 4), ("other", State::Succeeded, 1)]
    );

    let me = client(CLIENT);
    let day = Duration::from_hours(24);
    let settle = async |name: &str, told| operator.settle(&me, &key(name), told, None, "asked the bank", day).await;
    settle("failed", Told::Failed).await.unwrap();
    settle("released", Told::NotStarted).await.unwrap();
    server
        .idempotency
        .settle(
            &server.schema,
            &me,
            &key("succeeded"),
            Found::Succeeded(serde_json::json!({ "id": "by hand" })),
            "saw it",
        )
        .await
        .unwrap();
    server
        .idempotency
        .settle(&server.schema, &me, &key("given"), Found::Failed(Error::new("by hand")), "saw it")
        .await
        .unwrap();
    assert_eq!(code(&server.run(document("failed")).await), "RESPONSE_NOT_STORED");
    assert_eq!(answered(&server.run(document("succeeded")).await), r#"{"act":{"id":"by hand"}} []"#);
    assert_eq!(code(&server.run(document("given")).await), "by hand");
    assert_eq!(world.state("released").await, "released");
    let inspection = operator.inspect(&me, &key("succeeded")).await.unwrap().unwrap();
    assert_eq!(inspection.reading.record.reason.clone().unwrap(), "settled by an operator: saw it");
    assert!(operator.inspect(&me, &key("nothing")).await.unwrap().is_none());

    // Only what is unknown can be settled.
    for name in ["succeeded", "failed", "done", "nothing"] {
        assert!(matches!(settle(name, Told::NotStarted).await, Err(SettleError::NotHeld)), "{name}");
    }
    let unknown = server.idempotency.settle(&server.schema, &me, &key("done"), Found::Unknown, "").await;
    assert!(unknown.is_err());
});

both!(an_operator_sees_the_steps_and_settles_a_lapsed_attempt, world, {
    let gateway = world.gateway.clone();
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    world.on("act", move |ctx| {
        let (gateway, gate) = (gateway.clone(), Arc::clone(&gate));
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            attempt.local("order", async |_| Ok::<_, Error>(7)).await?;
            attempt
                .remote("charge", async |id| {
                    drop(gate.acquire().await.unwrap());
                    Ok::<_, Error>(gateway.charge(id))
                })
                .await?;
            Ok(Receipt::new("late"))
        })
    });
    let server = world.server(Policy::leased());
    let running = server.spawn(DOCUMENT);
    tokio::time::sleep(ms(200)).await;
    let operator = Operator::new(world.store.clone());
    let me = client(CLIENT);
    let inspection = operator.inspect(&me, &key("k")).await.unwrap().unwrap();
    let points: Vec<_> =
        inspection.steps.iter().map(|p| (p.name.as_str(), p.kind, p.attempt, p.result.as_deref())).collect();
    assert_eq!(points, [("order", StepKind::Local, 1, Some("7")), ("charge", StepKind::Remote, 1, None)]);
    let day = Duration::from_hours(24);
    let early = operator.settle(&me, &key("k"), Told::Succeeded, None, "too early", day).await;
    assert!(matches!(early, Err(SettleError::NotHeld)));
    // Lapsed, and no sweeper has come by.
    world.pass(Duration::from_secs(31)).await;
    operator.settle(&me, &key("k"), Told::Succeeded, None, "saw the charge", day).await.unwrap();
    go_on.add_permits(1);
    let late = running.await.unwrap();
    assert!(!answered(&late).contains("late"), "{}", answered(&late));
    assert_eq!(world.state("k").await, "succeeded");
    assert_eq!(code(&server.run(DOCUMENT).await), "RESPONSE_NOT_STORED");
});

both!(the_stored_request_is_there_only_while_it_may_be_needed, world, {
    let server = world.server(resume());
    let requests = async || {
        world.number("SELECT count(*) FROM idempotency_records WHERE body IS NOT NULL AND state IN ('in_progress', 'needs_recovery')").await
    };
    for (script, state, kept) in [("well", "succeeded", 0), ("error", "failed", 0), ("panic", "needs_recovery", 1)] {
        world.on("act", move |_| {
            Box::pin(async move {
                match script {
                    "well" => Ok(Receipt::new("1")),
                    "error" => Err("declined".into()),
                    _ => panic!("as the test says"),
                }
            })
        });
        server.run(format!(r#"mutation {{ act(idempotencyKey: "{script}") {{ id }} }}"#)).await;
        assert_eq!(world.state(script).await, state);
        assert_eq!(requests().await, kept, "{script}");
    }
    // A policy that does not resume stores none.
    let holds = world.server(Policy::leased());
    holds.run(r#"mutation { act(idempotencyKey: "hold") { id } }"#).await;
    assert_eq!(world.state("hold").await, "needs_recovery");
    assert_eq!(requests().await, 1);
    let me = client(CLIENT);
    server
        .idempotency
        .settle(&server.schema, &me, &key("panic"), Found::Failed(Error::new("no")), "by hand")
        .await
        .unwrap();
    assert_eq!(requests().await, 0);
});

both!(a_transactional_policy_takes_no_on_crash, world, {
    let refused = Idempotency::builder(world.store.clone())
        .policy("act", Policy::transactional().on_crash(OnCrash::Resume))
        .build();
    assert_eq!(refused.err().unwrap().of, "act");
});
