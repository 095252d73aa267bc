//! Where a client's identity comes from: functions for
//! [`GraphQLIdempotency::new`](super::GraphQLIdempotency::new).

use ::axum::http::{header::AUTHORIZATION, request::Parts};

use crate::key::ClientId;

/// The bearer token, hashed: every token is a client. The token is not checked here: the application's own
/// authentication has to do that before.
#[must_use]
pub fn bearer(parts: &Parts) -> Option<ClientId> {
    hashed(parts.headers.get(AUTHORIZATION)?.to_str().ok()?)
}

/// The same for a WebSocket's `connection_init` payload: `{ "Authorization": "Bearer …" }`, for
/// [`GraphQLIdempotency::connection_init`](super::GraphQLIdempotency::connection_init).
#[must_use]
pub fn bearer_payload(payload: &serde_json::Value) -> Option<ClientId> {
    let name = payload.as_object()?.keys().find(|name| name.eq_ignore_ascii_case("authorization"))?;
    hashed(payload.get(name)?.as_str()?)
}

fn hashed(authorization: &str) -> Option<ClientId> {
    let (scheme, token) = authorization.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| ClientId::hashed(token))
}

/// A header that a trusted gateway sets, and removes from requests that come from outside.
pub fn header(name: &'static str) -> impl Fn(&Parts) -> Option<ClientId> + Send + Sync + 'static {
    move |parts| ClientId::new(parts.headers.get(name)?.to_str().ok()?).ok()
}

/// An extension of the request that the application's own authentication layer sets.
pub fn extension<T: Clone + Send + Sync + 'static>(
    client: impl Fn(&T) -> Option<ClientId> + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Option<ClientId> + Send + Sync + 'static {
    move |parts| client(parts.extensions.get::<T>()?)
}
