//! A store whose every call is watched, and may fail before its effect or after it.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it, in a place of its own")]

use std::{future::Future, sync::Arc, time::Duration};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, Record, Store, StoreError, Upkeep,
    claim::ClaimRequest,
    record::{Owner, Reading, RecoveryPoint, Settlement},
    store::{Batch, Claimed, Count, Filter, From, Sweep},
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
    fn called(&self, verb: &'static str) -> impl Future<Output = Option<(Moment, StoreError)>> + Send;

    /// A call has had its effect.
    fn answered(&self, verb: &'static str) -> impl Future<Output = ()> + Send;

    /// The store begins a call, and has ended it; whether whoever called has a transaction now.
    fn begins(&self, _verb: &'static str) {}
    fn ends(&self, _verb: &'static str, _gives_transaction: bool) {}
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
        self.call_for(verb, |_| false, call).await
    }

    async fn call_for<T>(
        &self,
        verb: &'static str,
        gives_transaction: fn(&T) -> bool,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let strikes = self.watch.called(verb).await;
        self.watch.begins(verb);
        let answer = match strikes {
            Some((Moment::Before, error)) => Err(error),
            Some((Moment::After, error)) => {
                drop(call.await);
                Err(error)
            }
            None => {
                let answer = call.await;
                self.watch.ends(verb, answer.as_ref().is_ok_and(gives_transaction));
                self.watch.answered(verb).await;
                return answer;
            }
        };
        self.watch.ends(verb, false);
        answer
    }
}

impl<S: Store, W: Watch> Store for Watched<S, W> {
    type Transaction = S::Transaction;
    type Connection = S::Connection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed<()>, StoreError> {
        self.call("claim", self.inner.claim(request)).await
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Claimed<S::Transaction>, StoreError> {
        let taken = |claimed: &Claimed<_>| matches!(claimed, Claimed::Taken(_));
        self.call_for("begin", taken, self.inner.begin(request)).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        self.call("renew", self.inner.renew(owner, lease)).await
    }

    async fn transaction(&self, owner: &Owner) -> Result<S::Transaction, StoreError> {
        self.call_for("transaction", |_| true, self.inner.transaction(owner)).await
    }

    async fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
        transaction: Option<S::Transaction>,
    ) -> Result<bool, StoreError> {
        let verb = if transaction.is_some() { "checkpoint in transaction" } else { "checkpoint" };
        self.call(verb, self.inner.checkpoint(owner, point, lease, transaction)).await
    }

    async fn settle(
        &self,
        owner: &Owner,
        from: From<'_, S::Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        let verb = match (&from, settlement) {
            (From::Transaction(Some(_), _), Settlement::Release { .. } | Settlement::Hold { .. }) => "roll back",
            (From::Transaction(Some(_), _), _) => "commit",
            (From::Transaction(None, _), _) => "record",
            (From::Open | From::State(_), _) => "settle",
        };
        self.call(verb, self.inner.settle(owner, from, settlement)).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<Reading>, StoreError> {
        self.call("find", self.inner.find(client, key)).await
    }
}

impl<S: Upkeep, W: Watch> Upkeep for Watched<S, W> {
    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.call("list", self.inner.list(filter)).await
    }

    async fn steps(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        self.call("steps", self.inner.steps(client, key)).await
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        self.call("count", self.inner.count()).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.call("check", self.inner.check()).await
    }

    async fn sweep(&self, sweep: &Sweep) -> Result<Batch, StoreError> {
        self.call("sweep", self.inner.sweep(sweep)).await
    }
}
