//! [`SqliteStore`]: SQL and transactions, nothing else.
//!
//! SQLite has one writer. Writers of one process queue for it in memory, in order; those of several processes
//! meet in SQLite's own lock and wait there, so that no client ever sees "database is locked".

use std::{sync::Arc, time::Duration};

use sqlx::{
    Row, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow},
};
use tokio::sync::Semaphore;

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

mod session;
#[rustfmt::skip]
mod sql;
mod time;

pub use session::Transaction;

/// Records in a SQLite file, the embedded default.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    /// The right to write, one in a process.
    writer: Arc<Semaphore>,
}

/// Runs statements that are atomic together.
///
/// A macro, because the compiler can't yet prove the future of a generic function over an async closure `Send`.
macro_rules! atomically {
    ($store:expr, |$connection:ident| $statements:block) => {{
        let mut transaction = $store.transaction().await?;
        let result: Result<_, sqlx::Error> = async {
            let $connection: &mut SqliteConnection = &mut transaction;
            $statements
        }
        .await;
        match result {
            Ok(value) => transaction.commit().await.map(|()| value),
            Err(error) => Err(error),
        }
        .map_err(StoreError::from)
    }};
}

impl SqliteStore {
    /// A store on an application's own pool: a transactional mutation works in the application's file. The file
    /// should be in WAL mode ([`SqliteStore::connect`] sets it).
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self { pool, writer: Arc::new(Semaphore::new(1)) }
    }

    /// A store on a pool of its own: a file in WAL mode that is made when it is missing (`sqlite:payments.db`),
    /// with a busy timeout of 5 s.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the file can't be opened.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options: SqliteConnectOptions = url.parse()?;
        let options =
            options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal).busy_timeout(Duration::from_secs(5));
        Ok(Self::new(SqlitePoolOptions::new().connect_with(options).await?))
    }

    /// A migrated store in memory, for tests and trials, pinned to one connection so that it can't lose its
    /// data.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when SQLite refuses.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let pool = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(SqliteConnectOptions::new().in_memory(true))
            .await?;
        let store = Self::new(pool);
        store.migrate().await?;
        Ok(store)
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Brings the tables up to date. Any number of processes may call it at once.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the database refuses.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut transaction = self.transaction().await?;
        sqlx::raw_sql(sql::MIGRATION_TABLE).execute(&mut *transaction).await?;
        for (version, statements) in (1_i32..).zip(sql::MIGRATIONS) {
            let applied = sqlx::query(sql::MIGRATION_APPLY).bind(version).execute(&mut *transaction).await?;
            if applied.rows_affected() == 1 {
                sqlx::raw_sql(statements).execute(&mut *transaction).await?;
            }
        }
        Ok(transaction.commit().await?)
    }

    async fn settle_in(&self, owner: &Owner, from: State, settlement: &Settlement) -> Result<bool, StoreError> {
        if let Settlement::Hold { reason } = settlement {
            return atomically!(self, |connection| {
                let held = bind_hold!(sqlx::query(sql::HOLD), owner, from, reason).execute(connection).await?;
                Ok(held.rows_affected() > 0)
            });
        }
        let row = SettledRow::of(settlement);
        // What was lost keeps its record and its request id, whoever says that it never happened: a call of it may
        // still be on its way.
        let release = from == State::InProgress && matches!(settlement, Settlement::Release { .. });
        let statement = if release { sql::RELEASE_KEPT } else { sql::SETTLE };
        atomically!(self, |connection| {
            let settled = bind_settlement!(bind_fence!(sqlx::query(statement), owner), from, row)
                .execute(&mut *connection)
                .await?;
            if settled.rows_affected() > 0 || !release {
                return Ok(settled.rows_affected() > 0);
            }
            let gone =
                bind_fence!(sqlx::query(sql::RELEASE_GONE), owner).bind(from.as_str()).execute(connection).await?;
            Ok(gone.rows_affected() > 0)
        })
    }

    async fn write_point(
        connection: &mut SqliteConnection,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        let held =
            bind_fence!(sqlx::query(sql::RENEW), owner).bind(milliseconds(lease)).execute(&mut *connection).await?;
        if held.rows_affected() == 0 {
            return Ok(false);
        }
        sqlx::query(sql::CHECKPOINT)
            .bind(owner.client.as_str())
            .bind(owner.key.as_str())
            .bind(&point.name)
            .bind(point.kind.as_str())
            .bind(owner.attempt)
            .bind(point.result.as_deref())
            .execute(connection)
            .await?;
        Ok(true)
    }

    async fn insert_settled(
        connection: &mut SqliteConnection,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<bool, sqlx::Error> {
        let row = SettledRow::of(settlement);
        let inserted = bind_settled!(sqlx::query(sql::INSERT_SETTLED), request, row).execute(connection).await?;
        Ok(inserted.rows_affected() == 1)
    }

    async fn count_rows(&self, statement: &'static str, batch: u32) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            Ok(sqlx::query(statement).bind(i64::from(batch)).execute(connection).await?.rows_affected())
        })
    }
}

