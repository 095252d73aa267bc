//! What is kept of a mutation: the record, its owner, its recovery points, its settlement.

use std::{sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    state::{Outcome, State},
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

    /// The instant `time` later.
    #[must_use]
    pub fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX)))
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
    /// The canonical form of what the field was asked to return. Empty in a tombstone.
    pub selection: String,
    /// Where it stands.
    pub state: State,
    /// Made with the record and the same for all attempts: what a gateway gets as its own idempotency key.
    pub request_id: Uuid,
    /// The number of the latest attempt, from 1: the fencing token.
    pub attempt: i32,
    /// When the state ends by itself: the end of the lease for [`State::InProgress`] and [`State::Settling`], of the
    /// retention for a finished or released record, of the tombstone for a tombstone. For [`State::NeedsRecovery`],
    /// when a sweeper next tries to recover it.
    pub due_at: Timestamp,
    /// The response, opaque to the store; none when it isn't kept, and in every state that has none.
    pub response: Option<Vec<u8>>,
    /// The request, opaque to the store, while an attempt may have to be resumed without its client.
    pub request: Option<Vec<u8>>,
    /// Why it needs recovery, or by whom and why it was settled.
    pub reason: Option<String>,
    /// How often a sweeper has tried to recover it.
    pub recoveries: i32,
    /// When the key was first claimed.
    pub created_at: Timestamp,
    /// When its latest attempt ended; for a finished record, the time of the first answer. None while an attempt
    /// runs, and when it was lost.
    pub ended_at: Option<Timestamp>,
}

impl Record {
    /// The latest attempt as the owner of the key.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner { client: self.client.clone(), key: self.key.clone(), request_id: self.request_id, attempt: self.attempt }
    }

    /// The owner after a take-over: the same request id, and the next attempt.
    #[must_use]
    pub fn next_owner(&self) -> Owner {
        Owner { attempt: self.attempt + 1, ..self.owner() }
    }

    /// Whether an attempt may still write it: it is the latest one and has not ended. This is the fence.
    #[must_use]
    pub fn is_open_to(&self, owner: &Owner) -> bool {
        let has_ended = self.state == State::NeedsRecovery && self.ended_at.is_some();
        self.state.is_open() && !has_ended && self.owner() == *owner
    }
}

/// A record, and the store's time when it was read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The record.
    pub record: Arc<Record>,
    /// The store's time.
    pub now: Timestamp,
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

/// What becomes of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Made safe ([`State::Settling`]): the outcome is stored while the lease goes on, until the end of the document
    /// settles it for good.
    Settling {
        /// How the mutation ended.
        outcome: Outcome,
        /// What to replay; none when only the fact is kept.
        response: Option<Vec<u8>>,
        /// The lease, from now on.
        lease: Duration,
    },
    /// Finished, and kept for `retention` from now on.
    Complete {
        /// [`State::Succeeded`] or [`State::Failed`].
        outcome: Outcome,
        /// What to replay; none when only the fact is kept.
        response: Option<Vec<u8>>,
        /// How long the record is kept before it becomes a tombstone.
        retention: Duration,
        /// Who settled it and why, when that was not the mutation itself.
        reason: Option<String>,
    },
    /// Given back.
    Release {
        /// For how long the record stays, as [`State::Released`], with its steps and its request id. None: it is
        /// deleted.
        stays: Option<Duration>,
        /// Why, when that was not the mutation itself.
        reason: Option<String>,
    },
    /// Nobody knows what happened: [`State::NeedsRecovery`]. A sweeper may look at it at once.
    Hold {
        /// What is known.
        reason: String,
    },
}

impl Settlement {
    /// The state that it leaves the record in; none when the record is deleted.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        match self {
            Self::Settling { outcome, .. } => Some(State::Settling(*outcome)),
            Self::Complete { outcome, .. } => Some(outcome.state()),
            Self::Release { stays, .. } => stays.map(|_| State::Released),
            Self::Hold { .. } => Some(State::NeedsRecovery),
        }
    }

    /// What became of the mutation; none when that is unknown, or it never happened. A transaction is committed only
    /// with an outcome.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self {
            Self::Settling { outcome, .. } | Self::Complete { outcome, .. } => Some(*outcome),
            Self::Release { .. } | Self::Hold { .. } => None,
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
