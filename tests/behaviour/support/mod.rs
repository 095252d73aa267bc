//! What the tests stand on: a database of their own, a store that fails on demand, a schema whose resolvers do
//! what the test says.

#[allow(dead_code, reason = "the histories use the rest")]
pub mod backend;
pub mod faulty;
pub mod gateway;
pub mod schema;
pub mod world;

#[allow(unused_imports, reason = "a prelude of the tests")]
pub use async_graphql_idempotency::{
    AttemptError, Claim, ClientId, Found, Idempotency, IdempotencyContext, IdempotencyKey, Mark, MarkError, OnCrash,
    Operator, Policy, State, Store, StoreError, Swept, Upkeep,
    ending::Told,
    operator::SettleError,
    record::Settlement,
    state::{Ended, Outcome},
    store::{Filter, From, Sweep},
};
pub use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

pub use self::{
    backend::{Backend, InMemory, PostgresBackend, SqliteBackend},
    faulty::{Faulty, Moment},
    gateway::Gateway,
    schema::{Receipt, effect},
    world::{World, answered, code, codes, ms, replayed, request, request_of},
};

/// Makes a test of each backend out of one body.
macro_rules! both {
    ($(#[$attribute:meta])* $name:ident, $world:ident, $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "not every body needs all")]
            use super::*;

            $(#[$attribute])*
            async fn law<B: Backend>() {
                let $world = World::<B>::new().await;
                $body
                $world.done().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                law::<PostgresBackend>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                law::<SqliteBackend>().await;
            }
        }
    };
}

/// Makes a test of each backend, and of SQLite in memory, out of one body that looks at the store only through
/// its trait.
macro_rules! all {
    ($name:ident, $world:ident, $body:block) => {
        mod $name {
            #[allow(unused_imports, reason = "not every body needs all")]
            use super::*;

            async fn law<B: Backend>() {
                let $world = World::<B>::new().await;
                $body
                $world.done().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                law::<PostgresBackend>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                law::<SqliteBackend>().await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn in_memory() {
                law::<InMemory>().await;
            }
        }
    };
}

pub(crate) use {all, both};
