//! Schemas that break the rules: refused, and the right thing is blamed.

use async_graphql::{
    EmptySubscription, Error, Request, Schema, ServerError, ServerResult, Value, dynamic,
    extensions::{Extension, ExtensionContext, ExtensionFactory, NextParseQuery, NextPrepareRequest, NextValidation},
    parser::types::ExecutableDocument,
};
use async_trait::async_trait;

use super::{acts, idempotency};
use crate::{
    misuse::Log,
    support::{
        schema::{Mutation, Query},
        world::{CLIENT, client},
        *,
    },
};

async fn of_two_instances_none_runs_a_mutation_and_the_log_says_why<B: Backend>() {
    let world = World::<B>::new().await;
    let (log, _listening) = Log::listen();
    let (one, two) = (idempotency(&world), idempotency(&world));
    let twice = acts(&world, |builder| builder.extension(one.clone()).extension(one.clone()));
    let of_two_kinds = acts(&world, |builder| builder.extension(one.clone()).extension(two.clone()));
    for schema in [twice, of_two_kinds] {
        for document in
            [r#"mutation { act(idempotencyKey: "k") }"#, r#"mutation { below { act(idempotencyKey: "k") } }"#]
        {
            let told = schema.execute(request(document)).await;
            assert_eq!(codes(&told), ["MISCONFIGURED"], "{document}");
            assert_eq!(told.data, Value::Null);
            let logged = log.take();
            assert!(
                logged.contains("ERROR") && logged.contains("the extension stands twice on this schema"),
                "{logged}"
            );
        }
        assert_eq!(answered(&schema.execute(request("{ one }")).await), r#"{"one":1} []"#);
    }
    assert_eq!((world.effects().await, world.records().await), (0, 0));
    world.done().await;
}

#[tokio::test]
async fn of_two_instances_none_runs_a_mutation_and_the_log_says_why_on_postgres() {
    of_two_instances_none_runs_a_mutation_and_the_log_says_why::<PostgresBackend>().await;
}

#[tokio::test]
async fn of_two_instances_none_runs_a_mutation_and_the_log_says_why_on_sqlite() {
    of_two_instances_none_runs_a_mutation_and_the_log_says_why::<SqliteBackend>().await;
}

both!(verify_finds_two_instances, world, {
    let (one, two) = (idempotency(&world), idempotency(&world));
    let schema = acts(&world, |builder| builder.extension(one.clone()).extension(two.clone()));
    for asked in [&one, &two] {
        let problems = asked.verify(&schema).await.expect_err("every mutation of this schema is refused").problems;
        assert!(problems.len() == 1 && problems[0].contains("twice"), "{problems:?}");
    }
    let alone = acts(&world, |builder| builder.extension(one.clone()));
    assert_eq!(one.verify(&alone).await, Ok(()));
});

/// Where a key has its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Default {
    Nowhere,
    OfTheArgument,
    OfTheInputsField,
    OfTheInput,
}

both!(a_required_key_with_a_default_is_refused_and_no_request_runs_without_one, world, {
    use dynamic::{Field, FieldFuture, InputObject, InputValue, Object, Scalar, TypeRef};

    for default in [Default::Nowhere, Default::OfTheArgument, Default::OfTheInputsField, Default::OfTheInput] {
        let effects = Arc::new(AtomicUsize::new(0));
        let counting = |name: &str, argument: InputValue| {
            let effects = Arc::clone(&effects);
            let field = Field::new(name, TypeRef::named_nn(TypeRef::INT), move |_| {
                let effects = Arc::clone(&effects);
                FieldFuture::new(async move { Ok(Some(Value::from(effects.fetch_add(1, Ordering::SeqCst)))) })
            });
            field.argument(argument)
        };
        let key = |has_default: bool| {
            let key = InputValue::new("idempotencyKey", TypeRef::named_nn("IdempotencyKey"));
            if has_default { key.default_value("every-request-the-same") } else { key }
        };
        let input = InputValue::new("input", TypeRef::named_nn("Keyed"));
        let whole: Value = serde_json::from_str(r#"{"idempotencyKey":"every-request-the-same"}"#).unwrap();
        let input = if default == Default::OfTheInput { input.default_value(whole) } else { input };
        let idempotency = idempotency(&world);
        let one =
            Field::new("one", TypeRef::named(TypeRef::INT), |_| FieldFuture::new(async { Ok(Some(Value::from(1))) }));
        let mutation = Object::new("Mutation")
            .field(counting("plain", key(default == Default::OfTheArgument)))
            .field(counting("nested", input));
        let schema = dynamic::Schema::build("Query", Some("Mutation"), None)
            .register(Scalar::new("IdempotencyKey"))
            .register(InputObject::new("Keyed").field(key(default == Default::OfTheInputsField)))
            .register(Object::new("Query").field(one))
            .register(mutation)
            .extension(idempotency.clone())
            .finish()
            .unwrap();
        let problem = |mutation: &str| {
            format!(
                "the mutation {mutation} has a default for its IdempotencyKey: every request without one would be the same"
            )
        };
        let problems = idempotency.verify(&schema).await.err().map(|error| error.problems).unwrap_or_default();
        let expected = match default {
            Default::Nowhere => Vec::new(),
            Default::OfTheArgument => vec![problem("plain")],
            Default::OfTheInputsField | Default::OfTheInput => vec![problem("nested")],
        };
        assert_eq!(problems, expected, "{default:?}");
        for document in ["mutation { plain }", "mutation { nested(input: {}) }", "mutation { nested }"] {
            let told = schema.execute(request(document)).await;
            assert_eq!(codes(&told), ["KEY_MISSING"], "{default:?}: {document}");
        }
        assert_eq!((effects.load(Ordering::SeqCst), world.records().await), (0, 0), "{default:?}");
    }
});

/// Turns away whoever is not logged in, at one of the engine's stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doorman {
    Prepare,
    Parse,
    Validate,
}

const TURNED_AWAY: &str = "log in first";

impl ExtensionFactory for Doorman {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(*self)
    }
}

