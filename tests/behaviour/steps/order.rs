//! Steps in another order, side by side, and under other names.

use async_graphql::Error;

use super::{DOCUMENT, charges, resume};
use crate::support::*;

/// One of two steps that overlap: it charges under its own name, and may have to wait for the other one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slow {
    /// It has not begun when the process goes.
    BeforeItsIntent,
    /// It has begun.
    BehindItsIntent,
}

/// Two steps at once; the first attempt's process goes when b is stored and a is not.
fn overlapping<B: Backend>(world: &World<B>, is_local: bool, slow: Slow, a_is_polled_first: bool) {
    let gateway = world.gateway.clone();
    world.on("act", move |ctx| {
        let gateway = gateway.clone();
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let is_first = attempt.number() == 1;
            let b_is_stored = tokio::sync::Notify::new();
            let step = async |name: &'static str, slow: Option<Slow>| {
                let crash = async |at: Slow| {
                    if is_first && slow == Some(at) {
                        b_is_stored.notified().await;
                        panic!("as the test says");
                    }
                };
                crash(Slow::BeforeItsIntent).await;
                if is_local {
                    let write = async |connection: &mut _| {
                        B::write(connection, name).await?;
                        crash(Slow::BehindItsIntent).await;
                        Ok::<_, Error>(())
                    };
                    attempt.local(name, write).await?;
                } else {
                    let call = async |id| {
                        gateway.charge(id);
                        crash(Slow::BehindItsIntent).await;
                        Ok::<_, Error>(())
                    };
                    attempt.remote(name, call).await?;
                }
                if name == "b" {
                    b_is_stored.notify_one();
                }
                Ok::<_, Error>(())
            };
            let (a, b) = (step("a", Some(slow)), step("b", None));
            if a_is_polled_first {
                tokio::try_join!(a, b)?
            } else {
                tokio::try_join!(b, a)?
            };
            Ok(Receipt::new("both"))
        })
    });
}

both!(a_retry_finishes_steps_that_overlapped_and_does_none_again_where_the_policy_names_them, world, {
    for (is_local, slow, first) in [
        (true, Slow::BeforeItsIntent, true),
        (true, Slow::BeforeItsIntent, false),
        (true, Slow::BehindItsIntent, true),
        (false, Slow::BeforeItsIntent, true),
        (false, Slow::BeforeItsIntent, false),
        (false, Slow::BehindItsIntent, true),
        (false, Slow::BehindItsIntent, false),
    ] {
        // SQLite has one writer: b would wait for a, which waits for b.
        if !B::POSTGRES && is_local && slow == Slow::BehindItsIntent {
            continue;
        }
        let case = format!("local: {is_local}, {slow:?}, a is polled first: {first}");
        world.afresh().await;
        overlapping(&world, is_local, slow, first);
        let server = world.server(resume().steps(["a", "b"]));
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
        assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
        assert_eq!((world.state("k").await.as_str(), charges(&world).await), ("succeeded", 2), "{case}");
        let asked_again = usize::from(!is_local && slow == Slow::BehindItsIntent);
        assert_eq!(world.gateway.calls(), if is_local { 0 } else { 2 + asked_again }, "{case}");
    }
});

both!(steps_that_overlapped_are_held_where_nobody_names_them_and_the_reason_says_what_to_name, world, {
    for is_local in [true, false] {
        world.afresh().await;
        overlapping(&world, is_local, Slow::BeforeItsIntent, true);
        let server = world.server(resume());
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
        for _ in 0..2 {
            assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "local: {is_local}");
            let held = world.record("k").await.unwrap();
            let reason = held.reason.unwrap();
            assert_eq!(held.state, State::NeedsRecovery, "local: {is_local}");
            assert!(reason.contains("the step b,") && reason.contains("Policy::steps"), "{reason}");
            assert_eq!(charges(&world).await, 1, "local: {is_local}: only b");
        }
        // The deployment that names them goes on.
        let mended = world.server(resume().steps(["a", "b"]));
        assert_eq!(code(&mended.run(DOCUMENT).await), "");
        assert_eq!((world.state("k").await.as_str(), charges(&world).await), ("succeeded", 2), "local: {is_local}");
    }
});

