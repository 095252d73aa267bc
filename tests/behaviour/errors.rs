//! What a resolver's error does to its key.

use async_graphql::{Error, ErrorExtensions};

use crate::support::*;

/// How a resolver ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Before,
    After,
    Marked(Mark),
    Rejected,
    Panics,
    /// A remote step is begun and fails.
    Remote,
    RemoteMarked(Mark),
    RemoteRejected,
    Well,
}

fn rejection() -> Error {
    Error::new("not yours").extend_with(|_, e| e.set("code", "FORBIDDEN"))
}

/// Ends as it is told, and well from the second call on.
fn ends<B: Backend>(world: &World<B>, mutation: &'static str, how: How) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    world.on(mutation, move |ctx| {
        let how = if counted.fetch_add(1, Ordering::SeqCst) == 0 { how } else { How::Well };
        Box::pin(async move {
            if how == How::Before {
                return Err("before".into());
            }
            if let How::Remote | How::RemoteMarked(_) | How::RemoteRejected = how {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let call = async |_id| -> Result<String, Error> {
                    match how {
                        How::RemoteMarked(mark) => Err(Error::new("remote").mark(mark)),
                        How::RemoteRejected => Err(rejection()),
                        _ => Err("remote".into()),
                    }
                };
                attempt.remote("step", call).await?;
            }
            if let How::Marked(Mark::Release) = how {
                return Err(Error::new("marked")).mark(Mark::Release);
            }
            if how == How::Rejected {
                return Err(rejection());
            }
            effect::<B>(ctx, "act").await?;
            match how {
                How::After => Err("after".into()),
                How::Marked(mark) => Err(Error::new("marked").mark(mark)),
                How::Panics => panic!("as the test says"),
                _ => Ok(Receipt::new("fine")),
            }
        })
    });
    calls
}

