//! The port: what the protocol asks of a database, and the laws that every backend keeps.
//!
//! A store knows nothing of GraphQL or HTTP: strings, bytes, UUIDs and times; a response is opaque to it.
//! It never decides: it fetches the record, asks [`decide`](crate::claim::decide) and does what the verdict
//! says, in one atomic act. [`conformance`] holds the laws as functions that run against any backend.

use std::{future::Future, ops::DerefMut, time::Duration};

use crate::{
    claim::{ClaimRequest, Verdict},
    key::{ClientId, IdempotencyKey},
    record::{Owner, Record, RecoveryPoint, Settlement, Timestamp},
    state::State,
};

pub mod conformance;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;

/// A database that keeps records.
///
/// # Laws
///
/// 1. Of any number of concurrent claims of a free key exactly one is [`Claimed::Taken`], whatever the
///    process, the pool or the isolation level.
/// 2. Every time is the store's own: the process's clock is never looked at.
/// 3. A write that names an [`Owner`] happens only while that attempt is the record's latest and the record
///    is `in_progress`; otherwise it changes nothing and answers `false`.
/// 4. What is committed together is visible together: effects, recovery points and settlement of one
///    transaction, or none of them.
/// 5. A finished record never changes again, except to become a tombstone once its retention is over.
/// 6. Records that are `in_progress` or `needs_recovery` are never purged.
/// 7. Two sweepers never hold the same record at once.
pub trait Store: Clone + Send + Sync + 'static {
    /// An open transaction, in which a transactional mutation or a local step works.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;
    /// What an application runs its own statements on.
    type Connection: Send;

    /// Takes the key for a leased attempt, or tells who has it. One round trip when the key is free; one
    /// round trip and no write when it is not.
    fn claim(&self, request: &ClaimRequest) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Takes the key for as long as a transaction is open, or tells who has it. Never waits for another
    /// transaction that holds the key.
    fn begin(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Begun<Self::Transaction>, StoreError>> + Send;

    /// Settles the record inside its transaction and commits.
    ///
    /// # Errors
    /// [`StoreError::RolledBack`] when the transaction is certainly undone, [`StoreError::InDoubt`] when
    /// nobody knows.
    fn commit(
        &self,
        transaction: Self::Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Undoes a transaction.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Settles a key that nobody holds, in a transaction of its own: what a rolled-back mutation leaves behind
    /// when its failure is final. `false` when the key is not free any more.
    fn record(
        &self,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Extends the lease, from now. `false` when the attempt no longer owns the key.
    fn renew(&self, owner: &Owner, lease: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Ends the attempt. `false` when the attempt no longer owns the key.
    fn settle(&self, owner: &Owner, settlement: &Settlement) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Opens a plain transaction for a local step.
    fn transaction(&self) -> impl Future<Output = Result<Self::Transaction, StoreError>> + Send;

    /// Writes a recovery point (or, without a result, the intent of a remote step) and extends the lease.
    /// `false` when the attempt no longer owns the key.
    fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Writes the recovery point of a local step inside its transaction and commits both. `false`, and the
    /// transaction is undone, when the attempt no longer owns the key.
    fn checkpoint_with(
        &self,
        transaction: Self::Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The recovery points of a record, in the order in which they were begun.
    fn points(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Vec<RecoveryPoint>, StoreError>> + Send;

    /// The record of a key, and the store's time when it was read.
    fn find(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<(Record, Timestamp)>, StoreError>> + Send;

    /// The records that a filter lets through, oldest first.
    fn list(&self, filter: &Filter) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// How many records there are of each mutation and state.
    fn count(&self) -> impl Future<Output = Result<Vec<Count>, StoreError>> + Send;

    /// Moves up to `batch` attempts whose lease has lapsed to `needs_recovery`, due at once.
    fn lapse(&self, batch: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Hands out up to `batch` records in `needs_recovery` that are due, and puts each off by `backoff`,
    /// doubled with every try up to a day, so that no other sweeper gets it meanwhile.
    fn recoverable(
        &self,
        batch: u32,
        backoff: Duration,
    ) -> impl Future<Output = Result<Vec<Record>, StoreError>> + Send;

    /// Ends a record that is in `needs_recovery`, as of the attempt in `owner`. `false` when it has moved on.
    fn resolve(&self, owner: &Owner, settlement: &Settlement) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Turns up to `batch` records whose retention is over into tombstones, which last for `tombstone`.
    fn expire(&self, batch: u32, tombstone: Duration) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Deletes up to `batch` tombstones that are over.
    fn purge(&self, batch: u32) -> impl Future<Output = Result<u64, StoreError>> + Send;
}

/// What a claim for a lease came to.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The key is the caller's.
    Taken {
        /// The proof.
        owner: Owner,
        /// When the key was first claimed.
        created_at: Timestamp,
    },
    /// The key has a record; this is what it means for the request. Never [`Verdict::Take`] or
    /// [`Verdict::TakeOver`].
    Found {
        /// The record.
        record: Box<Record>,
        /// What it means.
        verdict: Verdict,
        /// The store's time when it was read.
        now: Timestamp,
    },
    /// Others took and gave back the key each time it was tried.
    Contended,
}

/// What a claim for a transaction came to.
#[derive(Debug)]
pub enum Begun<T> {
    /// The key is the caller's until the transaction ends.
    Taken {
        /// The transaction.
        transaction: T,
        /// When the key was first claimed: now.
        created_at: Timestamp,
    },
    /// The key has a record; this is what it means for the request.
    Found {
        /// The record.
        record: Box<Record>,
        /// What it means.
        verdict: Verdict,
        /// The store's time when it was read.
        now: Timestamp,
    },
    /// Another transaction holds the key.
    Busy {
        /// Whether that is certainly for another request, which its uncommitted record can't tell.
        reused: bool,
    },
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl<T> Begun<T> {
    /// A record, and what it means for the request.
    pub(crate) fn found(record: Record, now: Timestamp, request: &ClaimRequest) -> Self {
        let verdict = crate::claim::decide(Some(&record), request, now);
        Self::Found { record: Box::new(record), verdict, now }
    }
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
    /// Only records whose state last changed at least this long ago.
    pub older_than: Option<Duration>,
    /// At most so many; 0 means 100.
    pub limit: u32,
}

impl Filter {
    /// The number of records to list at the most.
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
    /// When the state of the oldest of them last changed.
    pub oldest: Timestamp,
}

/// Why a store could not answer: as many variants as a caller can do different things about.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database could not be reached, or refused. A write may or may not have happened.
    #[error("the store is unavailable")]
    Unavailable(#[source] Source),
    /// The transaction is certainly undone.
    #[error("the transaction was rolled back")]
    RolledBack(#[source] Source),
    /// The connection broke during COMMIT: the transaction may or may not have been committed.
    #[error("the outcome of the commit is unknown")]
    InDoubt(#[source] Source),
    /// A row that this crate can't have written.
    #[error("a stored row can't be read: {0}")]
    Corrupt(String),
}

/// The database driver's own error.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// How often a claim that neither wins nor finds a row is tried.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) const CLAIM_TRIES: usize = 3;
