//! Every refusal that a client can get.

use std::{fmt, time::Duration};

use uuid::Uuid;

use crate::{
    key::IdempotencyKey,
    record::{Record, Timestamp},
    state::{Ended, State},
};

/// The codes that a client finds in `extensions.code`. `schema/idempotency.graphql` lists them for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The mutation takes an idempotency key and the request has none.
    KeyMissing,
    /// The key breaks [`IdempotencyKey::RULE`].
    KeyInvalid,
    /// The server does not know who sent the request.
    ClientUnknown,
    /// The same request is still running.
    InProgress,
    /// The key belongs to another request of this client.
    KeyReused,
    /// The stored response does not have all the fields that the retry asks for.
    SelectionUnavailable,
    /// An attempt ended without anyone knowing how.
    OutcomeUnknown,
    /// The request finished so long ago that its response is gone.
    KeyExpired,
    /// The store could not be asked; nothing was executed.
    StoreUnavailable,
    /// The stored record can't be read.
    RecordCorrupt,
    /// The request finished, and its response was not kept.
    ResponseNotStored,
    /// The mutation's transaction was rolled back; nothing happened.
    RolledBack,
    /// The database refused to commit what the mutation wrote, and would again; nothing happened.
    CommitRefused,
    /// The document exceeds a limit that the server sets for one document.
    DocumentTooLarge,
    /// The server's schema or resolver breaks the rules of this crate.
    Misconfigured,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 15] = [
        Self::KeyMissing,
        Self::KeyInvalid,
        Self::ClientUnknown,
        Self::InProgress,
        Self::KeyReused,
        Self::SelectionUnavailable,
        Self::OutcomeUnknown,
        Self::KeyExpired,
        Self::StoreUnavailable,
        Self::RecordCorrupt,
        Self::ResponseNotStored,
        Self::RolledBack,
        Self::CommitRefused,
        Self::DocumentTooLarge,
        Self::Misconfigured,
    ];

    /// The word in `extensions.code`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::KeyMissing => "IDEMPOTENCY_KEY_MISSING",
            Self::KeyInvalid => "IDEMPOTENCY_KEY_INVALID",
            Self::ClientUnknown => "IDEMPOTENCY_CLIENT_UNKNOWN",
            Self::InProgress => "IDEMPOTENCY_IN_PROGRESS",
            Self::KeyReused => "IDEMPOTENCY_KEY_REUSED",
            Self::SelectionUnavailable => "IDEMPOTENCY_SELECTION_UNAVAILABLE",
            Self::OutcomeUnknown => "IDEMPOTENCY_OUTCOME_UNKNOWN",
            Self::KeyExpired => "IDEMPOTENCY_KEY_EXPIRED",
            Self::StoreUnavailable => "IDEMPOTENCY_STORE_UNAVAILABLE",
            Self::RecordCorrupt => "IDEMPOTENCY_RECORD_CORRUPT",
            Self::ResponseNotStored => "IDEMPOTENCY_RESPONSE_NOT_STORED",
            Self::RolledBack => "IDEMPOTENCY_ROLLED_BACK",
            Self::CommitRefused => "IDEMPOTENCY_COMMIT_REFUSED",
            Self::DocumentTooLarge => "IDEMPOTENCY_DOCUMENT_TOO_LARGE",
            Self::Misconfigured => "IDEMPOTENCY_MISCONFIGURED",
        }
    }

    /// `extensions.httpStatus`, and the status of an HTTP response that has no data.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::KeyMissing | Self::KeyInvalid | Self::DocumentTooLarge => 400,
            Self::ClientUnknown => 401,
            Self::InProgress | Self::OutcomeUnknown => 409,
            Self::KeyExpired | Self::ResponseNotStored => 410,
            Self::KeyReused | Self::SelectionUnavailable | Self::CommitRefused => 422,
            Self::RecordCorrupt | Self::Misconfigured => 500,
            Self::StoreUnavailable | Self::RolledBack => 503,
        }
    }

    /// `extensions.retryable`: whether the same request with the same key can get another answer later.
    #[must_use]
    pub fn retryable(self) -> bool {
        matches!(self, Self::InProgress | Self::OutcomeUnknown | Self::StoreUnavailable | Self::RolledBack)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A refusal, with what a client needs to act on it. Never another client's data, never a message of the database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What kind of refusal.
    pub code: ErrorCode,
    /// For people.
    pub message: String,
    /// How long to wait before the next try.
    pub retry_after: Option<Duration>,
    /// The mutation in question.
    pub mutation: Option<String>,
    /// When the key was first claimed, by the store's clock.
    pub first_seen_at: Option<Timestamp>,
    /// The record's request id, by which it is found in logs and at gateways.
    pub request_id: Option<Uuid>,
    /// The fields that the stored response does not have.
    pub fields: Vec<String>,
}

