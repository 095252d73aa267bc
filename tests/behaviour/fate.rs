//! The fate of a key whose money may have moved: never a second charge, never "failed" while the gateway has it.

use async_graphql::{Context, Error, ErrorExtensions, Request, Result};

use crate::support::{
    schema::Right,
    world::{CLIENT, client},
    *,
};

mod charged;

fn coded(code: &str) -> Error {
    Error::new("refused").extend_with(|_, e| e.set("code", code))
}

/// How an attempt ends that does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Coded(&'static str),
    Plain,
    Marked(Mark),
    Value,
    MarkedValue(Mark),
    Panics,
}

const ALL: [How; 11] = [
    How::Coded("FORBIDDEN"),
    How::Coded("RATE_LIMITED"),
    How::Plain,
    How::Marked(Mark::Release),
    How::Marked(Mark::Final),
    How::Marked(Mark::Unknown),
    How::Value,
    How::MarkedValue(Mark::Release),
    How::MarkedValue(Mark::Final),
    How::MarkedValue(Mark::Unknown),
    How::Panics,
];

impl How {
    fn end(self, ctx: &Context<'_>) -> Result<Receipt> {
        match self {
            Self::Coded(code) => Err(coded(code)),
            Self::Plain => Err("plain".into()),
            Self::Marked(mark) => Err(Error::new("marked").mark(mark)),
            Self::Value => Ok(Receipt::new("nothing to do, it seems")),
            Self::MarkedValue(mark) => {
                ctx.mark(mark)?;
                Ok(Receipt::new("nothing to do, it seems"))
            }
            Self::Panics => panic!("as the test says"),
        }
    }

    /// What its client is told where the outcome stays unknown: its own error, and never a value.
    fn told(self) -> &'static str {
        match self {
            Self::Coded(code) => code,
            Self::Plain => "plain",
            Self::Marked(_) => "marked",
            Self::Value | Self::MarkedValue(_) | Self::Panics => "OUTCOME_UNKNOWN",
        }
    }
}

/// What the resolver does next: an order, a charge, a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The process goes when the gateway has charged, before its answer is stored.
    CrashInTheCharge,
    /// It goes when the charge is stored.
    CrashBehindTheCharge,
    /// It ends so before it has come by anything.
    AtOnce(How),
    /// It ends so between the order and the charge.
    BehindTheOrder(How),
    Honest,
}

fn stage<B: Backend>(world: &World<B>, mutation: &'static str) -> Arc<Mutex<Phase>> {
    let stage = Arc::new(Mutex::new(Phase::Honest));
    let (phase, gateway) = (Arc::clone(&stage), world.gateway.clone());
    world.on(mutation, move |ctx| {
        let (phase, gateway) = (*phase.lock().unwrap(), gateway.clone());
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            if let Phase::AtOnce(how) = phase {
                return how.end(ctx);
            }
            attempt.local("order", async |connection| Ok::<_, Error>(B::write(connection, "order").await?)).await?;
            if let Phase::BehindTheOrder(how) = phase {
                return how.end(ctx);
            }
            let charge: String = attempt
                .remote("charge", async |id| {
                    let charge = gateway.charge(id);
                    assert!(phase != Phase::CrashInTheCharge, "as the test says");
                    Ok::<_, Error>(charge)
                })
                .await?;
            assert!(phase != Phase::CrashBehindTheCharge, "as the test says");
            Ok(Receipt::new(charge))
        })
    });
    stage
}

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

/// Who runs the attempt that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Retry,
    Sweeper,
}

