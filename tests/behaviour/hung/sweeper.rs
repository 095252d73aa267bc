//! A reconciler, or a resumption, that panics or hangs costs its own record a try, and nothing else.

use async_graphql::{Error, Request};

use super::DOCUMENT;
use crate::support::*;

fn document(key: &str) -> String {
    DOCUMENT.replace("\"k\"", &format!("\"{key}\""))
}

fn crash<B: Backend>(world: &World<B>) {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            panic!("as the test says")
        })
    });
}

/// What becomes of whoever is asked about a key, by its name, until it is mended.
async fn come_to(key: &str) {
    if key.starts_with("hangs") {
        std::future::pending::<()>().await;
    }
    assert!(!key.starts_with("panics"), "as the test says");
}

const BAD: [&str; 4] = ["panics at once", "panics", "hangs", "hangs too"];
const GOOD: [&str; 3] = ["a good one", "good", "the last good one"];

/// Whether the good ones are recovered in one round, and each of the bad ones has cost a try of its own.
async fn judge<B: Backend>(world: &World<B>, swept: Swept, round: i32, begun: Instant) {
    assert!(begun.elapsed() < ms(3_000), "{:?}", begun.elapsed());
    let recovered = if round == 1 { GOOD.len() } else { 0 };
    assert_eq!((swept.recovered, swept.held), (recovered as u64, BAD.len() as u64), "round {round}");
    for key in GOOD {
        assert_eq!(world.state(&key.replace(' ', "-")).await, "succeeded", "{key}");
    }
    for key in BAD {
        let record = world.record(&key.replace(' ', "-")).await.unwrap();
        assert_eq!((record.state, record.recoveries), (State::NeedsRecovery, round), "{key}");
    }
}

both!(a_reconciler_that_panics_or_hangs_costs_its_own_record_a_try_and_nothing_else, world, {
    crash(&world);
    let is_mended = Arc::new(AtomicUsize::new(0));
    let mended = Arc::clone(&is_mended);
    let server = world.server_with(Policy::leased(), |builder| {
        builder.reconcile("act", move |record| {
            let (key, is_mended) = (record.key.to_string(), mended.load(Ordering::SeqCst) == 1);
            assert!(is_mended || key != "panics-at-once", "as the test says");
            async move {
                if !is_mended {
                    come_to(&key).await;
                }
                Found::Succeeded(serde_json::json!({ "id": key }))
            }
        })
    });
    for key in BAD.iter().chain(&GOOD) {
        assert_eq!(code(&server.run(document(&key.replace(' ', "-"))).await), "OUTCOME_UNKNOWN");
    }
    let sweeper = server.idempotency.sweeper(server.schema.clone()).patience(ms(200)).backoff(ms(10_000));
    for round in 1..=2 {
        let begun = Instant::now();
        judge(&world, sweeper.run_once().await.unwrap(), round, begun).await;
        world.pass(Duration::from_mins(10)).await;
    }
    is_mended.store(1, Ordering::SeqCst);
    assert_eq!(sweeper.run_once().await.unwrap().recovered, BAD.len() as u64);
    assert_eq!(world.number("SELECT count(*) FROM idempotency_records WHERE state = 'succeeded'").await, 7);
});

both!(a_resumption_whose_request_cannot_be_rebuilt_costs_its_own_record_a_try_and_nothing_else, world, {
    crash(&world);
    let server = world.server(Policy::leased().on_crash(OnCrash::Resume));
    for key in BAD.iter().chain(&GOOD) {
        assert_eq!(code(&server.run(document(&key.replace(' ', "-"))).await), "OUTCOME_UNKNOWN");
    }
    world.on("act", |_| Box::pin(async { Ok(Receipt::new("resumed")) }));
    let sweeper = server
        .idempotency
        .resume_with(server.schema.clone(), |request: Request, record, _| {
            let key = record.key.to_string();
            assert_ne!(key, "panics-at-once", "as the test says");
            async move {
                come_to(&key).await;
                request
            }
        })
        .patience(ms(200))
        .backoff(ms(10_000));
    for round in 1..=2 {
        let begun = Instant::now();
        judge(&world, sweeper.run_once().await.unwrap(), round, begun).await;
        world.pass(Duration::from_mins(10)).await;
    }
});

both!(more_hanging_reconcilers_than_are_asked_at_once_keep_no_other_key_from_recovery, world, {
    crash(&world);
    let server = world.server_with(Policy::leased(), |builder| {
        builder.reconcile("act", async |record| {
            come_to(record.key.as_str()).await;
            Found::Failed(Error::new("declined"))
        })
    });
    for n in 0..40 {
        server.run(document(&format!("hangs-{n}"))).await;
    }
    for n in 0..3 {
        server.run(document(&format!("good-{n}"))).await;
    }
    let begun = Instant::now();
    let swept = server.idempotency.sweeper(server.schema.clone()).patience(ms(150)).run_once().await.unwrap();
    assert_eq!((swept.recovered, swept.held), (3, 40));
    assert!(begun.elapsed() < ms(4_000), "{:?}", begun.elapsed());
});

/// What keeps a sweeper busy.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Reconciler,
    Rebuild,
    Resolver,
}

both!(a_sweeper_stops_whatever_hangs, world, {
    for (n, busy) in [Busy::Reconciler, Busy::Rebuild, Busy::Resolver].into_iter().enumerate() {
        crash(&world);
        let (asked, key) = (Arc::new(tokio::sync::Notify::new()), format!("hangs-{n}"));
        let (by_reconciler, by_rebuild, by_resolver) = (Arc::clone(&asked), Arc::clone(&asked), Arc::clone(&asked));
        let server = world.server_with(Policy::leased().on_crash(OnCrash::Resume), |builder| match busy {
            Busy::Reconciler => builder.reconcile("act", move |_| {
                by_reconciler.notify_one();
                std::future::pending()
            }),
            Busy::Rebuild | Busy::Resolver => builder,
        });
        server.run(document(&key)).await;
        world.on("act", move |_| {
            by_resolver.notify_one();
            Box::pin(std::future::pending())
        });
        let sweeper = server.idempotency.resume_with(server.schema.clone(), move |request: Request, _, _| {
            let asked = Arc::clone(&by_rebuild);
            async move {
                if matches!(busy, Busy::Rebuild) {
                    asked.notify_one();
                    std::future::pending::<()>().await;
                }
                request
            }
        });
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let sweeping = tokio::spawn(sweeper.every(ms(20)).run(async { drop(stopped.await) }));
        tokio::time::timeout(ms(5_000), asked.notified()).await.expect("nobody was asked");
        stop.send(()).unwrap();
        let stopping = Instant::now();
        tokio::time::timeout(ms(3_000), sweeping).await.expect("it does not stop").unwrap();
        assert!(stopping.elapsed() < ms(1_000), "{busy:?}: {:?}", stopping.elapsed());
        world.execute("DELETE FROM idempotency_records").await;
    }
});
