//! What the crate promises stands in the README, which follows; how it keeps it, below.
#![doc = include_str!("../README.md")]
//!
//! # Inside
//!
//! A mutation's way, and where to look:
//!
//! ```text
//! axum ─▶ graphql::extension ─▶ graphql::document   which fields are protected, by which keys
//!                               graphql::execution  per field: authorise ▸ claim ▸ run ▸ settle, or replay
//!                                     │
//!                               protocol            claim, wait, run, settle: over any store
//!                               claim::decide       the one decision: (record, request, now) to verdict
//!                                     │
//!                               store               the port and its laws; postgres and sqlite keep them
//! ```
//!
//! | module | concept |
//! |---|---|
//! | [`key`], [`fingerprint`], [`state`], [`record`], [`error`] | the vocabulary |
//! | [`policy`] | what a mutation's effects are, and what its ending does to the key |
//! | [`claim`] | the pure heart: who gets a key, and what everybody else is told |
//! | [`store`] | the port, its laws, its backends, and the conformance suite for one of your own |
//! | [`protocol`], [`run`] | claim, wait, run, settle: over any store, for any adapter |
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
pub mod error;
pub mod fingerprint;
mod finish;
mod flight;
#[cfg(feature = "graphql")]
pub mod graphql;
pub mod key;
mod lease;
pub mod operator;
mod pause;
pub mod policy;
pub mod protocol;
mod recent;
pub mod record;
mod renewal;
pub mod run;
pub mod state;
pub mod store;
pub mod sweeper;

pub use attempt::{Attempt, AttemptError};
#[cfg(feature = "axum")]
pub use axum::{GraphQLIdempotency, identity};
pub use error::{Error, ErrorCode};
#[cfg(feature = "graphql")]
pub use graphql::{Claim, Found, Idempotency, IdempotencyContext, MarkError};
pub use key::{ClientId, IdempotencyKey};
pub use operator::Operator;
pub use policy::{Mark, OnCrash, Policy};
pub use record::Record;
pub use state::State;
#[cfg(feature = "postgres")]
pub use store::postgres::PostgresStore;
#[cfg(feature = "sqlite")]
pub use store::sqlite::SqliteStore;
pub use store::{Store, StoreError};
pub use sweeper::{Sweeper, Swept};
