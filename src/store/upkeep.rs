//! The port of the sweeper and of the operator.

use std::{future::Future, time::Duration};

use crate::{
    key::{ClientId, IdempotencyKey},
    record::{Record, RecoveryPoint, Timestamp},
    state::State,
    store::{Store, StoreError},
};

/// What a sweeper and an operator ask of a store.
pub trait Upkeep: Store {
    /// The records that a filter lets through, oldest first.
    ///
    /// # Errors
    /// The store's.
    fn list(&self, filter: &Filter) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// The recovery points of a record, in the order in which they were begun.
    ///
    /// # Errors
    /// The store's.
    fn steps(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Vec<RecoveryPoint>, StoreError>> + Send;

    /// How many records there are of each mutation and state.
    ///
    /// # Errors
    /// The store's.
    fn count(&self) -> impl Future<Output = Result<Vec<Count>, StoreError>> + Send;

    /// Checks that the store has what it needs: its tables, its rights.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] names what is missing.
    fn check(&self) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Carries out what is due by now, for up to `batch` records, and says whether there may be more to do.
    ///
    /// - An attempt whose lease has lapsed needs recovery, at once.
    /// - A record that needs recovery and is due, or that is settling and has lapsed, is handed out. It is not handed
    ///   out again for `backoff`, doubled with every try, up to a day; so no other sweeper gets it meanwhile.
    /// - A finished or released record whose retention is over becomes a tombstone, without response, reason, selection
    ///   and steps. The tombstone lasts for `tombstone` from the end of the retention.
    /// - A tombstone that is over is deleted.
    ///
    /// # Errors
    /// The store's; what was done until then stays done.
    fn sweep(&self, sweep: &Sweep) -> impl Future<Output = Result<Batch, StoreError>> + Send;
}

/// The tables of every SQL backend, with their columns.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const TABLES: [(&str, &[&str]); 3] = [
    (
        "idempotency_records",
        &[
            "created_at",
            "due_at",
            "ended_at",
            "look_at",
            "request_id",
            "attempt",
            "recoveries",
            "state",
            "namespace",
            "client",
            "key",
            "mutation",
            "fingerprint",
            "selection",
            "body",
            "reason",
        ],
    ),
    ("idempotency_steps", &["namespace", "client", "key", "name", "position", "kind", "attempt", "result"]),
    ("idempotency_marks", &["namespace", "pass", "position", "passed_at"]),
];

/// How many batches of records one pass looks through: it reads many records and changes few.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const PASS_BATCHES: i64 = 20;

/// What a sweep is to do.
#[derive(Clone, Copy, Debug)]
pub struct Sweep {
    /// The most records that are changed.
    pub batch: u32,
    /// How long a record that was handed out is not handed out again, the first time.
    pub backoff: Duration,
    /// How long tombstones last.
    pub tombstone: Duration,
    /// The shortest lease of all policies: no younger record can have lapsed.
    pub shortest_lease: Duration,
    /// The shortest retention of all policies: no younger record can be over.
    pub shortest_retention: Duration,
    /// The shortest time between two passes that look for records which have become old enough, in whatever process.
    pub every: Duration,
}

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Attempts whose lease had lapsed, which now need recovery.
    pub lapsed: u64,
    /// Records whose retention was over, now tombstones.
    pub expired: u64,
    /// Tombstones that were deleted.
    pub purged: u64,
    /// Records to recover.
    pub recoverable: Vec<Record>,
    /// Whether another sweep would find something at once.
    pub more: bool,
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only this state.
    pub state: Option<State>,
    /// Only this mutation.
    pub mutation: Option<String>,
    /// Only this client.
    pub client: Option<ClientId>,
    /// Only records that were made at least this long ago.
    pub older_than: Option<Duration>,
    /// At most this many; 0 means 100.
    pub limit: u32,
}

impl Filter {
    /// The most records to list.
    #[must_use]
    pub fn limit(&self) -> i64 {
        i64::from(if self.limit == 0 { 100 } else { self.limit })
    }
}

/// How many records of a mutation are in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The mutation.
    pub mutation: String,
    /// The state.
    pub state: State,
    /// How many.
    pub records: i64,
    /// When the oldest of them was made.
    pub oldest: Timestamp,
}
