//! No mutation runs unprotected, whatever the shape of the document or the schema.

use std::fmt::Write as _;

use async_graphql::{EmptySubscription, Schema, Value, Variables, dynamic};
use serde_json::json;

use crate::support::{
    schema::{Mutation, Query},
    world::Server,
    *,
};

/// Runs a document twice: the second time everything in it is a replay.
async fn once<B: Backend>(
    world: &World<B>,
    server: &Server<B>,
    document: &str,
    variables: serde_json::Value,
    effects: i64,
) {
    let before = world.effects().await;
    let asked = || request(document).variables(Variables::from_json(variables.clone()));
    let first = server.execute(asked()).await;
    assert_eq!(codes(&first), [""; 0], "{document}");
    assert_eq!(world.effects().await - before, effects, "{document}");
    let again = server.execute(asked()).await;
    // Below a namespace the engine runs fields side by side, and their order is that of their ends.
    assert_eq!(first.data.clone().into_json().unwrap(), again.data.clone().into_json().unwrap(), "{document}");
    assert_eq!(codes(&again), [""; 0], "{document}");
    assert_eq!(world.effects().await - before, effects, "{document}");
}

const ALL: [(&str, &str); 12] = [
    ("act", "act(idempotencyKey: KEY) { id }"),
    ("other", "other(idempotencyKey: KEY) { id }"),
    ("lenient", "lenient(idempotencyKey: KEY) { id }"),
    ("maybe", "maybe(idempotencyKey: KEY) { id }"),
    ("scalar", "scalar(idempotencyKey: KEY)"),
    ("values", "values(idempotencyKey: KEY) { id }"),
    ("nested", "nested(input: { idempotencyKey: KEY }) { id }"),
    ("late", "late(idempotencyKey: KEY) { id }"),
    ("lateInside", "lateInside(idempotencyKey: KEY) { id }"),
    ("billing", "billing { charge(idempotencyKey: KEY) { id } }"),
    ("deeper", "billing { deeper { charge(idempotencyKey: KEY) { id } } }"),
    ("both", "billing { charge(idempotencyKey: KEY) { id } deeper { x: charge(idempotencyKey: \"KEY2\") { id } } }"),
];

both!(every_mutation_is_protected_in_every_shape_of_document, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        for (name, field) in ALL {
            let effects = if name == "both" { 2 } else { 1 };
            for shape in [
                "mutation { FIELD }",
                "mutation Named { __typename FIELD }",
                "mutation { ... { FIELD } }",
                "mutation { ... on Mutation { FIELD } }",
                "mutation { ... { ... on Mutation { ...F } } } fragment F on Mutation { ...G } fragment G on Mutation { FIELD }",
                "mutation { ...F ...F } fragment F on Mutation { FIELD }",
                "mutation { ... @include(if: true) { FIELD } ... @skip(if: true) { FIELD } }",
                "mutation { ...F @skip(if: false) } fragment F on Mutation { FIELD }",
            ] {
                let key = uuid::Uuid::new_v4();
                let document = shape.replace(
                    "FIELD",
                    &field
                        .replace("KEY2", &format!("{key}2"))
                        .replace("KEY)", &format!("\"{key}\")"))
                        .replace("KEY }", &format!("\"{key}\" }}")),
                );
                once(&world, &server, &document, json!({}), effects).await;
            }
            if !field.starts_with("billing") {
                let key = uuid::Uuid::new_v4();
                let document = format!("mutation {{ alias: {} }}", field.replace("KEY", &format!("\"{key}\"")));
                once(&world, &server, &document, json!({}), 1).await;
            }
        }
    }
});

