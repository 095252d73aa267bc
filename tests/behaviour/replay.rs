//! What a retry gets.

use async_graphql::Request;
use async_graphql_idempotency::graphql::Seal;

use crate::support::*;

all!(a_retry_gets_the_first_answer_and_one_effect, world, {
    for policy in [Policy::leased(), Policy::transactional()] {
        let server = world.server(policy);
        let key = uuid::Uuid::new_v4();
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}", amount: 3) {{ id total }} }}"#);
        let effects = world.effects().await;
        let first = server.run(&document).await;
        assert_eq!(code(&first), "");
        assert!(!replayed(&first, "act"));
        let again = server.run(&document).await;
        assert_eq!(answered(&first), answered(&again));
        assert!(replayed(&again, "act"));
        assert_eq!(world.effects().await, effects + 1);
    }
});

/// Every field below that can fail, does.
fn failing<B: Backend>(world: &World<B>) {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Ok(Receipt { fails: ctx.item.node.alias.as_ref().is_none_or(|a| a.node != "fine"), ..Receipt::new("1") })
        })
    });
}

both!(an_error_below_the_field_is_replayed_under_the_retrys_alias, world, {
    failing(&world);
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        for (n, field) in
            ["thrown", "swallowed", "children { id swallowed }", "child { child { thrown } }"].iter().enumerate()
        {
            let key = format!("{prefix}{n}");
            let effects = world.effects().await;
            let first = server.run(format!(r#"mutation {{ a: act(idempotencyKey: "{key}") {{ id {field} }} }}"#)).await;
            assert_eq!(codes(&first), ["BROKEN"], "{field}");
            let again = server.run(format!(r#"mutation {{ b: act(idempotencyKey: "{key}") {{ id {field} }} }}"#)).await;
            assert_eq!(answered(&first).replace("\"a\"", "\"b\""), answered(&again), "{field}");
            assert!(replayed(&again, "b"));
            assert_eq!(again.errors[0].locations.len(), 1);
            assert_eq!(world.effects().await, effects + 1);
        }
    }
});

both!(an_error_below_a_field_goes_with_that_field_whatever_its_place_in_the_document, world, {
    failing(&world);
    for (policy, prefix) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        for (n, field) in ["thrown", "swallowed"].iter().enumerate() {
            let (one, two) = (format!("{prefix}{n}-1"), format!("{prefix}{n}-2"));
            let document = |a: &str, b: &str| {
                format!(
                    r#"mutation {{ {a}: act(idempotencyKey: "{one}") {{ id {field} }} {b}: act(idempotencyKey: "{two}") {{ id {field} }} }}"#
                )
            };
            let first = server.run(document("broken", "fine")).await;
            assert_eq!(codes(&first), ["BROKEN"], "{field}");
            let again = server.run(document("x", "y")).await;
            let expected = answered(&first).replace("\"broken\"", "\"x\"").replace("\"fine\"", "\"y\"");
            assert_eq!(expected, answered(&again), "{field}, {prefix}");
            let alone = server.run(format!(r#"mutation {{ z: act(idempotencyKey: "{two}") {{ id {field} }} }}"#)).await;
            assert_eq!(codes(&alone), [""; 0], "{field}");
        }
    }
});

both!(a_failed_field_beside_a_finished_one_is_replayed_as_the_document_was, world, {
    world.on("other", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "other").await?;
            Err(async_graphql::Error::new("declined"))
        })
    });
    let server = world.server(Policy::leased());
    let document = r#"mutation { a: act(idempotencyKey: "1") { id } b: other(idempotencyKey: "2") { id } c: act(idempotencyKey: "3") { id } }"#;
    let first = server.run(document).await;
    assert_eq!(codes(&first), ["declined"]);
    let again = server.run(document).await;
    assert_eq!(answered(&first), answered(&again));
    for field in ["a", "b", "c"] {
        assert!(replayed(&again, field));
    }
    assert_eq!(world.effects().await, 3);
});

