//! First the README: what the crate promises. Below it: how the crate keeps its promises.
#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! The path of a mutation through the modules:
//!
//! ```text
//! axum ─▶ graphql::extension ─▶ graphql::plan       which fields are protected, by which keys
//!                               graphql::execution  per field: authorise ▸ claim ▸ run ▸ settle, or replay
//!                                     │
//!                               protocol            lead or follow: claim, run, settle; or wait. Over any store
//!                               claim::decide       who gets a key: (record, request, now) to verdict
//!                               ending::fate        what an ending does to it: (policy, ending, known) to fate
//!                                     │
//!                               store               the port and its laws; postgres and sqlite keep them
//! ```
//!
//! | module | concept |
//! |---|---|
//! | [`key`], [`fingerprint`], [`state`], [`record`], [`error`] | the vocabulary |
//! | [`claim`] | the first heart: who gets a key, and what everybody else gets |
//! | [`ending`] | the second heart: what an ending does to the key |
//! | [`policy`] | the numbers and choices of a mutation |
//! | [`store`] | the port, its laws, its backends, and the conformance suite for one of your own |
//! | [`protocol`] | from key to settlement, over any store, for any adapter |
//! | [`attempt`] | what a running mutation holds: its transaction, or its lease and its steps |
//! | [`sweeper`], [`operator`] | recovery, by itself and by hand |
#![cfg_attr(feature = "graphql", doc = "| [`graphql`] | the extension, the scalar, and what a resolver sees |")]
#![cfg_attr(feature = "axum", doc = "| [`axum`] | the HTTP and WebSocket service |")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test that can't go on should panic"))]

pub mod attempt;
#[cfg(feature = "axum")]
pub mod axum;
pub mod claim;
pub mod ending;
pub mod error;
pub mod fingerprint;
#[cfg(feature = "graphql")]
pub mod graphql;
#[cfg(any(doc, doctest))]
pub mod guide;
pub mod key;
pub mod operator;
pub mod policy;
pub mod protocol;
pub mod record;
pub mod state;
pub mod store;
pub mod sweeper;

pub use attempt::{Attempt, AttemptError};
#[cfg(feature = "axum")]
pub use axum::{GraphQLIdempotency, identity};
pub use ending::Mark;
pub use error::{Error, ErrorCode};
#[cfg(feature = "graphql")]
pub use graphql::{Claim, Found, Idempotency, IdempotencyContext, MarkError};
pub use key::{ClientId, IdempotencyKey};
pub use operator::Operator;
pub use policy::{OnCrash, Policy};
pub use record::Record;
pub use state::State;
#[cfg(feature = "postgres")]
pub use store::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use store::sqlite::SqliteStore;
pub use store::{Store, StoreError, Upkeep};
pub use sweeper::{Sweeper, Swept};
