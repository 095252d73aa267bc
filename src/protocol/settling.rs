//! Carries out a fate in the store, and turns the store's answer into the client's.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    Answer, Pause, Progress, ask,
    run::{Key, Moment, Settled},
};
use crate::{
    claim::{Verdict, decide},
    ending::{Ending, Fate, fate},
    error::{Error, ErrorCode},
    record::{Reading, Record, Settlement, Timestamp},
    state::Outcome,
    store::{Claimed, From, Store, StoreError},
};

/// A key that is being settled.
pub(super) struct Settling<S: Store> {
    key: Box<Key<S>>,
    fate: Fate,
    settlement: Settlement,
    /// For how long to go on trying where the store fails.
    persistence: Duration,
}

const UNDO: Settlement = Settlement::Release { stays: None, reason: None };

impl<S: Store> Settling<S> {
    /// What an ending does to a key, and whether the client may have the result of the attempt.
    pub(super) fn of(key: Box<Key<S>>, ending: &Ending<'_>, response: Option<Vec<u8>>, moment: Moment) -> (Self, bool) {
        let (known, reason) = {
            let steps = key.held.steps();
            (steps.known(), steps.reason())
        };
        let fate = fate(&key.policy, ending, &known);
        let retention = key.policy.retention;
        let settlement = match (fate, moment) {
            (Fate::Complete(outcome), Moment::Meanwhile) => {
                Settlement::Settling { outcome, response, lease: key.policy.lease }
            }
            (Fate::Complete(outcome), Moment::End) => {
                Settlement::Complete { outcome, response, retention, reason: None }
            }
            (Fate::Release { stays }, _) => Settlement::Release { stays: stays.then_some(retention), reason: None },
            (Fate::Hold | Fate::Resume, _) => Settlement::Hold { reason: reason.unwrap_or_else(|| why(ending)) },
        };
        // A key for which nothing ran may lapse; the outcome of one that ran is worth trying for longer.
        let persistence = if *ending == Ending::Unused { key.policy.lease } else { key.policy.max_attempt };
        (Self { key, fate, settlement, persistence }, fate.lets_pass(ending))
    }

    /// What the client gets where the attempt has no result to give.
    pub(super) fn refusal(&self) -> Answer {
        self.key.nothing_to_give()
    }

    /// Settles the key, and returns it so that it can be settled again; none where a task goes on trying.
    pub(super) async fn carry_out(mut self) -> (Option<Box<Key<S>>>, Settled) {
        // Nothing of the attempt is used any more.
        self.key.held.end();
        let fate = self.fate;
        let transaction = match &self.key.held.transaction {
            Some(slot) if self.key.renewal.is_none() => Some(slot.take().await),
            _ => None,
        };
        let answer = match transaction {
            Some(transaction) => self.in_transaction(transaction).await,
            None => match self.store(From::Open).await {
                Ok(true) => None,
                Ok(false) => Some(self.superseded(ErrorCode::OutcomeUnknown).await),
                Err(error) => {
                    tracing::warn!(request_id = %self.key.held.owner.request_id, error = &error as &dyn std::error::Error, "an outcome could not be stored at once");
                    tokio::spawn(self.keep_trying());
                    return (None, Settled { fate, answer: None, record: None, code: None });
                }
            },
        };
        let record = if answer.is_none() { self.land() } else { None };
        (Some(self.key), Settled { fate, answer, record, code: None })
    }

    async fn store(&self, from: From<'static, S::Transaction>) -> Result<bool, StoreError> {
        let (held, settlement) = (Arc::clone(&self.key.held), self.settlement.clone());
        let settled = async move { held.store.settle(&held.owner, from, &settlement).await };
        ask(self.key.protocol.store_timeout, settled).await
    }

    async fn store_first(
        &self,
        transaction: Option<S::Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        let (held, settlement) = (Arc::clone(&self.key.held), settlement.clone());
        let settled = async move {
            held.store.settle(&held.owner, From::Transaction(transaction, &held.request), &settlement).await
        };
        ask(self.key.protocol.store_timeout, settled).await
    }

    /// Tries again to store the outcome, while the client has its answer already. Where that takes too long, the key is
    /// left to the sweeper.
    async fn keep_trying(mut self) {
        let deadline = Instant::now() + self.persistence;
        if self.settlement.outcome().is_none() {
            // A lease that lapses does no more than a key that is held or given back.
            self.key.renewal = None;
        }
        let mut pause = Pause::patient();
        while Instant::now() < deadline {
            sleep_until(pause.end()).await;
            match self.store(From::Open).await {
                Ok(true) => {
                    self.land();
                    return;
                }
                Ok(false) => return,
                Err(_) => {}
            }
        }
        tracing::error!(request_id = %self.key.held.owner.request_id, "an outcome could not be stored");
    }

