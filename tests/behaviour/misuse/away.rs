//! A step whose store is away: always a code, and what it says is so.

use std::marker::PhantomData;

use async_graphql::{Context, EmptySubscription, Error, ErrorExtensions, Object, Result, Schema};

use super::extension;
use crate::support::{schema::Query, *};

/// Of a key that nobody has seen: how often the store is asked about it is known.
fn new_document() -> (String, String) {
    let key = uuid::Uuid::new_v4().to_string();
    (format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#), key)
}

/// An application's own error, which keeps of the crate's and of the database's only their words.
struct Own(String);

impl std::convert::From<AttemptError> for Own {
    fn from(error: AttemptError) -> Self {
        Self(error.to_string())
    }
}

impl std::convert::From<sqlx::Error> for Own {
    fn from(error: sqlx::Error) -> Self {
        Self(error.to_string())
    }
}

impl std::convert::From<Own> for Error {
    fn from(Own(words): Own) -> Self {
        Self::new(words)
    }
}

/// An order, then a call, then a receipt.
async fn in_steps<B: Backend, E>(ctx: &Context<'_>, gateway: &Gateway) -> Result<Receipt>
where
    E: std::convert::From<AttemptError> + std::convert::From<sqlx::Error> + Into<Error> + Send,
{
    let run = async || {
        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
        let order = async |connection: &mut _| Ok::<_, E>(B::write(connection, "order").await?);
        attempt.local("order", order).await?;
        attempt.remote("charge", async |id| Ok::<_, E>(gateway.charge(id))).await?;
        let receipt = async |connection: &mut _| Ok::<_, E>(B::write(connection, "receipt").await?);
        attempt.local("receipt", receipt).await
    };
    run().await.map_err(E::into)?;
    Ok(Receipt::new("done"))
}

/// How the resolver passes the error of a step on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    AsItIs,
    InItsOwnWords,
    WithACodeOfItsOwn,
}

const PASSED: [Passed; 3] = [Passed::AsItIs, Passed::InItsOwnWords, Passed::WithACodeOfItsOwn];

fn passes<B: Backend>(world: &World<B>, passed: Passed) {
    let gateway = world.gateway.clone();
    world.on("act", move |ctx| {
        let gateway = gateway.clone();
        Box::pin(async move {
            match passed {
                Passed::AsItIs => in_steps::<B, Error>(ctx, &gateway).await,
                Passed::InItsOwnWords => in_steps::<B, Own>(ctx, &gateway).await,
                Passed::WithACodeOfItsOwn => in_steps::<B, Own>(ctx, &gateway)
                    .await
                    .map_err(|_| Error::new("internal").extend_with(|_, e| e.set("code", "INTERNAL"))),
            }
        })
    });
}

/// Orders and receipts, and charges.
async fn made<B: Backend>(world: &World<B>) -> (String, usize) {
    (world.texts("SELECT label FROM effects ORDER BY label").await.join(" "), world.gateway.charges())
}

both!(a_step_that_the_store_fails_has_a_code_and_what_it_says_is_so, world, {
    passes(&world, Passed::AsItIs);
    let server = world.server(Policy::leased().on_crash(OnCrash::Resume));
    world.store.heal();
    assert_eq!(code(&server.run(new_document().0).await), "");
    let calls = world.store.calls();
    let of_steps = |verb: &str| verb == "transaction" || verb.starts_with("checkpoint");
    let of_steps: Vec<_> = (0..calls.len()).filter(|&n| of_steps(calls[n])).collect();
    assert_eq!(of_steps.len(), 6, "{calls:?}");
    for (passed, moment) in PASSED.into_iter().flat_map(|passed| [(passed, Moment::Before), (passed, Moment::After)]) {
        passes(&world, passed);
        for (at, &n) in of_steps.iter().enumerate() {
            let (document, key) = new_document();
            world.afresh().await;
            world.store.fail(n, moment);
            let told = server.run(&document).await;
            assert!(world.store.heal());
            let case = format!("{at}: {} of {calls:?} fails {moment:?}, {passed:?}: {}", calls[n], answered(&told));
            // The faulty store knows now and then that it was not reached.
            let is_undone = moment == Moment::Before && n % 2 == 0;
            let (code_of_it, status, state) = match at {
                // The order: its transaction, and its COMMIT.
                0 => ("STORE_UNAVAILABLE", "503", "released"),
                1 if is_undone => ("STORE_UNAVAILABLE", "503", "released"),
                // The charge: its intent, before which nothing of it was done. The receipt: its transaction.
                2 | 4 => ("OUTCOME_UNKNOWN", "409", "released"),
                // The receipt's COMMIT.
                5 if is_undone => ("OUTCOME_UNKNOWN", "409", "released"),
                // What may have been stored.
                _ => ("OUTCOME_UNKNOWN", "409", "needs_recovery"),
            };
            assert_eq!(code(&told), code_of_it, "{case}");
            assert_eq!((extension(&told, "retryable"), extension(&told, "httpStatus")), ("true".into(), status.into()));
            let after: u64 = extension(&told, "retryAfterMs").parse().unwrap();
            assert!((1..=60_000).contains(&after), "{case}");
            assert!(!answered(&told).contains("secret"), "{case}");
            assert_eq!(world.state(&key).await, state, "{case}");
            if code_of_it == "STORE_UNAVAILABLE" {
                assert_eq!(made(&world).await, (String::new(), 0), "{case}");
            }
            // Its policy resumes: the retry goes on, whatever was stored.
            assert_eq!(code(&server.run(&document).await), "", "{case}");
            assert_eq!(made(&world).await, ("order receipt".to_owned(), 1), "{case}");
        }
    }
});

both!(a_step_without_its_database_has_a_code_and_its_retry_runs, world, {
    for policy in [Policy::leased(), Policy::leased().on_crash(OnCrash::Resume)] {
        let server = world.server(policy);
        for passed in PASSED {
            let (document, key) = new_document();
            world.afresh().await;
            passes(&world, passed);
            // Everything is away from the first step on, for the settlement too.
            for verb in ["transaction", "checkpoint", "settle"] {
                world.store.fail_verb(verb, Moment::Before);
            }
            let told = server.run(&document).await;
            assert_eq!(code(&told), "STORE_UNAVAILABLE", "{passed:?}");
            assert_eq!(extension(&told, "retryable"), "true", "{passed:?}");
            world.store.heal();
            world.until_state(&key, "released").await;
            assert_eq!(code(&server.run(&document).await), "", "{passed:?}");
            assert_eq!(made(&world).await, ("order receipt".to_owned(), 1), "{passed:?}");
        }
    }
});

struct Parents<B>(PhantomData<B>);

struct Parent<B>(PhantomData<B>);

#[Object]
#[allow(unused_variables, reason = "the key is for the extension")]
impl<B: Backend> Parents<B> {
    async fn act(&self, idempotency_key: IdempotencyKey) -> Parent<B> {
        Parent(PhantomData)
    }
}

#[Object]
impl<B: Backend> Parent<B> {
    async fn order(&self, ctx: &Context<'_>) -> Result<i32> {
        let attempt = ctx.attempt::<Faulty<B::Store>>()?;
        let order = async |connection: &mut _| Ok::<_, Error>(B::write(connection, "order").await?);
        attempt.local("order", order).await?;
        Ok(1)
    }

    /// Its error stays here.
    async fn maybe_order(&self, ctx: &Context<'_>) -> Option<Result<i32>> {
        Some(self.order(ctx).await)
    }
}

both!(what_is_told_as_retryable_below_the_field_is_not_stored_as_its_answer, world, {
    let policy = Policy::leased().on_crash(OnCrash::Resume);
    let idempotency = Idempotency::builder(world.store.clone()).default_policy(policy).build().unwrap();
    let builder = Schema::build(Query, Parents::<B>(PhantomData), EmptySubscription);
    let schema = world.schema(builder, &world.store, &idempotency);
    for selection in ["order", "maybeOrder"] {
        let (document, key) = new_document();
        let document = document.replace("{ id }", &format!("{{ {selection} }}"));
        world.store.fail_verb("transaction", Moment::Before);
        let told = schema.execute(request(&document)).await;
        world.store.heal();
        assert_eq!((code(&told).as_str(), extension(&told, "retryable").as_str()), ("STORE_UNAVAILABLE", "true"));
        assert_eq!(world.state(&key).await, "released", "{selection}: a retry would never get another answer");
        assert_eq!(codes(&schema.execute(request(&document)).await), [""; 0], "{selection}");
    }
    assert_eq!(world.texts("SELECT label FROM effects").await, ["order", "order"]);
});