/// The error's own answer, the record's state after it, what a retry gets, the effects after that.
type Row = (How, &'static str, &'static str, &'static str, i64);

async fn table<B: Backend>(world: &World<B>, policy: &Policy, mutation: &'static str, rows: &[Row]) {
    let server = world.server(policy.clone());
    for (how, answer, state, retry, effects) in rows {
        let before = world.effects().await;
        let calls = ends(world, mutation, *how);
        let key = uuid::Uuid::new_v4();
        let document = format!(r#"mutation {{ {mutation}(idempotencyKey: "{key}") {{ id }} }}"#);
        let first = server.run(&document).await;
        assert_eq!(code(&first), *answer, "{how:?}");
        assert!(!format!("{:?}", first.errors).contains("idempotencyMark"), "{how:?}");
        assert_eq!(world.state(&key.to_string()).await, *state, "{how:?}");
        let again = server.run(&document).await;
        assert_eq!(code(&again), *retry, "{how:?}");
        assert!(!format!("{:?}", again.errors).contains("idempotencyMark"), "{how:?}");
        assert_eq!(world.effects().await - before, *effects, "{how:?}");
        let ran = calls.load(Ordering::SeqCst);
        assert_eq!(ran, if ["none", "released"].contains(state) { 2 } else { 1 }, "{how:?}");
        if *state == "failed" {
            assert_eq!(answered(&first), answered(&again), "{how:?}");
        }
    }
}

const LEASED: [Row; 12] = [
    (How::Before, "before", "failed", "before", 0),
    (How::After, "after", "failed", "after", 1),
    (How::Marked(Mark::Release), "marked", "none", "", 1),
    (How::Marked(Mark::Final), "marked", "failed", "marked", 1),
    (How::Marked(Mark::Unknown), "marked", "needs_recovery", "OUTCOME_UNKNOWN", 1),
    (How::Rejected, "FORBIDDEN", "none", "", 1),
    (How::Panics, "OUTCOME_UNKNOWN", "needs_recovery", "OUTCOME_UNKNOWN", 1),
    (How::Remote, "remote", "needs_recovery", "OUTCOME_UNKNOWN", 0),
    (How::RemoteRejected, "FORBIDDEN", "needs_recovery", "OUTCOME_UNKNOWN", 0),
    (How::RemoteMarked(Mark::Final), "remote", "failed", "remote", 0),
    (How::RemoteMarked(Mark::Unknown), "remote", "needs_recovery", "OUTCOME_UNKNOWN", 0),
    // A step was begun: its request id has left the process, and stays.
    (How::RemoteMarked(Mark::Release), "remote", "released", "", 1),
];

const TRANSACTIONAL: [Row; 7] = [
    (How::Before, "before", "none", "", 1),
    (How::After, "after", "none", "", 1),
    (How::Marked(Mark::Release), "marked", "none", "", 1),
    (How::Marked(Mark::Final), "marked", "failed", "marked", 0),
    (How::Marked(Mark::Unknown), "marked", "none", "", 1),
    (How::Rejected, "FORBIDDEN", "none", "", 1),
    (How::Panics, "ROLLED_BACK", "none", "", 1),
];

both!(a_leased_mutations_error_does_to_the_key_what_the_table_says, world, {
    for mutation in ["act", "lenient", "maybe", "late", "lateInside"] {
        table(&world, &Policy::leased(), mutation, &LEASED).await;
    }
});

both!(a_transactional_mutations_error_does_to_the_key_what_the_table_says, world, {
    for mutation in ["act", "lenient", "maybe", "late", "lateInside"] {
        table(&world, &Policy::transactional(), mutation, &TRANSACTIONAL).await;
    }
});

async fn first_of_two<B: Backend>(world: &World<B>, mutation: &'static str) {
    for (policy, rows) in [(Policy::leased(), &LEASED[..]), (Policy::transactional(), &TRANSACTIONAL[..])] {
        let server = world.server(policy);
        for (how, answer, state, ..) in rows {
            ends(world, mutation, *how);
            let (one, two) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
            let document = format!(
                r#"mutation {{ {mutation}(idempotencyKey: "{one}") {{ id }} other(idempotencyKey: "{two}") {{ id }} }}"#
            );
            assert_eq!(code(&server.run(document).await), *answer, "{how:?}");
            assert_eq!(world.state(&one.to_string()).await, *state, "{how:?}");
            assert_eq!(world.state(&two.to_string()).await, "succeeded", "{how:?}");
        }
    }
}

both!(the_table_holds_for_a_field_before_others, world, {
    first_of_two(&world, "act").await;
    first_of_two(&world, "maybe").await;
});

both!(the_table_holds_for_a_field_before_others_that_swallows_its_error, world, {
    first_of_two(&world, "lenient").await;
});

both!(a_code_of_the_policys_own_is_a_rejection, world, {
    world.on("act", |_| Box::pin(async { Err(Error::new("sold out").extend_with(|_, e| e.set("code", "SOLD_OUT"))) }));
    let document = r#"mutation { act(idempotencyKey: "k") { id } }"#;
    let server = world.server(Policy::leased().rejection("SOLD_OUT"));
    assert_eq!(code(&server.run(document).await), "SOLD_OUT");
    assert_eq!(world.state("k").await, "none");
});

both!(a_dropped_leased_mutation_needs_recovery_at_once, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            std::future::pending().await
        })
    });
    for (mutation, key) in [("act", "1"), ("act", "2")] {
        let server = world.server(Policy::leased());
        let document = format!(r#"mutation {{ {mutation}(idempotencyKey: "{key}") {{ id }} }}"#);
        let dropped = tokio::time::timeout(ms(300), server.run(&document)).await;
        assert!(dropped.is_err());
        // Well before the lease of 30 s is over.
        world.until_state(key, "needs_recovery").await;
        let begun = Instant::now();
        assert_eq!(code(&server.run(&document).await), "OUTCOME_UNKNOWN");
        assert!(begun.elapsed() < ms(500));
    }
    assert_eq!(world.effects().await, 2);
});

both!(a_dropped_transactional_mutation_is_undone_and_its_key_is_free_at_once, world, {
    let calls = AtomicUsize::new(0);
    world.on("act", move |ctx| {
        let first = calls.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            if first { std::future::pending().await } else { Ok(Receipt::new("2")) }
        })
    });
    let server = world.server(Policy::transactional());
    let document = r#"mutation { act(idempotencyKey: "k") { id } }"#;
    assert!(tokio::time::timeout(ms(300), server.run(document)).await.is_err());
    let begun = Instant::now();
    assert_eq!(code(&server.run(document).await), "");
    assert!(begun.elapsed() < ms(1_500));
    assert_eq!(world.effects().await, 1);
});