all!(a_retry_with_another_alias_and_operation_name_replays_once, world, {
    let server = world.server(Policy::leased());
    let first = server.run(r#"mutation One { a: act(idempotencyKey: "k") { id } }"#).await;
    let again = server.run(r#"mutation Two { b: act(idempotencyKey: "k") { ident: id } }"#).await;
    assert_eq!(answered(&first).replace("\"a\":{\"id\"", "\"b\":{\"ident\""), answered(&again));
    assert!(replayed(&again, "b"));
    assert_eq!(world.effects().await, 1);
});

both!(another_selection_is_projected_out_of_the_stored_response, world, {
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        let ask = async |selection: &str| {
            server.run(format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ {selection} }} }}"#)).await
        };
        let data = async |selection: &str| {
            let response = ask(selection).await;
            assert_eq!(code(&response), "", "{selection}");
            serde_json::to_string(&response.data).unwrap().replacen("{\"act\":", "", 1)
        };
        let first = data("id note children { id c: child { id } } shapes { __typename ... on Circle { radius } ... on Square { side } } e: echo(times: 2)").await;
        let id = first.split('"').nth(3).unwrap().to_owned();
        assert_eq!(data("id").await, format!("{{\"id\":\"{id}\"}}}}"));
        assert_eq!(data("note id").await, format!("{{\"note\":null,\"id\":\"{id}\"}}}}"));
        assert_eq!(data("x: id y: id").await, format!("{{\"x\":\"{id}\",\"y\":\"{id}\"}}}}"));
        assert_eq!(data("children { child { i: id } }").await.matches("child\"").count(), 4);
        assert_eq!(data("z: echo(times: 2)").await, format!("{{\"z\":\"{id}{id}\"}}}}"));
        assert!(data("shapes { ... on Square { s: side } }").await.contains("{\"s\":2}"));
        assert_eq!(data("... on Receipt { ... { i: id } }").await, format!("{{\"i\":\"{id}\"}}}}"));

        for (wider, missing) in [
            ("id total", "total"),
            ("id children { id child { id total } }", "children.child.total"),
            ("echo(times: 3)", "echo"),
            ("echo", "echo"),
        ] {
            let refused = ask(wider).await;
            assert_eq!(code(&refused), "SELECTION_UNAVAILABLE", "{wider}");
            let fields = refused.errors[0].extensions.as_ref().unwrap().get("fields").unwrap();
            assert_eq!(fields.to_string(), format!("[\"{missing}\"]"));
        }
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(the_name_of_an_objects_type_is_known_without_having_been_stored, world, {
    let server = world.server(Policy::leased());
    let ask = async |key: &str, selection: &str| {
        let response = server.run(format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ {selection} }} }}"#)).await;
        if response.errors.is_empty() {
            serde_json::to_string(&response.data).unwrap().replacen("{\"act\":", "", 1)
        } else {
            let fields = response.errors[0].extensions.as_ref().unwrap().get("fields").unwrap();
            format!("{} {fields}", code(&response))
        }
    };
    let first = ask("k", "id children { id }").await;
    let id = first.split('"').nth(3).unwrap().to_owned();
    assert_eq!(ask("k", "id __typename").await, format!("{{\"id\":\"{id}\",\"__typename\":\"Receipt\"}}}}"));
    assert_eq!(ask("k", "x: __typename id").await, format!("{{\"x\":\"Receipt\",\"id\":\"{id}\"}}}}"));
    assert_eq!(ask("k", "__typename").await, "{\"__typename\":\"Receipt\"}}");
    assert_eq!(ask("k", "... on Receipt { t: __typename }").await, "{\"t\":\"Receipt\"}}");
    assert!(ask("k", "children { __typename id }").await.contains("[{\"__typename\":\"Receipt\",\"id\":"));
    // Of a union only what was stored tells it.
    ask("u", "shapes { ... on Circle { radius } ... on Square { side } }").await;
    assert_eq!(ask("u", "shapes { __typename }").await, "SELECTION_UNAVAILABLE [\"shapes.__typename\"]");
    ask("w", "shapes { __typename ... on Circle { radius } ... on Square { side } }").await;
    assert!(ask("w", "shapes { t: __typename }").await.contains("{\"t\":\"Circle\"}"));
    assert_eq!(world.effects().await, 3);
});

