//! The background task that recovers lapsed attempts and purges old records.
//!
//! Any number of processes may run one at once. Nothing depends on it having run: claims honour lapsed leases and
//! expiry by themselves.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use crate::{
    policy::{OnCrash, Policy},
    record::{Outcome, Record, Settlement},
    state::State,
    store::{Store, StoreError},
};

/// Asks whoever knows what became of an attempt.
pub trait Reconciler: Send + Sync {
    /// What became of the attempt that `record` tells of.
    fn reconcile<'a>(&'a self, record: &'a Record) -> Pin<Box<dyn Future<Output = Reconciled> + Send + 'a>>;
}

/// What a [`Reconciler`] found out.
#[derive(Debug)]
pub enum Reconciled {
    /// It succeeded; this is replayed, in the form that the adapter stores.
    Succeeded(Option<Vec<u8>>),
    /// It failed for good; this is replayed, in the form that the adapter stores.
    Failed(Option<Vec<u8>>),
    /// It never happened: the key is free again.
    NotStarted,
    /// Still unknown.
    Unknown,
}

/// Runs a stored request again, as the next attempt.
pub trait Resume: Send + Sync {
    /// Whether the request could be run.
    fn resume<'a>(&'a self, record: &'a Record) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>>;
}

/// Recovers lapsed attempts and purges old records, in bounded batches.
pub struct Sweeper<S: Store> {
    store: S,
    policy: Arc<PolicyOf>,
    reconcilers: BTreeMap<String, Arc<dyn Reconciler>>,
    resume: Option<Arc<dyn Resume>>,
    tombstone: Duration,
    every: Duration,
    batch: u32,
    backoff: Duration,
}

/// The policy of a mutation.
pub type PolicyOf = dyn Fn(&str) -> Arc<Policy> + Send + Sync;

/// The most records that are taken for recovery at once.
const RECOVERIES: u32 = 16;

/// What one round of a sweeper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Attempts whose lease had lapsed, now in `needs_recovery`.
    pub lapsed: u64,
    /// Records in `needs_recovery` that were settled, released or resumed.
    pub recovered: u64,
    /// Records in `needs_recovery` of which nobody knows more than before.
    pub held: u64,
    /// Records whose retention was over, now tombstones.
    pub expired: u64,
    /// Tombstones that were deleted.
    pub purged: u64,
}

impl<S: Store> Sweeper<S> {
    /// A sweeper over a store: `policy` and `reconcilers` by a mutation's name, and how long tombstones last.
    pub fn new(
        store: S,
        policy: Arc<PolicyOf>,
        reconcilers: BTreeMap<String, Arc<dyn Reconciler>>,
        tombstone: Duration,
    ) -> Self {
        let every = Duration::from_secs(10);
        Self { store, policy, reconcilers, resume: None, tombstone, every, batch: 50, backoff: every }
    }

    /// Executes again what a policy with [`OnCrash::Resume`] lets it.
    #[must_use]
    pub fn resume(mut self, resume: impl Resume + 'static) -> Self {
        self.resume = Some(Arc::new(resume));
        self
    }

    /// How often a round begins. Default 10 s.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.every = interval.max(Duration::from_millis(1));
        self
    }

    /// The most records that one statement touches. Default 50: at 500 the slowest hundredth of the claims beside it
    /// took three times as long (`benches/growth`).
    #[must_use]
    pub fn batch(mut self, records: u32) -> Self {
        self.batch = records.max(1);
        self
    }

    /// How long a record that could not be recovered rests before the next try; twice as long after each, up
    /// to a day. Default 10 s.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.backoff = backoff;
        self
    }

    /// One round: everything that is due now, batch by batch.
    ///
    /// # Errors
    /// The store's; what was done until then stays done.
    pub async fn run_once(&self) -> Result<Swept, StoreError> {
        self.round(&CancellationToken::new()).await
    }

    /// Rounds, until `stop` is ready: then the batch that has begun is finished, and nothing more. A round that fails
    /// is logged, and the next tries again.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut stop, stopping) = (std::pin::pin!(stop), CancellationToken::new());
        while !stopping.is_cancelled() {
            tokio::select! {
                biased;
                () = &mut stop => return,
                _ = ticks.tick() => {}
            }
            let mut round = std::pin::pin!(self.round(&stopping));
            let swept = tokio::select! {
                swept = &mut round => swept,
                () = &mut stop => {
                    stopping.cancel();
                    round.await
                }
            };
            match swept {
                Ok(swept) if swept == Swept::default() => {}
                Ok(swept) => tracing::info!(?swept, "swept"),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a sweep failed"),
            }
        }
    }

    async fn round(&self, stopping: &CancellationToken) -> Result<Swept, StoreError> {
        let lapsed = self.drain(stopping, || self.store.lapse(self.batch)).await?;
        let mut swept = Swept { lapsed, ..Swept::default() };
        // Few at a time: each is this sweeper's only until its back-off is over.
        let batch = self.batch.min(RECOVERIES);
        while !stopping.is_cancelled() {
            let records = self.store.recoverable(batch, self.backoff).await?;
            let full = records.len() == batch as usize;
            for record in records {
                if self.recover(&record).await? {
                    swept.recovered += 1;
                } else {
                    swept.held += 1;
                }
            }
            if !full {
                break;
            }
        }
        swept.expired = self.drain(stopping, || self.store.expire(self.batch, self.tombstone)).await?;
        swept.purged = self.drain(stopping, || self.store.purge(self.batch)).await?;
        Ok(swept)
    }

    /// Repeats a batch until it comes back short, with a rest in between for everybody else.
    async fn drain<F>(&self, stopping: &CancellationToken, batch: impl Fn() -> F) -> Result<u64, StoreError>
    where
        F: Future<Output = Result<u64, StoreError>>,
    {
        let mut done = 0;
        while !stopping.is_cancelled() {
            let begun = tokio::time::Instant::now();
            let records = batch().await?;
            done += records;
            if records < u64::from(self.batch) {
                break;
            }
            tokio::time::sleep(begun.elapsed()).await;
        }
        Ok(done)
    }

    /// Recovers one record. `false`: it is held.
    async fn recover(&self, record: &Record) -> Result<bool, StoreError> {
        let policy = (self.policy)(&record.mutation);
        let retention = policy.retention;
        let reconciled = match self.reconcilers.get(&record.mutation) {
            Some(reconciler) => reconciler.reconcile(record).await,
            None => Reconciled::Unknown,
        };
        let reason = Some("reconciled".to_owned());
        let settlement = match (reconciled, policy.on_crash) {
            (Reconciled::Succeeded(response), _) => {
                Settlement::Finish { outcome: Outcome::Succeeded, response, retention, reason }
            }
            (Reconciled::Failed(response), _) => {
                Settlement::Finish { outcome: Outcome::Failed, response, retention, reason }
            }
            (Reconciled::NotStarted, _) => Settlement::Release { retention, reason },
            (Reconciled::Unknown, OnCrash::Release) => {
                Settlement::Release { retention, reason: Some("released after a crash".to_owned()) }
            }
            (Reconciled::Unknown, OnCrash::Resume) => {
                let Some(resume) = &self.resume else { return Ok(false) };
                if !resume.resume(record).await {
                    return Ok(false);
                }
                let after = self.store.find(&record.client, &record.key).await?;
                return Ok(after.is_none_or(|(after, _)| after.state != State::NeedsRecovery));
            }
            (Reconciled::Unknown, OnCrash::Hold) => return Ok(false),
        };
        self.store.resolve(&record.owner(), &settlement).await
    }
}
