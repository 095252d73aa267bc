//! Leases while the database is slow, locked, or half away; transactions that read from one snapshot.

use super::*;
use crate::proxy::Proxy;

/// The lease's time left, in milliseconds, as the database sees it.
async fn left(world: &World<PostgresBackend>, key: &str) -> i64 {
    let left = format!(
        "SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000)::bigint FROM idempotency_records WHERE key = '{key}'"
    );
    world.number(left).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_local_step_never_shortens_its_lease() {
    let world = World::<PostgresBackend>::new().await;
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Ours>()?;
            let slow = async |connection: &mut sqlx::PgConnection| {
                sqlx::query("INSERT INTO effects (label) VALUES ('act')").execute(&mut *connection).await?;
                tokio::time::sleep(ms(2_400)).await;
                Ok::<_, Error>(())
            };
            attempt.local("slow", slow).await?;
            tokio::time::sleep(ms(300)).await;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server(Policy::leased().lease(ms(3_000)).renew_every(ms(500)));
    let running = server.spawn(document("k"));
    world.until_state("k", "in_progress").await;
    let mut least = i64::MAX;
    while !running.is_finished() {
        if world.state("k").await == "in_progress" {
            least = least.min(left(&world, "k").await);
        }
        tokio::time::sleep(ms(20)).await;
    }
    assert_eq!(codes(&running.await.unwrap()), [""; 0]);
    // Less than a lease and a renewal ago; the machine may be slow.
    assert!(least > 1_000, "{least} ms were left");
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_table_costs_a_live_owner_nothing() {
    let world = World::<PostgresBackend>::new().await;
    let gateway = world.gateway.clone();
    world.on("act", move |ctx| {
        let gateway = gateway.clone();
        Box::pin(async move {
            let attempt = ctx.attempt::<Ours>()?;
            let charge = async |id| {
                let charge = gateway.charge(id);
                tokio::time::sleep(ms(2_500)).await;
                Ok::<_, Error>(charge)
            };
            attempt.remote("charge", charge).await?;
            Ok(Receipt::new("mine"))
        })
    });
    let policy = Policy::leased().lease(ms(800)).on_crash(OnCrash::Resume);
    let owner = world.server(policy.clone());
    let other = world.server_on(world.other_store(4).await, policy.wait(ms(0)), |builder| builder);
    let running = owner.spawn(document("k"));
    world.until_state("k", "in_progress").await;
    let locked = tokio::spawn({
        let options = world.database.options();
        async move {
            let pool = pool(options).await;
            let mut transaction = pool.begin().await.unwrap();
            sqlx::query("LOCK TABLE idempotency_records IN ACCESS EXCLUSIVE MODE")
                .execute(&mut *transaction)
                .await
                .unwrap();
            tokio::time::sleep(ms(1_500)).await;
            transaction.commit().await.unwrap();
            pool.close().await;
        }
    });
    let sweeping = tokio::spawn({
        let other = other.clone();
        async move {
            for _ in 0..10 {
                other.sweep().await;
                tokio::time::sleep(ms(250)).await;
            }
        }
    });
    locked.await.unwrap();
    let told = running.await.unwrap();
    assert_eq!(answered(&told), r#"{"act":{"id":"mine"}} []"#);
    sweeping.await.unwrap();
    assert_eq!(answered(&other.run(document("k")).await), answered(&told));
    assert_eq!((world.gateway.charges(), world.gateway.calls()), (1, 1));
    PostgresBackend::close(&other.idempotency.store().inner).await;
    world.done().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_beside_a_local_step_makes_neither_fail_under_any_isolation() {
    for level in ["repeatable read", "serializable"] {
        let world = World::<PostgresBackend>::isolated(level).await;
        world.on("act", |ctx| {
            Box::pin(async move {
                let attempt = ctx.attempt::<Ours>()?;
                for step in ["one", "two", "three"] {
                    let slow = async |connection: &mut sqlx::PgConnection| {
                        sqlx::query("INSERT INTO effects (label) VALUES ('act')").execute(&mut *connection).await?;
                        tokio::time::sleep(ms(150)).await;
                        Ok::<_, Error>(())
                    };
                    attempt.local(step, slow).await?;
                }
                Ok(Receipt::new("1"))
            })
        });
        let store = world.other_store(16).await;
        let policy = Policy::leased().lease(ms(600)).renew_every(ms(30)).on_crash(OnCrash::Resume);
        let server = world.server_on(store.clone(), policy, |builder| builder);
        for n in 0..3 {
            assert_eq!(codes(&server.run(document(&format!("alone{n}"))).await), [""; 0], "{level}");
        }
        assert_eq!(world.effects().await, 9, "{level}");
        // Many at once may be in each other's way, when the application has run already: told as undone, and free.
        let running: Vec<_> = (0..3).map(|n| server.spawn(document(&format!("k{n}")))).collect();
        for (n, running) in running.into_iter().enumerate() {
            let told = running.await.unwrap();
            if !told.errors.is_empty() {
                assert!(["STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"].contains(&&*code(&told)), "{level}: {told:?}");
                assert_eq!(world.state(&format!("k{n}")).await, "released", "{level}");
            }
        }
        for n in 0..3 {
            assert_eq!(codes(&server.run(document(&format!("k{n}"))).await), [""; 0], "{level}");
        }
        assert_eq!(world.effects().await, 18, "{level}");
        PostgresBackend::close(&store.inner).await;
        world.done().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_that_hangs_costs_no_live_owner_its_lease() {
    let world = World::<PostgresBackend>::new().await;
    let database = world.database.options();
    let way = Proxy::start(format!("{}:{}", database.get_host(), database.get_port())).await;
    let options = database.host("127.0.0.1").port(way.port);
    // Every connection is used by turns, so that renewals meet the one that hangs.
    let store = PostgresStore::new(
        PgPoolOptions::new()
            .max_connections(4)
            .min_connections(4)
            .test_before_acquire(false)
            .connect_with(options)
            .await
            .unwrap(),
    );
    world.on("act", |ctx| {
        Box::pin(async move {
            tokio::time::sleep(ms(3_000)).await;
            effect::<PostgresBackend>(ctx, "act").await.ok();
            Ok(Receipt::new("mine"))
        })
    });
    let policy = Policy::leased().lease(ms(1_600)).renew_every(ms(200));
    let owner = world.server_on(Faulty::faulty(store), policy.clone(), |builder| builder);
    let other = world.server(policy.wait(ms(0)));
    let running: Vec<_> = (0..3).map(|n| owner.spawn(document(&format!("k{n}")))).collect();
    for n in 0..3 {
        world.until_state(&format!("k{n}"), "in_progress").await;
    }
    way.hang_the_first();
    let hung = Instant::now();
    while hung.elapsed() < ms(2_400) {
        other.sweep().await;
        for n in 0..3 {
            assert_eq!(codes(&other.run(document(&format!("k{n}"))).await), ["IN_PROGRESS"], "{:?}", hung.elapsed());
        }
        tokio::time::sleep(ms(100)).await;
    }
    for (n, running) in running.into_iter().enumerate() {
        let told = tokio::time::timeout(Duration::from_secs(15), running).await.expect("it hangs").unwrap();
        assert_eq!(answered(&told), r#"{"act":{"id":"mine"}} []"#);
        let state = format!("k{n}");
        world.until_state(&state, "succeeded").await;
    }
    world.done().await;
}
