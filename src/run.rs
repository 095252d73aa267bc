//! A mutation that has its key, until its key is settled.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::{
    attempt::{Attempt, Hold},
    claim::{Verdict, decide},
    error::{Error, ErrorCode},
    finish::Finish,
    flight::{Leader, Progress},
    lease::persist,
    pause::Pause,
    policy::{Disposition, Ending, Policy},
    record::{Outcome, Owner, Record, Settlement, Timestamp},
    renewal::{Renewal, Renewals},
    state::State,
    store::{Begun, Store, StoreError},
};

/// What the ending of a run means for its own client.
pub enum Ended {
    /// The client's result is true: it is stored, or nothing had to be.
    Stands,
    /// Another attempt settled the key: replay its record.
    Replay(Arc<Record>),
    /// Say this instead of the result.
    Refuse(Error),
}

/// A mutation that has its key. Ends with [`Run::end`]; dropped before, it counts as [`Ending::Dropped`].
pub struct Run<S: Store> {
    attempt: Arc<Attempt<S>>,
    created_at: Timestamp,
    policy: Arc<Policy>,
    leader: Option<Leader>,
    renewal: Option<Renewal<S>>,
}

impl<S: Store> Run<S> {
    pub(crate) fn new(
        attempt: Arc<Attempt<S>>,
        created_at: Timestamp,
        policy: Arc<Policy>,
        leader: Leader,
        renewals: &Renewals<S>,
    ) -> Self {
        let renewal = match &attempt.hold {
            Hold::Lease { owner, .. } => Some(renewals.keep(owner.clone(), policy.lease, policy.renew_every)),
            Hold::Transaction(_) => None,
        };
        Self { attempt, created_at, policy, leader: Some(leader), renewal }
    }

    /// The attempt, for the resolvers.
    #[must_use]
    pub fn attempt(&self) -> &Arc<Attempt<S>> {
        &self.attempt
    }

    /// The mutation's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Undoes the transaction of a resolver that never asked for it, and so did nothing in it, when the run can't
    /// end yet: held on, it would be in the way of others.
    pub async fn let_go(&self) {
        if let Hold::Transaction(transaction) = &self.attempt.hold
            && let Some(transaction) = transaction.lock().await.take()
        {
            drop(self.attempt.store.rollback(transaction).await);
        }
    }

    /// Ends the run: settles the key as the policy says, and tells whether the client's result may be given.
    /// `response` is what a retry is to get; none when it isn't kept.
    pub async fn end(self, ending: Ending<'_>, response: Option<Vec<u8>>) -> Ended {
        let missed = self.attempt.missed_steps().filter(|_| ending == Ending::Returned);
        let unknown = self.attempt.unknown();
        let ending = match ending {
            Ending::Error { mark, code, .. } => Ending::Error { mark, code, unfinished: unknown.is_some() },
            other => other,
        };
        let mut disposition = self.policy.disposition(&ending);
        // A resolver that went on although a step had failed can't know what it returned.
        if disposition == Disposition::Succeed && (missed.is_some() || unknown.is_some()) {
            disposition = Disposition::Hold;
        }
        let reason = missed.or(unknown).unwrap_or_else(|| match ending {
            Ending::Panicked => "the resolver panicked".to_owned(),
            Ending::Dropped => "the resolver was dropped before it had finished".to_owned(),
            Ending::Returned | Ending::Error { .. } => "the resolver does not know what happened".to_owned(),
        });
        let hides_result = ending == Ending::Returned && disposition == Disposition::Hold;
        let (attempt, created_at) = (Arc::clone(&self.attempt), self.created_at);
        match Finish::new(self.settle(disposition, response, reason)).await {
            Ended::Stands if hides_result => Ended::Refuse(unknown_outcome(&attempt, created_at)),
            ended => ended,
        }
    }

