//! Requests that outlive their connection.

use std::time::Duration;

use async_graphql_idempotency::Policy;
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::server::{policy, start, start_with};

const SLOW: &str = r#"mutation { pay(idempotencyKey: "k", amount: 1, millis: 400) }"#;

/// Writes a request by hand and cuts the connection once its effect is there.
async fn send_and_hang_up(server: &crate::server::Server, query: &str) {
    let body = json!({ "query": query }).to_string();
    let request = format!(
        "POST /graphql HTTP/1.1\r\nhost: x\r\nauthorization: Bearer one\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    server.wait_for_effects(1).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_finds_its_mutation_done() {
    let server = start_with(policy().wait(Duration::ZERO), |router| router).await;
    send_and_hang_up(&server, SLOW).await;
    let at_once = server.send(SLOW).await;
    assert_eq!((at_once.status, at_once.code().as_deref()), (409, Some("IDEMPOTENCY_IN_PROGRESS")));
    let retry_after: u64 = at_once.header("retry-after").unwrap().parse().unwrap();
    let milliseconds = at_once.json()["errors"][0]["extensions"]["retryAfterMs"].as_u64().unwrap();
    assert!(retry_after >= 1 && milliseconds > 0 && milliseconds <= 30_000, "{retry_after} s, {milliseconds} ms");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let later = server.send(SLOW).await;
    assert_eq!((later.status, later.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn a_timeout_layer_ends_the_wait_and_not_the_mutation() {
    let server = start_with(policy(), |router| {
        router.layer(
            tower::ServiceBuilder::new()
                .layer(axum::error_handling::HandleErrorLayer::new(async |_: axum::BoxError| {
                    axum::http::StatusCode::GATEWAY_TIMEOUT
                }))
                .layer(tower::timeout::TimeoutLayer::new(Duration::from_millis(100))),
        )
    })
    .await;
    assert_eq!(server.send(SLOW).await.status, 504);
    tokio::time::sleep(Duration::from_millis(600)).await;
    let retry = server.send(SLOW).await;
    assert_eq!((retry.status, retry.header("idempotent-replayed")), (200, Some("true")));
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn shutdown_waits_for_what_runs() {
    let server = start_with(Policy::leased(), |router| router).await;
    send_and_hang_up(&server, SLOW).await;
    server.service.shutdown(std::time::Duration::from_secs(20)).await;
    let states: Vec<String> =
        sqlx::query_scalar("SELECT state FROM idempotency_records").fetch_all(server.store.pool()).await.unwrap();
    assert_eq!(states, ["succeeded"]);
}

#[tokio::test]
async fn a_request_that_is_too_long_is_refused() {
    let server = start().await;
    let long = format!("mutation {{ pay(idempotencyKey: \"k\", amount: 1) }} # {}", "x".repeat(3 << 20));
    let refused = server.send(&long).await;
    assert_eq!(refused.status, 413);
    assert!(refused.json()["errors"][0]["message"].is_string());
    let garbage = server
        .http
        .post(server.url())
        .bearer_auth("one")
        .header("content-type", "application/json")
        .body("garbage")
        .send()
        .await
        .unwrap();
    let garbage = crate::server::Answer::of(garbage).await;
    assert_eq!(garbage.status, 400);
    assert!(garbage.json()["errors"][0]["message"].is_string());
    let key = format!("mutation {{ pay(idempotencyKey: \"{}\", amount: 1) }}", "k".repeat(1 << 20));
    let refused = server.send(&key).await;
    assert_eq!((refused.status, refused.code().as_deref()), (400, Some("IDEMPOTENCY_KEY_INVALID")));
    assert_eq!(server.effects().await, 0);
}

#[tokio::test]
async fn sixty_four_copies_at_once_have_one_effect() {
    let server = crate::server::shared(start().await);
    let copies: Vec<_> = (0..64)
        .map(|_| {
            let server = server.clone();
            tokio::spawn(async move { server.send(SLOW).await })
        })
        .collect();
    let mut firsts = 0;
    for copy in copies {
        let answer = copy.await.unwrap();
        assert_eq!((answer.status, answer.json()["data"].clone()), (200, json!({ "pay": "paid 1" })));
        firsts += usize::from(answer.header("idempotent-replayed").is_none());
    }
    assert_eq!((firsts, server.effects().await), (1, 1));
}
