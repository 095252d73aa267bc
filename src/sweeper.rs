//! The background task that recovers lapsed attempts and purges old records.
//!
//! Any number of processes may run one at once. Nothing depends on it having run: claims honour lapsed leases and
//! expiry by themselves.

use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    ending::{Ending, Fate, Known, Told, fate},
    policy::Policy,
    record::{Record, Settlement},
    state::State,
    store::{From, StoreError, Sweep, Upkeep},
};

/// Finds out what became of an attempt, from a gateway for example.
pub trait Reconciler: Send + Sync {
    /// What became of the latest attempt of `record`, and the response to replay, in the form that the adapter stores.
    /// None: still unknown.
    fn reconcile(&self, record: Record) -> Pin<Box<dyn Future<Output = Option<Report>> + Send>>;
}

/// What became of an attempt, and its response.
pub type Report = (Told, Option<Vec<u8>>);

/// Runs a stored request again, as the next attempt.
pub trait Resume: Send + Sync {
    /// Whether the request could be run. An execution goes on even if nobody waits for it any more.
    fn resume(&self, record: Record) -> Pin<Box<dyn Future<Output = bool> + Send>>;
}

/// The policies that a sweeper needs.
pub trait Policies: Send + Sync {
    /// The policy of a mutation.
    fn of(&self, mutation: &str) -> Arc<Policy>;
    /// The shortest lease of all.
    fn shortest_lease(&self) -> Duration;
    /// The shortest retention of all.
    fn shortest_retention(&self) -> Duration;
}

/// Recovers lapsed attempts and purges old records, in bounded batches.
pub struct Sweeper<S: Upkeep> {
    recovery: Recovery<S>,
    sweep: Sweep,
}

/// How a record is recovered.
struct Recovery<S: Upkeep> {
    store: S,
    policies: Arc<dyn Policies>,
    reconcilers: Arc<BTreeMap<String, Arc<dyn Reconciler>>>,
    resume: Option<Arc<dyn Resume>>,
    patience: Duration,
}

impl<S: Upkeep> Clone for Recovery<S> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            policies: Arc::clone(&self.policies),
            reconcilers: Arc::clone(&self.reconcilers),
            resume: self.resume.clone(),
            patience: self.patience,
        }
    }
}

/// The most records that are recovered at once.
const RECOVERIES: usize = 16;

/// What one round of a sweeper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Attempts whose lease had lapsed, which needed recovery.
    pub lapsed: u64,
    /// Records that were settled, released or resumed.
    pub recovered: u64,
    /// Records that need recovery, and whose outcome is still unknown.
    pub held: u64,
    /// Records whose retention was over, now tombstones.
    pub expired: u64,
    /// Tombstones that were deleted.
    pub purged: u64,
}

impl<S: Upkeep> Sweeper<S> {
    /// A sweeper over a store, with the reconcilers by their mutation's name, and how long tombstones last.
    pub fn new(
        store: S,
        policies: Arc<dyn Policies>,
        reconcilers: BTreeMap<String, Arc<dyn Reconciler>>,
        tombstone: Duration,
    ) -> Self {
        let every = Duration::from_secs(10);
        let sweep = Sweep {
            batch: 50,
            backoff: every,
            tombstone,
            shortest_lease: policies.shortest_lease(),
            shortest_retention: policies.shortest_retention(),
            every,
        };
        let (reconcilers, patience) = (Arc::new(reconcilers), Duration::from_secs(30));
        Self { recovery: Recovery { store, policies, reconcilers, resume: None, patience }, sweep }
    }

    /// Also runs lost attempts again, where the policy has `OnCrash::Resume`.
    #[must_use]
    pub fn resume(mut self, resume: impl Resume + 'static) -> Self {
        self.recovery.resume = Some(Arc::new(resume));
        self
    }

