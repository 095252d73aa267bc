//! The protocol over any store, for any adapter: enter with a key; lead or follow; run, and settle.
//!
//! ```text
//! enter ─▶ flight    one request of a key asks the store, its duplicates in this process follow it
//!       ─▶ Run       the key is taken: drive the work, then settle what it came to
//!          lease     renewed for as long as the run lives
//! ```

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use crate::{
    attempt::steps::Steps,
    claim::{ClaimRequest, Verdict, decide, may_follow},
    error::{Error, ErrorCode},
    policy::{Effects, Policy},
    record::{Reading, Record, Timestamp},
    state::State,
    store::{Claimed, Store, StoreError, Taken},
};

mod claimant;
mod detached;
mod finished;
mod flight;
mod lease;
mod pause;
mod run;
mod settling;

pub use claimant::Claimant;
pub(crate) use detached::{Detached, ask};
pub use run::{Moment, Run, Settled, drive};

use flight::{Flights, Leader, Part, Progress};
use pause::Pause;

/// The protocol over one store.
#[derive(Clone)]
pub struct Protocol<S: Store> {
    store: S,
    flights: Flights,
    store_timeout: Duration,
}

/// What a request gets instead of a run, or instead of the result of its own run.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It was done before: replay this record's response.
    Replay(Arc<Record>),
    /// It is refused, with this error.
    Refuse(Box<Error>),
    /// Another part of the same claimant has the key, for the same request: that part's result is the answer.
    Own,
}

impl Answer {
    pub(crate) fn refuse(error: Error) -> Self {
        Self::Refuse(Box::new(error))
    }
}

