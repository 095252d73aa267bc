//! Records to parameters and rows to records, the same for every backend that speaks SQL through sqlx.
//!
//! Macros, because the types of queries and rows have nothing in common but their methods.

use crate::store::StoreError;

/// The columns of a record.
macro_rules! record_columns {
    () => {
        "r.mutation, r.fingerprint, r.fingerprint_version, r.selection, CAST(r.state AS text) AS state, r.request_id, \
         r.attempt, r.due_at, r.body, r.reason, r.recoveries, r.created_at, r.updated_at"
    };
}

/// Reads the columns of [`record_columns`] of a row that has a record.
macro_rules! read_record {
    ($row:expr, $client:expr, $key:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let state: String = row.try_get("state")?;
        let state = $crate::state::State::parse(&state).ok_or_else(|| $crate::store::row::unreadable("state"))?;
        let hash: Vec<u8> = row.try_get("fingerprint")?;
        let body: Option<Vec<u8>> = row.try_get("body")?;
        let (request, response) = if state.is_open() { (body, None) } else { (None, body) };
        Ok::<_, sqlx::Error>($crate::record::Record {
            client: $client,
            key: $key,
            mutation: row.try_get("mutation")?,
            fingerprint: $crate::fingerprint::Fingerprint {
                version: row.try_get("fingerprint_version")?,
                hash: hash.try_into().map_err(|_| $crate::store::row::unreadable("fingerprint"))?,
            },
            selection: row.try_get("selection")?,
            state,
            request_id: row.try_get("request_id")?,
            attempt: row.try_get("attempt")?,
            due_at: row.try_get("due_at")?,
            response,
            request,
            reason: row.try_get("reason")?,
            recoveries: row.try_get("recoveries")?,
            created_at: row.try_get("created_at")?,
            updated_at: row.try_get("updated_at")?,
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

/// Reads a row of how many records there are.
macro_rules! read_count {
    ($row:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let state: String = row.try_get("state")?;
        Ok::<_, sqlx::Error>($crate::store::Count {
            mutation: row.try_get("mutation")?,
            state: $crate::state::State::parse(&state).ok_or_else(|| $crate::store::row::unreadable("state"))?,
            records: row.try_get("records")?,
            oldest: row.try_get("oldest")?,
        })
    }};
}

/// The fence: the first four parameters of every write after the claim.
macro_rules! bind_fence {
    ($query:expr, $owner:expr) => {
        $query.bind($owner.client.as_str()).bind($owner.key.as_str()).bind($owner.request_id).bind($owner.attempt)
    };
}

/// What a record keeps of a request: the first six parameters of the statements that make one.
macro_rules! bind_request {
    ($query:expr, $request:expr) => {
        $query
            .bind($request.client.as_str())
            .bind($request.key.as_str())
            .bind(&*$request.mutation)
            .bind(&$request.fingerprint.hash[..])
            .bind($request.fingerprint.version)
            .bind(&*$request.selection)
    };
}

/// The parameters of `CLAIM`, the first nine.
macro_rules! bind_claim {
    ($query:expr, $request:expr) => {
        bind_request!($query, $request)
            .bind($request.request_id)
            .bind($crate::store::row::milliseconds($request.lease))
            .bind($request.request.as_deref())
    };
}

/// The parameters of `TAKE_OVER`.
macro_rules! bind_take_over {
    ($query:expr, $request:expr, $record:expr) => {
        bind_fence!($query, $record)
            .bind($record.state.as_str())
            .bind($crate::store::row::milliseconds($request.lease))
            .bind(&*$request.selection)
            .bind($request.request.as_deref())
    };
}

/// The parameters of `SETTLE` and of the releases after the fence.
macro_rules! bind_settlement {
    ($query:expr, $from:expr, $row:expr) => {
        $query.bind($from.as_str()).bind($row.state).bind($row.response).bind($row.reason).bind($row.due_in)
    };
}

/// The parameters of `HOLD`.
macro_rules! bind_hold {
    ($query:expr, $owner:expr, $from:expr, $reason:expr) => {
        bind_fence!($query, $owner).bind($from.as_str()).bind($reason)
    };
}

/// The parameters of `INSERT_SETTLED`.
macro_rules! bind_settled {
    ($query:expr, $request:expr, $row:expr) => {
        bind_request!($query, $request)
            .bind($row.state)
            .bind($request.request_id)
            .bind($row.response)
            .bind($row.reason)
            .bind($row.due_in)
    };
}

/// The parameters of `LIST`.
macro_rules! bind_filter {
    ($query:expr, $filter:expr) => {
        $query
            .bind($filter.state.map($crate::state::State::as_str))
            .bind($filter.mutation.as_deref())
            .bind($filter.client.as_ref().map($crate::key::ClientId::as_str))
            .bind($filter.older_than.map($crate::store::row::milliseconds))
            .bind($filter.limit())
    };
}

pub(crate) use {
    bind_claim, bind_fence, bind_filter, bind_hold, bind_request, bind_settled, bind_settlement, bind_take_over,
    read_count, read_identity, read_point, read_record, record_columns,
};

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
