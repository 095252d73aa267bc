//! [`PostgresStore`]: SQL and transactions, nothing else.
//!
//! Plain tables and static statements; no session state, no `LISTEN`, no session-level locks. That no key is ever
//! settled twice is the primary key's doing. A key that a transaction holds is told by a lock (`by_lock`) or, on request,
//! by its record (`by_row`), so that nobody waits inside the database for it.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use sqlx::{
    PgConnection, PgPool, Postgres, Row,
    postgres::{PgPoolOptions, PgRow},
};

use crate::{
    claim::{ClaimRequest, Verdict, decide},
    key::{ClientId, IdempotencyKey},
    record::{Owner, Record, RecoveryPoint, Settlement, Timestamp},
    state::State,
    store::{
        Begun, CLAIM_TRIES, Claimed, Count, Filter, Store, StoreError,
        row::{
            SettledRow, bind_claim, bind_fence, bind_filter, bind_hold, bind_request, bind_settled, bind_settlement,
            bind_take_over, milliseconds, read_count, read_identity, read_point, read_record,
        },
    },
};

mod by_lock;
mod by_row;
mod session;
#[rustfmt::skip]
mod sql;
mod time;

pub use session::Transaction;

use session::Session;

/// Records in Postgres, for production.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    transaction_pooling: bool,
    advisory_locks: bool,
    /// Whether transactions read from one snapshot here, as the first one told: see [`sql::LOCK`].
    one_snapshot: Arc<AtomicBool>,
}

/// Runs statements that are atomic together, and again where the isolation level made them fail.
///
/// A macro, because the compiler can't yet prove the future of a generic function over an async closure `Send`.
macro_rules! atomically {
    ($store:expr, |$connection:ident| $statements:block) => {{
        let mut tries = 0;
        loop {
            tries += 1;
            let mut session = $store.session().await?;
            let result = async {
                let $connection: &mut PgConnection = &mut session;
                $statements
            }
            .await;
            match session.finish(result).await {
                Err(error) if tries < SERIALIZATION_TRIES && is_serialization_failure(&error) => {}
                result => break result.map_err(StoreError::from),
            }
        }
    }};
}

