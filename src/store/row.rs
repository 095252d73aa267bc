//! Rows to records, the same for every backend that speaks SQL through sqlx.

use crate::store::StoreError;

/// The columns of a record, with their times in milliseconds.
///
/// `$ms` is the macro that turns a column of the backend's time into milliseconds.
macro_rules! record_columns {
    ($ms:ident) => {
        concat!(
            "r.mutation, r.fingerprint, r.fingerprint_version, r.selection, r.state, r.request_id, r.attempt, ",
            $ms!("r.due_at"),
            " AS due_at, r.response, r.request, r.reason, r.recoveries, ",
            $ms!("r.created_at"),
            " AS created_at, ",
            $ms!("r.updated_at"),
            " AS updated_at"
        )
    };
}

/// Reads the columns of [`record_columns`] of a row that has a record.
macro_rules! read_record {
    ($row:expr, $client:expr, $key:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let state: String = row.try_get("state")?;
        let hash: Vec<u8> = row.try_get("fingerprint")?;
        Ok::<_, sqlx::Error>($crate::record::Record {
            client: $client,
            key: $key,
            mutation: row.try_get("mutation")?,
            fingerprint: $crate::fingerprint::Fingerprint {
                version: row.try_get("fingerprint_version")?,
                hash: hash.try_into().map_err(|_| $crate::store::row::unreadable("fingerprint"))?,
            },
            selection: row.try_get("selection")?,
            state: $crate::state::State::parse(&state).ok_or_else(|| $crate::store::row::unreadable("state"))?,
            request_id: row.try_get("request_id")?,
            attempt: row.try_get("attempt")?,
            due_at: $crate::record::Timestamp(row.try_get("due_at")?),
            response: row.try_get("response")?,
            request: row.try_get("request")?,
            reason: row.try_get("reason")?,
            recoveries: row.try_get("recoveries")?,
            created_at: $crate::record::Timestamp(row.try_get("created_at")?),
            updated_at: $crate::record::Timestamp(row.try_get("updated_at")?),
        })
    }};
}

/// Reads the client and the key of a row.
macro_rules! read_identity {
    ($row:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let client = $crate::key::ClientId::new(row.try_get::<String, _>("client")?)
            .map_err(|_| $crate::store::row::unreadable("client"))?;
        let key = $crate::key::IdempotencyKey::new(row.try_get::<String, _>("key")?)
            .map_err(|_| $crate::store::row::unreadable("key"))?;
        (client, key)
    }};
}

/// Reads a row of `idempotency_steps`.
macro_rules! read_point {
    ($row:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let kind: String = row.try_get("kind")?;
        Ok::<_, sqlx::Error>($crate::record::RecoveryPoint {
            name: row.try_get("name")?,
            kind: $crate::record::StepKind::parse(&kind).ok_or_else(|| $crate::store::row::unreadable("kind"))?,
            attempt: row.try_get("attempt")?,
            result: row.try_get("result")?,
        })
    }};
}

pub(crate) use {read_identity, read_point, read_record, record_columns};

/// A column that holds what this crate never writes.
pub(crate) fn unreadable(column: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the column {column} holds no such value").into())
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Decode(source) => Self::Corrupt(source.to_string()),
            sqlx::Error::ColumnDecode { index, source } => Self::Corrupt(format!("{index}: {source}")),
            other => Self::Unavailable(other.into()),
        }
    }
}

/// Milliseconds as SQL takes them.
pub(crate) fn milliseconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// A [`Settlement`](crate::record::Settlement) as columns.
pub(crate) struct SettledRow<'a> {
    pub(crate) state: &'static str,
    pub(crate) response: Option<&'a [u8]>,
    pub(crate) reason: Option<&'a str>,
    /// Milliseconds from now until the record is due.
    pub(crate) due_in: i64,
}

impl<'a> SettledRow<'a> {
    pub(crate) fn of(settlement: &'a crate::record::Settlement) -> Self {
        use crate::{record::Settlement, state::State};
        match settlement {
            Settlement::Finish { outcome, response, retention, reason } => Self {
                state: outcome.state().as_str(),
                response: response.as_deref(),
                reason: reason.as_deref(),
                due_in: milliseconds(*retention),
            },
            Settlement::Release { retention, reason } => Self {
                state: State::Released.as_str(),
                response: None,
                reason: reason.as_deref(),
                due_in: milliseconds(*retention),
            },
            Settlement::Hold { reason } => {
                Self { state: State::NeedsRecovery.as_str(), response: None, reason: Some(reason), due_in: 0 }
            }
        }
    }
}
