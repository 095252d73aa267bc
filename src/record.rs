//! What is kept of a mutation: the record, its owner, its recovery points, its settlement.

use std::time::Duration;

use uuid::Uuid;

use crate::{
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    state::State,
};

/// An instant by the store's clock: milliseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// How long it is from `self` to `later`; zero when `later` is not later.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }

    /// RFC 3339, in UTC, to the millisecond.
    #[must_use]
    pub fn rfc3339(self) -> String {
        time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000_000)
            .ok()
            .and_then(|at| at.format(&time::format_description::well_known::Rfc3339).ok())
            .unwrap_or_else(|| format!("{} ms", self.0))
    }
}

/// The stored row of one (client, key).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who sent the key.
    pub client: ClientId,
    /// The key.
    pub key: IdempotencyKey,
    /// The mutation's field name, with the names of its namespaces (`billing.charge`).
    pub mutation: String,
    /// What was asked, without the key.
    pub fingerprint: Fingerprint,
    /// The canonical form of what the field was asked to return.
    pub selection: String,
    /// Where it stands.
    pub state: State,
    /// Made with the record and the same for all attempts: what a gateway gets as its own idempotency key.
    pub request_id: Uuid,
    /// The number of the latest attempt, from 1: the fencing token.
    pub attempt: i32,
    /// When the state stops being true by itself: the lease's end of [`State::InProgress`], the sweeper's next
    /// try of [`State::NeedsRecovery`], the retention's end of a finished or released record, a tombstone's end.
    pub due_at: Timestamp,
    /// The response, opaque to the store; none when it isn't kept.
    pub response: Option<Vec<u8>>,
    /// The request, opaque to the store, while an attempt may have to be resumed without its client.
    pub request: Option<Vec<u8>>,
    /// Why it needs recovery, or by whom and why it was settled.
    pub reason: Option<String>,
    /// How often the sweeper has tried to recover it.
    pub recoveries: i32,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When the state last changed.
    pub updated_at: Timestamp,
}

impl Record {
    /// The owner that its latest attempt was.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { client: self.client.clone(), key: self.key.clone(), request_id: self.request_id, attempt: self.attempt }
    }

    /// What the claim that takes it over gets.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn next_owner(&self) -> Owner {
        Owner { attempt: self.attempt + 1, ..self.owner() }
    }
}

/// Proof that an attempt holds a key. Every write after the claim names it, and a store refuses those of
/// an attempt that is no longer the latest.
///
/// The request id belongs to the fence because attempts count from 1 again once a released key has been
/// claimed anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Who sent the key.
    pub client: ClientId,
    /// The key.
    pub key: IdempotencyKey,
    /// The record's request id.
    pub request_id: Uuid,
    /// The attempt's number.
    pub attempt: i32,
}

/// How an attempt ends, as the store is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Finished, and kept for `retention` from now on.
    Finish {
        /// [`State::Succeeded`] or [`State::Failed`].
        outcome: Outcome,
        /// What to replay; none when only the fact is kept.
        response: Option<Vec<u8>>,
        /// How long the record is kept before it becomes a tombstone.
        retention: Duration,
        /// Who settled it and why, when that was not the mutation itself.
        reason: Option<String>,
    },
    /// Nothing happened that counts: the key is free again. The record stays, as [`State::Released`], for
    /// `retention`, if it has finished steps or its attempt was lost; otherwise it goes.
    Release {
        /// How long a record that stays is kept.
        retention: Duration,
        /// Why.
        reason: Option<String>,
    },
    /// Nobody knows what happened: [`State::NeedsRecovery`].
    Hold {
        /// What is known. The sweeper may try to recover it at once.
        reason: String,
    },
}

/// How a mutation finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a response.
    Succeeded,
    /// With an error that is final.
    Failed,
}

impl Outcome {
    /// The state of a record with this outcome.
    #[must_use]
    pub fn state(self) -> State {
        match self {
            Self::Succeeded => State::Succeeded,
            Self::Failed => State::Failed,
        }
    }
}

/// A named step of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// The step's name, unique within the mutation.
    pub name: String,
    /// Whether it changes the team's own database or calls another system.
    pub kind: StepKind,
    /// The attempt that wrote it.
    pub attempt: i32,
    /// The result as JSON; none for a remote step that was begun and has not finished.
    pub result: Option<String>,
}

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Effects in the team's own database, committed together with the point.
    Local,
    /// A call to another system: the intent is stored before it, the result after it.
    Remote,
}

impl StepKind {
    /// The word in the `kind` column.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }

    /// The kind that a word in the `kind` column stands for.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Local, Self::Remote].into_iter().find(|kind| kind.as_str() == word)
    }
}