both!(an_unfinished_call_beside_a_finished_one_is_made_again_under_its_own_id, world, {
    // Both intents are stored, so nothing has to be guessed.
    overlapping(&world, false, Slow::BehindItsIntent, true);
    let server = world.server(resume());
    assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
    assert_eq!(code(&server.run(DOCUMENT).await), "");
    assert_eq!((world.gateway.charges(), world.gateway.calls()), (2, 3));
});

both!(steps_in_the_order_of_a_hash_map_are_done_once_where_the_policy_names_them, world, {
    const ORDERS: [[&str; 3]; 4] = [["x", "y", "z"], ["z", "y", "x"], ["y", "x", "z"], ["x", "z", "y"]];
    for (named, first, then, done) in [true, false].into_iter().flat_map(|named| {
        ORDERS.into_iter().flat_map(move |then| (1..=2).map(move |done| (named, ORDERS[0], then, done)))
    }) {
        let case = format!("named: {named}, {first:?}, crash behind {done}, {then:?}");
        world.afresh().await;
        let gateway = world.gateway.clone();
        world.on("act", move |ctx| {
            let gateway = gateway.clone();
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let is_first = attempt.number() == 1;
                for (n, name) in (if is_first { first } else { then }).into_iter().enumerate() {
                    assert!(!is_first || n < done, "the first attempt crashes");
                    attempt.remote(name, async |id| Ok::<_, Error>(gateway.charge(id))).await?;
                }
                Ok(Receipt::new("all"))
            })
        });
        let policy = if named { resume().steps(["x", "y", "z"]) } else { resume() };
        let server = world.server(policy);
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
        let goes_on = named || {
            // Those that are stored come before all others.
            let mut stored = first[..done].to_vec();
            let mut before = then[..done].to_vec();
            stored.sort_unstable();
            before.sort_unstable();
            stored == before
        };
        assert_eq!(code(&server.run(DOCUMENT).await), if goes_on { "" } else { "OUTCOME_UNKNOWN" }, "{case}");
        assert_eq!(world.state("k").await, if goes_on { "succeeded" } else { "needs_recovery" }, "{case}");
        let made = if goes_on { 3 } else { done };
        assert_eq!((world.gateway.charges(), world.gateway.calls()), (made, made), "{case}");
    }
});

/// How the code that renames a step names its steps in the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Not,
    AsTheyWere,
    AsTheyAre,
}

both!(a_step_that_was_renamed_between_two_attempts_is_never_done_again, world, {
    for (named, behind, first) in [Named::Not, Named::AsTheyWere, Named::AsTheyAre].into_iter().flat_map(|named| {
        [true, false].into_iter().flat_map(move |behind| {
            ["crashes in it", "crashes behind it", "gives the key back"].map(|first| (named, behind, first))
        })
    }) {
        let case = format!("{named:?}, behind another step: {behind}, the first {first}");
        world.afresh().await;
        let gateway = world.gateway.clone();
        world.on("act", move |ctx| {
            let gateway = gateway.clone();
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let number = attempt.number();
                if behind {
                    attempt.remote("order", async |_| Ok::<_, Error>(())).await?;
                }
                let name = if number == 2 { "charge_card" } else { "charge" };
                let call = async |id| {
                    gateway.charge(id);
                    assert!(number > 1 || first != "crashes in it", "as the test says");
                    Ok::<_, Error>(())
                };
                attempt.remote(name, call).await?;
                match (number, first) {
                    (1, "gives the key back") => Err(Error::new("later").mark(Mark::Release)),
                    (1, _) => panic!("as the test says"),
                    _ => Ok(Receipt::new("charged")),
                }
            })
        });
        let policy = |charge: &str| match named {
            Named::Not => resume(),
            Named::AsTheyWere => resume().steps(["order", "charge"]),
            Named::AsTheyAre => resume().steps(["order", charge]),
        };
        let old = world.server(policy("charge"));
        old.run(DOCUMENT).await;
        let renamed = world.server(policy("charge_card"));
        let refused = code(&renamed.run(DOCUMENT).await);
        let expected = if named == Named::AsTheyWere { "MISCONFIGURED" } else { "OUTCOME_UNKNOWN" };
        assert_eq!((refused.as_str(), world.gateway.charges()), (expected, 1), "{case}");
        assert_eq!(world.state("k").await, "needs_recovery", "{case}");
        // Taken back, it goes on.
        assert_eq!(code(&old.run(DOCUMENT).await), "", "{case}");
        assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("succeeded", 1), "{case}");
        assert!(world.gateway.calls() <= 2, "{case}");
    }
});