both!(a_narrower_retry_gets_the_errors_of_its_own_fields_only, world, {
    failing(&world);
    let server = world.server(Policy::leased());
    let first = server.run(r#"mutation { act(idempotencyKey: "k") { id s: swallowed thrown } }"#).await;
    assert_eq!(codes(&first), ["BROKEN", "BROKEN"]);
    let narrow = server.run(r#"mutation { b: act(idempotencyKey: "k") { id } }"#).await;
    assert_eq!(codes(&narrow), [""; 0]);
    let one = server.run(r#"mutation { b: act(idempotencyKey: "k") { t: thrown } }"#).await;
    assert_eq!(code(&one), "BROKEN");
    assert_eq!(serde_json::to_string(&one.errors[0].path).unwrap(), r#"["b","t"]"#);
});

all!(the_mark_of_a_replay_names_each_response_path_and_changes_nothing_else, world, {
    let server = world.server(Policy::leased());
    let first = server.run(r#"mutation { act(idempotencyKey: "1") { id } }"#).await;
    assert!(!first.extensions.contains_key("idempotency"));
    let both = r#"mutation { act(idempotencyKey: "1") { id } billing { c: charge(idempotencyKey: "2") { id } } }"#;
    let mixed = server.run(both).await;
    assert!(replayed(&mixed, "act"));
    assert!(!replayed(&mixed, "billing.c"));
    let again = server.run(both).await;
    assert!(replayed(&again, "act") && replayed(&again, "billing.c"));
    assert_eq!(answered(&mixed), answered(&again));
});

/// A response of so many megabytes.
async fn large<B: Backend>(policy: Policy, megabytes: usize, replays: bool) {
    let world = World::<B>::new().await;
    world.on("act", move |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("x".repeat(megabytes << 20)))
        })
    });
    let server = world.server(policy);
    let document = r#"mutation { act(idempotencyKey: "k") { id } }"#;
    let first = server.run(document).await;
    assert_eq!(code(&first), "");
    let again = server.run(document).await;
    if replays {
        assert!(first.data == again.data);
        assert!(replayed(&again, "act"));
    } else {
        assert_eq!(code(&again), "RESPONSE_NOT_STORED");
    }
    assert_eq!(world.effects().await, 1);
    world.done().await;
}

both!(a_large_response_is_replayed_where_the_policy_lets_it, world, {
    for megabytes in [1, 16, 64] {
        large::<B>(Policy::leased().max_response(80 << 20), megabytes, true).await;
    }
    large::<B>(Policy::transactional().max_response(80 << 20), 16, true).await;
});

both!(a_response_above_the_limit_is_given_once_and_never_executed_again, world, {
    large::<B>(Policy::leased(), 1, false).await;
    large::<B>(Policy::transactional(), 16, false).await;
});

both!(only_headers_that_are_set_through_the_crate_are_replayed, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            ctx.replayed_header("X-Order-Id", "o-1")?;
            ctx.append_http_header("x-other", "1");
            ctx.append_http_header("set-cookie", "session=1");
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("1"))
        })
    });
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document = format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ id }} }}"#);
        let first = server.run(&document).await;
        assert_eq!(first.http_headers.len(), 3);
        let again = server.run(&document).await;
        assert!(replayed(&again, "act"));
        assert_eq!(again.http_headers.len(), 1);
        assert_eq!(again.http_headers["x-order-id"], "o-1");
    }
});

both!(a_header_of_a_field_before_others_is_replayed_with_it_once, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            ctx.replayed_header("x-order-id", "o-1")?;
            Ok(Receipt::new("1"))
        })
    });
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let document = format!(
            r#"mutation {{ act(idempotencyKey: "{key}1") {{ id }} other(idempotencyKey: "{key}2") {{ id }} }}"#
        );
        for _ in 0..2 {
            let response = server.run(&document).await;
            let values: Vec<_> = response.http_headers.get_all("x-order-id").iter().collect();
            assert_eq!(values, ["o-1"], "{key}");
        }
    }
});

