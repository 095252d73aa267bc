//! [`PostgresStore`]: SQL and transactions, nothing else.
//!
//! Plain tables and static statements; no session state, no `LISTEN`, no session-level locks. A key that a
//! transaction holds is told by a transaction-level advisory lock, so that nobody waits inside the database
//! for it; that no key is ever settled twice is the primary key's doing, and holds without the lock.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use sha2::{Digest, Sha256};
use sqlx::{
    AssertSqlSafe, PgConnection, PgPool, Postgres, Row, SqlSafeStr,
    pool::PoolConnection,
    postgres::{PgPoolOptions, PgRow, PgTransactionManager},
};
use sqlx_core::transaction::TransactionManager;

use crate::{
    claim::{ClaimRequest, Verdict, decide},
    key::{ClientId, IdempotencyKey},
    record::{Owner, Record, RecoveryPoint, Settlement, Timestamp},
    state::State,
    store::{
        Begun, CLAIM_TRIES, Claimed, Count, Filter, Store, StoreError,
        row::{SettledRow, milliseconds, read_identity, read_point, read_record, unreadable},
    },
};

mod sql;

/// Records in Postgres, for production.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pool: PgPool,
    transaction_pooling: bool,
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
        Self { pool, transaction_pooling: false }
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
            Session::Transaction(Transaction::begin(connection, "BEGIN".to_owned()).await?)
        } else {
            Session::Connection(connection)
        })
    }

    async fn settle_in(&self, owner: &Owner, from: State, settlement: &Settlement) -> Result<bool, StoreError> {
        let row = SettledRow::of(settlement);
        let statement = match settlement {
            Settlement::Release { .. } => sql::RELEASE,
            Settlement::Finish { .. } | Settlement::Hold { .. } => sql::SETTLE,
        };
        atomically!(self, |connection| {
            let settled = self
                .query(statement)
                .bind(owner.client.as_str())
                .bind(owner.key.as_str())
                .bind(owner.request_id)
                .bind(owner.attempt)
                .bind(from.as_str())
                .bind(row.state)
                .bind(row.response)
                .bind(row.reason)
                .bind(row.due_in)
                .execute(connection)
                .await?;
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
        let written = self
            .query(sql::CHECKPOINT)
            .bind(owner.client.as_str())
            .bind(owner.key.as_str())
            .bind(owner.request_id)
            .bind(owner.attempt)
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
        let inserted = self
            .query(sql::INSERT_SETTLED)
            .bind(request.client.as_str())
            .bind(request.key.as_str())
            .bind(&*request.mutation)
            .bind(&request.fingerprint.hash[..])
            .bind(request.fingerprint.version)
            .bind(&*request.selection)
            .bind(row.state)
            .bind(request.request_id)
            .bind(row.response)
            .bind(row.reason)
            .bind(row.due_in)
            .execute(connection)
            .await?;
        Ok(inserted.rows_affected() == 1)
    }

    async fn count_rows(&self, statement: &'static str, batch: u32, argument: i64) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            let done = self.query(statement).bind(i64::from(batch)).bind(argument).execute(connection).await?;
            Ok(done.rows_affected())
        })
    }
}

