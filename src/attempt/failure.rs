//! The errors that a resolver gets from its attempt, and what each says about the outcome.

use crate::{
    attempt::steps::{Failure, Says},
    ending::Mark,
    error::ErrorCode,
    store::StoreError,
};

/// Why an attempt can't do what a resolver asks of it. Where the resolver is at fault, the message names the cure.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// No attempt is under way for this field.
    #[error("no attempt is under way here: the field takes no idempotency key, or has not claimed it yet")]
    NotClaimed,
    /// The attempt belongs to another kind of store.
    #[error(
        "the attempt belongs to another kind of store: ask for it with the store that the extension was built with"
    )]
    OtherStore,
    /// Only a transactional mutation has a transaction.
    #[error("a leased mutation has no transaction of its own: use a local step, or give it a transactional policy")]
    NotTransactional,
    /// Only a leased mutation has steps.
    #[error("a transactional mutation has no steps: work on its transaction, or give it a leased policy")]
    NotLeased,
    /// The attempt has ended.
    #[error("the attempt has ended")]
    Over,
    /// The resolver holds the transaction already.
    #[error("this resolver holds the transaction already: drop the first guard, or pass it on")]
    TransactionHeld,
    /// Another resolver of the mutation has held the transaction for too long.
    #[error("another resolver of this mutation keeps its transaction")]
    TransactionBusy,
    /// The attempt's lease lapsed and another attempt owns the key, or someone has settled it: nothing of this step was
    /// kept.
    #[error("another attempt has taken the key over, or someone has settled it")]
    Superseded,
    /// Step names are unique within a mutation.
    #[error("the step {0} was used twice in one attempt: give each its own name")]
    StepRepeated(String),
    /// The policy names the mutation's steps, and this is none of them.
    #[error("the policy's steps do not name the step {0}: add it to Policy::steps")]
    StepNotNamed(String),
    /// An earlier attempt stored a step that this code has not reached before a new one, or has as another kind.
    #[error(
        "an earlier attempt left the step {0}, which the code no longer has in this place: if steps may come in any \
         order, name all of them in Policy::steps"
    )]
    StepsChanged(String),
    /// A step's result can't be turned into JSON, or not back.
    #[error("the result of the step {step} can't be stored and read back: its type must survive JSON")]
    Unreadable {
        /// The step.
        step: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The store failed, and nothing of the step was done.
    #[error("the store failed, and nothing of this step was done")]
    NotDone(#[source] StoreError),
    /// The store failed, and nobody knows whether the step was kept.
    #[error("the store failed, and nobody knows whether this step was kept")]
    InDoubt(#[source] StoreError),
}

impl AttemptError {
    /// The code that a client finds in `extensions.code`.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.failure().code
    }

    pub(crate) fn failure(&self) -> Failure {
        let (code, says) = match self {
            Self::NotClaimed
            | Self::OtherStore
            | Self::NotTransactional
            | Self::NotLeased
            | Self::TransactionHeld
            | Self::StepRepeated(_)
            | Self::StepNotNamed(_)
            | Self::Unreadable { .. } => (ErrorCode::Misconfigured, Says::Misuse),
            Self::TransactionBusy => (ErrorCode::RolledBack, Says::Mark(Mark::Release)),
            Self::NotDone(StoreError::Misconfigured(_)) => (ErrorCode::Misconfigured, Says::Mark(Mark::Release)),
            Self::NotDone(StoreError::Rejected(_)) => (ErrorCode::CommitRefused, Says::Mark(Mark::Release)),
            Self::NotDone(_) => (ErrorCode::StoreUnavailable, Says::Mark(Mark::Release)),
            Self::Over | Self::Superseded | Self::StepsChanged(_) | Self::InDoubt(_) => {
                (ErrorCode::OutcomeUnknown, Says::Mark(Mark::Unknown))
            }
        };
        Failure { code, says }
    }
}