    /// Settles the key that a transaction holds, or held until it was undone.
    async fn in_transaction(&mut self, mut transaction: Option<S::Transaction>) -> Option<Answer> {
        let outcome = self.settlement.outcome();
        // What is not a success is written in a fresh transaction, never in the failed one.
        if outcome != Some(Outcome::Succeeded)
            && let Err(error) = self.store_first(transaction.take(), &UNDO).await
        {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                "a transaction could not be undone, and ends with its connection"
            );
        }
        let is_first = self.key.held.owner.attempt == 1;
        if outcome.is_none() && !(is_first && self.settlement.state().is_some()) {
            return None;
        }
        let error = match self.store_first(transaction, &self.settlement).await {
            Ok(true) => {
                if matches!(self.settlement, Settlement::Settling { .. }) {
                    self.key.keep_lease();
                }
                return None;
            }
            Ok(false) => return Some(self.superseded(ErrorCode::RolledBack).await),
            Err(error) => error,
        };
        let mutation = &self.key.held.request.mutation;
        tracing::warn!(%mutation, error = &error as &dyn std::error::Error, "a mutation could not be committed");
        match error {
            // The client gets the mutation's failure all the same; a retry runs again.
            _ if outcome != Some(Outcome::Succeeded) => None,
            StoreError::Undone(_) => Some(self.superseded(ErrorCode::RolledBack).await),
            StoreError::Rejected(_) => Some(self.key.refusal(ErrorCode::CommitRefused)),
            StoreError::Misconfigured(_) => {
                tracing::error!(%mutation, "the record can't be written as the resolver left its transaction: a role or a setting that it changes has to be named in keep_settings");
                Some(self.key.refusal(ErrorCode::Misconfigured))
            }
            StoreError::InDoubt(_) | StoreError::Corrupt(_) => self.clear_up().await,
        }
    }

    /// Nobody knows whether COMMIT worked. The record shows it, once the transaction is certainly over.
    async fn clear_up(&self) -> Option<Answer> {
        // As long as a duplicate would wait; a later retry finds out what this could not.
        let deadline = Instant::now() + self.key.policy.wait;
        let mut pause = Pause::brief();
        loop {
            let held = Arc::clone(&self.key.held);
            let seen = ask(self.key.protocol.store_timeout, async move {
                match held.store.begin(&held.request).await? {
                    Claimed::Taken(taken) => {
                        let from = From::Transaction(Some(taken.transaction), &held.request);
                        held.store.settle(&taken.owner, from, &UNDO).await.map(|_| Seen::Nothing)
                    }
                    Claimed::Found(Reading { record, .. }) => Ok(Seen::Record(record)),
                    Claimed::Busy { .. } => Ok(Seen::Busy),
                }
            });
            match seen.await {
                Ok(Seen::Nothing) => return Some(self.key.refusal(ErrorCode::RolledBack)),
                Ok(Seen::Record(record)) if record.owner() == self.key.held.owner => return None,
                Ok(Seen::Record(_)) => return Some(self.superseded(ErrorCode::OutcomeUnknown).await),
                Ok(Seen::Busy) | Err(_) if Instant::now() < deadline => sleep_until(pause.end()).await,
                Ok(Seen::Busy) | Err(_) => return Some(self.key.refusal(ErrorCode::OutcomeUnknown)),
            }
        }
    }

    /// Another attempt has taken the key over, or someone has settled it: the client gets the answer that the record
    /// gives, or `otherwise` where it gives none.
    async fn superseded(&self, otherwise: ErrorCode) -> Answer {
        let held = Arc::clone(&self.key.held);
        let found = async move { held.store.find(&held.request.client, &held.request.key).await };
        let Ok(Some(Reading { record, now })) = ask(self.key.protocol.store_timeout, found).await else {
            return self.key.refusal(otherwise);
        };
        match decide(Some(&record), &self.key.held.request, now) {
            Verdict::Replay => Answer::Replay(record),
            Verdict::Refuse(error) => Answer::refuse(error),
            Verdict::InProgress(left) => {
                Answer::refuse(Error::in_progress(&self.key.held.request.mutation, left).record(&record))
            }
            Verdict::Take | Verdict::TakeOver => self.key.refusal(otherwise),
        }
    }

    /// Gives the outcome to the duplicates that wait in this process, without another look at the store. While it is
    /// only made safe, they go on waiting.
    fn land(&mut self) -> Option<Arc<Record>> {
        if matches!(self.settlement, Settlement::Settling { .. }) {
            return None;
        }
        self.key.renewal = None;
        let flight = self.key.flight.take();
        let Settlement::Complete { outcome, response, .. } = &mut self.settlement else { return None };
        let (held, created_at) = (&self.key.held, self.key.created_at);
        let record = Arc::new(Record {
            client: held.owner.client.clone(),
            key: held.owner.key.clone(),
            mutation: held.request.mutation.to_string(),
            fingerprint: held.request.fingerprint,
            selection: held.request.selection.to_string(),
            state: outcome.state(),
            request_id: held.owner.request_id,
            attempt: held.owner.attempt,
            // The store's time is not known here, and a record that has just finished is not due.
            due_at: Timestamp(i64::MAX),
            response: response.take(),
            request: None,
            reason: None,
            recoveries: 0,
            created_at,
            ended_at: None,
        });
        if let Some((leader, _)) = flight {
            leader.land(Progress::Found(Reading { record: Arc::clone(&record), now: created_at }));
        }
        Some(record)
    }
}

/// What a look after a lost COMMIT sees.
enum Seen {
    Nothing,
    Record(Arc<Record>),
    Busy,
}

/// Why a key is held, where its steps give no reason.
fn why(ending: &Ending<'_>) -> String {
    let why = match ending {
        Ending::Panicked => "the resolver panicked",
        Ending::Dropped => "the resolver was dropped before it had finished",
        Ending::Misuse => "the resolver can't work as it is written, see the log",
        Ending::Unused => "the key was taken over, and nothing ran",
        Ending::Value { .. } | Ending::Error { .. } | Ending::Told(_) | Ending::Lost => {
            "the resolver does not know what happened"
        }
    };
    why.to_owned()
}