both!(a_cookie_is_never_replayed_and_neither_is_a_header_of_nobody, world, {
    for mutation in ["act", "exempt"] {
        world.on(mutation, |ctx| {
            Box::pin(async move {
                let refused = [
                    ctx.replayed_header("Set-Cookie", "session=1").is_err(),
                    ctx.replayed_header("not a name", "1").is_err(),
                    ctx.replayed_header("x-a", "not\na value").is_err(),
                ];
                assert_eq!(refused, [true; 3]);
                assert_eq!(ctx.replayed_header("x-b", "1").is_ok(), ctx.field().name() == "act");
                Ok(Receipt::new("1"))
            })
        });
    }
    let server = world.server(Policy::leased());
    let response = server.run("mutation { exempt { id } }").await;
    assert_eq!((code(&response).as_str(), response.http_headers.len()), ("", 0));
    for _ in 0..2 {
        let response = server.run(r#"mutation { act(idempotencyKey: "k") { id } }"#).await;
        assert_eq!((code(&response).as_str(), response.http_headers.len()), ("", 1));
    }
});

both!(the_bytes_of_a_replay_are_those_of_the_first_response, world, {
    for json in [
        r#"{"b":1,"a":1.0,"big":1e3}"#,
        r#"{"z":{"y":[0,false,"",{},[],null]},"a":9007199254740993,"u":18446744073709551615,"f":0.1}"#,
        r#""a \u0000 b""#,
        "null",
        "false",
        "0",
        "\"\"",
        "[]",
        "{}",
        "-0.0",
        "1e300",
    ] {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        world.on("act", {
            let value = value.clone();
            move |_| {
                let json = value.clone();
                Box::pin(async move { Ok(Receipt { json, ..Receipt::new("1") }) })
            }
        });
        world.on("scalar", move |_| {
            let json = value.clone();
            Box::pin(async move { Ok(Receipt { json, ..Receipt::new("1") }) })
        });
        for policy in [Policy::leased(), Policy::transactional()] {
            let server = world.server(policy);
            let key = uuid::Uuid::new_v4();
            for document in [
                format!(r#"mutation {{ act(idempotencyKey: "{key}") {{ total id json note }} }}"#),
                format!(r#"mutation {{ scalar(idempotencyKey: "{key}s") }}"#),
            ] {
                let first = server.run(&document).await;
                let again = server.run(&document).await;
                assert_eq!(answered(&first), answered(&again));
                assert!(again.extensions.contains_key("idempotency"), "{json}");
            }
        }
    }
});

both!(a_null_is_an_answer_like_any_other, world, {
    world.on("maybe", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "maybe").await?;
            Ok(Receipt::new(""))
        })
    });
    for (policy, key) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy);
        let effects = world.effects().await;
        let document = format!(r#"mutation {{ maybe(idempotencyKey: "{key}") {{ id }} }}"#);
        let first = server.run(&document).await;
        let again = server.run(&document).await;
        assert_eq!(answered(&first), r#"{"maybe":null} []"#);
        assert_eq!(answered(&first), answered(&again));
        assert!(replayed(&again, "maybe"));
        assert_eq!(world.effects().await, effects + 1);
    }
});

