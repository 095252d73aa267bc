//! A gateway that charges once per request id, and counts.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::{Path, State},
    routing::post,
};
use uuid::Uuid;

#[derive(Clone, Default)]
pub(crate) struct Gateway {
    /// How often each charge was asked for.
    calls: Arc<Mutex<HashMap<Uuid, usize>>>,
}

impl Gateway {
    /// Serves on a port of its own.
    pub(crate) async fn start() -> (Self, String) {
        let gateway = Self::default();
        let router = Router::new().route("/{id}", post(charge).get(find)).with_state(gateway.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (gateway, url)
    }

    /// The charges made since the last time.
    pub(crate) fn take_charges(&self) -> usize {
        self.calls.lock().unwrap().drain().count()
    }
}

async fn charge(State(gateway): State<Gateway>, Path(id): Path<String>) -> String {
    let id: Uuid = id.parse().unwrap();
    *gateway.calls.lock().unwrap().entry(id).or_default() += 1;
    format!("ch_{id}")
}

async fn find(State(gateway): State<Gateway>, Path(id): Path<String>) -> Result<String, axum::http::StatusCode> {
    let id: Uuid = id.parse().unwrap();
    let known = gateway.calls.lock().unwrap().contains_key(&id);
    if known { Ok(format!("ch_{id}")) } else { Err(axum::http::StatusCode::NOT_FOUND) }
}
