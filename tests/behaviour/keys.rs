//! Keys and clients.

use async_graphql::{Request, Variables};
use serde_json::json;

use crate::support::*;

/// A request with the key on a path.
fn on_path(path: &str, key: &serde_json::Value) -> Request {
    let literal = key.to_string();
    let nothing = key.is_null();
    let variables = |value: serde_json::Value| Variables::from_json(value);
    match path {
        "literal" => request(format!("mutation {{ act(idempotencyKey: {literal}) {{ id }} }}")),
        "variable" => request("mutation($k: IdempotencyKey!) { act(idempotencyKey: $k) { id } }")
            .variables(variables(json!({ "k": key }))),
        "optional variable" => request("mutation($k: IdempotencyKey) { act(idempotencyKey: $k) { id } }")
            .variables(variables(json!({ "k": key }))),
        "default" => request(format!(
            "mutation($k: IdempotencyKey{} = {literal}) {{ act(idempotencyKey: $k) {{ id }} }}",
            if nothing { "" } else { "!" }
        )),
        "input literal" => request(format!("mutation {{ nested(input: {{ idempotencyKey: {literal} }}) {{ id }} }}")),
        "input field" => request("mutation($k: IdempotencyKey!) { nested(input: { idempotencyKey: $k }) { id } }")
            .variables(variables(json!({ "k": key }))),
        "input variable" => request("mutation($input: Keyed!) { nested(input: $input) { id } }")
            .variables(variables(json!({ "input": { "idempotencyKey": key } }))),
        "input default" => request(format!(
            "mutation($input: Keyed! = {{ idempotencyKey: {literal} }}) {{ nested(input: $input) {{ id }} }}"
        )),
        other => panic!("{other}"),
    }
}

const PATHS: [&str; 8] = [
    "literal",
    "variable",
    "optional variable",
    "default",
    "input literal",
    "input field",
    "input variable",
    "input default",
];

