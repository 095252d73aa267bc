//! A store whose every call is watched, and may fail before its effect or after it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it, in a place of its own")]

use std::{future::Future, sync::Arc, time::Duration};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, Record, Store, StoreError,
    claim::ClaimRequest,
    record::{Owner, RecoveryPoint, Settlement, Timestamp},
    store::{Begun, Claimed, Count, Filter},
};

/// When a call fails: without its effect, or with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

/// Watches calls.
pub trait Watch: Send + Sync + 'static {
    /// A call is about to be made; whether it is to fail, and with what.
    fn called(&self, verb: &'static str) -> Option<(Moment, StoreError)>;

    /// A call has had its effect.
    fn answered(&self, verb: &'static str);
}

pub struct Watched<S, W> {
    pub inner: S,
    pub watch: Arc<W>,
}

impl<S: Clone, W> Clone for Watched<S, W> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), watch: Arc::clone(&self.watch) }
    }
}

impl<S: Store, W: Watch> Watched<S, W> {
    pub fn new(inner: S, watch: Arc<W>) -> Self {
        Self { inner, watch }
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        match self.watch.called(verb) {
            Some((Moment::Before, error)) => Err(error),
            Some((Moment::After, error)) => {
                drop(call.await);
                Err(error)
            }
            None => {
                let answer = call.await;
                self.watch.answered(verb);
                answer
            }
        }
    }
}

impl<S: Store, W: Watch> Store for Watched<S, W> {
    type Transaction = S::Transaction;
    type Connection = S::Connection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.call("claim", self.inner.claim(request)).await
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<S::Transaction>, StoreError> {
        self.call("begin", self.inner.begin(request)).await
    }

    async fn commit(
        &self,
        transaction: S::Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        self.call("commit", self.inner.commit(transaction, request, settlement)).await
    }

    async fn rollback(&self, transaction: S::Transaction) -> Result<(), StoreError> {
        self.call("rollback", self.inner.rollback(transaction)).await
    }

    async fn record(&self, request: &ClaimRequest, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call("record", self.inner.record(request, settlement)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        self.call("renew", self.inner.renew(owner, lease)).await
    }

    async fn settle(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call("settle", self.inner.settle(owner, settlement)).await
    }

    async fn transaction(&self) -> Result<S::Transaction, StoreError> {
        self.call("transaction", self.inner.transaction()).await
    }

    async fn checkpoint(&self, owner: &Owner, point: &RecoveryPoint, lease: Duration) -> Result<bool, StoreError> {
        self.call("checkpoint", self.inner.checkpoint(owner, point, lease)).await
    }

    async fn checkpoint_with(
        &self,
        transaction: S::Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        self.call("checkpoint_with", self.inner.checkpoint_with(transaction, owner, point, lease)).await
    }

    async fn points(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        self.call("points", self.inner.points(client, key)).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<(Record, Timestamp)>, StoreError> {
        self.call("find", self.inner.find(client, key)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.call("list", self.inner.list(filter)).await
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        self.call("count", self.inner.count()).await
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        self.call("lapse", self.inner.lapse(batch)).await
    }

    async fn recoverable(&self, batch: u32, backoff: Duration) -> Result<Vec<Record>, StoreError> {
        self.call("recoverable", self.inner.recoverable(batch, backoff)).await
    }

    async fn resolve(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call("resolve", self.inner.resolve(owner, settlement)).await
    }

    async fn expire(&self, batch: u32, tombstone: Duration) -> Result<u64, StoreError> {
        self.call("expire", self.inner.expire(batch, tombstone)).await
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        self.call("purge", self.inner.purge(batch)).await
    }
}