both!(skip_and_include_mean_what_the_engine_makes_of_them, world, {
    let server = world.server(Policy::leased());
    for (n, (directive, declared, variables)) in [
        ("@include(if: $v)", "$v: Boolean!", json!({ "v": true })),
        ("@include(if: $v)", "$v: Boolean!", json!({ "v": false })),
        ("@skip(if: $v)", "$v: Boolean!", json!({ "v": true })),
        ("@skip(if: $v)", "$v: Boolean!", json!({ "v": false })),
        ("@include(if: $v)", "$v: Boolean! = true", json!({})),
        ("@include(if: $v)", "$v: Boolean! = false", json!({})),
        ("@skip(if: $v)", "$v: Boolean! = true", json!({})),
        ("@skip(if: $v)", "$v: Boolean! = false", json!({})),
        ("@include(if: true) @skip(if: $v)", "$v: Boolean! = false", json!({})),
        ("@skip(if: $v)", "$v: Boolean! = true", json!({ "v": false })),
        ("@include(if: $v)", "$v: Boolean", json!({ "v": null })),
    ]
    .into_iter()
    .enumerate()
    {
        for (m, shape) in ["act(KEY) DIR { id }", "... DIR { act(KEY) { id } }", "...F DIR"].into_iter().enumerate() {
            let key = format!("{n}-{m}");
            let field = shape.replace("DIR", directive).replace("KEY", &format!("idempotencyKey: \"{key}\""));
            let mut document = format!("mutation({declared}) {{ __typename {field} }}");
            if m == 2 {
                let _ = write!(document, " fragment F on Mutation {{ act(idempotencyKey: \"{key}\") {{ id }} }}");
            }
            let before = world.effects().await;
            let asked = || request(&document).variables(Variables::from_json(variables.clone()));
            let first = server.execute(asked()).await;
            let ran = world.effects().await - before;
            let has_record = i64::from(world.state(&key).await == "succeeded");
            assert_eq!(ran, has_record, "{document} {variables}: what runs is claimed, and nothing else");
            let again = server.execute(asked()).await;
            assert_eq!(answered(&first), answered(&again));
            assert_eq!(world.effects().await - before, ran, "{document} {variables}");
        }
    }
});

