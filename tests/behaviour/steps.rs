//! Steps of code that has changed, overlaps, or returns what JSON can't hold: no charge is ever made again.

use std::collections::HashMap;

use async_graphql::{Context, Error, Result};
use async_graphql_idempotency::Attempt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::support::{
    world::{CLIENT, client},
    *,
};

mod order;

const DOCUMENT: &str = r#"mutation { act(idempotencyKey: "k") { id } }"#;

fn resume() -> Policy {
    Policy::leased().on_crash(OnCrash::Resume)
}

#[derive(Serialize, Deserialize)]
struct Old {
    id: String,
}

#[derive(Serialize, Deserialize)]
struct New {
    id: String,
    fee: i64,
}

/// A charge in a step: at the gateway, or as a row.
async fn charge<B: Backend, T: Serialize + DeserializeOwned>(
    attempt: &Attempt<'_, Faulty<B::Store>>,
    gateway: &Gateway,
    is_local: bool,
    value: impl FnOnce(String) -> T,
) -> Result<T> {
    if is_local {
        let write = async |connection: &mut _| {
            B::write(connection, "charge").await?;
            Ok::<_, Error>(value("row".to_owned()))
        };
        attempt.local("charge", write).await
    } else {
        attempt.remote("charge", async |id| Ok(value(gateway.charge(id)))).await
    }
}

/// How many charges there are, of either kind.
async fn charges<B: Backend>(world: &World<B>) -> i64 {
    world.effects().await + i64::try_from(world.gateway.charges()).unwrap()
}

/// What a resolver makes of an error of the crate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    AsItIs,
    InOtherWords,
    Swallowed,
}

const TOLD: [Told; 3] = [Told::AsItIs, Told::InOtherWords, Told::Swallowed];

impl Told {
    fn end<T>(self, result: Result<T>) -> Result<Receipt> {
        match (self, result) {
            (_, Ok(_)) | (Self::Swallowed, Err(_)) => Ok(Receipt::new("done")),
            (Self::AsItIs, Err(error)) => Err(error),
            (Self::InOtherWords, Err(_)) => Err("something went wrong".into()),
        }
    }
}

both!(a_stored_result_that_the_code_cannot_read_any_more_is_held_until_it_can, world, {
    for (is_local, told) in [false, true].into_iter().flat_map(|is_local| TOLD.map(|told| (is_local, told))) {
        for first in ["crashes", "gives the key back"] {
            let case = format!("local: {is_local}, {told:?}, the first {first}");
            world.afresh().await;
            let gateway = world.gateway.clone();
            world.on("act", move |ctx| {
                let gateway = gateway.clone();
                Box::pin(async move {
                    let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                    if attempt.number() == 2 {
                        // Another deployment, whose type has a field more.
                        return told.end(charge::<B, _>(&attempt, &gateway, is_local, |id| New { id, fee: 3 }).await);
                    }
                    let old = charge::<B, _>(&attempt, &gateway, is_local, |id| Old { id }).await?;
                    match (attempt.number(), first) {
                        (1, "crashes") => panic!("as the test says"),
                        (1, _) => Err(Error::new("later").mark(Mark::Release)),
                        _ => Ok(Receipt::new(old.id)),
                    }
                })
            });
            let server = world.server(resume());
            server.run(DOCUMENT).await;
            let code_of_it = if told == Told::Swallowed { "OUTCOME_UNKNOWN" } else { "MISCONFIGURED" };
            assert_eq!(code(&server.run(DOCUMENT).await), code_of_it, "{case}");
            let held = world.record("k").await.unwrap();
            assert_eq!(held.state, State::NeedsRecovery, "{case}");
            assert!(held.reason.unwrap().contains("the step charge can't be stored and read back"), "{case}");
            assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
            assert_eq!((world.state("k").await.as_str(), charges(&world).await), ("succeeded", 1), "{case}");
            assert!(world.gateway.calls() <= 1, "{case}");
        }
    }
});

/// Reads nothing back that it has written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unlike {}

impl Serialize for Unlike {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("something else")
    }
}

/// A step whose result is of no use: the first attempt is told so.
async fn useless<B: Backend>(ctx: &Context<'_>, gateway: &Gateway, is_local: bool, what: &str) -> Result<()> {
    let attempt = ctx.attempt::<Faulty<B::Store>>()?;
    match what {
        "NaN" => charge::<B, _>(&attempt, gateway, is_local, |_| f64::NAN).await.map(drop),
        "infinite" => charge::<B, _>(&attempt, gateway, is_local, |_| [f64::INFINITY]).await.map(drop),
        "map" => charge::<B, _>(&attempt, gateway, is_local, |_| HashMap::from([((1, 2), 3)])).await.map(drop),
        "unlike" => charge::<B, _>(&attempt, gateway, is_local, |_| Unlike {}).await.map(drop),
        _ => charge::<B, _>(&attempt, gateway, is_local, |id| id).await.map(drop),
    }
}

