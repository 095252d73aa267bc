//! Requests that are not what they should be: refused before anything runs.

use reqwest::Method;
use serde_json::json;

use crate::server::{Answer, start};

const PAY: &str = r#"mutation { pay(idempotencyKey: "k", amount: 1) }"#;

#[tokio::test]
async fn methods_and_content_types_that_are_not_taken_run_nothing() {
    let server = start().await;
    let body = json!({ "query": PAY }).to_string();
    let post = |content_type: Option<&str>| {
        let request = server.http.post(server.url()).bearer_auth("one").body(body.clone());
        if let Some(content_type) = content_type { request.header("content-type", content_type) } else { request }
    };
    for content_type in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
        Some("application/jsonp"),
    ] {
        let answer = Answer::of(post(content_type).send().await.unwrap()).await;
        assert_eq!(answer.status, 415, "{content_type:?}");
        assert!(answer.json()["errors"][0]["message"].is_string(), "{content_type:?}");
    }
    for method in [Method::PUT, Method::DELETE, Method::PATCH] {
        let request = server.http.request(method.clone(), server.url()).bearer_auth("one").body(body.clone());
        let answer = Answer::of(request.header("content-type", "application/json").send().await.unwrap()).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD, POST")), "{method}");
    }
    for method in [Method::GET, Method::HEAD] {
        let request = server.http.request(method.clone(), server.url()).bearer_auth("one").query(&[("query", PAY)]);
        let answer = Answer::of(request.send().await.unwrap()).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method}");
        let query = server.http.request(method.clone(), server.url()).query(&[("query", "{ effects }")]);
        let answer = Answer::of(query.send().await.unwrap()).await;
        assert_eq!((answer.status, answer.text.is_empty()), (200, method == Method::HEAD), "{method}");
    }
    assert_eq!(server.effects().await, 0);
    for content_type in ["application/json", "Application/JSON; charset=utf-8", "application/graphql+json"] {
        let answer = Answer::of(post(Some(content_type)).send().await.unwrap()).await;
        assert_eq!(answer.status, 200, "{content_type}");
    }
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn the_rules_of_an_answer_are_those_of_the_media_type_that_the_client_prefers() {
    const NEW: (u16, &str) = (400, "application/graphql-response+json");
    const OLD: (u16, &str) = (200, "application/json");
    let server = start().await;
    for (accept, expected) in [
        (None, NEW),
        (Some("*/*"), NEW),
        (Some("application/graphql-response+json, application/json"), NEW),
        (Some("application/json, */*;q=0.1"), OLD),
        (Some("application/graphql-response+json;q=0"), OLD),
        (Some("Application/JSON"), OLD),
    ] {
        let mut request = server.post(&json!({ "query": "mutation { pay(amount: 1) }" }));
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let answer = Answer::of(request.send().await.unwrap()).await;
        let content_type = answer.header("content-type").unwrap().split(';').next().unwrap();
        assert_eq!((answer.status, content_type), expected, "{accept:?}");
        assert_eq!(answer.code().as_deref(), Some("IDEMPOTENCY_KEY_MISSING"), "{accept:?}");
    }
}
