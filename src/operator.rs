//! What a person can do: list, inspect, take and settle keys.

use std::time::Duration;

use crate::{
    ending::{Fate, Told},
    key::{ClientId, IdempotencyKey},
    record::{Reading, Record, RecoveryPoint, Settlement},
    state::State,
    store::{Count, Filter, From, StoreError, Upkeep},
};

/// What an operator can do with the keys of a store.
#[derive(Clone, Debug)]
pub struct Operator<S: Upkeep> {
    store: S,
}

/// A key as an operator sees it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The record, and the store's time.
    pub reading: Reading,
    /// Its steps, in order, each with the attempt that wrote it.
    pub steps: Vec<RecoveryPoint>,
}

impl<S: Upkeep> Operator<S> {
    /// An operator of this store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// The records that a filter lets through, oldest first.
    ///
    /// # Errors
    /// The store's.
    pub async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        self.store.list(filter).await
    }

    /// How many records there are of each mutation and state.
    ///
    /// # Errors
    /// The store's.
    pub async fn count(&self) -> Result<Vec<Count>, StoreError> {
        self.store.count().await
    }

    /// A key with its steps. None when it has no record.
    ///
    /// # Errors
    /// The store's.
    pub async fn inspect(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<Inspection>, StoreError> {
        let Some(reading) = self.store.find(client, key).await? else {
            return Ok(None);
        };
        Ok(Some(Inspection { reading, steps: self.store.steps(client, key).await? }))
    }

    /// Takes a key from an attempt that runs, or hangs: its outcome is unknown from now on, and nothing that the
    /// attempt still writes is kept. `reason` is kept with the key.
    ///
    /// # Errors
    /// [`SettleError::NotHeld`] when no attempt has the key.
    pub async fn take(&self, client: &ClientId, key: &IdempotencyKey, reason: &str) -> Result<(), SettleError> {
        let found = self.store.find(client, key).await?.ok_or(SettleError::NotHeld)?;
        let hold = Settlement::Hold { reason: format!("taken by an operator: {reason}") };
        let from = From::State(State::InProgress);
        if self.store.settle(&found.record.owner(), from, &hold).await? { Ok(()) } else { Err(SettleError::NotHeld) }
    }

    /// Settles a key whose outcome is unknown, or that was given back, for good. `response` is what is replayed, in the
    /// form that the adapter stores; without one, retries get the error that it was not kept. `reason` is kept with it;
    /// `retention` is how long it is then replayed, or how long a key that is given back waits for its retry.
    ///
    /// # Errors
    /// [`SettleError::NotHeld`] when an attempt has the key, or it is settled.
    pub async fn settle(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
        told: Told,
        response: Option<Vec<u8>>,
        reason: &str,
        retention: Duration,
    ) -> Result<(), SettleError> {
        let mut found = self.store.find(client, key).await?.ok_or(SettleError::NotHeld)?;
        if found.record.state == State::InProgress && found.record.due_at <= found.now {
            // Its lease has lapsed, and no sweeper has seen that yet.
            self.take(client, key, "its lease had lapsed").await?;
            found = self.store.find(client, key).await?.ok_or(SettleError::NotHeld)?;
        }
        let state = found.record.state;
        if state != State::NeedsRecovery && (state != State::Released || told == Told::NotStarted) {
            return Err(SettleError::NotHeld);
        }
        let reason = Some(format!("settled by an operator: {reason}"));
        let settlement = match told.fate() {
            Fate::Complete(outcome) => Settlement::Complete { outcome, response, retention, reason },
            Fate::Release { .. } | Fate::Hold | Fate::Resume => Settlement::Release { stays: Some(retention), reason },
        };
        if self.store.settle(&found.record.owner(), From::State(state), &settlement).await? {
            Ok(())
        } else {
            Err(SettleError::NotHeld)
        }
    }
}

/// Why a key was not settled.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The key is in no state in which it can be settled, or taken.
    #[error("the key has no record, is running, or is settled")]
    NotHeld,
    /// The mutation can't have given this answer.
    #[error("this is no answer of the mutation: {0}")]
    Unusable(String),
    /// The store's.
    #[error(transparent)]
    Store(#[from] StoreError),
}
