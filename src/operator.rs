//! What a person can do: list, inspect and settle keys.

use std::time::Duration;

use crate::{
    key::{ClientId, IdempotencyKey},
    record::{Outcome, Record, RecoveryPoint, Settlement, Timestamp},
    state::State,
    store::{Count, Filter, Store, StoreError},
};

/// An operator's hand on a store.
#[derive(Clone, Debug)]
pub struct Operator<S: Store> {
    store: S,
}

/// A key as an operator sees it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The record.
    pub record: Record,
    /// Its steps, in order; each tells the attempt that wrote it.
    pub points: Vec<RecoveryPoint>,
    /// The store's time.
    pub now: Timestamp,
}

/// How an operator settles a key whose outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It happened; this is replayed, in the form that the adapter stores. Without one, retries are told that the
    /// response was not kept.
    Succeeded(Option<Vec<u8>>),
    /// It failed for good; likewise.
    Failed(Option<Vec<u8>>),
    /// It did not happen: the key is free again.
    Released,
}

impl<S: Store> Operator<S> {
    /// An operator of this store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store }
    }

    /// The records that a filter lets through, longest unchanged first.
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
        let Some((record, now)) = self.store.find(client, key).await? else {
            return Ok(None);
        };
        let points = self.store.points(client, key).await?;
        Ok(Some(Inspection { record, points, now }))
    }

    /// Settles a key whose outcome is unknown, for good. `reason` is kept with it; `retention` is how long it is
    /// then replayed.
    ///
    /// # Errors
    /// [`SettleError::NotHeld`] when the key's outcome is not unknown, or no longer.
    pub async fn settle(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
        resolution: Resolution,
        reason: &str,
        retention: Duration,
    ) -> Result<(), SettleError> {
        let mut found = self.store.find(client, key).await?;
        if found.as_ref().is_some_and(|(record, now)| record.state == State::InProgress && record.due_at <= *now) {
            // Its lease has lapsed, and no sweeper has come by yet.
            while self.store.lapse(LAPSE_BATCH).await? == u64::from(LAPSE_BATCH) {}
            found = self.store.find(client, key).await?;
        }
        let held = found.map(|(record, _)| record).filter(|record| record.state == State::NeedsRecovery);
        let held = held.ok_or(SettleError::NotHeld)?;
        let reason = Some(format!("settled by an operator: {reason}"));
        let settlement = match resolution {
            Resolution::Succeeded(response) => {
                Settlement::Finish { outcome: Outcome::Succeeded, response, retention, reason }
            }
            Resolution::Failed(response) => {
                Settlement::Finish { outcome: Outcome::Failed, response, retention, reason }
            }
            Resolution::Released => Settlement::Release { retention, reason },
        };
        if self.store.resolve(&held.owner(), &settlement).await? { Ok(()) } else { Err(SettleError::NotHeld) }
    }
}

const LAPSE_BATCH: u32 = 500;

/// Why a key was not settled.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// Only a key whose outcome is unknown can be settled.
    #[error("the key's outcome is not unknown: it has no record, is running, or is settled")]
    NotHeld,
    /// What it is to be settled with does not say how it ended, or does not fit the mutation's response.
    #[error("this does not tell how the mutation ended, or does not fit its response")]
    Unusable,
    /// The store's.
    #[error(transparent)]
    Store(#[from] StoreError),
}
