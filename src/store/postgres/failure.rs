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

/// What an error means for the call.
pub(super) fn failed(error: Error, during: During) -> StoreError {
    let code = error.as_database_error().and_then(DatabaseError::code).map(std::borrow::Cow::into_owned);
    match (&error, code.as_deref()) {
        (Error::Decode(source), _) => StoreError::Corrupt(source.to_string()),
        (Error::ColumnDecode { index, source }, _) => StoreError::Corrupt(format!("{index}: {source}")),
        (_, Some(code)) if is_set_up(code) => StoreError::Misconfigured(error.into()),
        _ if during == During::Transaction => StoreError::Undone(error.into()),
        (_, Some(code)) if during == During::Commit && is_rule(code) => StoreError::Rejected(error.into()),
        (_, Some(code)) if !is_unknown(code) => StoreError::Undone(error.into()),
        // Never sent.
        (Error::PoolTimedOut | Error::PoolClosed | Error::Encode(_) | Error::InvalidArgument(_), None) => {
            StoreError::Undone(error.into())
        }
        _ => StoreError::InDoubt(error.into()),
    }
}

/// Whether the server does not say what became of the statement: connection exceptions (class 08), the server going
/// away (57P01 to 57P03), `statement_completion_unknown`.
fn is_unknown(code: &str) -> bool {
    code.starts_with("08") || code.starts_with("57P") || code == "40003"
}

/// Whether what was written breaks a rule of the application's own: a constraint (class 23), a view's check (44), an
/// exception that a trigger raises (class P0).
fn is_rule(code: &str) -> bool {
    ["23", "44", "P0"].iter().any(|class| code.starts_with(class))
}

/// Whether a table, a column, a type or a right is missing.
fn is_set_up(code: &str) -> bool {
    ["42501", "42P01", "42703", "42704", "42883", "3F000"].contains(&code)
}

/// `read_only_sql_transaction`.
pub(super) fn is_read_only(error: &Error) -> bool {
    has_code(error, &["25006"])
}

/// `serialization_failure` and `deadlock_detected`.
pub(super) fn is_serialization_failure(error: &Error) -> bool {
    has_code(error, &["40001", "40P01"])
}

/// `lock_not_available`: the statement has waited for long enough.
pub(super) fn is_locked(error: &Error) -> bool {
    has_code(error, &["55P03"])
}

/// The errors that processes get when they make the same table at once.
pub(super) fn is_made_twice(error: &Error) -> bool {
    has_code(error, &["23505", "42P07", "42710", "40001", "40P01"])
}

fn has_code(error: &Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(DatabaseError::code).is_some_and(|code| codes.contains(&&*code))
}
