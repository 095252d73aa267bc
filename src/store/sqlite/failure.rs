//! What an error of the database means: whether anything was kept, and who can do something about it.

use sqlx::{Error, error::DatabaseError};

use crate::store::StoreError;

/// Where an error occurred.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum During {
    /// Before a statement was sent, or in a transaction that was not asked to commit.
    Transaction,
    /// In a statement that commits itself.
    Statement,
    /// In COMMIT, of a transaction in which the application has written too.
    Commit,
}

/// SQLite's primary result codes.
const ERROR: u32 = 1;
const BUSY: u32 = 5;
const IO: u32 = 10;
const CONSTRAINT: u32 = 19;

/// What an error means for the call.
pub(super) fn failed(error: Error, during: During) -> StoreError {
    match (&error, code(&error)) {
        (Error::Decode(source), _) => StoreError::Corrupt(source.to_string()),
        (Error::ColumnDecode { index, source }, _) => StoreError::Corrupt(format!("{index}: {source}")),
        // "no such table" and the like.
        (_, Some(ERROR)) => StoreError::Misconfigured(error.into()),
        _ if during == During::Transaction => StoreError::Undone(error.into()),
        (_, Some(CONSTRAINT)) if during == During::Commit => StoreError::Rejected(error.into()),
        (_, Some(code)) if code != IO => StoreError::Undone(error.into()),
        (Error::PoolTimedOut | Error::PoolClosed | Error::Encode(_), None) => StoreError::Undone(error.into()),
        _ => StoreError::InDoubt(error.into()),
    }
}

/// `SQLITE_BUSY` and its extended codes.
pub(super) fn is_busy(error: &Error) -> bool {
    code(error) == Some(BUSY)
}

/// The primary result code.
fn code(error: &Error) -> Option<u32> {
    let code = error.as_database_error().and_then(DatabaseError::code)?;
    code.parse::<u32>().ok().map(|code| code & 0xff)
}
