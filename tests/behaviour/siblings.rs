//! Fields of one document: what has finished stays finished, and none waits for another that waits for it.

use std::marker::PhantomData;

use async_graphql::{Context, EmptySubscription, Error, Object, Response, Result, Schema};
use futures_util::future::BoxFuture;

use crate::support::{schema::Query, *};

/// Kills a process in the middle of a document: its runtime goes, with every task, while `other` runs.
async fn killed<B: Backend>(world: &World<B>, policies: [&Policy; 2], document: &str) {
    let begun = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&begun);
    world.on("other", move |ctx| {
        let begun = Arc::clone(&told);
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            if attempt.is_transactional() {
                let mut held = attempt.transaction().await?;
                B::write(&mut held, "other").await?;
                begun.notify_one();
                std::future::pending::<()>().await;
            }
            effect::<B>(ctx, "other").await?;
            begun.notify_one();
            std::future::pending().await
        })
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let store = runtime.block_on(world.other_store(4));
            let server =
                world.server_on(store, policies[0].clone(), |builder| builder.policy("other", policies[1].clone()));
            runtime.block_on(async {
                let running = server.spawn(document);
                begun.notified().await;
                assert!(!running.is_finished());
            });
            runtime.shutdown_background();
        });
    });
    world.on("other", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "other").await?;
            Ok(Receipt::new("b"))
        })
    });
}

/// What a finished field has left: its value with a null in it, an error below it, a header.
fn finishes<B: Backend>(world: &World<B>, has_error: bool) {
    world.on("act", move |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            ctx.replayed_header("x-order-id", "7")?;
            Ok(Receipt { fails: has_error, ..Receipt::new("a") })
        })
    });
}

fn header(response: &Response) -> Option<&str> {
    response.http_headers.get("x-order-id").map(|value| value.to_str().unwrap())
}