impl<S: Store> Protocol<S> {
    /// The protocol over a store that has `store_timeout` to answer.
    pub fn new(store: S, store_timeout: Duration) -> Self {
        Self { store, flights: Flights::default(), store_timeout }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Takes the key, or waits for whoever has it, or answers from its record.
    ///
    /// A claimant that holds a key does not wait for another one: two that want each other's key would wait in vain.
    ///
    /// # Errors
    /// The answer, where there is nothing to run.
    pub async fn enter(
        &self,
        request: Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        claimant: &Claimant,
    ) -> Result<Run<S>, Answer> {
        let deadline = Instant::now() + policy.wait;
        loop {
            match self.flights.join(&request.client, &request.key) {
                Part::Lead(leader) => return self.lead(&request, policy, claimant, leader, deadline).await,
                Part::Follow(progress) => {
                    if let Some(answer) = follow(&request, claimant, progress, deadline).await {
                        return Err(answer);
                    }
                }
            }
        }
    }

    async fn lead(
        &self,
        request: &Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        claimant: &Claimant,
        leader: Leader,
        deadline: Instant,
    ) -> Result<Run<S>, Answer> {
        let refuse = |error: Error| Err(Answer::refuse(error.mutation(&*request.mutation)));
        let mut pause = Pause::brief();
        loop {
            let (left, record) = match self.claim(request, policy, leader.was_finished()).await {
                Ok(Claimed::Taken(Taken { transaction: run, steps, .. })) => {
                    if let Err(reason) = may_follow(policy, &steps) {
                        return Err(run.leave(reason).await);
                    }
                    leader.tell(Progress::Running { fingerprint: request.fingerprint, claimant: claimant.clone() });
                    return Ok(run.begin(leader, claimant));
                }
                Ok(Claimed::Found(reading)) => match decide(Some(&reading.record), request, reading.now) {
                    Verdict::InProgress(left) => {
                        leader.tell(Progress::Found(reading.clone()));
                        (left, Some(reading.record))
                    }
                    verdict => {
                        leader.land(Progress::Found(reading.clone()));
                        return Err(answer(&reading, verdict));
                    }
                },
                Ok(Claimed::Busy { reused: true }) => return refuse(Error::new(ErrorCode::KeyReused)),
                Ok(Claimed::Busy { reused: false }) => (request.lease, None),
                Err(error) => {
                    tracing::error!(mutation = %request.mutation, error = &error as &dyn std::error::Error, "the idempotency key could not be claimed");
                    let code = refusal(&error);
                    leader.land(Progress::Unavailable(code));
                    return refuse(Error::new(code).retry_after(request.lease));
                }
            };
            if Instant::now() >= deadline || claimant.holds() {
                return Err(in_progress(request, left, record.as_deref()));
            }
            claimant.rest_until(pause.end().min(deadline)).await;
        }
    }

    /// Asks the store for the key. The call runs to its end; a key that is taken when nobody waits any more is given
    /// back.
    async fn claim(
        &self,
        request: &Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        look_first: bool,
    ) -> Result<Claimed<Run<S>>, StoreError> {
        let (protocol, request, policy) = (self.clone(), Arc::clone(request), Arc::clone(policy));
        ask(self.store_timeout, async move {
            if look_first
                && let Some(reading) = protocol.store.find(&request.client, &request.key).await?
                && !matches!(decide(Some(&reading.record), &request, reading.now), Verdict::TakeOver)
            {
                return Ok(Claimed::Found(reading));
            }
            match policy.effects {
                Effects::Transactional => {
                    let claimed = protocol.store.begin(&request).await?;
                    Ok(claimed.map(|taken| protocol.run(taken, &request, &policy, Some)))
                }
                Effects::Leased => {
                    let claimed = protocol.store.claim(&request).await.inspect_err(|error| {
                        if matches!(error, StoreError::InDoubt(_)) && !request.resumes {
                            // The key may have been taken. Dropping a run that has not begun gives it back.
                            let (owner, created_at) = (request.first_owner(), Timestamp(0));
                            let taken = Taken { owner, created_at, from: None, steps: Vec::new(), transaction: () };
                            drop(protocol.run(taken, &request, &policy, |()| None));
                        }
                    })?;
                    Ok(claimed.map(|taken| protocol.run(taken, &request, &policy, |()| None)))
                }
            }
        })
        .await
    }

    /// A taken key as a run that has not begun.
    fn run<T>(
        &self,
        taken: Taken<T>,
        request: &Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        transaction: impl FnOnce(T) -> Option<S::Transaction>,
    ) -> Taken<Run<S>> {
        let Taken { owner, created_at, from, steps, transaction: held } = taken;
        let follows_lost = matches!(from, Some(State::InProgress | State::NeedsRecovery));
        let ledger = Steps::new(policy, owner.attempt, steps.clone(), follows_lost);
        let run = Run::new(self, request, policy, owner.clone(), created_at, ledger, transaction(held));
        Taken { owner, created_at, from, steps, transaction: run }
    }
}

async fn follow(
    request: &ClaimRequest,
    claimant: &Claimant,
    mut progress: watch::Receiver<Progress>,
    deadline: Instant,
) -> Option<Answer> {
    let refuse = |error: Error| Some(Answer::refuse(error.mutation(&*request.mutation)));
    loop {
        let current = progress.borrow_and_update().clone();
        let (left, record) = match current {
            Progress::Running { fingerprint, .. } if fingerprint != request.fingerprint => {
                return refuse(Error::new(ErrorCode::KeyReused));
            }
            Progress::Running { claimant: runner, .. } if runner == *claimant => return Some(Answer::Own),
            Progress::Asking | Progress::Running { .. } => (request.lease, None),
            Progress::Found(reading) => match decide(Some(&reading.record), request, reading.now) {
                Verdict::InProgress(left) => (left, Some(reading.record)),
                // The leader takes the key; a follower waits.
                Verdict::Take | Verdict::TakeOver => (request.lease, Some(reading.record)),
                verdict => return Some(answer(&reading, verdict)),
            },
            Progress::Unavailable(code) => return refuse(Error::new(code).retry_after(request.lease)),
            Progress::Gone => return None,
        };
        if Instant::now() >= deadline || claimant.holds() {
            return Some(in_progress(request, left, record.as_deref()));
        }
        tokio::select! {
            changed = progress.changed() => changed.ok()?,
            () = claimant.rest_until(deadline) => {}
        }
    }
}

fn answer(reading: &Reading, verdict: Verdict) -> Answer {
    match verdict {
        Verdict::Replay => Answer::Replay(Arc::clone(&reading.record)),
        Verdict::Refuse(error) => Answer::refuse(error),
        // The callers handle `InProgress`; on the other two a store takes the key, and it is at fault if it has not.
        Verdict::Take | Verdict::TakeOver | Verdict::InProgress(_) => {
            Answer::refuse(Error::new(ErrorCode::RecordCorrupt).record(&reading.record))
        }
    }
}

fn in_progress(request: &ClaimRequest, left: Duration, record: Option<&Record>) -> Answer {
    let error = Error::in_progress(&request.mutation, left);
    Answer::refuse(match record {
        Some(record) => error.record(record),
        None => error,
    })
}

/// The code for a claim that failed: nothing was executed, whatever happened in the store.
fn refusal(error: &StoreError) -> ErrorCode {
    match error {
        StoreError::Corrupt(_) => ErrorCode::RecordCorrupt,
        StoreError::Misconfigured(_) => ErrorCode::Misconfigured,
        StoreError::Undone(_) | StoreError::InDoubt(_) | StoreError::Rejected(_) => ErrorCode::StoreUnavailable,
    }
}
