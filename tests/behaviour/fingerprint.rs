//! What is the same request, and what is another.

use std::io::Write as _;

use async_graphql::{EmptySubscription, InputObject, Object, Request, Schema, UploadValue, Variables};
use serde_json::json;

use crate::support::{schema::Query, *};

/// A request of `values` with arguments, in a document that declares variables.
fn values(key: &str, declared: &str, arguments: &str, variables: serde_json::Value) -> Request {
    let declared = if declared.is_empty() { String::new() } else { format!("({declared})") };
    let document = format!(r#"mutation{declared} {{ values(idempotencyKey: "{key}", {arguments}) {{ id }} }}"#);
    request(document).variables(Variables::from_json(variables))
}

type Spelling = (&'static str, &'static str, serde_json::Value);

both!(spellings_of_one_request_are_one_request, world, {
    let server = world.server(Policy::leased());
    let none = || json!({});
    let groups: Vec<Vec<Spelling>> = vec![
        // A literal and a variable, and variables by any name.
        vec![
            ("", r#"text: "a", number: 3"#, none()),
            ("", r#"number: 3, text: "a""#, none()),
            ("", "number: 3 # comment\n , text: \"\"\"a\"\"\"", none()),
            ("$t: String", r"text: $t, number: 3", json!({ "t": "a" })),
            ("$x: String, $n: Int!", r"text: $x, number: $n", json!({ "x": "a", "n": 3 })),
            ("$x: String = \"a\", $n: Int! = 3", r"text: $x, number: $n", none()),
            ("$t: String", r"text: $t, number: 3", json!({ "t": "a", "unused": 1 })),
            ("", r#"text: "\u0061", number: 3"#, none()),
        ],
        // A default.
        vec![
            ("", "text: \"d\"", none()),
            ("", "text: \"d\", number: 7", none()),
            ("$n: Int! = 7", "text: \"d\", number: $n", none()),
            ("$n: Int! = 5", "text: \"d\", number: $n", json!({ "n": 7 })),
        ],
        vec![
            ("", "input: { text: \"x\" }", none()),
            ("", "input: { text: \"x\", number: 7 }", none()),
            ("$i: Values", "input: $i", json!({ "i": { "text": "x" } })),
            ("$i: Values", "input: $i", json!({ "i": { "number": 7, "text": "x" } })),
        ],
        // An ID.
        vec![
            ("", "id: 4", none()),
            ("", "id: \"4\"", none()),
            ("$i: ID", "id: $i", json!({ "i": 4 })),
            ("$i: ID", "id: $i", json!({ "i": "4" })),
        ],
        // A list.
        vec![
            ("", "list: \"x\"", none()),
            ("", "list: [\"x\"]", none()),
            ("$l: [String!]", "list: $l", json!({ "l": ["x"] })),
            ("$l: [String!]", "list: $l", json!({ "l": "x" })),
            ("$s: String!", "list: [$s]", json!({ "s": "x" })),
        ],
        // An enum.
        vec![
            ("", "colour: GREEN", none()),
            ("$c: Colour", "colour: $c", json!({ "c": "GREEN" })),
            ("$c: Colour = GREEN", "colour: $c", none()),
        ],
        // A Float.
        vec![
            ("", "float: 1", none()),
            ("", "float: 1.0", none()),
            ("", "float: 1e0", none()),
            ("", "float: 10e-1", none()),
            ("$f: Float", "float: $f", json!({ "f": 1 })),
            ("$f: Float", "float: $f", json!({ "f": 1.0 })),
        ],
        // Objects in objects.
        vec![
            ("", "input: { id: 1, inner: { list: \"a\", colour: RED, float: 2 } }", none()),
            ("", "input: { inner: { float: 2.0, colour: RED, list: [\"a\"] }, id: \"1\" }", none()),
            (
                "$i: Values",
                "input: { inner: $i, id: 1 }",
                json!({ "i": { "colour": "RED", "list": ["a"], "float": 2 } }),
            ),
            (
                "$i: Values",
                "input: $i",
                json!({ "i": { "id": 1, "inner": { "list": "a", "colour": "RED", "float": 2.0, "number": 7 } } }),
            ),
            ("$f: Float", "input: { id: 1, inner: { list: \"a\", colour: RED, float: $f } }", json!({ "f": 2 })),
        ],
        vec![
            ("", "any: { b: 1, a: [true, null] }", none()),
            ("", "any: { a: [true, null], b: 1 }", none()),
            ("$a: JSON", "any: $a", json!({ "a": { "b": 1, "a": [true, null] } })),
        ],
        vec![("", "text: null", none()), ("$t: String", "text: $t", json!({ "t": null }))],
        vec![
            ("", "choice: { number: 1 }", none()),
            ("$n: Int!", "choice: { number: $n }", json!({ "n": 1 })),
            ("$c: Choice", "choice: $c", json!({ "c": { "number": 1 } })),
        ],
    ];
    for (n, group) in groups.into_iter().enumerate() {
        let effects = world.effects().await;
        for (m, (declared, arguments, variables)) in group.into_iter().enumerate() {
            let case = format!("{declared} {arguments} {variables}");
            let response = server.execute(values(&n.to_string(), declared, arguments, variables)).await;
            assert_eq!(code(&response), "", "{case}");
            assert_eq!(replayed(&response, "values"), m > 0, "{case}");
        }
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(unlike_requests_are_unlike, world, {
    let server = world.server(Policy::leased());
    let none = || json!({});
    let groups: Vec<Vec<Spelling>> = vec![
        vec![
            ("", "text: null", none()),
            ("", "number: 7", none()),
            ("", "text: \"\"", none()),
            ("", "text: \"null\"", none()),
            ("", "text: \"é\"", none()),
            ("", "text: \"e\u{301}\"", none()),
            ("", "text: \"a\", number: 1", none()),
            ("", "text: \"a\", number: 2", none()),
            ("", "text: \"a\\\",\\\"b\"", none()),
            ("", "list: [\"a\", \"b\"]", none()),
            ("", "list: [\"a,b\"]", none()),
            ("", "list: [\"b\", \"a\"]", none()),
            ("", "list: []", none()),
            ("", "list: null", none()),
            ("", "float: 0.1", none()),
            ("", "float: 0.10000000000000002", none()),
            ("", "id: \"04\"", none()),
            ("", "id: 4", none()),
            ("", "colour: RED", none()),
            ("", "colour: GREEN", none()),
            ("", "input: {}", none()),
            ("", "input: { text: null }", none()),
            ("", "input: { inner: {} }", none()),
            ("", "input: { inner: null }", none()),
            ("", "input: { number: 8 }", none()),
            ("", "choice: { number: 1 }", none()),
            ("", "choice: { text: \"1\" }", none()),
        ],
        vec![
            ("$a: JSON", "any: $a", json!({ "a": "0.1" })),
            ("$a: JSON", "any: $a", json!({ "a": 0.1 })),
            ("$a: JSON", "any: $a", json!({ "a": 1 })),
            ("$a: JSON", "any: $a", json!({ "a": 1.0 })),
            ("$a: JSON", "any: $a", json!({ "a": "1" })),
            ("$a: JSON", "any: $a", json!({ "a": true })),
            ("$a: JSON", "any: $a", json!({ "a": [1] })),
            ("$a: JSON", "any: $a", json!({ "a": { "1": 1 } })),
            ("$a: JSON", "any: $a", json!({ "a": 9_007_199_254_740_992_u64 })),
            ("$a: JSON", "any: $a", json!({ "a": 9_007_199_254_740_993_u64 })),
            ("$a: JSON", "any: $a", json!({ "a": 18_446_744_073_709_551_615_u64 })),
            ("$a: JSON", "any: $a", json!({ "a": { "x": null } })),
            ("$a: JSON", "any: $a", json!({ "a": {} })),
        ],
    ];
    for (n, group) in groups.into_iter().enumerate() {
        for first in 0..group.len() {
            let key = format!("{n}-{first}");
            for second in std::iter::once(first).chain(0..group.len()) {
                let (declared, arguments, variables) = group[second].clone();
                let response = server.execute(values(&key, declared, arguments, variables.clone())).await;
                let expected = if first == second { "" } else { "KEY_REUSED" };
                assert_eq!(code(&response), expected, "{:?} and {arguments} {variables}", group[first]);
            }
        }
    }
});

both!(a_variable_that_is_left_out_is_absent, world, {
    let server = world.server(Policy::leased());
    let absent = values("k", "", "number: 7", json!({}));
    assert_eq!(code(&server.execute(absent).await), "");
    let left_out = values("k", "$t: String", "number: 7, text: $t", json!({}));
    let answer = code(&server.execute(left_out).await);
    // The resolver can't tell them apart either: whatever the engine hands it is what counts.
    assert!(["", "KEY_REUSED"].contains(&answer.as_str()), "{answer}");
    let nothing = values("k", "$t: String", "number: 7, text: $t", json!({ "t": null }));
    assert_eq!(code(&server.execute(nothing).await), "KEY_REUSED");
});

both!(an_ignored_argument_does_not_count, world, {
    let server = world.server_with(Policy::leased(), |builder| {
        builder.policy("nested", Policy::leased().ignore_argument("input.clientMutationId"))
    });
    let document = |id: &str, amount: i32| {
        format!(
            r#"mutation {{ nested(input: {{ idempotencyKey: "k", amount: {amount}, clientMutationId: "{id}" }}) {{ id }} }}"#
        )
    };
    assert_eq!(code(&server.run(document("1", 1)).await), "");
    assert!(replayed(&server.run(document("2", 1)).await, "nested"));
    assert_eq!(code(&server.run(document("1", 2)).await), "KEY_REUSED");
    assert_eq!(world.effects().await, 1);
});

macro_rules! release {
    ($release:ident { $($field:ident: $ty:ty = $default:literal),* } ($($argument:ident: $argument_ty:ty = $argument_default:literal),*)) => {
        mod $release {
            use super::*;

            #[derive(InputObject)]
            #[graphql(name = "Input")]
            pub struct Input {
                pub amount: i32,
                $(#[graphql(default = $default)] pub $field: $ty,)*
                pub extra: Option<String>,
            }

            pub struct Mutation;

            #[Object]
            impl Mutation {
                #[allow(unused_variables, reason = "the fingerprint is what counts")]
                async fn pay(
                    &self,
                    ctx: &async_graphql::Context<'_>,
                    idempotency_key: IdempotencyKey,
                    input: Input,
                    $(#[graphql(default = $argument_default)] $argument: $argument_ty,)*
                ) -> async_graphql::Result<Receipt> {
                    Ok(Receipt::new(format!("{:?}", ctx.data_opt::<u8>())))
                }
            }
        }
    };
}

release!(before {}());
release!(after { currency: String = "EUR", retries: i32 = 3 } (express: bool = false));

both!(an_optional_input_that_is_added_later_changes_no_fingerprint, world, {
    let idempotency = Idempotency::builder(world.store.clone()).build().unwrap();
    let old = world.schema(Schema::build(Query, before::Mutation, EmptySubscription), &world.store, &idempotency);
    let new = world.schema(Schema::build(Query, after::Mutation, EmptySubscription), &world.store, &idempotency);
    let document = r#"mutation { pay(idempotencyKey: "k", input: { amount: 1 }) { id } }"#;
    assert_eq!(code(&old.execute(request(document)).await), "");
    assert!(replayed(&new.execute(request(document)).await, "pay"));
    let written = r#"mutation { pay(idempotencyKey: "k", express: false, input: { amount: 1, currency: "EUR", retries: 3 }) { id } }"#;
    assert!(replayed(&new.execute(request(written)).await, "pay"));
    let other = r#"mutation { pay(idempotencyKey: "k", input: { amount: 1, currency: "USD" }) { id } }"#;
    assert_eq!(code(&new.execute(request(other)).await), "KEY_REUSED");
    assert!(replayed(&old.execute(request(document)).await, "pay"));
});

fn upload(content: &str, filename: &str) -> Request {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content.as_bytes()).unwrap();
    let mut request = request(r#"mutation($file: Upload!) { upload(idempotencyKey: "k", file: $file) { id note } }"#)
        .variables(Variables::from_json(json!({ "file": null })));
    request.set_upload("variables.file", UploadValue { filename: filename.into(), content_type: None, content: file });
    request
}

both!(an_upload_counts_by_its_content, world, {
    let server = world.server(Policy::leased());
    let first = server.execute(upload("X".repeat(20_000).as_str(), "x")).await;
    assert_eq!(code(&first), "");
    // The resolver read it from its beginning.
    assert!(answered(&first).contains(&"X".repeat(20_000)));
    assert_eq!(code(&server.execute(upload("Y", "x")).await), "KEY_REUSED");
    let again = server.execute(upload("X".repeat(20_000).as_str(), "other-name")).await;
    assert!(replayed(&again, "upload"));
    assert_eq!(answered(&first), answered(&again));
    assert_eq!(world.effects().await, 1);
});