both!(a_bad_key_gets_the_same_code_on_every_path_and_nothing_runs, world, {
    let server = world.server(Policy::leased());
    let bad = [
        json!(""),
        json!(" "),
        json!("\t"),
        json!(" k"),
        json!("k "),
        json!("a\nb"),
        json!("x".repeat(256)),
        json!("x".repeat(1 << 20)),
        json!("clé"),
        json!("k\u{200d}"),
        json!("k\u{7f}"),
        json!("\u{0}"),
        json!(5),
        json!(1.5),
        json!(true),
    ];
    for path in PATHS {
        for key in &bad {
            // The engine's parser takes a second for a literal of this size in a debug build.
            if key.to_string().len() > 1_000 && !path.contains("variable") && path != "literal" {
                continue;
            }
            let response = server.execute(on_path(path, key)).await;
            let shown = key.to_string().chars().take(20).collect::<String>();
            assert_eq!(codes(&response), ["KEY_INVALID"], "{path}: {shown}");
            let message = &response.errors[0].message;
            assert!(message.contains("1 to 255 visible ASCII characters") && message.len() < 300, "{message}");
            assert_eq!(response.data, async_graphql::Value::Null);
        }
        for key in [json!([]), json!(["k"])] {
            let response = server.execute(on_path(path, &key)).await;
            assert_eq!(codes(&response), ["KEY_INVALID"], "{path}: {key}");
        }
        assert_eq!(codes(&server.execute(on_path(path, &json!(null))).await), ["KEY_MISSING"], "{path}: null");
    }
    for object in ["literal", "variable", "default", "input variable"] {
        let response = server.execute(on_path(object, &json!("ok"))).await;
        assert!(["", "KEY_REUSED"].contains(&code(&response).as_str()));
    }
    for (n, absent) in [
        request("mutation { act { id } }"),
        request("mutation { nested(input: {}) { id } }"),
        request("mutation { nested { id } }"),
        request("mutation($k: IdempotencyKey!) { act(idempotencyKey: $k) { id } }"),
        request("mutation($k: IdempotencyKey) { act(idempotencyKey: $k) { id } }"),
        request("mutation($k: IdempotencyKey!) { nested(input: { idempotencyKey: $k }) { id } }"),
        request("mutation($input: Keyed!) { nested(input: $input) { id } }"),
        request("mutation($input: Keyed!) { nested(input: $input) { id } }")
            .variables(Variables::from_json(json!({ "input": {} }))),
        request("mutation { act(idempotencyKey: $undeclared) { id } }"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(codes(&server.execute(absent).await), ["KEY_MISSING"], "{n}");
    }
    assert_eq!(world.records().await, 1);
});

both!(a_good_key_is_one_key_on_every_path, world, {
    let server = world.server(Policy::leased());
    for key in ["k", "K", "~!@#$%^&*()_+`-={}[]|\\:\";'<>?,./", &"x".repeat(255), "null", "0"] {
        let effects = world.effects().await;
        for (n, path) in PATHS.iter().take(4).enumerate() {
            let response = server.execute(on_path(path, &json!(key))).await;
            assert_eq!(code(&response), "", "{path}");
            assert_eq!(replayed(&response, "act"), n > 0, "{path}");
        }
        assert_eq!(world.effects().await, effects + 1);
        for path in &PATHS[4..] {
            assert_eq!(
                code(&server.execute(on_path(path, &json!(format!("{}n", &key[..key.len().min(254)])))).await),
                ""
            );
        }
        assert_eq!(world.effects().await, effects + 2);
    }
});

both!(a_bad_key_anywhere_keeps_the_whole_document_from_running, world, {
    let server = world.server(Policy::leased());
    for bad in [
        r#"mutation { act(idempotencyKey: "1") { id } other(idempotencyKey: "") { id } }"#,
        r#"mutation { act(idempotencyKey: "1") { id } ...F } fragment F on Mutation { billing { charge(idempotencyKey: " ") { id } } }"#,
        r#"mutation($k: IdempotencyKey!) { act(idempotencyKey: "1") { id } other(idempotencyKey: $k) { id } }"#,
        r#"mutation { exempt { id } act(idempotencyKey: "é") { id } }"#,
    ] {
        let response = server.run(bad).await;
        assert!(["KEY_INVALID", "KEY_MISSING"].contains(&code(&response).as_str()), "{bad}");
        assert_eq!(response.data, async_graphql::Value::Null);
    }
    assert_eq!((world.effects().await, world.records().await), (0, 0));
    // Each of several faults is told.
    let several = server.run(r#"mutation { a: act(idempotencyKey: "") { id } b: act { id } }"#).await;
    assert_eq!(codes(&several), ["KEY_INVALID", "KEY_MISSING"]);
});

all!(the_longest_key_of_the_longest_client_is_stored, world, {
    let server = world.server(Policy::leased());
    let (name, key) = (format!("{}é", "c".repeat(253)), "k".repeat(255));
    assert_eq!(name.len(), 255);
    let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
    let first = server.execute(request_of(&name, &document)).await;
    let again = server.execute(request_of(&name, &document)).await;
    assert_eq!(answered(&first), answered(&again));
    assert!(replayed(&again, "act"));
});

both!(two_clients_with_one_key_know_nothing_of_each_other, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        for (n, name) in ["1", "2", "3", "4 "].into_iter().enumerate() {
            let document = format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: {}) {{ id }} }}"#, n / 2);
            let first = server.execute(request_of(name, &document)).await;
            assert_eq!(code(&first), "");
            assert!(first.extensions.is_empty());
            assert!(replayed(&server.execute(request_of(name, &document)).await, "act"));
        }
        assert_eq!(world.effects().await, effects + 4);
        let nobody =
            server.execute(Request::new(format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#))).await;
        assert_eq!(code(&nobody), "CLIENT_UNKNOWN");
        assert_eq!(world.effects().await, effects + 4);
    }
});

