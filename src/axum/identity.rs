//! Where a client's identity comes from: functions for
//! [`GraphQLIdempotency::new`](super::GraphQLIdempotency::new).

use ::axum::http::{header::AUTHORIZATION, request::Parts};

use crate::key::ClientId;

/// The bearer token, hashed: every token is a client. Whether the token is any good is for the application's own
/// authentication to say, before this.
#[must_use]
pub fn bearer(parts: &Parts) -> Option<ClientId> {
    let (scheme, token) = parts.headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| ClientId::hashed(token))
}

/// A header that a trusted gateway sets, and strips from what comes from outside.
pub fn header(name: &'static str) -> impl Fn(&Parts) -> Option<ClientId> + Send + Sync + 'static {
    move |parts| ClientId::new(parts.headers.get(name)?.to_str().ok()?).ok()
}

/// An extension of the request that the application's own authentication layer sets.
pub fn extension<T: Clone + Send + Sync + 'static>(
    client: impl Fn(&T) -> Option<ClientId> + Send + Sync + 'static,
) -> impl Fn(&Parts) -> Option<ClientId> + Send + Sync + 'static {
    move |parts| client(parts.extensions.get::<T>()?)
}