impl Doorman {
    fn check(self, at: Self, is_known: bool) -> ServerResult<()> {
        if self == at && !is_known { Err(ServerError::new(TURNED_AWAY, None)) } else { Ok(()) }
    }
}

#[async_trait]
impl Extension for Doorman {
    async fn prepare_request(
        &self,
        ctx: &ExtensionContext<'_>,
        request: Request,
        next: NextPrepareRequest<'_>,
    ) -> ServerResult<Request> {
        self.check(Self::Prepare, request.data.contains_key(&std::any::TypeId::of::<ClientId>()))?;
        next.run(ctx, request).await
    }

    async fn parse_query(
        &self,
        ctx: &ExtensionContext<'_>,
        query: &str,
        variables: &async_graphql::Variables,
        next: NextParseQuery<'_>,
    ) -> ServerResult<ExecutableDocument> {
        self.check(Self::Parse, ctx.data_opt::<ClientId>().is_some())?;
        next.run(ctx, query, variables).await
    }

    async fn validation(
        &self,
        ctx: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<async_graphql::ValidationResult, Vec<ServerError>> {
        self.check(Self::Validate, ctx.data_opt::<ClientId>().is_some()).map_err(|error| vec![error])?;
        next.run(ctx).await
    }
}

both!(a_schema_that_turns_anonymous_requests_away_is_verified_or_that_is_what_is_blamed, world, {
    for (doorman, is_outer) in [
        (Doorman::Prepare, true),
        (Doorman::Prepare, false),
        (Doorman::Parse, true),
        (Doorman::Parse, false),
        (Doorman::Validate, true),
        (Doorman::Validate, false),
    ] {
        let case = format!("{doorman:?}, outer: {is_outer}");
        let idempotency = idempotency(&world);
        let schema = acts(&world, |builder| {
            if is_outer {
                builder.extension(doorman).extension(idempotency.clone())
            } else {
                builder.extension(idempotency.clone()).extension(doorman)
            }
        });
        let verified = idempotency.verify(&schema).await;
        // Only what never comes to the extension can't be answered.
        if is_outer && doorman == Doorman::Prepare {
            let problems = verified.unwrap_err().problems;
            assert_eq!(problems.len(), 1, "{case}: {problems:?}");
            assert!(
                problems[0].contains(TURNED_AWAY) && problems[0].contains("register this extension first"),
                "{problems:?}"
            );
            assert!(!problems[0].contains("does not have this extension"), "{problems:?}");
        } else {
            assert_eq!(verified, Ok(()), "{case}");
        }
        // Whoever is known is served all the same.
        let document = format!(r#"mutation {{ act(idempotencyKey: "{}") }}"#, uuid::Uuid::new_v4());
        assert_eq!(codes(&schema.execute(request(document)).await), [""; 0], "{case}");
    }
    let without = acts(&world, |builder| builder);
    let problems = idempotency(&world).verify(&without).await.unwrap_err().problems;
    assert_eq!(problems, ["the schema does not have this extension"]);
});

both!(what_is_settled_by_hand_through_such_a_schema_blames_the_same, world, {
    world.on("act", |_| Box::pin(async { panic!("as the test says") }));
    let server = world.server(Policy::leased());
    assert_eq!(code(&server.run(r#"mutation { act(idempotencyKey: "k") { id } }"#).await), "OUTCOME_UNKNOWN");
    let guarded = world.schema_with(&server.idempotency, |builder| builder.extension(Doorman::Prepare));
    let without = Schema::new(Query, Mutation::default(), EmptySubscription);
    let (me, key) = (client(CLIENT), IdempotencyKey::new("k").unwrap());
    let by_hand = || Found::Succeeded(serde_json::json!({ "id": "by hand" }));
    let told = server.idempotency.settle(&guarded, &me, &key, by_hand(), "saw it").await.unwrap_err().to_string();
    assert!(told.contains(TURNED_AWAY), "{told}");
    let told = server.idempotency.settle(&without, &me, &key, by_hand(), "saw it").await.unwrap_err().to_string();
    assert!(told.contains("does not have this extension"), "{told}");
    // Neither has settled it, and what needs no types can be told.
    assert_eq!(world.state("k").await, "needs_recovery");
    server.idempotency.settle(&guarded, &me, &key, Found::Failed(Error::new("declined")), "saw it").await.unwrap();
    assert_eq!(world.state("k").await, "failed");
});
