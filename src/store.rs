//! The port: what the protocol asks of a database, and the laws that every backend keeps.
//!
//! A store knows nothing of GraphQL or HTTP: strings, bytes, UUIDs and times; a response is opaque to it.
//! It never decides: it fetches the record, calls [`decide`](crate::claim::decide), and carries out the verdict in one
//! atomic act. [`Upkeep`] has the calls of the sweeper and the operator. [`conformance`] holds the laws as functions
//! that run against any backend.

use std::{future::Future, ops::DerefMut, time::Duration};

use crate::{
    claim::ClaimRequest,
    key::{ClientId, IdempotencyKey},
    record::{Owner, Reading, RecoveryPoint, Settlement, Timestamp},
    state::State,
};

pub mod conformance;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod upkeep;

pub use upkeep::{Batch, Count, Filter, Sweep, Upkeep};

/// A database that keeps records.
///
/// # Laws
///
/// 1. Of any number of concurrent claims of a free key exactly one is [`Claimed::Taken`], whatever the
///    process, the pool or the isolation level.
/// 2. Every time is the store's own, and the instant at which it is written: the process's clock is never looked at.
/// 3. A write that names an [`Owner`] happens only while that attempt is the record's latest and the record is in the
///    state that the write asks for; otherwise it changes nothing and answers `false`.
/// 4. What is committed together is visible together: effects, recovery points and settlement of one
///    transaction, or none of them.
/// 5. A finished record never changes again, except to become a tombstone once its retention is over.
/// 6. Records in an open state ([`State::is_open`]) are never purged, and keep what is stored of their request.
/// 7. Two sweeps never hand out the same record at once.
/// 8. No call waits in the database for somebody else's open transaction, except for some milliseconds. A backend with
///    one writer makes its own callers wait in turn instead.
/// 9. What a call has answered is durable: it is still true after the database has crashed.
///
/// A client and a key have at most 255 bytes. A mutation, a step's name and a selection can be as long as a schema
/// allows; responses and requests as long as the policy allows.
pub trait Store: Clone + Send + Sync + 'static {
    /// An open transaction, in which a transactional mutation or a local step works. Undone when it is dropped.
    type Transaction: DerefMut<Target = Self::Connection> + Send + 'static;
    /// What an application runs its own statements on.
    type Connection: Send;

    /// Takes the key for a leased attempt, or returns why it can't.
    ///
    /// A free key gets a new record, in progress at attempt 1, with the fields of the request. A resumption
    /// ([`ClaimRequest::resumes`]) makes no record: for it a free key is [`Claimed::Busy`]. Where
    /// [`decide`](crate::claim::decide) says so, a record is taken over by a compare-and-set on its attempt and state.
    /// It is then in progress at the next attempt, with the lease and selection of the claim, and without a reason. It
    /// keeps its count of recoveries, and its stored request unless the claim brings one. Any other claim changes
    /// nothing.
    ///
    /// A claim that neither wins nor finds a record is tried again, [`CLAIM_TRIES`] times in all; then it is busy.
    ///
    /// # Errors
    /// [`StoreError::InDoubt`] when the key may have been taken all the same.
    fn claim(&self, request: &ClaimRequest) -> impl Future<Output = Result<Claimed<()>, StoreError>> + Send;

    /// Takes the key for as long as a transaction is open, or returns why it can't. Nobody else takes it meanwhile.
    ///
    /// Nothing of it is visible before the settlement. A found record is taken over where [`decide`](crate::claim::decide)
    /// says so; under a transactional policy, which has no `on_crash` but to hold, that is one that was given back.
    ///
    /// # Errors
    /// Those of [`Store::claim`]; but a failed call never leaves the key taken, since its transaction is undone.
    fn begin(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claimed<Self::Transaction>, StoreError>> + Send;

    /// Extends the lease, from now, and never shortens it. A record that was believed lost is [`State::InProgress`]
    /// again; one that is settling stays so. `false` when the attempt no longer owns the key.
    ///
    /// # Errors
    /// The store's.
    fn renew(&self, owner: &Owner, lease: Duration) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Opens a transaction for a local step of an attempt.
    ///
    /// # Errors
    /// The store's; the transaction was not opened then.
    fn transaction(&self, owner: &Owner) -> impl Future<Output = Result<Self::Transaction, StoreError>> + Send;

    /// Writes a recovery point (or, without a result, the intent of a remote step), commits its transaction if it has
    /// one, and renews the lease as [`Store::renew`] does. A step that was written before keeps its place in the order.
    /// `false`, and the transaction is undone, when the attempt no longer owns the key.
    ///
    /// # Errors
    /// [`StoreError::InDoubt`] when it may have been written all the same.
    fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
        transaction: Option<Self::Transaction>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Settles a key: ends its attempt, or records what became of a lost one. `false` when the key is no longer where
    /// `from` says: nothing is changed, and a transaction that came with the call is undone.
    ///
    /// The stored request is dropped, unless the key is held; a response stays until the record becomes a tombstone.
    ///
    /// # Errors
    /// [`StoreError::InDoubt`] when it may have been settled all the same.
    fn settle(
        &self,
        owner: &Owner,
        from: From<'_, Self::Transaction>,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The record of a key.
    ///
    /// # Errors
    /// The store's.
    fn find(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> impl Future<Output = Result<Option<Reading>, StoreError>> + Send;
}

/// What a claim came to.
#[derive(Clone, Debug)]
pub enum Claimed<T> {
    /// The key is the caller's.
    Taken(Taken<T>),
    /// The key has a record, and it is not the caller's to take.
    Found(Reading),
    /// Somebody has the key, and their record can't be seen yet.
    Busy {
        /// Whether they certainly have it for another request.
        reused: bool,
    },
}

impl<T> Claimed<T> {
    /// The same claim, with `with` applied to a key that was taken.
    pub fn map<U>(self, with: impl FnOnce(Taken<T>) -> Taken<U>) -> Claimed<U> {
        match self {
            Self::Taken(taken) => Claimed::Taken(with(taken)),
            Self::Found(reading) => Claimed::Found(reading),
            Self::Busy { reused } => Claimed::Busy { reused },
        }
    }
}

/// A key that was taken.
#[derive(Clone, Debug)]
pub struct Taken<T> {
    /// The attempt that has it now.
    pub owner: Owner,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// The state that it was taken over from; none when the key was free.
    pub from: Option<State>,
    /// The steps of earlier attempts, in the order in which they were begun.
    pub steps: Vec<RecoveryPoint>,
    /// The open transaction of [`Store::begin`]; `()` for a leased claim.
    pub transaction: T,
}

impl Taken<()> {
    /// The same, in a transaction.
    pub fn within<T>(self, transaction: T) -> Taken<T> {
        let Self { owner, created_at, from, steps, transaction: () } = self;
        Taken { owner, created_at, from, steps, transaction }
    }
}

/// Where a key stands before it is settled.
#[derive(Debug)]
pub enum From<'a, T> {
    /// Its record is in an open state, and the owner has it. This is how an attempt settles its own key.
    Open,
    /// Its record is in this state, and its latest attempt is the owner's. This is how others settle a key.
    State(State),
    /// The owner took it with [`Store::begin`]. With that transaction, an outcome is committed together with it, and
    /// anything else undoes it and writes nothing. Without it, the settlement gets a transaction of its own. The
    /// record of a first attempt is made from the request.
    Transaction(Option<T>, &'a ClaimRequest),
}

/// Why a store could not answer: one variant for each way in which a caller can react.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Certainly nothing of the call was kept. Another try may succeed.
    #[error("the store failed, and nothing was kept")]
    Undone(#[source] Source),
    /// The connection broke, or an answer did not come in time: the call may have had its effect.
    #[error("the store failed, and may have kept what it was given")]
    InDoubt(#[source] Source),
    /// Nothing was kept, because what the application wrote breaks a rule of its database, and would again.
    #[error("the database refused what the application wrote")]
    Rejected(#[source] Source),
    /// Nothing was kept, because the store is not set up for it: a table, a right or a setting is missing.
    #[error("the store is not set up for this")]
    Misconfigured(#[source] Source),
    /// A row that this crate can't have written.
    #[error("a stored row can't be read: {0}")]
    Corrupt(String),
}

/// The database driver's own error.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// How often a claim that neither wins nor finds a record is tried.
pub const CLAIM_TRIES: usize = 3;