impl Store for PostgresStore {
    type Transaction = Transaction;
    type Connection = PgConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed, StoreError> {
        for _ in 0..CLAIM_TRIES {
            let claimed = atomically!(self, |connection| {
                let row = self
                    .query(sql::CLAIM)
                    .bind(request.client.as_str())
                    .bind(request.key.as_str())
                    .bind(&*request.mutation)
                    .bind(&request.fingerprint.hash[..])
                    .bind(request.fingerprint.version)
                    .bind(&*request.selection)
                    .bind(request.request_id)
                    .bind(milliseconds(request.lease))
                    .bind(request.request.as_deref())
                    .bind(request.resumes)
                    .fetch_optional(&mut *connection)
                    .await?;
                let Some(row) = row else { return Ok(None) };
                if row.try_get("taken")? {
                    let owner = owner(request, request.request_id, 1);
                    return Ok(Some(Claimed::Taken { owner, created_at: Timestamp(row.try_get("created_at")?) }));
                }
                let (record, now) = read(&row, request.client.clone(), request.key.clone())?;
                let verdict = decide(Some(&record), request, now);
                if verdict != Verdict::TakeOver {
                    return Ok(Some(Claimed::Found { record: Box::new(record), verdict, now }));
                }
                let taken = self
                    .query(sql::TAKE_OVER)
                    .bind(request.client.as_str())
                    .bind(request.key.as_str())
                    .bind(record.request_id)
                    .bind(record.attempt)
                    .bind(record.state.as_str())
                    .bind(milliseconds(request.lease))
                    .bind(&*request.selection)
                    .bind(request.request.as_deref())
                    .execute(connection)
                    .await?;
                Ok((taken.rows_affected() == 1).then(|| taken_over(request, &record)))
            })?;
            if let Some(claimed) = claimed {
                return Ok(claimed);
            }
        }
        Ok(Claimed::Contended)
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Begun<Transaction>, StoreError> {
        let lock = lock_of(&request.client, &request.key);
        let found = atomically!(self, |connection| {
            self.query(sql::LOOK_UP)
                .bind(request.client.as_str())
                .bind(request.key.as_str())
                .bind(lock)
                .fetch_one(connection)
                .await
        })?;
        if found.try_get::<Option<String>, _>("state")?.is_some() {
            let (record, now) = read(&found, request.client.clone(), request.key.clone())?;
            let verdict = decide(Some(&record), request, now);
            return Ok(Begun::Found { record: Box::new(record), verdict, now });
        }
        if !found.try_get::<bool, _>("free")? {
            return Ok(Begun::Busy);
        }
        // BEGIN and the lock in one round trip; the division fails where the lock is another's.
        let statement =
            format!("BEGIN; SELECT 1 / pg_try_advisory_xact_lock({lock})::int /* idempotency key held elsewhere? */");
        match Transaction::begin(self.pool.acquire().await?, statement).await {
            Ok(transaction) => Ok(Begun::Taken { transaction, created_at: Timestamp(found.try_get("now")?) }),
            Err(error) if has_code(&error, &["22012"]) => Ok(Begun::Busy),
            Err(error) => Err(error.into()),
        }
    }

    async fn commit(
        &self,
        mut transaction: Transaction,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<(), StoreError> {
        match self.insert_settled(&mut transaction, request, settlement).await {
            Ok(true) => transaction.commit().await.map_err(|error| match &error {
                sqlx::Error::Database(database)
                    if !database.code().is_some_and(|code| code.starts_with("57") || code.starts_with("08")) =>
                {
                    StoreError::RolledBack(error.into())
                }
                _ => StoreError::InDoubt(error.into()),
            }),
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
            let renewed = self
                .query(sql::RENEW)
                .bind(owner.client.as_str())
                .bind(owner.key.as_str())
                .bind(owner.request_id)
                .bind(owner.attempt)
                .bind(milliseconds(lease))
                .execute(connection)
                .await?;
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
        Ok(Transaction::begin(self.pool.acquire().await?, "BEGIN".to_owned()).await?)
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
            Ok(true) => match transaction.commit().await {
                Ok(()) => Ok(true),
                Err(error @ sqlx::Error::Database(_)) => Err(StoreError::RolledBack(error.into())),
                Err(error) => Err(StoreError::InDoubt(error.into())),
            },
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

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<(Option<Record>, Timestamp), StoreError> {
        atomically!(self, |connection| {
            let row = self.query(sql::FIND).bind(client.as_str()).bind(key.as_str()).fetch_one(connection).await?;
            let now = Timestamp(row.try_get("now")?);
            if row.try_get::<Option<String>, _>("state")?.is_none() {
                return Ok((None, now));
            }
            Ok((Some(read_record!(&row, client.clone(), key.clone())?), now))
        })
    }

    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        atomically!(self, |connection| {
            let rows = self
                .query(sql::LIST)
                .bind(filter.state.map(State::as_str))
                .bind(filter.mutation.as_deref())
                .bind(filter.client.as_ref().map(ClientId::as_str))
                .bind(filter.older_than.map(milliseconds))
                .bind(filter.limit())
                .fetch_all(connection)
                .await?;
            rows.iter().map(identified).collect()
        })
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        atomically!(self, |connection| {
            let rows = self.query(sql::COUNT).fetch_all(connection).await?;
            rows.iter()
                .map(|row| {
                    let state: String = row.try_get("state")?;
                    Ok(Count {
                        mutation: row.try_get("mutation")?,
                        state: State::parse(&state).ok_or_else(|| unreadable("state"))?,
                        records: row.try_get("records")?,
                        oldest: Timestamp(row.try_get("oldest")?),
                    })
                })
                .collect()
        })
    }

    async fn lapse(&self, batch: u32) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            Ok(self.query(sql::LAPSE).bind(i64::from(batch)).execute(connection).await?.rows_affected())
        })
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
        self.count_rows(sql::EXPIRE, batch, milliseconds(tombstone)).await
    }

