//! Mutations over `graphql-transport-ws`.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, connect_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::server::{Server, start};

struct Socket(WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>);

impl Socket {
    /// The client is told by the upgrade request's token, or by the `connection_init` payload's.
    async fn open(server: &Server, header: Option<&str>, payload: Value) -> Self {
        let mut request = format!("ws://{}/graphql", server.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", "graphql-transport-ws".parse().unwrap());
        if let Some(token) = header {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let (stream, _) = connect_async(request).await.unwrap();
        let mut socket = Self(stream);
        socket.send(&json!({ "type": "connection_init", "payload": payload })).await;
        assert_eq!(socket.receive().await["type"], "connection_ack");
        socket
    }

    async fn send(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn subscribe(&mut self, query: &str) {
        self.send(&json!({ "id": "1", "type": "subscribe", "payload": { "query": query } })).await;
    }

    async fn receive(&mut self) -> Value {
        loop {
            match self.0.next().await.unwrap().unwrap() {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn run(&mut self, query: &str) -> Value {
        self.subscribe(query).await;
        let next = self.receive().await;
        assert_eq!(self.receive().await["type"], "complete");
        next["payload"].clone()
    }
}

const PAY: &str = r#"mutation { pay(idempotencyKey: "k", amount: 1) }"#;
const SLOW: &str = r#"mutation { pay(idempotencyKey: "k", amount: 1, millis: 400) }"#;

#[tokio::test]
async fn a_mutation_has_the_same_client_and_effect_over_every_transport() {
    let server = start().await;
    let first = Socket::open(&server, Some("one"), json!({})).await.run(PAY).await;
    let by_payload = Socket::open(&server, None, json!({ "token": "one" })).await.run(PAY).await;
    let by_post = server.send(PAY).await;
    assert_eq!(first["data"], json!({ "pay": "paid 1" }));
    assert_eq!((&by_payload["data"], &by_post.json()["data"]), (&first["data"], &first["data"]));
    assert_eq!(by_payload["extensions"]["idempotency"]["pay"]["replayed"], json!(true));
    assert_eq!(server.effects().await, 1);
    let other = Socket::open(&server, Some("two"), json!({ "token": "one" })).await.run(PAY).await;
    assert!(other.get("extensions").is_none(), "the upgrade request's token comes first: {other}");
    assert_eq!(server.effects().await, 2);
}

#[tokio::test]
async fn shutdown_closes_the_sockets() {
    let server = start().await;
    let mut socket = Socket::open(&server, Some("one"), json!({})).await;
    server.service.shutdown(std::time::Duration::from_secs(20)).await;
    let closed = tokio::time::timeout(Duration::from_secs(2), socket.0.next()).await.unwrap();
    assert!(!matches!(closed, Some(Ok(Message::Text(_)))), "{closed:?}");
    assert_eq!(server.effects().await, 0);
}

#[tokio::test]
async fn nobody_can_mutate_unknown() {
    let server = start().await;
    let refused = Socket::open(&server, None, json!({})).await.run(PAY).await;
    assert_eq!(refused["errors"][0]["extensions"]["code"], "IDEMPOTENCY_CLIENT_UNKNOWN");
    assert_eq!(server.effects().await, 0);
}

#[tokio::test]
async fn a_socket_that_is_cut_or_completed_ends_no_mutation() {
    for complete in [true, false] {
        let server = start().await;
        let mut socket = Socket::open(&server, Some("one"), json!({})).await;
        socket.subscribe(SLOW).await;
        server.wait_for_effects(1).await;
        if complete {
            socket.send(&json!({ "id": "1", "type": "complete" })).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(socket);
        // Waits for the one in flight, and replays it.
        let retry = server.send(SLOW).await;
        assert_eq!((retry.status, retry.header("idempotent-replayed")), (200, Some("true")), "{}", retry.text);
        assert_eq!(server.effects().await, 1);
    }
}

#[tokio::test]
async fn the_protocol_that_is_answered_is_the_one_that_is_spoken() {
    let server = start().await;
    for (offered, answered, begin, told) in [
        ("graphql-ws, graphql-transport-ws", "graphql-ws", "start", "data"),
        ("graphql-transport-ws, graphql-ws", "graphql-transport-ws", "subscribe", "next"),
        ("soap, graphql-transport-ws", "graphql-transport-ws", "subscribe", "next"),
    ] {
        let mut request = format!("ws://{}/graphql", server.address).into_client_request().unwrap();
        request.headers_mut().insert("sec-websocket-protocol", offered.parse().unwrap());
        request.headers_mut().insert("authorization", "Bearer one".parse().unwrap());
        let (stream, response) = connect_async(request).await.unwrap();
        assert_eq!(response.headers()["sec-websocket-protocol"], answered, "{offered}");
        let mut socket = Socket(stream);
        socket.send(&json!({ "type": "connection_init" })).await;
        assert_eq!(socket.receive().await["type"], "connection_ack", "{offered}");
        socket.send(&json!({ "id": "1", "type": begin, "payload": { "query": PAY } })).await;
        assert_eq!(socket.receive().await["type"], told, "{offered}");
    }
    assert_eq!(server.effects().await, 1);
}

#[tokio::test]
async fn a_shutdown_answers_what_runs_over_a_socket_and_closes_it_as_going_away() {
    let server = crate::server::shared(start().await);
    let mut socket = Socket::open(&server, Some("one"), json!({})).await;
    socket.subscribe(SLOW).await;
    server.wait_for_effects(1).await;
    let stopping = std::sync::Arc::clone(&server);
    let stopped = tokio::spawn(async move { stopping.service.shutdown(Duration::from_secs(20)).await });
    let answer = socket.receive().await;
    assert_eq!(answer["payload"]["data"], json!({ "pay": "paid 1" }), "{answer}");
    assert_eq!(socket.receive().await["type"], "complete");
    let closed = tokio::time::timeout(Duration::from_secs(2), socket.0.next()).await.unwrap();
    let Some(Ok(Message::Close(Some(frame)))) = closed else { panic!("{closed:?}") };
    assert_eq!(u16::from(frame.code), 1001);
    assert!(stopped.await.unwrap(), "everything ended by itself");
}