both!(a_crash_in_a_later_field_of_the_document_makes_no_finished_one_unknown, world, {
    let policies = [Policy::leased(), Policy::transactional()];
    for (has_error, first, then, sweeps) in [false, true].into_iter().flat_map(|has_error| {
        policies
            .iter()
            .flat_map(move |first| policies_of_the_rest().map(move |(then, sweeps)| (has_error, first, then, sweeps)))
    }) {
        let is_leased = format!("{then:?}").contains("Leased");
        let case = format!("error below: {has_error}, sweeps: {sweeps}, {first:?}, then {then:?}");
        world.afresh().await;
        finishes(&world, has_error);
        let document =
            r#"mutation { a: act(idempotencyKey: "d1") { id note swallowed } b: other(idempotencyKey: "d2") { id } }"#;
        killed(&world, [first, &then], document).await;
        let swallowed = if has_error { "null" } else { r#""whole""# };
        let a = format!(r#""a":{{"id":"a","note":null,"swallowed":{swallowed}}}"#);

        // The database may take a moment to see that the process is gone, with its transaction.
        let server = world.server_with(first.clone().wait(ms(0)), |builder| builder.policy("other", then.clone()));
        // Its lease still runs: someone may be about the rest of the document.
        assert_eq!(world.state("d1").await, "settling_succeeded", "{case}");
        let at_once = server.run(r#"mutation { a: act(idempotencyKey: "d1") { id note swallowed } }"#).await;
        assert_eq!(code(&at_once), "IN_PROGRESS", "{case}");
        world.pass(Duration::from_secs(31)).await;
        if sweeps {
            server.sweep().await;
            assert_eq!(world.state("d1").await, "succeeded", "{case}");
        }
        let again = server.run(document).await;
        let mut expected = Vec::new();
        if has_error {
            expected.push("BROKEN");
        }
        if is_leased {
            expected.push("OUTCOME_UNKNOWN");
        }
        assert_eq!(codes(&again), expected, "{case}");
        assert!(answered(&again).contains(&a), "{case}: {}", answered(&again));
        assert_eq!((replayed(&again, "a"), header(&again)), (true, Some("7")), "{case}");
        assert_eq!(world.number("SELECT count(*) FROM effects WHERE label = 'act'").await, 1, "{case}");
        assert_eq!(world.number("SELECT count(*) FROM effects WHERE label = 'other'").await, 1, "{case}");
        if is_leased {
            // Unknown, whether or not a sweeper has written it down.
            assert_eq!(world.state("d2").await, if sweeps { "needs_recovery" } else { "in_progress" }, "{case}");
        } else {
            assert!(answered(&again).contains(r#""b":{"id":"b"}"#), "{case}");
        }
    }
});

both!(a_document_that_is_dropped_keeps_the_errors_of_a_finished_field, world, {
    finishes(&world, true);
    world.on("other", |_| Box::pin(std::future::pending()));
    for policy in [Policy::leased(), Policy::transactional()] {
        world.execute("DELETE FROM idempotency_records").await;
        let server = world.server(policy);
        let a = r#"a: act(idempotencyKey: "d1") { id note swallowed }"#;
        let dropped = server.spawn(format!(r#"mutation {{ {a} b: other(idempotencyKey: "d2") {{ id }} }}"#));
        world.until_state("d1", "settling_succeeded").await;
        dropped.abort();
        world.until_state("d1", "succeeded").await;
        let again = server.run(format!("mutation {{ {a} }}")).await;
        assert!(replayed(&again, "a"));
        assert_eq!((codes(&again), header(&again)), (vec!["BROKEN".to_owned()], Some("7")));
    }
});

fn policies_of_the_rest() -> [(Policy, bool); 4] {
    let leased = Policy::leased;
    [(leased(), true), (leased(), false), (Policy::transactional(), true), (Policy::transactional(), false)]
}

/// A namespace whose fields the engine runs side by side, each as the test says by its name.
struct Spaces<B>(PhantomData<B>);

struct Space<B>(PhantomData<B>);

#[Object]
impl<B: Backend> Spaces<B> {
    async fn ns(&self) -> Space<B> {
        Space(PhantomData)
    }
}

#[Object]
#[allow(unused_variables, reason = "the keys are for the extension")]
impl<B: Backend> Space<B> {
    /// Takes its time, and works in its own way.
    async fn slow(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<bool> {
        slow::<B>(ctx).await
    }

    /// Does nothing, and does not even ask for its attempt.
    async fn nothing(&self, idempotency_key: IdempotencyKey) -> Option<bool> {
        None
    }

    async fn nothing_either(&self, idempotency_key: IdempotencyKey) -> Option<bool> {
        None
    }

    /// Writes in its transaction, and is null.
    async fn writes(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Option<bool>> {
        effect::<B>(ctx, "writes").await?;
        Ok(None)
    }

    /// Fails, and has not asked for its attempt either.
    async fn fails(&self, idempotency_key: IdempotencyKey) -> Option<Result<bool>> {
        Some(Err(Error::new("out of stock")))
    }
}

fn slow<'a, B: Backend>(ctx: &'a Context<'_>) -> BoxFuture<'a, Result<bool>> {
    Box::pin(async move {
        tokio::time::sleep(ms(100)).await;
        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
        if attempt.is_transactional() {
            effect::<B>(ctx, "slow").await?;
        } else {
            attempt.local("slow", async |connection| Ok::<_, Error>(B::write(connection, "slow").await?)).await?;
        }
        Ok(true)
    })
}

async fn side_by_side<B: Backend>(pool: u32) {
    let world = World::<B>::with_pool(pool).await;
    for slow_is_leased in [true, false] {
        let slow = if slow_is_leased { Policy::leased() } else { Policy::transactional() };
        let idempotency = Idempotency::builder(world.store.clone())
            .default_policy(Policy::transactional())
            .policy("ns.slow", slow)
            .build()
            .unwrap();
        let builder = Schema::build(Query, Spaces::<B>(PhantomData), EmptySubscription);
        let schema = world.schema(builder, &world.store, &idempotency);
        for (n, fields) in [
            &["slow", "nothing"][..],
            &["nothing", "slow"],
            &["nothing", "nothingEither"],
            &["slow", "fails"],
            &["writes", "nothing", "slow", "fails", "nothingEither"],
        ]
        .into_iter()
        .enumerate()
        {
            world.afresh().await;
            let case = format!("{fields:?}, slow is leased: {slow_is_leased}, a pool of {pool}");
            let keyed: Vec<_> =
                fields.iter().map(|field| format!(r#"{field}(idempotencyKey: "{field}{n}")"#)).collect();
            let document = format!("mutation {{ ns {{ {} }} }}", keyed.join(" "));
            let begun = Instant::now();
            let running = schema.execute(request(&document));
            let first = tokio::time::timeout(ms(4_000), running).await.unwrap_or_else(|_| panic!("{case}: no end"));
            assert!(begun.elapsed() < ms(2_000), "{case}: {:?}, and the store has 10 s to answer", begun.elapsed());
            let told: Vec<_> = fields.iter().filter(|field| **field == "fails").map(|_| "out of stock").collect();
            assert_eq!(codes(&first), told, "{case}");
            for field in fields {
                let expected = if *field == "fails" { "none" } else { "succeeded" };
                assert_eq!(world.state(&format!("{field}{n}")).await, expected, "{case}: {field}");
            }
            let again = schema.execute(request(&document)).await;
            assert_eq!(again.data.into_json().unwrap(), first.data.into_json().unwrap(), "{case}");
            let effects = fields.iter().filter(|field| ["slow", "writes"].contains(field)).count();
            assert_eq!(world.effects().await, i64::try_from(effects).unwrap(), "{case}");
        }
    }
    world.done().await;
}

both!(no_field_waits_for_a_sibling_that_waits_for_it, world, {
    drop(world.server(Policy::leased()));
    side_by_side::<B>(1).await;
    side_by_side::<B>(8).await;
});
