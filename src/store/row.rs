//! Turns records into parameters and rows into records, for every backend that uses SQL through sqlx.
//!
//! Macros, because the types of queries and rows have nothing in common but their methods.

use std::time::Duration;

use crate::{record::Settlement, state::State};

/// The columns of a record.
macro_rules! record_columns {
    () => {
        "r.mutation, r.fingerprint, r.selection, CAST(r.state AS text) AS state, r.request_id, r.attempt, r.due_at, \
         r.body, r.reason, r.recoveries, r.created_at, r.ended_at"
    };
}

/// Reads a record from a row with the columns of [`record_columns`].
macro_rules! read_record {
    ($row:expr, $client:expr, $key:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let state = $crate::store::row::read_state!(row);
        let fingerprint: Vec<u8> = row.try_get("fingerprint")?;
        let body: Option<Vec<u8>> = row.try_get("body")?;
        let (request, response) = if $crate::store::row::keeps_request(state) { (body, None) } else { (None, body) };
        Ok::<_, sqlx::Error>($crate::record::Record {
            client: $client,
            key: $key,
            mutation: row.try_get("mutation")?,
            fingerprint: $crate::fingerprint::Fingerprint::from_bytes(&fingerprint)
                .ok_or_else(|| $crate::store::row::unreadable("fingerprint"))?,
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
            ended_at: row.try_get("ended_at")?,
        })
    }};
}

/// Reads the state of a row.
macro_rules! read_state {
    ($row:expr) => {{
        let word: String = $row.try_get("state")?;
        $crate::state::State::parse(&word).ok_or_else(|| $crate::store::row::unreadable("state"))?
    }};
}

/// Reads a record from a row that has its client and key, too.
macro_rules! read_any_record {
    ($row:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        let client = $crate::key::ClientId::new(row.try_get::<String, _>("client")?)
            .map_err(|_| $crate::store::row::unreadable("client"))?;
        let key = $crate::key::IdempotencyKey::new(row.try_get::<String, _>("key")?)
            .map_err(|_| $crate::store::row::unreadable("key"))?;
        $crate::store::row::read_record!(row, client, key)
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

/// Reads a row of `COUNT`.
macro_rules! read_count {
    ($row:expr) => {{
        use sqlx::Row as _;
        let row = $row;
        Ok::<_, sqlx::Error>($crate::store::Count {
            mutation: row.try_get("mutation")?,
            state: $crate::store::row::read_state!(row),
            records: row.try_get("records")?,
            oldest: row.try_get("oldest")?,
        })
    }};
}

/// Which record it is: the first three parameters of nearly every statement.
macro_rules! bind_key {
    ($query:expr, $namespace:expr, $of:expr) => {
        $query.bind(&*$namespace).bind($of.client.as_str()).bind($of.key.as_str())
    };
}

/// The fence: the first five parameters of every write after the claim.
macro_rules! bind_fence {
    ($query:expr, $namespace:expr, $owner:expr) => {
        $crate::store::row::bind_key!($query, $namespace, $owner).bind($owner.request_id).bind($owner.attempt)
    };
}

/// What a record keeps of a request: the first seven parameters of the statements that make one.
macro_rules! bind_request {
    ($query:expr, $namespace:expr, $request:expr) => {
        $crate::store::row::bind_key!($query, $namespace, $request)
            .bind(&*$request.mutation)
            .bind(&$request.fingerprint.to_bytes()[..])
            .bind(&*$request.selection)
            .bind($request.request_id)
    };
}

/// The parameters of `CLAIM`.
macro_rules! bind_claim {
    ($query:expr, $namespace:expr, $request:expr) => {
        $crate::store::row::bind_request!($query, $namespace, $request)
            .bind($crate::store::row::milliseconds($request.lease))
            .bind($request.request.as_deref())
    };
}

/// The parameters of `TAKE_OVER`.
macro_rules! bind_take_over {
    ($query:expr, $namespace:expr, $request:expr, $record:expr) => {
        $crate::store::row::bind_fence!($query, $namespace, $record)
            .bind($record.state.as_str())
            .bind($crate::store::row::milliseconds($request.lease))
            .bind(&*$request.selection)
            .bind($request.request.as_deref())
    };
}

/// The parameters of a settlement, after those that identify the record.
macro_rules! bind_settlement {
    ($query:expr, $row:expr) => {
        $query.bind($row.state).bind($row.response).bind($row.reason).bind($row.due_in)
    };
}

/// The parameters of a step.
macro_rules! bind_point {
    ($query:expr, $point:expr) => {
        $query.bind(&$point.name).bind($point.kind.as_str()).bind($point.result.as_deref())
    };
}

/// The parameters of `LIST`.
macro_rules! bind_filter {
    ($query:expr, $namespace:expr, $filter:expr) => {
        $query
            .bind(&*$namespace)
            .bind($filter.state.map($crate::state::State::as_str))
            .bind($filter.mutation.as_deref())
            .bind($filter.client.as_ref().map($crate::key::ClientId::as_str))
            .bind($filter.older_than.map($crate::store::row::milliseconds))
            .bind($filter.limit())
    };
}

pub(crate) use {
    bind_claim, bind_fence, bind_filter, bind_key, bind_point, bind_request, bind_settlement, bind_take_over,
    read_any_record, read_count, read_point, read_record, read_state, record_columns,
};

/// A column that holds what this crate never writes.
pub(crate) fn unreadable(column: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("the column {column} holds no such value").into())
}

/// Whether the body of a record is its kept request, and not its response.
pub(crate) fn keeps_request(state: State) -> bool {
    matches!(state, State::InProgress | State::NeedsRecovery)
}

/// Milliseconds as SQL takes them.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// The columns of a settlement.
pub(crate) struct SettledRow<'a> {
    pub(crate) state: &'static str,
    pub(crate) response: Option<&'a [u8]>,
    pub(crate) reason: Option<&'a str>,
    /// Milliseconds from now until the record is due.
    pub(crate) due_in: i64,
}

/// What a settlement does to a record.
pub(crate) enum Write<'a> {
    /// Writes these columns.
    Settle(SettledRow<'a>),
    /// Holds it, for this reason.
    Hold(&'a str),
    /// Deletes it.
    Delete,
}

impl<'a> Write<'a> {
    pub(crate) fn of(settlement: &'a Settlement) -> Self {
        let Some(state) = settlement.state().map(State::as_str) else { return Self::Delete };
        let (response, reason, time) = match settlement {
            Settlement::Settling { response, lease, .. } => (response.as_deref(), None, *lease),
            Settlement::Complete { response, retention, reason, .. } => {
                (response.as_deref(), reason.as_deref(), *retention)
            }
            Settlement::Release { stays, reason } => (None, reason.as_deref(), stays.unwrap_or_default()),
            Settlement::Hold { reason } => return Self::Hold(reason),
        };
        Self::Settle(SettledRow { state, response, reason, due_in: milliseconds(time) })
    }
}