both!(a_skipped_field_with_a_bad_key_harms_nobody, world, {
    let server = world.server(Policy::leased());
    let response = server
        .run(r#"mutation { act(idempotencyKey: "k") { id } other(idempotencyKey: "") @skip(if: true) { id } }"#)
        .await;
    assert_eq!(code(&response), "");
    assert_eq!(world.effects().await, 1);
});

both!(a_mutation_without_a_key_is_refused_unless_exempt, world, {
    let server = world.server(Policy::leased());
    for document in [
        "mutation { unkeyed { id } }",
        "mutation { x: unkeyed { id } }",
        "mutation { ... { ...F } } fragment F on Mutation { unkeyed { id } }",
        r#"mutation { act(idempotencyKey: "k") { id } unkeyed { id } }"#,
    ] {
        let response = server.run(document).await;
        assert_eq!(code(&response), "MISCONFIGURED", "{document}");
        assert_eq!(response.data, Value::Null);
    }
    assert_eq!(world.effects().await, 0);
    for n in 1..=2 {
        assert_eq!(code(&server.run("mutation { exempt { id } }").await), "");
        assert_eq!(world.effects().await, n);
    }
    assert_eq!(world.records().await, 0);
});

both!(verify_lists_every_problem, world, {
    let server = world.server_with(Policy::leased(), |builder| {
        builder
            .policy("typo", Policy::leased())
            .policy("billing.charge", Policy::leased())
            .policy("billing.typo", Policy::leased())
            .exempt("alsoTypo")
            .reconcile("reconcileTypo", async |_| Found::Unknown)
    });
    let problems = server.idempotency.verify(&server.schema).await.unwrap_err().problems;
    for word in ["unkeyed", "typo", "billing.typo", "alsoTypo", "reconcileTypo"] {
        assert_eq!(
            problems.iter().filter(|problem| problem.contains(&format!(" {word} "))).count(),
            1,
            "{word}: {problems:?}"
        );
    }
    assert_eq!(problems.len(), 5, "{problems:?}");
    let mended = world.server_with(Policy::leased(), |builder| builder.exempt("unkeyed"));
    assert_eq!(mended.idempotency.verify(&mended.schema).await, Ok(()));
    // A schema without the extension.
    let without = Schema::new(Query, Mutation::default(), EmptySubscription);
    assert_eq!(mended.idempotency.verify(&without).await.unwrap_err().problems.len(), 1);
});

both!(queries_and_introspection_are_left_alone, world, {
    let server = world.server(Policy::leased());
    world.store.down();
    for document in [
        "{ one }",
        "query { a: one b: one @skip(if: true) __typename }",
        "{ __schema { mutationType { fields { name } } } }",
        "mutation { __typename }",
    ] {
        let response = server.execute(async_graphql::Request::new(document)).await;
        assert_eq!(codes(&response), [""; 0], "{document}");
        assert!(response.extensions.is_empty());
    }
    assert!(world.store.calls().is_empty());
});

both!(a_dynamic_schema_is_protected_all_the_same, world, {
    use dynamic::{Field, FieldFuture, FieldValue, InputObject, InputValue, Object, Scalar, TypeRef};

    let effects = Arc::new(AtomicUsize::new(0));
    let counting = |name: &str| {
        let effects = Arc::clone(&effects);
        Field::new(name, TypeRef::named_nn(TypeRef::INT), move |ctx| {
            let effects = Arc::clone(&effects);
            FieldFuture::new(async move {
                assert_eq!(ctx.attempt::<Faulty<B::Store>>().unwrap().number(), 1);
                Ok(Some(Value::from(effects.fetch_add(1, Ordering::SeqCst))))
            })
        })
    };
    let key = || InputValue::new("idempotencyKey", TypeRef::named_nn("IdempotencyKey"));
    let act = counting("act").argument(key());
    let nested = counting("nested").argument(InputValue::new("input", TypeRef::named_nn("Keyed")));
    let billing = Field::new("billing", TypeRef::named_nn("Billing"), |_| {
        FieldFuture::new(async { Ok(Some(FieldValue::owned_any(()))) })
    });
    let unkeyed =
        Field::new("unkeyed", TypeRef::named(TypeRef::INT), |_| FieldFuture::new(async { Ok(Some(Value::from(1))) }));
    let idempotency = Idempotency::builder(world.store.clone()).build().unwrap();
    let schema = dynamic::Schema::build("Query", Some("Mutation"), None)
        .register(Scalar::new("IdempotencyKey"))
        .register(InputObject::new("Keyed").field(key()))
        .register(Object::new("Query").field(Field::new("one", TypeRef::named(TypeRef::INT), |_| {
            FieldFuture::new(async { Ok(Some(Value::from(1))) })
        })))
        .register(Object::new("Billing").field(counting("act").argument(key())))
        .register(Object::new("Mutation").field(act).field(nested).field(billing).field(unkeyed))
        .extension(idempotency.clone())
        .finish()
        .unwrap();
    let problems = idempotency.verify(&schema).await.unwrap_err().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    for document in [
        r#"mutation { act(idempotencyKey: "1") }"#,
        r#"mutation { a: act(idempotencyKey: "2") ... { b: act(idempotencyKey: "3") } }"#,
        r#"mutation { nested(input: { idempotencyKey: "4" }) }"#,
        r#"mutation { billing { act(idempotencyKey: "5") } }"#,
    ] {
        let first = schema.execute(request(document)).await;
        assert_eq!(codes(&first), [""; 0]);
        let again = schema.execute(request(document)).await;
        assert_eq!(answered(&first), answered(&again));
        assert!(again.extensions.contains_key("idempotency"));
    }
    assert_eq!(effects.load(Ordering::SeqCst), 5);
    assert_eq!(code(&schema.execute(request("mutation { act }")).await), "KEY_MISSING");
    assert_eq!(code(&schema.execute(request(r#"mutation { act(idempotencyKey: "") }"#)).await), "KEY_INVALID");
    assert_eq!(code(&schema.execute(request("mutation { unkeyed }")).await), "MISCONFIGURED");
});

both!(a_fragment_bomb_or_cycle_is_refused_quickly, world, {
    let server = world.server(Policy::leased());
    let mut bomb = r#"mutation { act(idempotencyKey: "k") { ...F0 } }"#.to_owned();
    for n in 0..16 {
        let _ =
            write!(bomb, " fragment F{n} on Receipt {{ a: child {{ ...F{} }} b: child {{ ...F{} }} }}", n + 1, n + 1);
    }
    bomb.push_str(" fragment F16 on Receipt { id }");
    let mut flat = "mutation { ...F0 }".to_owned();
    for n in 0..16 {
        let _ = write!(flat, " fragment F{n} on Mutation {{ ...F{} ...F{} }}", n + 1, n + 1);
    }
    flat.push_str(r#" fragment F16 on Mutation { act(idempotencyKey: "k") { id } }"#);
    for document in [
        bomb.as_str(),
        flat.as_str(),
        r"mutation { ...A } fragment A on Mutation { ...B } fragment B on Mutation { ...A }",
        r#"mutation { act(idempotencyKey: "k") { ...A } } fragment A on Receipt { child { ...A } }"#,
        r#"mutation { act(idempotencyKey: "k") { ...A } } fragment A on Receipt { ...A ...A ...A }"#,
        r"mutation { billing { ...A } } fragment A on Billing { deeper { ...A } }",
    ] {
        let begun = Instant::now();
        let response = server.run(document).await;
        assert!(begun.elapsed() < ms(3_000), "{:?}: {document}", begun.elapsed());
        assert!(!response.errors.is_empty(), "{document}");
    }
    assert_eq!((world.effects().await, world.records().await), (0, 0));
});

/// In a process of its own: a stack that overflows takes the process along.
#[test]
fn a_document_as_deep_as_the_engine_allows_is_served() {
    let inside = ["shapes::deep_documents", "--exact", "--ignored", "--nocapture"];
    // Linux keeps this name even when the file is built anew meanwhile.
    let own = std::path::PathBuf::from("/proc/self/exe");
    let own = if own.exists() { own } else { std::env::current_exe().unwrap() };
    let output = std::process::Command::new(own).args(inside).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above"]
async fn deep_documents() {
    let world = World::<InMemory>::new().await;
    let idempotency = Idempotency::builder(world.store.clone()).exempt("exempt").build().unwrap();
    // The engine's own limit.
    let schema = world.schema_with(&idempotency, |builder| builder.limit_recursive_depth(32));
    let deep = |key: &str, depth: usize| {
        let (open, close) = ("child { ".repeat(depth), " }".repeat(depth));
        format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ {open} id {close} }} }}"#)
    };
    for _ in 0..2 {
        let document = deep("1", 30);
        let schema = schema.clone();
        // On a worker with the default stack, as a server runs it.
        let response = tokio::spawn(async move { schema.execute(request(document)).await }).await.unwrap();
        assert_eq!(code(&response), "");
    }
    assert_eq!(world.effects().await, 1);
    assert_eq!(schema.execute(request(deep("2", 40))).await.errors.len(), 1);
    world.done().await;
}

both!(a_document_with_500_mutations_works, world, {
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server_with(policy, |builder| builder.max_fields(500));
        let effects = world.effects().await;
        let mut document = "mutation {".to_owned();
        for n in 0..500 {
            let _ = write!(document, r#" m{n}: act(idempotencyKey: "{prefix}{n}", amount: {n}) {{ id note }}"#);
        }
        document.push('}');
        let begun = Instant::now();
        let first = server.run(&document).await;
        assert_eq!(codes(&first), [""; 0]);
        let again = server.run(&document).await;
        assert_eq!(answered(&first), answered(&again));
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        assert_eq!(world.effects().await, effects + 500);
    }
});