    async fn settle(mut self, disposition: Disposition, response: Option<Vec<u8>>, reason: String) -> Ended {
        self.attempt.end();
        let retention = self.policy.retention;
        let settlement = match disposition {
            Disposition::Succeed | Disposition::Fail => Settlement::Finish {
                outcome: if disposition == Disposition::Fail { Outcome::Failed } else { Outcome::Succeeded },
                response,
                retention,
                reason: None,
            },
            Disposition::Release => Settlement::Release { retention, reason: None },
            Disposition::Hold => Settlement::Hold { reason },
        };
        let attempt = Arc::clone(&self.attempt);
        match &attempt.hold {
            Hold::Lease { owner, .. } => self.settle_lease(owner, settlement).await,
            Hold::Transaction(transaction) => {
                let transaction = transaction.lock().await.take();
                let store = &attempt.store;
                match (transaction, disposition) {
                    (Some(transaction), Disposition::Succeed) => {
                        let committed = store.commit(transaction, &attempt.request, &settlement).await;
                        self.committed(committed, &settlement).await
                    }
                    (transaction, Disposition::Succeed | Disposition::Fail) => {
                        // In a fresh transaction, never in the failed one.
                        if let Some(transaction) = transaction {
                            drop(store.rollback(transaction).await);
                        }
                        match store.record(&attempt.request, &settlement).await {
                            Ok(true) => self.land(&settlement),
                            Ok(false) => self.superseded().await,
                            Err(_) => Ended::Stands,
                        }
                    }
                    (transaction, Disposition::Release | Disposition::Hold) => {
                        if let Some(transaction) = transaction {
                            drop(store.rollback(transaction).await);
                        }
                        Ended::Stands
                    }
                }
            }
        }
    }

    async fn settle_lease(mut self, owner: &Owner, settlement: Settlement) -> Ended {
        match self.attempt.store.settle(owner, &settlement).await {
            Ok(true) => self.land(&settlement),
            Ok(false) => self.superseded().await,
            Err(error) => {
                tracing::warn!(request_id = %owner.request_id, error = &error as &dyn std::error::Error, "an outcome could not be stored at once");
                // The client gets its true result; the rest of the lease is for storing it. What is not stored
                // by then is for the sweeper.
                let owner = owner.clone();
                tokio::spawn(async move {
                    let within = self.policy.lease;
                    if persist(&self.attempt.store, &owner, &settlement, within).await == Some(true) {
                        self.land(&settlement);
                    }
                });
                Ended::Stands
            }
        }
    }

    /// Tells the followers, without another look at the store.
    fn land(&mut self, settlement: &Settlement) -> Ended {
        self.renewal = None;
        if let (Some(leader), Settlement::Finish { outcome, response, .. }) = (self.leader.take(), settlement) {
            let record = self.record(outcome.state(), response.clone());
            leader.land(Progress::Found(Arc::new(record), self.created_at));
        }
        Ended::Stands
    }

    fn record(&self, state: State, response: Option<Vec<u8>>) -> Record {
        let request = &self.attempt.request;
        Record {
            client: request.client.clone(),
            key: request.key.clone(),
            mutation: request.mutation.to_string(),
            fingerprint: request.fingerprint,
            selection: request.selection.to_string(),
            state,
            request_id: self.attempt.request_id(),
            attempt: self.attempt.number(),
            // Just finished: not due in this moment, whenever that is.
            due_at: Timestamp(i64::MAX),
            response,
            request: None,
            reason: None,
            recoveries: 0,
            created_at: self.created_at,
            updated_at: self.created_at,
        }
    }

    /// Another attempt has taken the key over: the client gets what that came to, or the truth.
    async fn superseded(&self) -> Ended {
        let request = &self.attempt.request;
        match self.attempt.store.find(&request.client, &request.key).await {
            Ok(Some((record, now))) => match decide(Some(&record), request, now) {
                Verdict::Replay => Ended::Replay(Arc::new(record)),
                Verdict::Refuse(error) => Ended::Refuse(error),
                Verdict::InProgress(left) => Ended::Refuse(Error::in_progress(&request.mutation, left).record(&record)),
                Verdict::Take | Verdict::TakeOver => Ended::Refuse(unknown_outcome(&self.attempt, self.created_at)),
            },
            Ok(None) | Err(_) => Ended::Refuse(unknown_outcome(&self.attempt, self.created_at)),
        }
    }

