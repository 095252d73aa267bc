//! The laws of [`Store`] and [`Upkeep`] as functions that run against any backend, for its author's tests.
//!
//! Each law takes keys of its own, so that laws can run on a database in use, in any order and side by side; those that
//! sweep take turns within a process. [`check`] runs all. For the laws about transactions, [`Effects`] has a closure
//! that writes an effect on a store's connection, and one that counts the effects that others see.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use async_graphql_idempotency::{SqliteStore, store::conformance::{self, Effects}};
//!
//! let store = SqliteStore::in_memory().await?;
//! sqlx::query("CREATE TABLE effects (label TEXT)").execute(store.pool()).await?;
//! let pool = store.pool().clone();
//! let effects = Effects::new(
//!     |connection: &mut sqlx::SqliteConnection, label| {
//!         Box::pin(async move {
//!             sqlx::query("INSERT INTO effects VALUES ($1)").bind(label).execute(connection).await?;
//!             Ok(())
//!         })
//!     },
//!     move |label| {
//!         let pool = pool.clone();
//!         Box::pin(async move {
//!             let count = sqlx::query_scalar("SELECT count(*) FROM effects WHERE label = $1");
//!             Ok(count.bind(label).fetch_one(&pool).await?)
//!         })
//!     },
//! );
//! conformance::check(&store, &effects).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

#![allow(clippy::missing_errors_doc, reason = "every law fails in the same way: see `Broken`")]
#![allow(clippy::wildcard_imports, reason = "the laws share one vocabulary, which `law` holds")]

use std::{future::Future, pin::Pin};

use crate::store::{Source, Store, StoreError, Upkeep};

mod claims;
mod law;
mod leases;
mod lists;
mod settlements;
mod steps;
mod sweeps;
mod transactions;

pub use claims::*;
pub use leases::*;
pub use lists::*;
pub use settlements::*;
pub use steps::*;
pub use sweeps::*;
pub use transactions::*;

/// How the laws write and count effects beside the records.
pub struct Effects<S: Upkeep> {
    write: Box<Write<S>>,
    count: Box<Count>,
}

type Write<S> = dyn for<'a> Fn(&'a mut <S as Store>::Connection, &'a str) -> Done<'a, ()> + Send + Sync;
type Count = dyn for<'a> Fn(&'a str) -> Done<'a, i64> + Send + Sync;
type Done<'a, T> = Pin<Box<dyn Future<Output = Result<T, Source>> + Send + 'a>>;

impl<S: Upkeep> Effects<S> {
    /// `write` writes an effect with a label, on a connection of the store's; `count` counts the effects with a label
    /// that are committed, on any other connection.
    pub fn new(
        write: impl for<'a> Fn(&'a mut S::Connection, &'a str) -> Done<'a, ()> + Send + Sync + 'static,
        count: impl for<'a> Fn(&'a str) -> Done<'a, i64> + Send + Sync + 'static,
    ) -> Self {
        Self { write: Box::new(write), count: Box::new(count) }
    }
}

/// A law that a backend breaks.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The store did something else than the law says.
    #[error("{law}: {what}")]
    Law {
        /// The law.
        law: &'static str,
        /// What was seen.
        what: String,
    },
    /// The store failed.
    #[error("{law}: {source}")]
    Store {
        /// The law.
        law: &'static str,
        /// Why.
        source: StoreError,
    },
    /// A time was over too early, at each of ten tries: the machine is too slow for the law.
    #[error("{law}: it could not be looked at in time")]
    Late {
        /// The law.
        law: &'static str,
    },
    /// A closure of [`Effects`] failed, or a task of the suite.
    #[error("the suite could not go on")]
    Suite(#[source] Source),
}

/// Runs every law.
///
/// # Errors
/// The first law that is broken.
pub async fn check<S: Upkeep>(store: &S, effects: &Effects<S>) -> Result<(), Broken> {
    Box::pin(claims::all(store, effects)).await?;
    Box::pin(leases::all(store, effects)).await?;
    Box::pin(steps::all(store, effects)).await?;
    Box::pin(transactions::all(store, effects)).await?;
    Box::pin(settlements::all(store, effects)).await?;
    Box::pin(lists::all(store, effects)).await?;
    sweeps::all(store, effects).await
}