both!(client_and_key_do_not_run_together, world, {
    let server = world.server(Policy::leased());
    for (name, key) in [("a:b", "c"), ("a", "b:c"), ("a:b:", "c"), ("a:b", ":c")] {
        let response =
            server.execute(request_of(name, format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#))).await;
        assert_eq!(code(&response), "");
        assert!(!replayed(&response, "act"));
    }
    assert_eq!((world.effects().await, world.records().await), (4, 4));
});

both!(one_key_on_two_mutations_is_reuse, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        let one = server.run(format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#)).await;
        assert_eq!(code(&one), "");
        let two = server.run(format!(r#"mutation {{ other(idempotencyKey: "{key}") {{ id }} }}"#)).await;
        assert_eq!(code(&two), "KEY_REUSED");
        for second in [
            "other(idempotencyKey: \"KEY\") { id }",
            "b: act(idempotencyKey: \"KEY\", amount: 2) { id }",
            "billing { charge(idempotencyKey: \"KEY\") { id } }",
        ] {
            let own = format!("{key}{}", second.len());
            let document = format!(
                r#"mutation {{ act(idempotencyKey: "{own}", amount: 1) {{ id }} {} }}"#,
                second.replace("KEY", &own)
            );
            let response = server.run(&document).await;
            assert_eq!(code(&response), "KEY_REUSED", "{document}");
            assert!(answered(&response).starts_with(r#"{"act":{"id":"#), "{}", answered(&response));
        }
        assert_eq!(world.effects().await, effects + 4);
    }
});

both!(one_request_twice_in_a_document_is_one_effect, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        let document = format!(
            r#"mutation {{ a: act(idempotencyKey: "{key}") {{ id }} b: act(idempotencyKey: "{key}") {{ i: id }} }}"#
        );
        let first = server.run(&document).await;
        assert_eq!(code(&first), "");
        assert!(!replayed(&first, "a") && replayed(&first, "b"));
        let again = server.run(&document).await;
        assert_eq!(answered(&first), answered(&again));
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(a_response_key_that_is_selected_twice_is_one_execution, world, {
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        for (n, (document, expected)) in [
            (r#"mutation { act(idempotencyKey: "K") { id } act(idempotencyKey: "K") { note } }"#, r#"{"act":{"id":"ID","note":null}} []"#),
            (r#"mutation { act(idempotencyKey: "K") { id child { id } } ...F } fragment F on Mutation { act(idempotencyKey: "K") { child { note } } }"#, r#"{"act":{"id":"ID","child":{"id":"ID.child","note":null}}} []"#),
            (r#"mutation { billing { charge(idempotencyKey: "K") { id } } billing { charge(idempotencyKey: "K") { note } } }"#, r#"{"billing":{"charge":{"id":"ID","note":null}}} []"#),
            (r#"mutation { billing { charge(idempotencyKey: "K") { id } ... on Billing { charge(idempotencyKey: "K") { note } } } }"#, r#"{"billing":{"charge":{"id":"ID","note":null}}} []"#),
            (r#"mutation { x: exempt { id } act(idempotencyKey: "K") { id } ... @include(if: true) { act(idempotencyKey: "K") { note } } act(idempotencyKey: "K") @skip(if: true) { json } }"#, ""),
        ]
        .into_iter()
        .enumerate()
        {
            let key = format!("{prefix}{n}");
            let document = document.replace('K', &key).replace(&format!("idempotency{key}ey"), "idempotencyKey");
            let effects = world.effects().await;
            let first = server.run(&document).await;
            assert_eq!(code(&first), "", "{document}");
            let exempt = i64::from(document.contains("exempt"));
            assert_eq!(world.effects().await, effects + 1 + exempt, "{document}");
            let text = answered(&first);
            let id = text.split('"').find(|part| part.starts_with("receipt-") && !part.contains('.')).unwrap_or_default();
            if !expected.is_empty() {
                assert_eq!(text, expected.replace("ID", id), "{document}");
            }
            let again = server.run(&document).await;
            if exempt == 0 {
                assert_eq!(text, answered(&again), "{document}");
            }
            assert_eq!(world.effects().await, effects + 1 + 2 * exempt, "{document}");
        }
    }
});

both!(an_error_of_a_field_that_is_selected_twice_is_told_once, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Err("declined".into())
        })
    });
    world.on("other", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "other").await?;
            Ok(Receipt { fails: true, ..Receipt::new("1") })
        })
    });
    let server = world.server(Policy::leased());
    for document in [
        r#"mutation { act(idempotencyKey: "1") { id } act(idempotencyKey: "1") { note } }"#,
        r#"mutation { other(idempotencyKey: "2") { id swallowed } other(idempotencyKey: "2") { note } }"#,
    ] {
        let first = server.run(document).await;
        assert_eq!(first.errors.len(), 1, "{:?}", first.errors);
        let again = server.run(document).await;
        assert_eq!(answered(&first), answered(&again));
    }
    assert_eq!(world.effects().await, 2);
});

both!(only_the_executed_operations_fields_are_claimed, world, {
    let server = world.server(Policy::leased());
    let document = r#"
        query Look { one }
        mutation One { act(idempotencyKey: "1") { id } }
        mutation Two { act(idempotencyKey: "2") { id } other(idempotencyKey: "3") { id } }
        mutation Bad { act(idempotencyKey: "") { id } }"#;
    assert_eq!(code(&server.execute(request(document).operation_name("Look")).await), "");
    assert_eq!(world.records().await, 0);
    assert_eq!(code(&server.execute(request(document).operation_name("Two")).await), "");
    assert_eq!(world.texts("SELECT key FROM idempotency_records ORDER BY key").await, ["2", "3"]);
    let again = server.execute(request(document).operation_name("Two")).await;
    assert!(replayed(&again, "act") && replayed(&again, "other"));
    assert_eq!(code(&server.execute(request(document).operation_name("Bad")).await), "KEY_INVALID");
    for none in [request(document), request(document).operation_name("Nobody")] {
        assert_eq!(server.execute(none).await.errors.len(), 1);
    }
    assert_eq!(world.effects().await, 2);
});