    /// How often a round begins. Default 10 s.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.sweep.every = interval.max(Duration::from_millis(1));
        self
    }

    /// The most records that one statement changes. Default 50: at 500 the slowest hundredth of the claims beside it
    /// took three times as long (`benches/growth`).
    #[must_use]
    pub fn batch(mut self, records: u32) -> Self {
        self.sweep.batch = records.max(1);
        self
    }

    /// How long a record that could not be recovered is left alone before the next try; twice as long after each, up
    /// to a day. Default 10 s.
    #[must_use]
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.sweep.backoff = backoff;
        self
    }

    /// How long to wait for a reconciler, or for a resumed mutation. A reconciler is then dropped; a mutation goes on
    /// by itself. Default 30 s.
    #[must_use]
    pub fn patience(mut self, time: Duration) -> Self {
        self.recovery.patience = time;
        self
    }

    /// One round: everything that is due now, batch by batch.
    ///
    /// # Errors
    /// The store's; what was done until then stays done.
    pub async fn run_once(&self) -> Result<Swept, StoreError> {
        self.round(&CancellationToken::new(), true).await
    }

    /// Runs rounds until `stop` is ready; then it only finishes the statement that has begun. A round that fails is
    /// logged, and the next one tries again.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let mut ticks = tokio::time::interval(self.sweep.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut stop, stopping) = (std::pin::pin!(stop), CancellationToken::new());
        while !stopping.is_cancelled() {
            tokio::select! {
                biased;
                () = &mut stop => return,
                _ = ticks.tick() => {}
            }
            let mut round = std::pin::pin!(self.round(&stopping, false));
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

    /// `by_itself`: looks for records that are due even if another process has just done so.
    async fn round(&self, stopping: &CancellationToken, by_itself: bool) -> Result<Swept, StoreError> {
        let mut sweep = self.sweep;
        if by_itself {
            sweep.every = Duration::ZERO;
        }
        let mut swept = Swept::default();
        let mut recoveries = JoinSet::new();
        while !stopping.is_cancelled() {
            let begun = tokio::time::Instant::now();
            let done = self.recovery.store.sweep(&sweep).await?;
            swept.lapsed += done.lapsed;
            swept.expired += done.expired;
            swept.purged += done.purged;
            for record in done.recoverable {
                if recoveries.len() >= RECOVERIES {
                    self.end_one(&mut recoveries, stopping, &mut swept).await?;
                }
                // A task of its own: one that panics harms nobody else.
                recoveries.spawn(self.recovery.clone().recover(record));
            }
            if !done.more {
                break;
            }
            // Leaves the database to everybody else for as long as this batch took.
            tokio::time::sleep(begun.elapsed()).await;
        }
        while !recoveries.is_empty() {
            self.end_one(&mut recoveries, stopping, &mut swept).await?;
        }
        Ok(swept)
    }

    /// Waits for one recovery to end. When the sweeper stops, it aborts them all instead.
    async fn end_one(
        &self,
        recoveries: &mut JoinSet<Result<bool, StoreError>>,
        stopping: &CancellationToken,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        let ended = tokio::select! {
            ended = recoveries.join_next() => ended,
            () = stopping.cancelled() => {
                recoveries.shutdown().await;
                return Ok(());
            }
        };
        match ended {
            Some(Ok(Ok(true))) => swept.recovered += 1,
            Some(Ok(Ok(false))) => swept.held += 1,
            Some(Ok(Err(error))) => return Err(error),
            Some(Err(panicked)) => {
                tracing::error!(%panicked, "a recovery failed, and is tried again later");
                swept.held += 1;
            }
            None => {}
        }
        Ok(())
    }
}

impl<S: Upkeep> Recovery<S> {
    /// Recovers one record. `false`: it is held.
    async fn recover(self, record: Record) -> Result<bool, StoreError> {
        let policy = self.policies.of(&record.mutation);
        let retention = policy.retention;
        let (owner, from) = (record.owner(), From::State(record.state));
        if let State::Settling(outcome) = record.state {
            // Its document did not come to its end: what was made safe stands.
            let response = record.response.clone();
            let finish = Settlement::Complete { outcome, response, retention, reason: None };
            return self.store.settle(&owner, from, &finish).await;
        }
        let report = match self.reconcilers.get(&record.mutation) {
            Some(reconciler) => timeout(self.patience, reconciler.reconcile(record.clone())).await.unwrap_or_else(|_| {
                tracing::warn!(request_id = %record.request_id, "a reconciler took too long, and is asked again later");
                None
            }),
            None => None,
        };
        let (ending, response, reason) = match report {
            Some((told, response)) => (Ending::Told(told), response, "reconciled"),
            None => (Ending::Lost, None, "released after a crash"),
        };
        let reason = Some(reason.to_owned());
        let settlement = match fate(&policy, &ending, &Known::default()) {
            Fate::Complete(outcome) => Settlement::Complete { outcome, response, retention, reason },
            Fate::Release { stays } => Settlement::Release { stays: stays.then_some(retention), reason },
            Fate::Hold => return Ok(false),
            Fate::Resume => return self.run_again(record).await,
        };
        self.store.settle(&owner, from, &settlement).await
    }

    async fn run_again(self, record: Record) -> Result<bool, StoreError> {
        let Some(resume) = &self.resume else { return Ok(false) };
        if timeout(self.patience, resume.resume(record.clone())).await != Ok(true) {
            return Ok(false);
        }
        let after = self.store.find(&record.client, &record.key).await?;
        Ok(after.is_none_or(|after| after.record.state != State::NeedsRecovery))
    }
}