impl PostgresStore {
    /// A store on an application's own pool: a transactional mutation works in the application's database.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self { pool, transaction_pooling: false, advisory_locks: true, one_snapshot: Arc::default() }
    }

    /// A store on a pool of its own, with sqlx's defaults.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database can't be reached.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Ok(Self::new(PgPoolOptions::new().connect(url).await?))
    }

    /// For a pool behind `PgBouncer` (or another pooler) in transaction mode: no prepared statement outlives its
    /// transaction, at the price of more round trips.
    #[must_use]
    pub fn transaction_pooling(mut self) -> Self {
        self.transaction_pooling = true;
        self
    }

    /// For an engine that speaks `PostgreSQL`'s protocol and has no transaction-level advisory locks: a transactional
    /// mutation takes its key by a row that is committed with its effects.
    ///
    /// It is slower, by two statements and two more round trips; a duplicate in another process holds its connection
    /// for up to 20 ms at each look; and there a key that is reused while it is held is told as such only when the
    /// transaction has ended. All processes that share the tables must agree on it.
    #[must_use]
    pub fn without_advisory_locks(mut self) -> Self {
        self.advisory_locks = false;
        self
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Brings the tables up to date. Any number of processes may call it at once.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database refuses.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut transaction = self.transaction().await?;
        // One process at a time; the others find the work done.
        sqlx::raw_sql(sql::MIGRATION_LOCK).execute(&mut *transaction).await?;
        sqlx::raw_sql(sql::MIGRATION_TABLE).execute(&mut *transaction).await?;
        for (version, statements) in (1_i32..).zip(sql::MIGRATIONS) {
            let applied = self.query(sql::MIGRATION_APPLY).bind(version).execute(&mut *transaction).await?;
            if applied.rows_affected() == 1 {
                sqlx::raw_sql(statements).execute(&mut *transaction).await?;
            }
        }
        transaction.commit().await?;
        Ok(())
    }

    fn query(&self, statement: &'static str) -> sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments> {
        sqlx::query(statement).persistent(!self.transaction_pooling)
    }

    async fn session(&self) -> Result<Session, sqlx::Error> {
        let connection = self.pool.acquire().await?;
        Ok(if self.transaction_pooling {
            Session::Transaction(Transaction::begin(connection).await?)
        } else {
            Session::Connection(connection)
        })
    }

    async fn settle_in(&self, owner: &Owner, from: State, settlement: &Settlement) -> Result<bool, StoreError> {
        if let Settlement::Hold { reason } = settlement {
            return atomically!(self, |connection| {
                let held = bind_hold!(self.query(sql::HOLD), owner, from, reason).execute(connection).await?;
                Ok(held.rows_affected() > 0)
            });
        }
        let row = SettledRow::of(settlement);
        // What was lost keeps its record and its request id, whoever says that it never happened: a call of it may
        // still be on its way.
        let release = from == State::InProgress && matches!(settlement, Settlement::Release { .. });
        let statement = if release { sql::RELEASE } else { sql::SETTLE };
        atomically!(self, |connection| {
            let settled =
                bind_settlement!(bind_fence!(self.query(statement), owner), from, row).execute(connection).await?;
            Ok(settled.rows_affected() > 0)
        })
    }

    async fn write_point(
        &self,
        connection: &mut PgConnection,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        let written = bind_fence!(self.query(sql::CHECKPOINT), owner)
            .bind(milliseconds(lease))
            .bind(&point.name)
            .bind(point.kind.as_str())
            .bind(point.result.as_deref())
            .execute(connection)
            .await?;
        Ok(written.rows_affected() > 0)
    }

    async fn insert_settled(
        &self,
        connection: &mut PgConnection,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<bool, sqlx::Error> {
        let row = SettledRow::of(settlement);
        let inserted = bind_settled!(self.query(sql::INSERT_SETTLED), request, row).execute(connection).await?;
        Ok(inserted.rows_affected() == 1)
    }

    async fn count_rows(&self, statement: &'static str, batch: u32) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            Ok(self.query(statement).bind(i64::from(batch)).execute(connection).await?.rows_affected())
        })
    }
}

