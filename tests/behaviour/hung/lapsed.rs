//! An owner that could not renew its lease for a time, and whose key nobody took over, is the owner still.

use async_graphql::Error;

use super::DOCUMENT;
use crate::support::*;

/// What brings a lapsed key back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BackBy {
    Renewal,
    Step,
    Settlement,
}

both!(an_owner_that_was_cut_off_while_nobody_took_its_key_over_is_believed, world, {
    for (n, back_by) in [BackBy::Renewal, BackBy::Step, BackBy::Settlement].into_iter().enumerate() {
        let document = DOCUMENT.replace("\"k\"", &format!("\"{n}\""));
        let key = n.to_string();
        let (go_on, charged) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::new(tokio::sync::Notify::new()));
        let (gate, told, gateway) = (Arc::clone(&go_on), Arc::clone(&charged), world.gateway.clone());
        world.on("act", move |ctx| {
            let (gate, told, gateway) = (Arc::clone(&gate), Arc::clone(&told), gateway.clone());
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let slow = async |id| {
                    gateway.charge(id);
                    told.notify_one();
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, Error>(())
                };
                if back_by == BackBy::Settlement {
                    slow(attempt.request_id()).await?;
                } else {
                    attempt.remote("charge", slow).await?;
                }
                gate.acquire().await.unwrap().forget();
                Ok(Receipt::new("mine"))
            })
        });
        world.gateway.forget();
        // A renewal every 100 ms, or none while the test lasts.
        let policy = if back_by == BackBy::Renewal {
            Policy::leased().lease(ms(1_000)).renew_every(ms(100))
        } else {
            Policy::leased()
        };
        let owner = world.server(policy.clone());
        // It sweeps, and asks someone who does not know.
        let other = world.server_on(world.other_store(4).await, policy.wait(ms(0)), |builder| {
            builder.reconcile("act", async |_| Found::Unknown)
        });
        let running = owner.spawn(&document);
        charged.notified().await;
        world.store.fail_verb("renew", Moment::Before);
        world.pass(Duration::from_secs(31)).await;
        let swept = other.sweep().await;
        assert_eq!((swept.lapsed, swept.held, swept.recovered), (1, 1, 0), "{back_by:?}");
        assert_eq!(world.state(&key).await, "needs_recovery", "{back_by:?}");
        assert_eq!(code(&other.run(&document).await), "OUTCOME_UNKNOWN", "{back_by:?}");
        world.store.heal();
        match back_by {
            BackBy::Renewal => world.until_state(&key, "in_progress").await,
            BackBy::Step => {
                go_on.add_permits(1);
                world.until_state(&key, "in_progress").await;
            }
            BackBy::Settlement => {}
        }
        if back_by != BackBy::Settlement {
            assert_eq!(code(&other.run(&document).await), "IN_PROGRESS", "{back_by:?}");
            assert_eq!(other.sweep().await, Swept::default(), "{back_by:?}");
        }
        go_on.add_permits(2);
        let mine = running.await.unwrap();
        assert_eq!(answered(&mine), r#"{"act":{"id":"mine"}} []"#, "{back_by:?}");
        assert_eq!(world.state(&key).await, "succeeded", "{back_by:?}");
        let again = other.run(&document).await;
        assert_eq!(answered(&again), answered(&mine), "{back_by:?}");
        assert!(replayed(&again, "act"), "{back_by:?}");
        assert_eq!((world.gateway.charges(), world.gateway.calls()), (1, 1), "{back_by:?}");
        B::close(&other.idempotency.store().inner).await;
    }
});
