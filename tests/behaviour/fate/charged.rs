//! What goes wrong once the gateway has the money, or may have it.

use async_graphql::Error;

use super::{DOCUMENT, How};
use crate::support::*;

both!(a_step_that_fails_behind_the_charge_is_not_told_as_failed, world, {
    let gateway = world.gateway.clone();
    world.on("act", move |ctx| {
        let gateway = gateway.clone();
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let charge: String = attempt.remote("charge", async |id| Ok::<_, Error>(gateway.charge(id))).await?;
            let book = async |connection: &mut _| Ok::<_, Error>(B::insert_singular(connection).await?);
            attempt.local("book", book).await?;
            Ok(Receipt::new(charge))
        })
    });
    for on_crash in [OnCrash::Hold, OnCrash::Resume] {
        world.execute("DELETE FROM idempotency_records").await;
        world.execute("DELETE FROM singular").await;
        world.execute("INSERT INTO singular (label) VALUES ('only')").await;
        world.gateway.forget();
        let server = world.server(Policy::leased().on_crash(on_crash));
        for attempt in 1..=2 {
            let told = codes(&server.run(DOCUMENT).await).remove(0).to_lowercase();
            let runs = attempt == 1 || on_crash == OnCrash::Resume;
            assert!(if runs { told.contains("unique") } else { told == "outcome_unknown" }, "{on_crash:?}: {told}");
            assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("needs_recovery", 1));
        }
        if on_crash == OnCrash::Resume {
            world.execute("DELETE FROM singular").await;
            assert_eq!(code(&server.run(DOCUMENT).await), "");
            assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("succeeded", 1));
            assert_eq!(world.gateway.calls(), 1, "it went on behind the charge");
        }
    }
});

both!(a_mark_on_one_of_two_open_steps_does_not_speak_for_the_other, world, {
    for (mark, refused_first) in
        [Mark::Release, Mark::Final, Mark::Unknown].into_iter().flat_map(|m| [(m, true), (m, false)])
    {
        let case = format!("{mark:?}, refused first: {refused_first}");
        world.execute("DELETE FROM idempotency_records").await;
        world.gateway.forget();
        let gateway = world.gateway.clone();
        world.on("act", move |ctx| {
            let gateway = gateway.clone();
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let is_first = attempt.number() == 1;
                let charged = tokio::sync::Notify::new();
                // Charged, and the answer is on its way.
                let charge = attempt.remote("charge", async |id| {
                    gateway.charge(id);
                    charged.notify_one();
                    if is_first { std::future::pending().await } else { Ok::<_, Error>(()) }
                });
                let refuse = attempt.remote("points", async |_| {
                    charged.notified().await;
                    if is_first { Err(Error::new("refused").mark(mark)) } else { Ok(()) }
                });
                if refused_first {
                    tokio::try_join!(refuse, charge)?
                } else {
                    tokio::try_join!(charge, refuse)?
                };
                Ok(Receipt::new("both"))
            })
        });
        let server = world.server(Policy::leased().on_crash(OnCrash::Resume));
        assert_eq!(code(&server.run(DOCUMENT).await), "refused", "{case}");
        let held = world.record("k").await.unwrap();
        assert_eq!(held.state, State::NeedsRecovery, "{case}");
        assert!(held.reason.unwrap().contains("charge"), "{case}");
        assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
        assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("succeeded", 1), "{case}");
    }
});

both!(a_refusal_behind_the_charge_keeps_it, world, {
    let document = |key: &str| format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
    for (n, (how, state)) in [
        (How::Coded("FORBIDDEN"), "released"),
        (How::Marked(Mark::Release), "released"),
        (How::MarkedValue(Mark::Release), "released"),
        (How::Plain, "needs_recovery"),
        (How::Coded("OUT_OF_STOCK"), "needs_recovery"),
        (How::Marked(Mark::Unknown), "needs_recovery"),
        (How::MarkedValue(Mark::Unknown), "needs_recovery"),
        (How::Panics, "needs_recovery"),
    ]
    .into_iter()
    .enumerate()
    {
        world.gateway.forget();
        let gateway = world.gateway.clone();
        world.on("act", move |ctx| {
            let gateway = gateway.clone();
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let charge: String = attempt.remote("charge", async |id| Ok::<_, Error>(gateway.charge(id))).await?;
                if attempt.number() == 1 { how.end(ctx) } else { Ok(Receipt::new(charge)) }
            })
        });
        let server = world.server(Policy::leased().on_crash(OnCrash::Resume));
        server.run(document(&n.to_string())).await;
        assert_eq!(world.state(&n.to_string()).await, state, "{how:?}");
        assert_eq!(code(&server.run(document(&n.to_string())).await), "", "{how:?}");
        assert_eq!((world.gateway.charges(), world.gateway.calls()), (1, 1), "{how:?}");
    }
});