    async fn committed(&mut self, committed: Result<(), StoreError>, settlement: &Settlement) -> Ended {
        let error = match committed {
            Ok(()) => return self.land(settlement),
            Err(error) => error,
        };
        tracing::warn!(mutation = %self.attempt.request.mutation, error = &error as &dyn std::error::Error, "a mutation could not be committed");
        match error {
            // Undone; where that is because another transaction was first, the client gets what that says.
            StoreError::RolledBack(_) => match self.superseded().await {
                Ended::Refuse(error) if error.code != ErrorCode::KeyReused => rolled_back(&self.attempt),
                ended => ended,
            },
            StoreError::InDoubt(_) | StoreError::Unavailable(_) | StoreError::Corrupt(_) => {
                self.settle_doubt(settlement).await
            }
        }
    }

    /// Nobody knows whether COMMIT worked: the record tells, once the transaction is certainly over.
    async fn settle_doubt(&mut self, settlement: &Settlement) -> Ended {
        let attempt = Arc::clone(&self.attempt);
        // As long as a duplicate would wait; a later retry finds out what this could not.
        let deadline = Instant::now() + self.policy.wait;
        let mut pause = Pause::new();
        loop {
            match attempt.store.begin(&attempt.request).await {
                Ok(Begun::Taken { transaction, .. }) => {
                    drop(attempt.store.rollback(transaction).await);
                    return rolled_back(&attempt);
                }
                Ok(Begun::Found { record, .. }) if record.request_id == attempt.request.request_id => {
                    return self.land(settlement);
                }
                Ok(Begun::Found { .. }) => return self.superseded().await,
                Ok(Begun::Busy { .. }) | Err(_) if Instant::now() < deadline => sleep_until(pause.end()).await,
                Ok(Begun::Busy { .. }) | Err(_) => {
                    return Ended::Refuse(unknown_outcome(&attempt, self.created_at));
                }
            }
        }
    }
}

impl<S: Store> Drop for Run<S> {
    fn drop(&mut self) {
        self.renewal = None;
        if self.leader.is_none() || self.attempt.is_over() {
            return;
        }
        // Dropped in the middle: a transaction undoes itself, a lease has to be told.
        let Hold::Lease { owner, .. } = &self.attempt.hold else {
            return;
        };
        let (Ok(runtime), Some(leader)) = (tokio::runtime::Handle::try_current(), self.leader.take()) else {
            return;
        };
        let (store, owner, lease) = (self.attempt.store.clone(), owner.clone(), self.policy.lease);
        let settlement = match self.policy.disposition(&Ending::Dropped) {
            Disposition::Release => Settlement::Release { retention: self.policy.retention, reason: None },
            Disposition::Succeed | Disposition::Fail | Disposition::Hold => {
                Settlement::Hold { reason: "the resolver was dropped before it had finished".to_owned() }
            }
        };
        self.attempt.end();
        runtime.spawn(async move {
            persist(&store, &owner, &settlement, lease).await;
            drop(leader);
        });
    }
}

fn unknown_outcome<S: Store>(attempt: &Attempt<S>, created_at: Timestamp) -> Error {
    let mut error = Error::new(ErrorCode::OutcomeUnknown).mutation(&*attempt.request.mutation);
    error.request_id = Some(attempt.request_id());
    error.first_seen_at = Some(created_at);
    error
}

fn rolled_back<S: Store>(attempt: &Attempt<S>) -> Ended {
    Ended::Refuse(
        Error::new(ErrorCode::RolledBack).mutation(&*attempt.request.mutation).retry_after(attempt.request.lease),
    )
}