both!(a_result_that_cannot_be_read_back_is_refused_before_its_step_counts, world, {
    for (is_local, on_crash) in
        [(true, OnCrash::Hold), (true, OnCrash::Resume), (false, OnCrash::Hold), (false, OnCrash::Resume)]
    {
        for (what, told) in
            ["NaN", "infinite", "map", "unlike"].into_iter().flat_map(|what| TOLD.map(|told| (what, told)))
        {
            // A local step that was undone harms nobody who goes on without it.
            if is_local && told == Told::Swallowed {
                continue;
            }
            let case = format!("{what}, {told:?}, local: {is_local}, {on_crash:?}");
            world.afresh().await;
            let (gateway, is_mended) = (world.gateway.clone(), Arc::new(AtomicUsize::new(0)));
            let mended = Arc::clone(&is_mended);
            world.on("act", move |ctx| {
                let (gateway, what) = (gateway.clone(), [what, "mended"][mended.load(Ordering::SeqCst)]);
                Box::pin(async move { told.end(useless::<B>(ctx, &gateway, is_local, what).await) })
            });
            let server = world.server(Policy::leased().on_crash(on_crash));
            let code_of_it = if told == Told::Swallowed { "OUTCOME_UNKNOWN" } else { "MISCONFIGURED" };
            assert_eq!(code(&server.run(DOCUMENT).await), code_of_it, "{case}");
            let record = world.record("k").await.unwrap();
            let is_free = is_local && on_crash == OnCrash::Resume;
            assert_eq!(record.state, if is_free { State::Released } else { State::NeedsRecovery }, "{case}");
            assert_eq!(charges(&world).await, i64::from(!is_local), "{case}: a local step is undone");
            is_mended.store(1, Ordering::SeqCst);
            if on_crash == OnCrash::Resume {
                assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
                assert_eq!((world.state("k").await.as_str(), charges(&world).await), ("succeeded", 1), "{case}");
            } else {
                assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
            }
        }
    }
});

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Partly {
    kept: u64,
    #[serde(skip)]
    left: u64,
}

both!(a_step_returns_what_was_stored_on_the_first_attempt_too, world, {
    for is_local in [true, false] {
        world.afresh().await;
        let (gateway, seen) = (world.gateway.clone(), Arc::new(Mutex::new(Vec::new())));
        let noted = Arc::clone(&seen);
        world.on("act", move |ctx| {
            let (gateway, seen) = (gateway.clone(), Arc::clone(&noted));
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let partly = |_| Partly { kept: u64::MAX, left: 7 };
                let value = charge::<B, _>(&attempt, &gateway, is_local, partly).await?;
                seen.lock().unwrap().push(value);
                assert!(attempt.number() > 1, "the first attempt crashes");
                Ok(Receipt::new("1"))
            })
        });
        let server = world.server(resume());
        assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN");
        assert_eq!(code(&server.run(DOCUMENT).await), "");
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(seen, [Partly { kept: u64::MAX, left: 0 }, Partly { kept: u64::MAX, left: 0 }]);
    }
});

both!(a_name_that_is_used_again_behind_the_charge_is_held_and_never_stored_as_failed, world, {
    for told in [Told::AsItIs, Told::InOtherWords] {
        for (on_crash, repeated) in [
            (OnCrash::Hold, "charge"),
            (OnCrash::Resume, "charge"),
            (OnCrash::Hold, "mail"),
            (OnCrash::Resume, "mail"),
            (OnCrash::Release, "charge"),
        ] {
            let case = format!("{told:?}, {on_crash:?}, {repeated}");
            world.afresh().await;
            let (gateway, is_mended) = (world.gateway.clone(), Arc::new(AtomicUsize::new(0)));
            let mended = Arc::clone(&is_mended);
            world.on("act", move |ctx| {
                let (gateway, is_mended) = (gateway.clone(), mended.load(Ordering::SeqCst) == 1);
                Box::pin(async move {
                    let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                    charge::<B, _>(&attempt, &gateway, false, |id| id).await?;
                    attempt.remote("mail", async |_| Ok::<_, Error>(())).await?;
                    let name = if is_mended { "mail again" } else { repeated };
                    told.end(attempt.remote(name, async |id| Ok::<_, Error>(gateway.charge(id))).await)
                })
            });
            let server = world.server(Policy::leased().on_crash(on_crash));
            assert_eq!(code(&server.run(DOCUMENT).await), "MISCONFIGURED", "{case}");
            assert_eq!((world.state("k").await.as_str(), world.gateway.charges()), ("needs_recovery", 1), "{case}");
            is_mended.store(1, Ordering::SeqCst);
            if on_crash == OnCrash::Hold {
                let (me, key) = (client(CLIENT), IdempotencyKey::new("k").unwrap());
                assert_eq!(code(&server.run(DOCUMENT).await), "OUTCOME_UNKNOWN", "{case}");
                server.idempotency.settle(&server.schema, &me, &key, Found::NotStarted, "mended").await.unwrap();
            }
            assert_eq!(code(&server.run(DOCUMENT).await), "", "{case}");
            // The one of the charge, and the one that had no name of its own.
            assert_eq!((world.state("k").await.as_str(), world.gateway.calls()), ("succeeded", 2), "{case}");
        }
    }
});