impl Store for PostgresStore {
    type Transaction = Transaction;
    type Connection = PgConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        for _ in 0..CLAIM_TRIES {
            let claimed = atomically!(self, |connection| {
                let claim = bind_claim!(self.query(sql::CLAIM), request).bind(request.resumes);
                let row = claim.fetch_one(&mut *connection).await?;
                if let Some(created_at) = row.try_get("taken_at")? {
                    return Ok(Some(Claimed::Taken { owner: request.owner(request.request_id, 1), created_at }));
                }
                let Some((record, now)) = read_found(&row, &request.client, &request.key)? else { return Ok(None) };
                let verdict = decide(Some(&record), request, now);
                if verdict != Verdict::TakeOver {
                    return Ok(Some(Claimed::Found { record: Box::new(record), verdict, now }));
                }
                let taken = bind_take_over!(self.query(sql::TAKE_OVER), request, record).execute(connection).await?;
                Ok((taken.rows_affected() == 1)
                    .then(|| Claimed::Taken { owner: record.next_owner(), created_at: record.created_at }))
            })?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Ok(Claimed::Contended)
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<Transaction>, StoreError> {
        if self.advisory_locks { self.begin_by_lock(request).await } else { self.begin_by_row(request).await }
    }

    async fn commit(
        &self,
        mut transaction: Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        let settled = if self.advisory_locks {
            self.insert_settled(&mut transaction, request, settlement).await
        } else {
            self.settle_row(&mut transaction, request, settlement).await
        };
        match settled {
            Ok(true) => transaction.commit().await.map_err(commit_failed),
            Ok(false) => {
                transaction.rollback().await?;
                Err(StoreError::RolledBack("another transaction settled the key first".into()))
            }
            // COMMIT was never sent.
            Err(error) => Err(StoreError::RolledBack(error.into())),
        }
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        Ok(transaction.rollback().await?)
    }

    async fn record(&self, request: &ClaimRequest, settlement: &Settlement) -> Result<bool, StoreError> {
        atomically!(self, |connection| { self.insert_settled(connection, request, settlement).await })
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        atomically!(self, |connection| {
            let renewed =
                bind_fence!(self.query(sql::RENEW), owner).bind(milliseconds(lease)).execute(connection).await?;
            Ok(renewed.rows_affected() == 1)
        })
    }

    async fn settle(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.settle_in(owner, State::InProgress, settlement).await
    }

    async fn resolve(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, StoreError> {
        self.settle_in(owner, State::NeedsRecovery, settlement).await
    }

    async fn transaction(&self) -> Result<Transaction, StoreError> {
        Ok(Transaction::begin(self.pool.acquire().await?).await?)
    }

    async fn checkpoint(&self, owner: &Owner, point: &RecoveryPoint, lease: Duration) -> Result<bool, StoreError> {
        atomically!(self, |connection| { self.write_point(connection, owner, point, lease).await })
    }

    async fn checkpoint_with(
        &self,
        mut transaction: Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        match self.write_point(&mut transaction, owner, point, lease).await {
            Ok(true) => transaction.commit().await.map(|()| true).map_err(commit_failed),
            Ok(false) => {
                transaction.rollback().await?;
                Ok(false)
            }
            Err(error) => Err(StoreError::RolledBack(error.into())),
        }
    }

    async fn points(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        atomically!(self, |connection| {
            let rows = self.query(sql::POINTS).bind(client.as_str()).bind(key.as_str()).fetch_all(connection).await?;
            rows.iter().map(|row| read_point!(row)).collect()
        })
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<(Record, Timestamp)>, StoreError> {
        atomically!(self, |connection| {
            let find = self.query(sql::FIND).bind(client.as_str()).bind(key.as_str());
            match find.fetch_optional(connection).await? {
                Some(row) => read_found(&row, client, key),
                None => Ok(None),
            }
        })
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        atomically!(self, |connection| {
            let rows = bind_filter!(self.query(sql::LIST), filter).fetch_all(connection).await?;
            rows.iter().map(identified).collect()
        })
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        atomically!(self, |connection| {
            let rows = self.query(sql::COUNT).fetch_all(connection).await?;
            rows.iter().map(|row| read_count!(row)).collect()
        })
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        self.count_rows(sql::LAPSE, batch).await
    }

    async fn recoverable(&self, batch: u32, backoff: Duration) -> Result<Vec<Record>, StoreError> {
        atomically!(self, |connection| {
            let rows = self
                .query(sql::RECOVERABLE)
                .bind(i64::from(batch))
                .bind(milliseconds(backoff))
                .fetch_all(connection)
                .await?;
            rows.iter().map(identified).collect()
        })
    }

    async fn expire(&self, batch: u32, tombstone: Duration) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            let expire = self.query(sql::EXPIRE).bind(i64::from(batch)).bind(milliseconds(tombstone));
            Ok(expire.execute(connection).await?.rows_affected())
        })
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        self.count_rows(sql::PURGE, batch).await
    }
}

/// How often statements are run again that the isolation level or a deadlock made fail.
const SERIALIZATION_TRIES: usize = 8;

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| codes.contains(&&*code))
}

/// What a failed COMMIT means: undone where the database says so, and unknown where the connection broke or the
/// server went away (classes 08 and 57) before it could say anything.
fn commit_failed(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().map(|database| database.code().unwrap_or_default().into_owned());
    match code {
        Some(code) if !code.starts_with("08") && !code.starts_with("57") => StoreError::RolledBack(error.into()),
        _ => StoreError::InDoubt(error.into()),
    }
}

/// `serialization_failure` and `deadlock_detected`.
fn is_serialization_failure(error: &sqlx::Error) -> bool {
    has_code(error, &["40001", "40P01"])
}

/// The record of a row that may have none, and the store's time.
fn read_found(
    row: &PgRow,
    client: &ClientId,
    key: &IdempotencyKey,
) -> Result<Option<(Record, Timestamp)>, sqlx::Error> {
    if row.try_get::<Option<String>, _>("state")?.is_none() {
        return Ok(None);
    }
    Ok(Some((read_record!(row, client.clone(), key.clone())?, row.try_get("now")?)))
}

fn identified(row: &PgRow) -> Result<Record, sqlx::Error> {
    let (client, key) = read_identity!(row);
    read_record!(row, client, key)
}
