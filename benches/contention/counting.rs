//! A store that counts the calls that it passes on, and knows when the winner's outcome was committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use async_graphql_idempotency::{Store, StoreError};

#[path = "../../tests/shared/watched.rs"]
mod watched;

use watched::{Moment, Watch, Watched};

/// Microseconds since 1970: processes of one machine can compare them.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

#[derive(Default)]
pub(crate) struct Counts {
    calls: AtomicU64,
    committed_at: AtomicI64,
}

impl Watch for Counts {
    async fn called(&self, _: &'static str) -> Option<(Moment, StoreError)> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        None
    }

    async fn answered(&self, verb: &'static str) {
        if let "commit" | "settle" = verb {
            self.committed_at.store(now(), Ordering::Relaxed);
        }
    }
}

/// Counts what goes to the store.
pub(crate) type Counting<S> = Watched<S, Counts>;

impl<S: Store> Watched<S, Counts> {
    pub(crate) fn counting(inner: S) -> Self {
        Self::new(inner, Arc::default())
    }

    /// The calls since the last time, and when an outcome was committed, if one was.
    pub(crate) fn take(&self) -> (u64, Option<i64>) {
        let calls = self.watch.calls.swap(0, Ordering::Relaxed);
        let committed_at = self.watch.committed_at.swap(0, Ordering::Relaxed);
        (calls, (committed_at > 0).then_some(committed_at))
    }
}
