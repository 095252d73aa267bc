//! Statuses, headers and media types.

use serde_json::{Value, json};

use crate::server::{Answer, start};

const PAY: &str = r#"mutation { pay(idempotencyKey: "k", amount: 1) }"#;

#[tokio::test]
async fn a_replay_has_the_same_bytes_and_says_so() {
    let server = start().await;
    let first = server.send(PAY).await;
    let retry = server.send(PAY).await;
    assert_eq!((first.status, first.header("idempotent-replayed")), (200, None));
    assert_eq!((retry.status, retry.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(first.json()["data"].to_string(), retry.json()["data"].to_string());
    assert!(first.json().get("extensions").is_none());
    assert_eq!(retry.json()["extensions"]["idempotency"]["pay"]["replayed"], json!(true));
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn only_allow_listed_headers_are_replayed() {
    let server = start().await;
    let first = server.send(PAY).await;
    assert_eq!((first.header("x-order-id"), first.header("set-cookie")), (Some("1"), Some("session=1")));
    let retry = server.send(PAY).await;
    assert_eq!((retry.header("x-order-id"), retry.header("set-cookie")), (Some("1"), None));
}

#[tokio::test]
async fn a_document_of_old_and_new_is_no_replay_as_a_whole() {
    let server = start().await;
    server.send(PAY).await;
    let mixed = server
        .send(r#"mutation { a: pay(idempotencyKey: "k", amount: 1) b: pay(idempotencyKey: "k2", amount: 2) }"#)
        .await;
    assert_eq!(mixed.header("idempotent-replayed"), None);
    let marks = mixed.json()["extensions"]["idempotency"].clone();
    assert_eq!(marks, json!({ "a": { "replayed": true }, "b": { "replayed": false } }));
}

#[tokio::test]
async fn refusals_have_their_status() {
    let server = start().await;
    server.send(PAY).await;
    for (query, status, code) in [
        ("mutation { pay(amount: 1) }", 400, "IDEMPOTENCY_KEY_MISSING"),
        (r#"mutation { pay(idempotencyKey: " ", amount: 1) }"#, 400, "IDEMPOTENCY_KEY_INVALID"),
        (r#"mutation { pay(idempotencyKey: "k", amount: 2) }"#, 422, "IDEMPOTENCY_KEY_REUSED"),
        (r#"mutation { payInput(input: { idempotencyKey: "k", amount: 1 }) }"#, 422, "IDEMPOTENCY_KEY_REUSED"),
    ] {
        let answer = server.send(query).await;
        assert_eq!((answer.status, answer.code().as_deref()), (status, Some(code)), "{query}");
        let extensions = answer.json()["errors"][0]["extensions"].clone();
        assert_eq!((&extensions["httpStatus"], &extensions["retryable"]), (&json!(status), &json!(false)));
    }
    let anonymous = server.http.post(server.url()).json(&json!({ "query": PAY })).send().await.unwrap();
    let anonymous = Answer::of(anonymous).await;
    assert_eq!((anonymous.status, anonymous.code().as_deref()), (401, Some("IDEMPOTENCY_CLIENT_UNKNOWN")));
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn a_failure_of_the_application_keeps_its_code_and_is_replayed() {
    let server = start().await;
    let fail = r#"mutation { fail(idempotencyKey: "k") }"#;
    let (first, retry) = (server.send(fail).await, server.send(fail).await);
    assert_eq!(first.code().as_deref(), Some("NO_FUNDS"));
    assert_eq!(first.json()["errors"], retry.json()["errors"]);
    assert_eq!((retry.header("idempotent-replayed"), server.effects().await), (Some("true"), 1));
}

#[tokio::test]
async fn a_client_of_plain_json_gets_200_and_its_media_type() {
    let server = start().await;
    let ask = |accept: &'static str| {
        let request = server.post(&json!({ "query": "mutation { pay(amount: 1) }" })).header("accept", accept);
        async { Answer::of(request.send().await.unwrap()).await }
    };
    for (accept, status, media) in [
        ("application/json", 200, "application/json"),
        ("application/graphql-response+json, application/json;q=0.9", 400, "application/graphql-response+json"),
        ("*/*", 400, "application/graphql-response+json"),
    ] {
        let answer = ask(accept).await;
        assert_eq!((answer.status, answer.header("content-type")), (status, Some(media)), "{accept}");
    }
}

#[tokio::test]
async fn a_mutation_over_get_is_refused_and_a_query_is_not() {
    let server = start().await;
    let get = |query: &'static str| {
        let request = server.http.get(server.url()).bearer_auth("one").query(&[("query", query)]);
        async { Answer::of(request.send().await.unwrap()).await }
    };
    let refused = get(PAY).await;
    assert_eq!((refused.status, refused.header("allow")), (405, Some("POST")));
    assert_eq!(server.effects().await, 0);
    assert_eq!(get("{ effects }").await.json()["data"], json!({ "effects": 0 }));
}

#[tokio::test]
async fn a_batch_of_one_key_has_one_effect_and_keeps_its_order() {
    let server = start().await;
    for mutation in [r#"mutation { pay(idempotencyKey: "a", amount: 1) }"#, r#"mutation { book(idempotencyKey: "b") }"#]
    {
        let before = server.effects().await;
        let mut batch = vec![json!({ "query": mutation }); 20];
        batch[7] = json!({ "query": "{ __typename }" });
        let answer = Answer::of(server.post(&Value::from(batch)).send().await.unwrap()).await;
        let responses = answer.json();
        let responses = responses.as_array().unwrap();
        assert_eq!(responses.len(), 20);
        for (at, response) in responses.iter().enumerate() {
            let expected = if at == 7 { json!({ "__typename": "Query" }) } else { responses[0]["data"].clone() };
            assert_eq!(response["data"], expected, "{at}: {response}");
        }
        assert_eq!(server.effects().await, before + 1);
    }
}

#[tokio::test]
async fn an_upload_counts_by_its_content() {
    let server = start().await;
    let send = |content: &'static str| {
        let operations = json!({
            "query": r#"mutation ($file: Upload!) { storeFile(idempotencyKey: "k", file: $file) }"#,
            "variables": { "file": null },
        });
        let form = reqwest::multipart::Form::new()
            .text("operations", operations.to_string())
            .text("map", r#"{ "0": ["variables.file"] }"#)
            .part("0", reqwest::multipart::Part::text(content).file_name("a.txt"));
        let request =
            server.http.post(server.url()).bearer_auth("one").multipart(form).header("GraphQL-Require-Preflight", "1");
        async { Answer::of(request.send().await.unwrap()).await }
    };
    let first = send("content").await;
    assert_eq!(first.json()["data"], json!({ "storeFile": 7 }));
    assert_eq!(send("another").await.code().as_deref(), Some("IDEMPOTENCY_KEY_REUSED"));
    let retry = send("content").await;
    assert_eq!(
        (retry.json()["data"].clone(), retry.header("idempotent-replayed")),
        (first.json()["data"].clone(), Some("true"))
    );
    assert_eq!(server.effects().await, 1);
}