async fn fails_behind_a_lost_one<B: Backend>(world: &World<B>, on_crash: OnCrash, crash: Phase, then: Phase, by: By) {
    let case = format!("{on_crash:?}, {crash:?}, {then:?}, {by:?}");
    world.afresh().await;
    let (Phase::AtOnce(how) | Phase::BehindTheOrder(how)) = then else { unreachable!() };
    let server = world.server(Policy::leased().on_crash(on_crash));
    let stage = stage(world, "act");
    let set = |phase| *stage.lock().unwrap() = phase;

    set(crash);
    assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
    let lost = world.record("k").await.unwrap();
    set(then);
    match by {
        By::Retry => assert_eq!(code(&server.run(DOCUMENT).await), how.told(), "{case}"),
        By::Sweeper => {
            let schema = server.schema.clone();
            let swept = server.idempotency.resume_with(schema, async |request: Request, _, _| request).run_once().await;
            assert_eq!(swept.unwrap().held, 1, "{case}");
        }
    }
    let held = world.record("k").await.unwrap();
    assert_eq!((held.state, held.attempt), (State::NeedsRecovery, 2), "{case}");

    set(Phase::Honest);
    let done = server.run(DOCUMENT).await;
    assert_eq!((code(&done), world.gateway.charges(), world.effects().await), (String::new(), 1, 1), "{case}");
    let record = world.record("k").await.unwrap();
    assert_eq!((record.state, record.request_id), (State::Succeeded, lost.request_id), "{case}");
    assert_eq!(answered(&server.run(DOCUMENT).await), answered(&done), "{case}");
}

both!(a_retry_that_fails_before_a_lost_charge_says_nothing_about_it, world, {
    for on_crash in [OnCrash::Resume, OnCrash::Release] {
        for crash in [Phase::CrashInTheCharge, Phase::CrashBehindTheCharge] {
            for how in ALL {
                for then in [Phase::AtOnce(how), Phase::BehindTheOrder(how)] {
                    fails_behind_a_lost_one(&world, on_crash, crash, then, By::Retry).await;
                }
            }
        }
    }
});

both!(a_resumption_that_fails_before_a_lost_charge_says_nothing_about_it, world, {
    for crash in [Phase::CrashInTheCharge, Phase::CrashBehindTheCharge] {
        for how in ALL {
            for then in [Phase::AtOnce(how), Phase::BehindTheOrder(how)] {
                fails_behind_a_lost_one(&world, OnCrash::Resume, crash, then, By::Sweeper).await;
            }
        }
    }
});

both!(a_guard_that_refuses_a_later_attempt_says_nothing_about_a_lost_charge, world, {
    let resume = || Policy::leased().on_crash(OnCrash::Resume);
    let document = r#"mutation { late(idempotencyKey: "k") { id } }"#;
    let without = || Request::new(document).data(client(CLIENT)).data(Right(false));
    for (claims_late, by) in [(true, By::Retry), (true, By::Sweeper), (false, By::Retry), (false, By::Sweeper)] {
        let case = format!("claims late: {claims_late}, {by:?}");
        world.execute("DELETE FROM idempotency_records").await;
        world.gateway.forget();
        let stage = stage(&world, "late");
        let server =
            world.server_with(resume(), |builder| if claims_late { builder } else { builder.policy("late", resume()) });
        *stage.lock().unwrap() = Phase::CrashInTheCharge;
        assert_eq!(code(&server.run(document).await), "OUTCOME_UNKNOWN", "{case}");
        match by {
            By::Retry => assert_eq!(code(&server.execute(without()).await), "FORBIDDEN", "{case}"),
            By::Sweeper => {
                // It forgot the user.
                let schema = server.schema.clone();
                let sweeper = server.idempotency.resume_with(schema, async |request: Request, _, _| request);
                assert_eq!(sweeper.run_once().await.unwrap().held, 1, "{case}");
            }
        }
        let held = world.record("k").await.unwrap();
        assert_eq!((held.state, held.attempt), (State::NeedsRecovery, if claims_late { 1 } else { 2 }), "{case}");
        *stage.lock().unwrap() = Phase::Honest;
        assert_eq!(code(&server.run(document).await), "", "{case}");
        assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("succeeded", 1), "{case}");
    }
});

/// Who says that a lost attempt never began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotStarted {
    Reconciler,
    Operator,
    Policy,
}