impl Error {
    /// A refusal with its standard message.
    #[must_use]
    pub fn new(code: ErrorCode) -> Self {
        let message = match code {
            ErrorCode::KeyMissing => {
                "This mutation needs an idempotency key: send one, and send the same one with every retry.".to_owned()
            }
            ErrorCode::KeyInvalid => format!("The idempotency key is invalid: {}.", IdempotencyKey::RULE),
            ErrorCode::ClientUnknown => {
                "The server does not know who sent this request, so no mutation was executed.".to_owned()
            }
            ErrorCode::InProgress => {
                "The same request is still in progress. Retry it later with the same key.".to_owned()
            }
            ErrorCode::KeyReused => {
                "This idempotency key belongs to another request. Use a new key for a new request.".to_owned()
            }
            ErrorCode::SelectionUnavailable => {
                "This request was executed before, and the stored response lacks some of the selected fields.".to_owned()
            }
            ErrorCode::OutcomeUnknown => {
                "An earlier attempt at this request ended without a known outcome. It was not executed again.".to_owned()
            }
            ErrorCode::KeyExpired => {
                "This request finished too long ago for its response to be replayed. It was not executed again; check its effect before you use a new key.".to_owned()
            }
            ErrorCode::StoreUnavailable => {
                "The request was not executed, because its idempotency key could not be claimed. Retry it with the same key.".to_owned()
            }
            ErrorCode::RecordCorrupt => {
                "The stored record of this request can't be read. It was not executed again.".to_owned()
            }
            ErrorCode::ResponseNotStored => {
                "This request was executed before, and its response was not kept.".to_owned()
            }
            ErrorCode::RolledBack => {
                "The request was rolled back and changed nothing. Retry it with the same key.".to_owned()
            }
            ErrorCode::CommitRefused => {
                "The database refused to commit this request, so it changed nothing.".to_owned()
            }
            ErrorCode::DocumentTooLarge => {
                "The document asks for more than this server lets one document ask for. Nothing of it was executed.".to_owned()
            }
            ErrorCode::Misconfigured => {
                "The server's mutation is not set up for idempotent execution.".to_owned()
            }
        };
        Self {
            code,
            message,
            retry_after: None,
            mutation: None,
            first_seen_at: None,
            request_id: None,
            fields: Vec::new(),
        }
    }

    /// The same request is in progress, by an attempt whose lease has `left` to run. Most attempts take less than a
    /// second, so the retry should follow within one.
    #[must_use]
    pub fn in_progress(mutation: &str, left: Duration) -> Self {
        Self::new(ErrorCode::InProgress).mutation(mutation).retry_after(left)
    }

    /// The outcome of the request is unknown: the retry should follow when a sweeper or a person may have settled it.
    #[must_use]
    pub fn held(record: &Record, now: Timestamp) -> Self {
        let mut error = Self::new(ErrorCode::OutcomeUnknown).record(record);
        error.retry_after = Some(now.until(record.due_at).clamp(Self::SOON, Self::HELD));
        error
    }

    /// The request finished longer ago than its record is kept.
    #[must_use]
    pub fn expired(record: &Record) -> Self {
        let ended = match record.state {
            State::Failed | State::Tombstone(Ended::Failed) => "failed",
            State::Released | State::Tombstone(Ended::Released) => "was given back unfinished",
            _ => "succeeded",
        };
        Self::new(ErrorCode::KeyExpired).record(record).message(format!(
            "This request {ended}, too long ago for its response to be replayed. It was not executed again; check its \
             effect before you use a new key."
        ))
    }

    /// With this message instead of the standard one.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The mutation in question.
    #[must_use]
    pub fn mutation(mut self, mutation: impl Into<String>) -> Self {
        self.mutation = Some(mutation.into());
        self
    }

    /// How long to wait before the next try: `after`, but at most a second.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after.clamp(Duration::from_millis(1), Self::SOON));
        self
    }

    /// The next try should follow in a second; nothing is said where there is none to make.
    #[must_use]
    pub fn retry_soon(self) -> Self {
        if self.code.retryable() { self.retry_after(Self::SOON) } else { self }
    }

    const SOON: Duration = Duration::from_secs(1);
    /// A person may settle a key at any time, so a retry need not wait for the sweeper's next try.
    const HELD: Duration = Duration::from_mins(1);

    /// With those facts of the record that its own client may know.
    #[must_use]
    pub fn record(mut self, record: &Record) -> Self {
        self.mutation = Some(record.mutation.clone());
        self.first_seen_at = Some(record.created_at);
        self.request_id = Some(record.request_id);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdl_lists_every_code() {
        let sdl = include_str!("../schema/idempotency.graphql");
        for code in ErrorCode::ALL {
            assert!(sdl.contains(code.as_str()), "{code} is missing");
        }
    }
}