/// The future is dropped wherever it is in its way: nothing is lost, nothing done twice, nothing stuck.
async fn dropped_anywhere<B: Backend>(policy: Policy) {
    let world = World::<B>::new().await;
    let server = world.server(policy.clone().wait(ms(1_500)));
    world.on("act", |ctx| {
        Box::pin(async move {
            let label = ctx.item.node.alias.as_ref().unwrap().node.to_string();
            tokio::task::yield_now().await;
            effect::<B>(ctx, &label).await?;
            tokio::task::yield_now().await;
            Ok(Receipt::new(label))
        })
    });
    for polls in 0..40 {
        let document = format!(r#"mutation {{ a{polls}: act(idempotencyKey: "{polls}") {{ id note }} }}"#);
        {
            let mut running = Box::pin(server.run(&document));
            for _ in 0..polls {
                if futures_util::poll!(&mut running).is_ready() {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
        }
        let again = code(&server.run(&document).await);
        assert!(["", "OUTCOME_UNKNOWN"].contains(&again.as_str()), "{policy:?}, {polls} polls: {again}");
        let effects = world.number(format!("SELECT count(*) FROM effects WHERE label = 'a{polls}'")).await;
        assert!(effects <= 1, "{polls}: {effects} effects");
        if again.is_empty() {
            assert_eq!(effects, 1, "{polls}");
        }
    }
    let stuck = world.number("SELECT count(*) FROM idempotency_records WHERE state = 'in_progress'").await;
    assert_eq!(stuck, 0);
    world.done().await;
}

both!(a_mutation_that_is_dropped_anywhere_is_not_poisoned, world, {
    dropped_anywhere::<B>(Policy::leased()).await;
    dropped_anywhere::<B>(Policy::transactional()).await;
});

both!(a_statement_that_fails_leaves_the_key_usable_at_once, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let mut transaction = attempt.transaction().await?;
            B::write(&mut transaction, "act").await?;
            B::insert_singular(&mut transaction).await?;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::transactional());
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
    assert_eq!(code(&server.run(document("1")).await), "");
    for _ in 0..3 {
        let begun = Instant::now();
        let failed = server.run(document("2")).await;
        let message = failed.errors[0].message.to_lowercase();
        assert!(message.contains("unique"), "{message}");
        assert_eq!(world.state("2").await, "none");
        assert!(begun.elapsed() < ms(1_000));
    }
    world.execute("DELETE FROM singular").await;
    assert_eq!(code(&server.run(document("2")).await), "");
    assert_eq!(world.effects().await, 2);
});

both!(a_transaction_that_swallowed_a_failed_statement_is_not_told_as_done, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let mut transaction = attempt.transaction().await?;
            B::write(&mut transaction, "act").await?;
            // The resolver goes on; on Postgres the transaction is spent.
            drop(B::insert_singular(&mut transaction).await);
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::transactional());
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
    assert_eq!(code(&server.run(document("1")).await), "");
    let second = code(&server.run(document("2")).await);
    let effects = world.effects().await;
    if B::POSTGRES {
        assert_eq!((second.as_str(), effects), ("ROLLED_BACK", 1));
        assert_eq!(world.state("2").await, "none");
    } else {
        assert_eq!((second.as_str(), effects), ("", 2));
    }
});

both!(resolvers_below_a_transactional_mutation_see_what_is_not_committed_yet, world, {
    let server = world.server(Policy::transactional());
    let response = server.run(r#"mutation { act(idempotencyKey: "k") { seen child { seen } } }"#).await;
    assert_eq!(answered(&response), r#"{"act":{"seen":1,"child":{"seen":1}}} []"#);
});

both!(a_nested_error_does_not_undo_a_transactional_mutation, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Ok(Receipt { fails: true, ..Receipt::new("1") })
        })
    });
    let server = world.server(Policy::transactional());
    let first = server.run(r#"mutation { act(idempotencyKey: "k") { id thrown } }"#).await;
    assert_eq!(code(&first), "BROKEN");
    assert_eq!(world.effects().await, 1);
    assert_eq!(world.state("k").await, "succeeded");
});

both!(a_panic_elsewhere_in_the_document_unsettles_nothing_that_has_finished, world, {
    world.on("exempt", |_| Box::pin(async { panic!("as the test says") }));
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        // A null in the answer may hide an error that is told only once the document has run.
        let field = format!(r#"act(idempotencyKey: "{key}") {{ id note }}"#);
        assert!(server.spawn(format!("mutation {{ {field} exempt {{ id }} }}")).await.is_err());
        world.until_state(key, "succeeded").await;
        assert!(replayed(&server.run(format!("mutation {{ {field} }}")).await, "act"));
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(a_panic_below_the_field_is_the_fields, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("panics below"))
        })
    });
    for (policy, told, state, effects) in [
        (Policy::leased(), "OUTCOME_UNKNOWN", "needs_recovery", 1),
        (Policy::transactional(), "ROLLED_BACK", "none", 0),
    ] {
        let before = world.effects().await;
        let server = world.server(policy);
        let response = server.run(r#"mutation { act(idempotencyKey: "k") { id child { panics } } }"#).await;
        assert_eq!(code(&response), told);
        assert_eq!(world.state("k").await, state);
        assert_eq!(world.effects().await - before, effects);
        world.execute("DELETE FROM idempotency_records").await;
    }
});
