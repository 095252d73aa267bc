//! The transaction of a mutation, asked for twice.

use std::marker::PhantomData;

use async_graphql::{Context, EmptySubscription, Error, Object, Result, Schema};

use super::{DOCUMENT, extension};
use crate::support::{schema::Query, *};

both!(a_helper_that_asks_again_for_the_transaction_is_told_at_once_and_the_key_is_free, world, {
    for pool in [8, 1] {
        let store = world.other_store(pool).await;
        let is_mended = Arc::new(AtomicUsize::new(0));
        let mended = Arc::clone(&is_mended);
        world.on("act", move |ctx| {
            let is_mended = mended.load(Ordering::SeqCst) == 1;
            Box::pin(async move {
                let attempt = ctx.attempt::<Faulty<B::Store>>()?;
                let mut held = attempt.transaction().await?;
                B::write(&mut held, "act").await?;
                if !is_mended {
                    // The same attempt, or another look at it: both are this resolver.
                    assert!(matches!(attempt.transaction().await, Err(AttemptError::TransactionHeld)));
                    drop(ctx.attempt::<Faulty<B::Store>>()?.transaction().await?);
                }
                Ok(Receipt::new("1"))
            })
        });
        let server = world.server_on(store.clone(), Policy::transactional(), |builder| builder);
        for _ in 0..2 {
            let begun = Instant::now();
            assert_eq!(code(&server.run(DOCUMENT).await), "MISCONFIGURED");
            assert!(begun.elapsed() < ms(2_000), "{:?}, and the store has 10 s to answer", begun.elapsed());
            assert_eq!((world.state("k").await.as_str(), world.effects().await), ("none", 0));
        }
        is_mended.store(1, Ordering::SeqCst);
        assert_eq!(code(&server.run(DOCUMENT).await), "");
        assert_eq!(world.effects().await, 1);
        world.afresh().await;
        B::close(&store.inner).await;
    }
});

/// A mutation whose children work on its transaction.
struct Parents<B>(PhantomData<B>);

struct Parent<B>(PhantomData<B>);

#[Object]
#[allow(unused_variables, reason = "the key is for the extension")]
impl<B: Backend> Parents<B> {
    async fn act(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<Parent<B>> {
        effect::<B>(ctx, "parent").await?;
        Ok(Parent(PhantomData))
    }
}

#[Object]
impl<B: Backend> Parent<B> {
    /// Holds the transaction for a time, and writes at its end.
    async fn hold(&self, ctx: &Context<'_>, millis: u64) -> Result<bool> {
        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
        let mut held = attempt.transaction().await?;
        tokio::time::sleep(ms(millis)).await;
        B::write(&mut held, "child").await?;
        Ok(true)
    }

    async fn items(&self) -> Vec<Parent<B>> {
        (0..3).map(|_| Parent(PhantomData)).collect()
    }
}

fn parents<B: Backend>(world: &World<B>, store_timeout: Duration) -> Schema<Query, Parents<B>, EmptySubscription> {
    let idempotency = Idempotency::builder(world.store.clone())
        .default_policy(Policy::transactional())
        .store_timeout(store_timeout)
        .build()
        .unwrap();
    let builder = Schema::build(Query, Parents::<B>(PhantomData), EmptySubscription);
    world.schema(builder, &world.store, &idempotency)
}

both!(of_children_that_want_the_transaction_at_once_one_waits_for_the_other, world, {
    let schema = parents(&world, Duration::from_secs(10));
    for (selection, children) in [
        ("a: hold(millis: 50) b: hold(millis: 50)", 2),
        ("items { hold(millis: 20) }", 3),
        ("a: hold(millis: 20) items { a: hold(millis: 1) b: hold(millis: 20) }", 7),
    ] {
        world.execute("DELETE FROM effects").await;
        let key = uuid::Uuid::new_v4();
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ {selection} }} }}"#);
        let first = schema.execute(request(&document)).await;
        assert_eq!(codes(&first), [""; 0], "{selection}");
        let rows = "SELECT count(*) FROM effects WHERE label = 'child'";
        assert_eq!((world.number(rows).await, world.effects().await), (children, children + 1), "{selection}");
        let again = schema.execute(request(&document)).await;
        assert!(replayed(&again, "act"), "{selection}");
        assert_eq!(world.effects().await, children + 1, "{selection}");
    }
});

both!(a_child_that_keeps_the_transaction_for_too_long_ends_the_wait_and_nobody_is_lied_to, world, {
    let schema = parents(&world, ms(150));
    let document = r#"mutation { act(idempotencyKey: "k") { a: hold(millis: 600) b: hold(millis: 600) } }"#;
    let begun = Instant::now();
    let told = schema.execute(request(document)).await;
    assert!(begun.elapsed() < ms(3_000), "{:?}", begun.elapsed());
    let (told_code, retryable) = (code(&told), extension(&told, "retryable"));
    let came_to = (world.state("k").await, world.effects().await);
    if told_code == "ROLLED_BACK" {
        // It says that nothing happened, and that the same key runs again; nothing is told as done.
        assert!(!told.data.to_string().contains("true"), "{}", answered(&told));
        assert_eq!((came_to, retryable.as_str()), (("none".to_owned(), 0), "true"), "{}", answered(&told));
    } else {
        // The parent's row and one child's are there, and so is the answer.
        assert_eq!((came_to, retryable.as_str()), (("succeeded".to_owned(), 2), "false"), "{}", answered(&told));
    }
});

both!(a_step_inside_another_comes_to_an_end, world, {
    // A helper that makes a step of its own is called from within one.
    world.on("act", |ctx| {
        Box::pin(async move {
            let attempt = ctx.attempt::<Faulty<B::Store>>()?;
            let outer = async |connection: &mut _| {
                B::write(connection, "act").await?;
                attempt.local("inner", async |_: &mut _| Ok::<_, Error>(())).await
            };
            attempt.local("outer", outer).await?;
            Ok(Receipt::new("1"))
        })
    });
    let server = world.server_with(Policy::leased(), |builder| builder.store_timeout(ms(200)));
    let told = tokio::time::timeout(ms(3_000), server.run(DOCUMENT)).await;
    let told = code(&told.expect("a step waits for the one that it is in, and its store has 200 ms to answer"));
    let (effects, state) = (world.effects().await, world.state("k").await);
    if told.is_empty() {
        assert_eq!((effects, state.as_str()), (1, "succeeded"));
    } else {
        assert!(["MISCONFIGURED", "STORE_UNAVAILABLE"].contains(&told.as_str()), "{told}");
        assert_eq!(effects, 0, "{told}, {state}");
    }
});