both!(a_gateway_sees_one_request_id_whoever_gave_the_key_back, world, {
    for by in [NotStarted::Reconciler, NotStarted::Operator, NotStarted::Policy] {
        for how in [How::Coded("FORBIDDEN"), How::Coded("RATE_LIMITED"), How::Marked(Mark::Release)] {
            for in_a_step in [true, false] {
                let case = format!("{by:?}, {how:?}, in a step: {in_a_step}");
                world.execute("DELETE FROM idempotency_records").await;
                let (ids, attempts) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
                let (seen, counted) = (Arc::clone(&ids), Arc::clone(&attempts));
                world.on("act", move |ctx| {
                    let (ids, number) = (Arc::clone(&seen), counted.fetch_add(1, Ordering::SeqCst) + 1);
                    Box::pin(async move {
                        if number == 2 {
                            return how.end(ctx);
                        }
                        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                        let call = async |id| {
                            ids.lock().unwrap().push(id);
                            assert!(number > 1, "the call is still on its way when the process goes");
                            Ok::<_, Error>(())
                        };
                        if in_a_step {
                            attempt.remote("charge", call).await?;
                        } else {
                            call(attempt.request_id()).await?;
                        }
                        Ok(Receipt::new("done"))
                    })
                });
                let on_crash = if by == NotStarted::Policy { OnCrash::Release } else { OnCrash::Hold };
                let server = world.server_with(Policy::leased().on_crash(on_crash), |builder| match by {
                    NotStarted::Reconciler => builder.reconcile("act", async |_| Found::NotStarted),
                    NotStarted::Operator | NotStarted::Policy => builder,
                });
                assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
                if by == NotStarted::Operator {
                    let (me, key) = (client(CLIENT), IdempotencyKey::new("k").unwrap());
                    let settled =
                        server.idempotency.settle(&server.schema, &me, &key, Found::NotStarted, "asked").await;
                    settled.unwrap();
                } else {
                    assert_eq!(server.sweep().await.recovered, 1, "{case}");
                }
                assert_eq!(world.state("k").await, "released", "{case}");
                assert_eq!(code(&server.run(DOCUMENT).await), how.told(), "{case}");
                assert_eq!(world.state("k").await, "released", "{case}");
                assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
                let ids = ids.lock().unwrap().clone();
                assert_eq!((ids.len(), ids[0]), (2, ids[1]), "{case}");
            }
        }
    }
});

both!(a_request_id_that_was_handed_out_is_never_replaced, world, {
    let leased = [How::Coded("FORBIDDEN"), How::Marked(Mark::Release), How::MarkedValue(Mark::Release)];
    // Whatever happens to a transaction, it is undone and the key is free again.
    let others = [How::Plain, How::Panics, How::Marked(Mark::Unknown), How::MarkedValue(Mark::Unknown)];
    let transactional = leased.iter().chain(&others).copied().collect::<Vec<_>>();
    for (policy, hows) in [(Policy::leased(), leased.to_vec()), (Policy::transactional(), transactional)] {
        let server = world.server(policy);
        for how in hows {
            world.execute("DELETE FROM idempotency_records").await;
            let ids = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&ids);
            world.on("act", move |ctx| {
                let ids = Arc::clone(&seen);
                Box::pin(async move {
                    let id = ctx.attempt::<Faulty<B::Store>>()?.request_id();
                    ids.lock().unwrap().push(id);
                    if ids.lock().unwrap().len() <= 2 { how.end(ctx) } else { Ok(Receipt::new(id.to_string())) }
                })
            });
            for _ in 0..2 {
                server.run(DOCUMENT).await;
                assert_eq!(world.state("k").await, "released", "{how:?}");
            }
            assert_eq!(code(&server.run(DOCUMENT).await), "", "{how:?}");
            let ids = ids.lock().unwrap().clone();
            assert_eq!((ids.len(), ids[0] == ids[1], ids[1] == ids[2]), (3, true, true), "{how:?}");
        }
    }
});