    async fn purge(&self, batch: u32) -> Result<u64, StoreError> {
        atomically!(self, |connection| {
            Ok(self.query(sql::PURGE).bind(i64::from(batch)).execute(connection).await?.rows_affected())
        })
    }
}

/// How often statements are run again that the isolation level or a deadlock made fail.
const SERIALIZATION_TRIES: usize = 8;

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| codes.contains(&&*code))
}

/// `serialization_failure` and `deadlock_detected`.
fn is_serialization_failure(error: &sqlx::Error) -> bool {
    has_code(error, &["40001", "40P01"])
}

fn owner(request: &ClaimRequest, request_id: uuid::Uuid, attempt: i32) -> Owner {
    Owner { client: request.client.clone(), key: request.key.clone(), request_id, attempt }
}

fn taken_over(request: &ClaimRequest, record: &Record) -> Claimed {
    Claimed::Taken { owner: owner(request, record.request_id, record.attempt + 1), created_at: record.created_at }
}

fn read(row: &PgRow, client: ClientId, key: IdempotencyKey) -> Result<(Record, Timestamp), sqlx::Error> {
    Ok((read_record!(row, client, key)?, Timestamp(row.try_get("now")?)))
}

fn identified(row: &PgRow) -> Result<Record, sqlx::Error> {
    let (client, key) = read_identity!(row);
    read_record!(row, client, key)
}

/// The advisory lock of a key. Two keys that share one can only make each other wait.
fn lock_of(client: &ClientId, key: &IdempotencyKey) -> i64 {
    let digest = Sha256::new()
        .chain_update(b"async-graphql-idempotency\0")
        .chain_update(client.as_str())
        .chain_update(b"\0")
        .chain_update(key.as_str())
        .finalize();
    digest[..8].iter().fold(0, |lock, byte| (lock << 8) | i64::from(*byte))
}

/// Where statements that are atomic together run: one statement commits itself, unless a pooler might hand each
/// of its messages to another server.
enum Session {
    Connection(PoolConnection<Postgres>),
    Transaction(Transaction),
}

impl Session {
    async fn finish<T>(self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        match self {
            Self::Transaction(transaction) if result.is_ok() => transaction.commit().await.and(result),
            Self::Connection(_) | Self::Transaction(_) => result,
        }
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        match self {
            Self::Connection(connection) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        match self {
            Self::Connection(connection) => connection,
            Self::Transaction(transaction) => transaction,
        }
    }
}

/// An open transaction on a pooled connection. Derefs to the connection; undone when dropped.
#[derive(Debug)]
pub struct Transaction {
    connection: PoolConnection<Postgres>,
    open: bool,
}

impl Transaction {
    async fn begin(connection: PoolConnection<Postgres>, statement: String) -> Result<Self, sqlx::Error> {
        let mut transaction = Self { connection, open: false };
        match PgTransactionManager::begin(&mut transaction, Some(AssertSqlSafe(statement).into_sql_str())).await {
            Ok(()) => {
                transaction.open = true;
                Ok(transaction)
            }
            Err(error) => {
                // BEGIN may have worked where what followed it did not, and sqlx does not know of it then.
                if sqlx::raw_sql("ROLLBACK").execute(&mut *transaction).await.is_err() {
                    transaction.connection.close_on_drop();
                }
                Err(error)
            }
        }
    }

    async fn commit(mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(&mut self).await?;
        self.open = false;
        Ok(())
    }

    async fn rollback(mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::rollback(&mut self).await?;
        self.open = false;
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.open {
            // Queued, and run before the connection is used again.
            PgTransactionManager::start_rollback(&mut self.connection);
        }
    }
}
