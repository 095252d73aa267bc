//! A store that fails on demand: the n-th call from now, or every call, before or after its effect.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, Record, Store, StoreError,
    claim::ClaimRequest,
    record::{Owner, RecoveryPoint, Settlement, Timestamp},
    store::{Begun, Claimed, Count, Filter},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Before,
    After,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Claim,
    Begin,
    Commit,
    Rollback,
    Record,
    Renew,
    Settle,
    Transaction,
    Checkpoint,
    CheckpointWith,
    Points,
    Find,
    Other,
}

#[derive(Default)]
struct Faults {
    calls: Vec<Verb>,
    /// The call that fails, counted from when this was set, and how.
    at: Option<(usize, Moment)>,
    /// Every call fails from then on.
    down: bool,
    /// Every call of these verbs fails.
    verbs: Vec<(Verb, Moment)>,
    /// Whether the fault has come.
    struck: bool,
}

#[derive(Clone)]
pub struct Faulty<S> {
    pub inner: S,
    faults: Arc<Mutex<Faults>>,
}

impl<S> Faulty<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, faults: Arc::default() }
    }

    /// Forgets the calls so far, and fails the n-th from now (from 0).
    pub fn fail(&self, n: usize, moment: Moment) {
        *self.faults.lock().unwrap() = Faults { at: Some((n, moment)), ..Faults::default() };
    }

    pub fn fail_verb(&self, verb: Verb, moment: Moment) {
        self.faults.lock().unwrap().verbs.push((verb, moment));
    }

    /// The store can't be reached.
    pub fn down(&self) {
        self.faults.lock().unwrap().down = true;
    }

    /// Everything works again. Whether the fault had come.
    pub fn heal(&self) -> bool {
        std::mem::take(&mut *self.faults.lock().unwrap()).struck
    }

    pub fn calls(&self) -> Vec<Verb> {
        self.faults.lock().unwrap().calls.clone()
    }

    fn next(&self, verb: Verb) -> Option<Moment> {
        let mut faults = self.faults.lock().unwrap();
        let n = faults.calls.len();
        faults.calls.push(verb);
        let fault = if faults.down {
            Some(Moment::Before)
        } else {
            let of_verb = faults.verbs.iter().find(|(faulty, _)| *faulty == verb).map(|(_, moment)| *moment);
            of_verb.or(faults.at.filter(|(at, _)| *at == n).map(|(_, moment)| moment))
        };
        faults.struck |= fault.is_some();
        fault
    }

    async fn call<T>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<T, StoreError>>,
        lost: fn() -> StoreError,
    ) -> Result<T, StoreError> {
        match self.next(verb) {
            None => call.await,
            Some(Moment::Before) => Err(lost()),
            Some(Moment::After) => {
                drop(call.await);
                Err(lost())
            }
        }
    }
}

fn unavailable() -> StoreError {
    StoreError::Unavailable("the store is away; secret of the database".into())
}

fn in_doubt() -> StoreError {
    StoreError::InDoubt("the connection broke; secret of the database".into())
}

impl<S: Store> Store for Faulty<S> {
    type Transaction = S::Transaction;
    type Connection = S::Connection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.call(Verb::Claim, self.inner.claim(request), unavailable).await
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<S::Transaction>, StoreError> {
        self.call(Verb::Begin, self.inner.begin(request), unavailable).await
    }

    async fn commit(
        &self,
        transaction: S::Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        self.call(Verb::Commit, self.inner.commit(transaction, request, settlement), in_doubt).await
    }

    async fn rollback(&self, transaction: S::Transaction) -> Result<(), StoreError> {
        self.call(Verb::Rollback, self.inner.rollback(transaction), unavailable).await
    }

    async fn record(&self, request: &ClaimRequest, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call(Verb::Record, self.inner.record(request, settlement), unavailable).await
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        self.call(Verb::Renew, self.inner.renew(owner, lease), unavailable).await
    }

    async fn settle(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call(Verb::Settle, self.inner.settle(owner, settlement), unavailable).await
    }

    async fn transaction(&self) -> Result<S::Transaction, StoreError> {
        self.call(Verb::Transaction, self.inner.transaction(), unavailable).await
    }

    async fn checkpoint(&self, owner: &Owner, point: &RecoveryPoint, lease: Duration) -> Result<bool, StoreError> {
        self.call(Verb::Checkpoint, self.inner.checkpoint(owner, point, lease), unavailable).await
    }

    async fn checkpoint_with(
        &self,
        transaction: S::Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let call = self.inner.checkpoint_with(transaction, owner, point, lease);
        self.call(Verb::CheckpointWith, call, in_doubt).await
    }

    async fn points(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        self.call(Verb::Points, self.inner.points(client, key), unavailable).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<(Option<Record>, Timestamp), StoreError> {
        self.call(Verb::Find, self.inner.find(client, key), unavailable).await
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.call(Verb::Other, self.inner.list(filter), unavailable).await
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        self.call(Verb::Other, self.inner.count(), unavailable).await
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        self.call(Verb::Other, self.inner.lapse(batch), unavailable).await
    }

    async fn recoverable(&self, batch: u32, backoff: Duration) -> Result<Vec<Record>, StoreError> {
        self.call(Verb::Other, self.inner.recoverable(batch, backoff), unavailable).await
    }

    async fn resolve(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.call(Verb::Other, self.inner.resolve(owner, settlement), unavailable).await
    }

    async fn expire(&self, batch: u32, tombstone: Duration) -> Result<u64, StoreError> {
        self.call(Verb::Other, self.inner.expire(batch, tombstone), unavailable).await
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        self.call(Verb::Other, self.inner.purge(batch), unavailable).await
    }
}