impl Store for SqliteStore {
    type Transaction = Transaction;
    type Connection = SqliteConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        // A replay only reads, and so does not queue for the right to write.
        if let Some((record, now)) = self.find(&request.client, &request.key).await? {
            let verdict = decide(Some(&record), request, now);
            if verdict != Verdict::TakeOver {
                return Ok(Claimed::Found { record: Box::new(record), verdict, now });
            }
        }
        for _ in 0..CLAIM_TRIES {
            let claimed = atomically!(self, |connection| {
                let (record, now) = find(connection, &request.client, &request.key).await?;
                let verdict = decide(record.as_ref(), request, now);
                match (record, verdict) {
                    (None, _) if request.resumes => Ok(None),
                    (None, _) => {
                        let taken = bind_claim!(sqlx::query(sql::CLAIM), request).execute(connection).await?;
                        Ok((taken.rows_affected() == 1)
                            .then(|| Claimed::Taken { owner: request.owner(request.request_id, 1), created_at: now }))
                    }
                    (Some(record), Verdict::TakeOver) => {
                        let taken =
                            bind_take_over!(sqlx::query(sql::TAKE_OVER), request, record).execute(connection).await?;
                        Ok((taken.rows_affected() == 1)
                            .then(|| Claimed::Taken { owner: record.next_owner(), created_at: record.created_at }))
                    }
                    (Some(record), verdict) => Ok(Some(Claimed::Found { record: Box::new(record), verdict, now })),
                }
            })?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Ok(Claimed::Contended)
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<Transaction>, StoreError> {
        if let Some((record, now)) = self.find(&request.client, &request.key).await? {
            return Ok(Begun::found(record, now, request));
        }
        // With the right to write nobody else can hold the key, or take it before the transaction ends.
        let mut transaction = self.transaction().await?;
        let (record, now) = find(&mut transaction, &request.client, &request.key).await?;
        let Some(record) = record else {
            return Ok(Begun::Taken { transaction, created_at: now });
        };
        transaction.rollback().await?;
        Ok(Begun::found(record, now, request))
    }

    async fn commit(
        &self,
        mut transaction: Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        match Self::insert_settled(&mut transaction, request, settlement).await {
            Ok(true) => transaction.commit().await.map_err(commit_failed),
            Ok(false) => {
                transaction.rollback().await?;
                Err(StoreError::RolledBack("another transaction settled the key first".into()))
            }
            Err(error) => Err(StoreError::RolledBack(error.into())),
        }
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        Ok(transaction.rollback().await?)
    }

    async fn record(&self, request: &ClaimRequest, settlement: &Settlement) -> Result<bool, StoreError> {
        atomically!(self, |connection| { Self::insert_settled(connection, request, settlement).await })
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        atomically!(self, |connection| {
            let renewed =
                bind_fence!(sqlx::query(sql::RENEW), owner).bind(milliseconds(lease)).execute(connection).await?;
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
        let permit =
            Arc::clone(&self.writer).acquire_owned().await.map_err(|closed| StoreError::Unavailable(closed.into()))?;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.pool.begin_with("BEGIN IMMEDIATE").await {
                Ok(inner) => {
                    return Ok(Transaction::new(inner, permit));
                }
                // Another process has been writing for longer than the busy timeout.
                Err(error) if tries < BUSY_TRIES && is_busy(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn checkpoint(&self, owner: &Owner, point: &RecoveryPoint, lease: Duration) -> Result<bool, StoreError> {
        atomically!(self, |connection| { Self::write_point(connection, owner, point, lease).await })
    }

    async fn checkpoint_with(
        &self,
        mut transaction: Transaction,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        match Self::write_point(&mut transaction, owner, point, lease).await {
            Ok(true) => transaction.commit().await.map(|()| true).map_err(commit_failed),
            Ok(false) => {
                transaction.rollback().await?;
                Ok(false)
            }
            Err(error) => Err(StoreError::RolledBack(error.into())),
        }
    }

    async fn points(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        let rows = sqlx::query(sql::POINTS).bind(client.as_str()).bind(key.as_str()).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(|row| read_point!(row)).collect::<Result<_, _>>()?)
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<(Record, Timestamp)>, StoreError> {
        let (record, now) = find(&mut *self.pool.acquire().await?, client, key).await?;
        Ok(record.map(|record| (record, now)))
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let rows = bind_filter!(sqlx::query(sql::LIST), filter).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(identified).collect::<Result<_, _>>()?)
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        let rows = sqlx::query(sql::COUNT).fetch_all(&self.pool).await?;
        Ok(rows.iter().map(|row| read_count!(row)).collect::<Result<_, _>>()?)
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        self.count_rows(sql::LAPSE, batch).await
    }

    async fn recoverable(&self, batch: u32, backoff: Duration) -> Result<Vec<Record>, StoreError> {
        atomically!(self, |connection| {
            let rows = sqlx::query(sql::RECOVERABLE)
                .bind(i64::from(batch))
                .bind(milliseconds(backoff))
                .fetch_all(connection)
                .await?;
            rows.iter().map(identified).collect()
        })
    }

    async fn expire(&self, batch: u32, tombstone: Duration) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            sqlx::query(sql::EXPIRE_STEPS).bind(i64::from(batch)).execute(&mut *connection).await?;
            let done = sqlx::query(sql::EXPIRE)
                .bind(i64::from(batch))
                .bind(milliseconds(tombstone))
                .execute(connection)
                .await?;
            Ok(done.rows_affected())
        })
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        self.count_rows(sql::PURGE, batch).await
    }
}

/// How many busy timeouts a writer waits for one of another process.
const BUSY_TRIES: usize = 6;

/// What a failed COMMIT means: undone where the database says so, and unknown where its worker is gone.
fn commit_failed(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(_) => StoreError::RolledBack(error.into()),
        other => StoreError::InDoubt(other.into()),
    }
}

/// `SQLITE_BUSY` and its extended codes.
fn is_busy(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .and_then(|code| code.parse::<u32>().ok())
        .is_some_and(|code| code & 0xff == 5)
}

async fn find(
    connection: &mut SqliteConnection,
    client: &ClientId,
    key: &IdempotencyKey,
) -> Result<(Option<Record>, Timestamp), sqlx::Error> {
    let row = sqlx::query(sql::FIND).bind(client.as_str()).bind(key.as_str()).fetch_one(connection).await?;
    let now = row.try_get("now")?;
    if row.try_get::<Option<String>, _>("state")?.is_none() {
        return Ok((None, now));
    }
    Ok((Some(read_record!(&row, client.clone(), key.clone())?), now))
}

fn identified(row: &SqliteRow) -> Result<Record, sqlx::Error> {
    let (client, key) = read_identity!(row);
    read_record!(row, client, key)
}