both!(garbage_in_the_database_is_told_and_nothing_runs, world, {
    let server = world.server(Policy::leased());
    let blob = |hex: &str| if B::POSTGRES { format!("decode('{hex}', 'hex')") } else { format!("x'{hex}'") };
    for (n, change) in [
        format!("body = {}", blob("67617262616765")),
        format!("body = {}", blob("")),
        format!("body = {}", blob("ff00fe")),
        format!("body = {}", blob("7b7d")),
        format!("body = {}", blob(&"5b".repeat(100_000))),
        format!("body = {}", blob("7b226572726f7273223a5b7b226d657373616765223a317d5d7d")),
        format!("fingerprint = {}", blob(&format!("63{}", "11".repeat(32)))),
        format!("selection = {}", "'garbage {{'"),
        "selection = ''".to_owned(),
        "selection = '...'".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let document = format!(r#"mutation {{ act(idempotencyKey: "{n}") {{ id }} }}"#);
        assert_eq!(code(&server.run(&document).await), "");
        let changed = world.execute(format!("UPDATE idempotency_records SET {change} WHERE key = '{n}'")).await;
        assert_eq!(changed, 1);
        let again = code(&server.run(&document).await);
        // An empty selection is a legal one, of a scalar.
        let expected: &[&str] =
            if change == "selection = ''" { &["SELECTION_UNAVAILABLE", "RECORD_CORRUPT"] } else { &["RECORD_CORRUPT"] };
        assert!(expected.contains(&again.as_str()), "{change}: {again}");
        assert_eq!(world.effects().await, i64::try_from(n).unwrap() + 1);
    }
});

/// Everything that is stored, as text.
async fn dump<B: Backend>(world: &World<B>) -> String {
    let (bytes, to) = if B::POSTGRES { ("encode(", ", 'escape')") } else { ("CAST(", " AS TEXT)") };
    let records = world
        .texts(format!(
            "SELECT coalesce(client, '') || '|' || key || '|' || mutation || '|' || selection || '|' || state || '|'
                || coalesce({bytes}body{to}, '') || '|' || coalesce(reason, '') FROM idempotency_records"
        ))
        .await;
    let steps =
        world.texts("SELECT client || key || name || kind || coalesce(result, '') FROM idempotency_steps").await;
    format!("{records:?} {steps:?}")
}

both!(a_response_that_is_discarded_is_in_no_table, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            let fails = ctx.item.node.alias.as_ref().is_some_and(|a| a.node == "fails");
            if fails { Err("a s3cret went wrong".into()) } else { Ok(Receipt::new("s3cret")) }
        })
    });
    for (policy, name) in [(Policy::leased(), "l"), (Policy::transactional(), "t")] {
        let server = world.server(policy.clone().discard_response());
        let document = format!(r#"mutation {{ act(idempotencyKey: "{name}") {{ id }} }}"#);
        let effects = world.effects().await;
        assert!(answered(&server.run(&document).await).contains("s3cret"));
        assert_eq!(code(&server.run(&document).await), "RESPONSE_NOT_STORED");
        assert_eq!(world.effects().await, effects + 1);
        server.run(format!(r#"mutation {{ fails: act(idempotencyKey: "{name}f") {{ id }} }}"#)).await;
        assert!(!dump(&world).await.contains("s3cret"));
    }
    // The same look finds one that is kept.
    world.server(Policy::leased()).run(r#"mutation { act(idempotencyKey: "kept") { id } }"#).await;
    assert!(dump(&world).await.contains("s3cret"));
});

struct Xor(u8);

impl Seal for Xor {
    fn seal(&self, plain: Vec<u8>) -> Vec<u8> {
        std::iter::once(self.0).chain(plain.into_iter().map(|byte| byte ^ self.0)).collect()
    }

    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        let (seal, sealed) = sealed.split_first()?;
        (*seal == self.0).then(|| sealed.iter().map(|byte| byte ^ self.0).collect())
    }
}

both!(a_sealed_response_is_unreadable_at_rest_and_replayed, world, {
    world.on("act", |ctx| {
        Box::pin(async move {
            effect::<B>(ctx, "act").await?;
            Ok(Receipt::new("s3cret"))
        })
    });
    let policy = Policy::leased().on_crash(OnCrash::Resume);
    let server = world.server_with(policy.clone(), |builder| builder.seal(Xor(0xa5)));
    let document = r#"mutation { act(idempotencyKey: "k", values: { text: "s3cret" }) { id } }"#;
    let first = server.run(document).await;
    let again = server.run(document).await;
    assert_eq!(answered(&first), answered(&again));
    assert!(replayed(&again, "act"));
    assert!(!dump(&world).await.contains("s3cret"));
    // Under another seal it can't be opened, and is not executed again.
    let other = world.server_with(policy, |builder| builder.seal(Xor(0x5a)));
    assert_eq!(code(&other.run(document).await), "RECORD_CORRUPT");
    assert_eq!(world.effects().await, 1);
});

both!(a_client_without_the_right_takes_no_key_and_gets_no_replay, world, {
    let allowed = Arc::new(Mutex::new(false));
    let asked = Arc::clone(&allowed);
    let server = world.server_with(Policy::leased(), move |builder| {
        builder.authorise(move |_, client, mutation| {
            assert_eq!((client.as_str(), mutation), ("client", "act"));
            let allowed = *asked.lock().unwrap();
            Box::pin(async move { if allowed { Ok(()) } else { Err("not allowed".into()) } })
        })
    });
    let document = r#"mutation { a: act(idempotencyKey: "k") { id } }"#;
    let refused = server.run(document).await;
    assert_eq!(code(&refused), "not allowed");
    assert_eq!(serde_json::to_string(&refused.errors[0].path).unwrap(), r#"["a"]"#);
    assert_eq!(world.records().await, 0);
    *allowed.lock().unwrap() = true;
    assert_eq!(code(&server.run(document).await), "");
    assert!(replayed(&server.run(document).await, "a"));
    *allowed.lock().unwrap() = false;
    let withdrawn = server.run(document).await;
    assert_eq!(code(&withdrawn), "not allowed");
    assert_eq!(withdrawn.data, async_graphql::Value::Null);
    assert_eq!(world.effects().await, 1);
});

both!(every_refusal_says_how_to_go_on, world, {
    let server = world.server(Policy::leased());
    server.run(r#"mutation { act(idempotencyKey: "k", amount: 1) { id } }"#).await;
    let refused = server.run(r#"mutation { x: other(idempotencyKey: "k") { id } }"#).await;
    let error = &refused.errors[0];
    let extensions = serde_json::to_value(error.extensions.as_ref().unwrap()).unwrap();
    assert_eq!(extensions["code"], "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(extensions["httpStatus"], 422);
    assert_eq!(extensions["retryable"], false);
    assert!(extensions["firstSeenAt"].is_string() && extensions["requestId"].is_string());
    assert_eq!(serde_json::to_string(&error.path).unwrap(), r#"["x"]"#);
    assert_eq!(error.locations[0].column, 12);
    let nobody = server.execute(Request::new(r#"mutation { act(idempotencyKey: "k") { id } }"#)).await;
    assert_eq!(code(&nobody), "CLIENT_UNKNOWN");
});
