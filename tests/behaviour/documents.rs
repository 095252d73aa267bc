//! Documents that are deep, that others meddle with, or that want each other's keys: nothing in them runs unprotected,
//! and none is stuck.

use std::{fmt::Write as _, marker::PhantomData};

use async_graphql::{Context, EmptySubscription, Object, Response, Result, Schema, SchemaBuilder};

use crate::support::{schema::Query, *};

mod meddling;
mod verified;

/// A mutation that counts, below a namespace too.
struct Acts<B>(PhantomData<B>);

struct Below<B>(PhantomData<B>);

#[Object]
impl<B: Backend> Acts<B> {
    #[allow(unused_variables, reason = "the key is for the extension")]
    async fn act(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<bool> {
        effect::<B>(ctx, "act").await.map(|()| true)
    }

    async fn below(&self) -> Below<B> {
        Below(PhantomData)
    }
}

#[Object]
impl<B: Backend> Below<B> {
    #[allow(unused_variables, reason = "the key is for the extension")]
    async fn act(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<bool> {
        effect::<B>(ctx, "act").await.map(|()| true)
    }
}

type ActsSchema<B> = Schema<Query, Acts<B>, EmptySubscription>;

fn acts<B: Backend>(
    world: &World<B>,
    build: impl FnOnce(SchemaBuilder<Query, Acts<B>, EmptySubscription>) -> SchemaBuilder<Query, Acts<B>, EmptySubscription>,
) -> ActsSchema<B> {
    build(Schema::build(Query, Acts::<B>(PhantomData), EmptySubscription)).data(world.store.clone()).finish()
}

fn idempotency<B: Backend>(world: &World<B>) -> Idempotency<Faulty<B::Store>> {
    Idempotency::builder(world.store.clone()).build().unwrap()
}

/// Runs a request twice. Whether it ran: once, protected; else it was refused, and what it was told.
async fn protected_or_refused<B: Backend>(
    world: &World<B>,
    schema: &ActsSchema<B>,
    asked: impl Fn() -> async_graphql::Request,
    case: &str,
) -> Result<(), Vec<String>> {
    let before = world.effects().await;
    let first: Response = schema.execute(asked()).await;
    let again = schema.execute(asked()).await;
    let ran = world.effects().await - before;
    assert!(ran <= 1, "{case}: it ran {ran} times");
    assert_eq!(answered(&again), answered(&first), "{case}");
    if ran == 1 {
        assert_eq!(codes(&first), [""; 0], "{case}");
        assert!(again.extensions.contains_key("idempotency"), "{case}: ran, and is not replayed");
        Ok(())
    } else {
        assert!(!first.errors.is_empty(), "{case}: {}", answered(&first));
        Err(codes(&first))
    }
}

/// A field below so many fragments.
fn nested(depth: usize, root: &str, open: &str, field: &str) -> String {
    format!("mutation {{ {root} {} {field} {} }}", open.repeat(depth), " }".repeat(depth + root.matches('{').count()))
}

/// A field below so many named fragments, each in the next one.
fn chained(depth: usize, ty: &str, root: &str, field: &str) -> String {
    let mut document = format!("mutation {{ {root} ...F0 {} }}", "}".repeat(root.matches('{').count()));
    for n in 0..depth {
        let below = if n + 1 == depth { field.to_owned() } else { format!("...F{}", n + 1) };
        let _ = write!(document, " fragment F{n} on {ty} {{ {below} }}");
    }
    document
}

both!(a_keyed_field_is_protected_or_refused_however_deep_it_stands, world, {
    let idempotency = idempotency(&world);
    let schema = acts(&world, |builder| builder.extension(idempotency.clone()).limit_recursive_depth(10_000));
    for (root, ty) in [("", "Acts"), ("below {", "Below")] {
        for depth in [1, 31, 32, 33, 34, 48, 60] {
            for open in ["... {", &format!("... on {ty} {{"), "... @include(if: true) {", "... @skip(if: false) {"] {
                let document =
                    nested(depth, root, open, &format!(r#"act(idempotencyKey: "{}")"#, uuid::Uuid::new_v4()));
                let case = format!("{depth} times {open} in {root}");
                let ran = protected_or_refused(&world, &schema, || request(&document), &case).await;
                assert_eq!(ran, Ok(()), "{case}");
            }
        }
        for depth in [33, 64, 150, 199, 200, 201, 202, 260] {
            let field = format!(r#"act(idempotencyKey: "{}")"#, uuid::Uuid::new_v4());
            let document = chained(depth, ty, root, &field);
            let case = format!("{depth} named fragments in {root}");
            let ran = protected_or_refused(&world, &schema, || request(&document), &case).await;
            if depth < 200 {
                assert_eq!(ran, Ok(()), "{case}");
            } else if let Err(codes) = ran {
                assert_eq!(codes, ["DOCUMENT_TOO_LARGE"], "{case}");
            }
        }
    }
});

/// Two documents take two keys in opposite order.
async fn opposite<B: Backend>(world: &World<B>, policy: &Policy, is_one_process: bool) {
    let case = format!("one process: {is_one_process}, {policy:?}");
    let begun = Arc::new(AtomicUsize::new(0));
    for mutation in ["act", "other"] {
        let begun = Arc::clone(&begun);
        world.on(mutation, move |ctx| {
            let begun = Arc::clone(&begun);
            Box::pin(async move {
                effect::<B>(ctx, mutation).await?;
                begun.fetch_add(1, Ordering::SeqCst);
                // Each has its first key before one of them wants the other's; or, with one writer, has no way to.
                for _ in 0..30 {
                    if begun.load(Ordering::SeqCst) == 2 {
                        break;
                    }
                    tokio::time::sleep(ms(20)).await;
                }
                Ok(Receipt::new(mutation))
            })
        });
    }
    world.afresh().await;
    let one = world.server(policy.clone());
    let store = world.other_store(4).await;
    let two =
        if is_one_process { one.clone() } else { world.server_on(store.clone(), policy.clone(), |builder| builder) };
    let (a, b) = (r#"a: act(idempotencyKey: "k1") { id }"#, r#"b: other(idempotencyKey: "k2") { id }"#);
    let documents = [format!("mutation {{ {a} {b} }}"), format!("mutation {{ {b} {a} }}")];
    let begun = Instant::now();
    let running = [one.spawn(&documents[0]), two.spawn(&documents[1])];
    let mut told = Vec::new();
    for running in running {
        let running = tokio::time::timeout(ms(4_000), running).await;
        told.push(running.unwrap_or_else(|_| panic!("{case}: a document waits for a key that waits for it")).unwrap());
    }
    assert!(begun.elapsed() < ms(3_000), "{case}: {:?}, and a duplicate would wait for 5 s", begun.elapsed());
    let refused = told.iter().filter(|response| !response.errors.is_empty()).count();
    for response in &told {
        assert!(codes(response).iter().all(|code| code == "IN_PROGRESS"), "{case}: {response:?}");
        for error in &response.errors {
            let extensions = error.extensions.as_ref().unwrap();
            assert_eq!(extensions.get("retryable").unwrap().to_string(), "true", "{case}");
            assert!(extensions.get("retryAfterMs").is_some(), "{case}");
        }
    }
    // Under SQLite one writer may come after the other; else each holds what the other one wants.
    assert!(refused >= 1 || !B::POSTGRES, "{case}: {told:?}");
    for (server, document) in [(&one, &documents[0]), (&two, &documents[1])] {
        let again = server.run(document).await;
        assert_eq!(codes(&again), [""; 0], "{case}");
        let both = again.data.into_json().unwrap();
        assert_eq!(both, serde_json::json!({ "a": { "id": "act" }, "b": { "id": "other" } }), "{case}");
    }
    assert_eq!(world.texts("SELECT label FROM effects ORDER BY label").await, ["act", "other"], "{case}");
    B::close(&store.inner).await;
}

both!(of_two_documents_that_want_each_others_keys_one_is_told_soon_and_both_come_right, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        for is_one_process in [true, false] {
            opposite(&world, &policy, is_one_process).await;
        }
    }
});
