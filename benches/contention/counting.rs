//! A store that counts the calls that it passes on, and knows when the winner's outcome was committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, Record, Store, StoreError,
    claim::ClaimRequest,
    record::{Owner, RecoveryPoint, Settlement, Timestamp},
    store::{Begun, Claimed, Count, Filter},
};

/// Microseconds since 1970: processes of one machine can compare them.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    committed_at: AtomicI64,
}

/// Counts what goes to the store.
#[derive(Clone)]
pub(crate) struct Counting<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S: Store> Counting<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner, counts: Arc::default() }
    }

    /// The calls since the last time, and when an outcome was committed, if one was.
    pub(crate) fn take(&self) -> (u64, Option<i64>) {
        let calls = self.counts.calls.swap(0, Ordering::Relaxed);
        let committed_at = self.counts.committed_at.swap(0, Ordering::Relaxed);
        (calls, (committed_at > 0).then_some(committed_at))
    }

    fn counted(&self) -> &S {
        self.counts.calls.fetch_add(1, Ordering::Relaxed);
        &self.inner
    }

    fn committed(&self) {
        self.counts.committed_at.store(now(), Ordering::Relaxed);
    }
}

impl<S: Store> Store for Counting<S> {
    type Transaction = S::Transaction;
    type Connection = S::Connection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.counted().claim(request).await
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<S::Transaction>, StoreError> {
        self.counted().begin(request).await
    }

    async fn commit(
        &self,
        transaction: S::Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        let result = self.counted().commit(transaction, request, settlement).await;
        if result.is_ok() {
            self.committed();
        }
        result
    }

    async fn rollback(&self, transaction: S::Transaction) -> Result<(), StoreError> {
        self.counted().rollback(transaction).await
    }

    async fn record(&self, request: &ClaimRequest, settlement: &Settlement) -> Result<bool, StoreError> {
        self.counted().record(request, settlement).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        self.counted().renew(owner, lease).await
    }

    async fn settle(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        let result = self.counted().settle(owner, settlement).await;
        if matches!(result, Ok(true)) {
            self.committed();
        }
        result
    }

    async fn transaction(&self) -> Result<S::Transaction, StoreError> {
        self.counted().transaction().await
    }

    async fn checkpoint(&self, owner: &Owner, point: &RecoveryPoint, lease: Duration) -> Result<bool, StoreError> {
        self.counted().checkpoint(owner, point, lease).await
    }

    async fn checkpoint_with(
        &self,
        transaction: S::Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        self.counted().checkpoint_with(transaction, owner, point, lease).await
    }

    async fn points(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        self.counted().points(client, key).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<(Record, Timestamp)>, StoreError> {
        self.counted().find(client, key).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.counted().list(filter).await
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        self.counted().count().await
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        self.counted().lapse(batch).await
    }

    async fn recoverable(&self, batch: u32, backoff: Duration) -> Result<Vec<Record>, StoreError> {
        self.counted().recoverable(batch, backoff).await
    }

    async fn resolve(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.counted().resolve(owner, settlement).await
    }

    async fn expire(&self, batch: u32, tombstone: Duration) -> Result<u64, StoreError> {
        self.counted().expire(batch, tombstone).await
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        self.counted().purge(batch).await
    }
}
