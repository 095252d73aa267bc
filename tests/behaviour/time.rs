//! Leases, retention, tombstones: the store's clock.

use futures_util::future::join_all;

use crate::support::*;

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

fn short() -> Policy {
    Policy::leased().lease(ms(600)).renew_every(ms(150))
}

/// For many at once, on a machine that may be busy.
fn patient() -> Policy {
    Policy::leased().lease(ms(1_200)).renew_every(ms(200))
}

both!(a_live_owner_keeps_its_lease, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            tokio::time::sleep(ms(1_500)).await;
            Ok(Receipt::new("1"))
        })
    });
    let policy = short().on_crash(OnCrash::Resume);
    let (one, two) = (world.server(policy.clone()), world.server(policy.wait(ms(0))));
    let first = one.spawn(DOCUMENT);
    for _ in 0..5 {
        tokio::time::sleep(ms(250)).await;
        assert_eq!(code(&two.run(DOCUMENT).await), "IN_PROGRESS");
        assert_eq!(two.sweep().await, Swept::default());
    }
    assert_eq!(code(&first.await.unwrap()), "");
    assert!(replayed(&two.run(DOCUMENT).await, "act"));
    assert_eq!(world.effects().await, 1);
});

both!(many_live_owners_keep_their_leases_and_so_do_those_that_come_when_all_have_ended, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            tokio::time::sleep(ms(2_000)).await;
            Ok(Receipt::new("1"))
        })
    });
    let policy = patient().on_crash(OnCrash::Resume);
    let (one, two) = (world.server(policy.clone()), world.server(policy.wait(ms(0))));
    for round in 0..2 {
        let document = |key: usize| format!(r#"mutation {{ act(idempotencyKey: "{round}-{key}") {{ id }} }}"#);
        let running: Vec<_> = (0..12).map(|key| one.spawn(document(key))).collect();
        tokio::time::sleep(ms(1_600)).await;
        for key in 0..12 {
            assert_eq!(code(&two.run(document(key)).await), "IN_PROGRESS", "{key}");
        }
        for response in running {
            assert_eq!(code(&response.await.unwrap()), "");
        }
        assert_eq!(world.effects().await, (round + 1) * 12);
        // Longer than a renewal is away: nothing is kept any more.
        tokio::time::sleep(ms(300)).await;
    }
});

#[tokio::test]
async fn a_lease_is_kept_by_the_runtime_that_its_attempt_runs_on() {
    // SQLite's connections belong to no runtime.
    let world = World::<SqliteBackend>::new().await;
    world.on("act", |_| {
        Box::pin(async move {
            tokio::time::sleep(ms(2_000)).await;
            Ok(Receipt::new("1"))
        })
    });
    let policy = patient().on_crash(OnCrash::Resume);
    let (one, two) = (world.server(policy.clone()), world.server(policy.wait(ms(0))));
    for key in 0..2 {
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        let (server, asked) = (one.clone(), document.clone());
        let running = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move { code(&server.run(asked).await) })
        });
        tokio::time::sleep(ms(1_600)).await;
        assert_eq!(code(&two.run(&document).await), "IN_PROGRESS");
        assert_eq!(running.await.unwrap(), "");
    }
    world.done().await;
}

both!(an_owner_that_comes_back_late_changes_nothing_and_its_client_gets_the_truth, world, {
    let calls = AtomicUsize::new(0);
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    world.on("act", move |ctx| {
        let call = calls.fetch_add(1, Ordering::SeqCst) + 1;
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            if call == 1 {
                drop(gate.acquire().await.unwrap());
            }
            let step = attempt
                .local("step", async |connection| {
                    B::write(connection, "act").await?;
                    Ok::<_, async_graphql::Error>(call)
                })
                .await;
            if call == 1 {
                assert!(step.unwrap_err().message.contains("another attempt has taken the key over"));
                return Ok(Receipt::new("late"));
            }
            Ok(Receipt::new(format!("attempt {}", attempt.number())))
        })
    });
    let policy = Policy::leased().on_crash(OnCrash::Resume);
    let (one, two) = (world.server(policy.clone()), world.server(policy));
    let late = one.spawn(DOCUMENT);
    tokio::time::sleep(ms(150)).await;
    world.pass(Duration::from_secs(31)).await;
    let winner = two.run(DOCUMENT).await;
    assert_eq!(answered(&winner), r#"{"act":{"id":"attempt 2"}} []"#);
    let record = world.record("k").await.unwrap();
    go_on.add_permits(1);
    let late = late.await.unwrap();
    assert_eq!(answered(&late), answered(&winner));
    assert_eq!(world.record("k").await.unwrap(), record);
    assert_eq!(world.effects().await, 1);
});

both!(a_late_owner_whose_key_nobody_took_over_settles_it, world, {
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    world.on("act", move |ctx| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            drop(gate.acquire().await.unwrap());
            Ok(Receipt::new("1"))
        })
    });
    let (one, two) = (world.server(Policy::leased()), world.server(Policy::leased()));
    let late = one.spawn(DOCUMENT);
    tokio::time::sleep(ms(150)).await;
    world.pass(Duration::from_secs(31)).await;
    assert_eq!(code(&two.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    assert_eq!(two.sweep().await.lapsed, 1);
    assert_eq!(world.state("k").await, "needs_recovery");
    go_on.add_permits(1);
    let late = late.await.unwrap();
    assert_eq!(answered(&late), r#"{"act":{"id":"1"}} []"#);
    assert_eq!(world.state("k").await, "succeeded");
    let again = two.run(DOCUMENT).await;
    assert!(replayed(&again, "act"));
    assert_eq!(answered(&late), answered(&again));
    assert_eq!(world.effects().await, 1);
});

both!(the_sweeper_frees_nothing_that_is_running_or_unknown, world, {
    let go_on = Arc::new(tokio::sync::Semaphore::new(0));
    let gate = Arc::clone(&go_on);
    world.on("act", move |ctx| {
        let gate = Arc::clone(&gate);
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            drop(gate.acquire().await.unwrap());
            Ok(Receipt::new("1"))
        })
    });
    world.on("other", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "other").await?;
            panic!("as the test says")
        })
    });
    let server = world.server(Policy::leased());
    let running = server.spawn(DOCUMENT);
    let unknown = r#"mutation { other(idempotencyKey: "u") { id } }"#;
    assert_eq!(code(&server.run(unknown).await), "OUTCOME_UNKNOWN");
    tokio::time::sleep(ms(100)).await;
    // Older than retention; the running one's lease is renewed all the same.
    let month = Duration::from_hours(960);
    for column in ["created_at", "ended_at"] {
        world.execute(B::earlier("idempotency_records", column, month)).await;
    }
    let due = B::earlier("idempotency_records", "due_at", month);
    world.execute(format!("{due} WHERE state = 'needs_recovery'")).await;
    for _ in 0..3 {
        let swept = server.sweep().await;
        assert_eq!((swept.lapsed, swept.expired, swept.purged, swept.recovered), (0, 0, 0, 0));
        assert_eq!(code(&server.run(unknown).await), "OUTCOME_UNKNOWN");
    }
    assert_eq!((world.state("k").await.as_str(), world.state("u").await.as_str()), ("in_progress", "needs_recovery"));
    go_on.add_permits(1);
    assert_eq!(code(&running.await.unwrap()), "");
    assert_eq!(world.effects().await, 2);
});

both!(a_lapsed_lease_is_unknown_whether_or_not_the_sweeper_has_come_by, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            std::future::pending().await
        })
    });
    for (sweeps, key) in [(false, "1"), (true, "2")] {
        // A process that is killed: its runtime goes, with every task.
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        let killed = world.server_on(world.other_store(2).await, Policy::leased(), |builder| builder);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                let store = runtime.block_on(world.other_store(2));
                let killed = world.server_on(store, Policy::leased(), |builder| builder);
                runtime.block_on(async { tokio::time::timeout(ms(200), killed.spawn(&document)).await.unwrap_err() });
                runtime.shutdown_background();
            });
        });
        drop(killed);
        let server = world.server(Policy::leased().wait(ms(0)));
        assert_eq!(world.state(key).await, "in_progress");
        assert_eq!(code(&server.run(&document).await), "IN_PROGRESS");
        world.pass(Duration::from_secs(31)).await;
        if sweeps {
            let swept = server.sweep().await;
            assert_eq!((swept.lapsed, swept.held), (1, 1));
            assert_eq!(world.state(key).await, "needs_recovery");
        }
        assert_eq!(code(&server.run(&document).await), "OUTCOME_UNKNOWN");
        world.execute(format!("DELETE FROM idempotency_records WHERE key = '{key}'")).await;
    }
    assert_eq!(world.effects().await, 2);
});

/// Expiry is exact, and every retry gets the same answer after it.
async fn expires<B: Backend>(world: &World<B>, policy: Policy, key: &str, sweeps: bool) {
    let server = world.server(policy);
    let document = |amount: i32| format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: {amount}) {{ id }} }}"#);
    let effects = world.effects().await;
    assert_eq!(code(&server.run(document(1)).await), "");
    let due = world.record(key).await.unwrap().due_at;
    world.pass(Duration::from_mins(1439)).await;
    assert!(replayed(&server.run(document(1)).await, "act"));
    // A replay does not extend the retention.
    assert_eq!(world.record(key).await.unwrap().due_at.0, due.0 - (24 * 3_600 - 60) * 1_000);
    world.pass(Duration::from_mins(1)).await;
    if sweeps {
        assert_eq!(server.sweep().await.expired, 1);
        let record = world.record(key).await.unwrap();
        assert_eq!(record.state, State::Tombstone(Ended::Succeeded));
        assert_eq!((record.response, record.request, record.selection.as_str()), (None, None, ""));
    }
    let retries: Vec<_> = (0..20).map(|_| server.spawn(document(1))).collect();
    for retry in join_all(retries).await {
        let retry = retry.unwrap();
        assert_eq!(code(&retry), "KEY_EXPIRED");
        let extensions = serde_json::to_value(retry.errors[0].extensions.as_ref().unwrap()).unwrap();
        assert_eq!((&extensions["httpStatus"], &extensions["retryable"]), (&410.into(), &false.into()));
    }
    assert_eq!(code(&server.run(document(2)).await), "KEY_REUSED");
    assert_eq!(world.effects().await, effects + 1);
    if sweeps {
        // 30 days later the key is forgotten.
        world.pass(Duration::from_mins(43199)).await;
        assert_eq!(server.sweep().await.purged, 0);
        assert_eq!(code(&server.run(document(1)).await), "KEY_EXPIRED");
        world.pass(Duration::from_mins(1)).await;
        assert_eq!(server.sweep().await.purged, 1);
        assert_eq!(world.records().await, 0);
    }
}

both!(an_expired_key_is_never_executed_again_whether_or_not_the_sweeper_has_come_by, world, {
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        for sweeps in [true, false] {
            expires(&world, policy.clone(), &format!("{prefix}{sweeps}"), sweeps).await;
            world.execute("DELETE FROM idempotency_records").await;
        }
    }
});

both!(a_short_retention_passes_by_itself, world, {
    let policy = Policy::leased().lease(ms(300)).retention(ms(700)).max_client_retry(ms(700));
    let server = world.server(policy);
    assert_eq!(code(&server.run(DOCUMENT).await), "");
    tokio::time::sleep(ms(200)).await;
    assert!(replayed(&server.run(DOCUMENT).await, "act"));
    tokio::time::sleep(ms(600)).await;
    assert_eq!(code(&server.run(DOCUMENT).await), "KEY_EXPIRED");
    assert_eq!(server.sweep().await.expired, 1);
    assert_eq!(code(&server.run(DOCUMENT).await), "KEY_EXPIRED");
    assert_eq!(world.effects().await, 1);
});

both!(the_sweeper_works_in_batches_and_side_by_side, world, {
    let server = world.server(Policy::leased());
    for n in 0..25 {
        server.run(format!(r#"mutation {{ act(idempotencyKey: "{n}") {{ id }} }}"#)).await;
    }
    world.pass(Duration::from_hours(25)).await;
    let sweepers: Vec<_> = (0..3).map(|_| server.idempotency.sweeper(server.schema.clone()).batch(4)).collect();
    let swept = join_all(sweepers.iter().map(async_graphql_idempotency::Sweeper::run_once)).await;
    assert_eq!(swept.into_iter().map(|swept| swept.unwrap().expired).sum::<u64>(), 25);
    assert_eq!(world.number("SELECT count(*) FROM idempotency_records WHERE state = 'tombstone_succeeded'").await, 25);
});

both!(a_sweeper_that_is_told_to_stop_stops, world, {
    let server = world.server(Policy::leased());
    server.run(DOCUMENT).await;
    world.pass(Duration::from_hours(25)).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let sweeper = server.idempotency.sweeper(server.schema.clone()).every(ms(20));
    let watch = async {
        world.until_state("k", "tombstone_succeeded").await;
        stop.send(()).unwrap();
        Instant::now()
    };
    let ((), told) = tokio::join!(sweeper.run(async { drop(stopped.await) }), watch);
    assert!(told.elapsed() < ms(1_000));
});
