//! [`SqliteStore`]: SQL and transactions, nothing else.
//!
//! SQLite has one writer. Writers of one process queue for it in memory, in order; those of several processes
//! meet in SQLite's own lock and wait there, so that no client ever sees "database is locked".

use std::{sync::Arc, time::Duration};

use sqlx::{
    Row, Sqlite, SqliteConnection, SqlitePool,
    pool::PoolConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    claim::{ClaimRequest, Verdict, decide},
    key::{ClientId, IdempotencyKey},
    record::{Owner, Reading, RecoveryPoint, Settlement, Timestamp},
    store::{
        CLAIM_TRIES, Claimed, From, Store, StoreError, Taken,
        row::{bind_claim, bind_fence, bind_key, bind_point, bind_take_over, milliseconds, read_point, read_record},
    },
};

mod failure;
mod migrations;
mod session;
mod settling;
#[rustfmt::skip]
mod sql;
mod time;
mod upkeep;

pub use session::Transaction;

use failure::{During, failed, is_busy};

/// Records in a SQLite file, the embedded default.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    pool: SqlitePool,
    namespace: Arc<str>,
    /// The right to write, one in a process.
    writer: Arc<Semaphore>,
}

/// Runs one statement that writes and commits itself, repeatedly while writers of other processes are in its way.
///
/// A macro, because the compiler can't yet prove the future of a generic function over an async closure `Send`.
macro_rules! exclusively {
    ($store:expr, |$connection:ident| $statement:expr) => {
        $crate::store::sqlite::exclusively!($store, None, |$connection| $statement)
    };
    ($store:expr, $reader:expr, |$connection:ident| $statement:expr) => {{
        let (_permit, mut writer) = $store.writer($reader).await?;
        let mut tries = 0;
        loop {
            tries += 1;
            let $connection: &mut sqlx::SqliteConnection = &mut writer;
            match $statement.await {
                Err(error) if tries < BUSY_TRIES && is_busy(&error) => {}
                written => break written.map_err(|error| failed(error, During::Statement)),
            }
        }
    }};
}

use exclusively;

/// How often a writer tries, each time for the busy timeout, while another process writes.
const BUSY_TRIES: usize = 6;

impl SqliteStore {
    /// A store on an application's own pool: a transactional mutation works in the application's file. The file
    /// should be in WAL mode ([`SqliteStore::connect`] sets it).
    #[must_use]
    pub fn new(pool: SqlitePool) -> Self {
        Self { pool, namespace: "".into(), writer: Arc::new(Semaphore::new(1)) }
    }

    /// A store on a pool of its own: a file in WAL mode that is made when it is missing (`sqlite:payments.db`),
    /// with a busy timeout of 5 s.
    ///
    /// # Errors
    /// [`StoreError::Undone`] when the file can't be opened.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let opened = async {
            let options: SqliteConnectOptions = url.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(Duration::from_secs(5));
            SqlitePoolOptions::new().connect_with(options).await
        };
        Ok(Self::new(opened.await.map_err(|error| failed(error, During::Transaction))?))
    }

    /// A migrated store in memory, for tests and trials, pinned to one connection so that it can't lose its
    /// data.
    ///
    /// # Errors
    /// [`StoreError::Undone`] when SQLite refuses.
    pub async fn in_memory() -> Result<Self, StoreError> {
        let pool = SqlitePoolOptions::new()
            .min_connections(1)
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(SqliteConnectOptions::new().in_memory(true))
            .await;
        let store = Self::new(pool.map_err(|error| failed(error, During::Transaction))?);
        store.migrate().await?;
        Ok(store)
    }

    /// Keeps the records of this service, or environment, apart from others in the same tables. A short word of up to
    /// 63 bytes; empty by default.
    #[must_use]
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = name.into();
        self
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// A connection to read on.
    async fn reader(&self) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.pool.acquire().await.map_err(|error| failed(error, During::Transaction))
    }

    async fn right_to_write(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        Arc::clone(&self.writer).acquire_owned().await.map_err(|closed| StoreError::Undone(closed.into()))
    }

    /// The right to write, and a connection for it: the one that has read, if nobody of this process writes. Else it
    /// is given back, so that whoever waits for the right holds no connection.
    async fn writer(
        &self,
        reader: Option<PoolConnection<Sqlite>>,
    ) -> Result<(OwnedSemaphorePermit, PoolConnection<Sqlite>), StoreError> {
        if let Some(reader) = reader
            && let Ok(permit) = Arc::clone(&self.writer).try_acquire_owned()
        {
            return Ok((permit, reader));
        }
        let permit = self.right_to_write().await?;
        Ok((permit, self.reader().await?))
    }

    async fn open_transaction(&self) -> Result<Transaction, StoreError> {
        let permit = self.right_to_write().await?;
        let mut tries = 0;
        loop {
            tries += 1;
            match self.pool.begin_with("BEGIN IMMEDIATE").await {
                Ok(inner) => return Ok(Transaction::new(inner, permit)),
                // Another process has been writing for longer than the busy timeout.
                Err(error) if tries < BUSY_TRIES && is_busy(&error) => {}
                Err(error) => return Err(failed(error, During::Transaction)),
            }
        }
    }

    /// The record of a key, as a connection sees it, and the time.
    async fn find_in(
        &self,
        connection: &mut SqliteConnection,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> Result<(Option<Reading>, Timestamp), sqlx::Error> {
        let find = sqlx::query(sql::FIND).bind(&*self.namespace).bind(client.as_str()).bind(key.as_str());
        let row = find.fetch_one(connection).await?;
        let now = row.try_get("now")?;
        if row.try_get::<Option<String>, _>("state")?.is_none() {
            return Ok((None, now));
        }
        let record = Arc::new(read_record!(&row, client.clone(), key.clone())?);
        Ok((Some(Reading { record, now }), now))
    }

    /// The record of a key, by a statement of its own.
    async fn find_on(
        &self,
        connection: &mut SqliteConnection,
        client: &ClientId,
        key: &IdempotencyKey,
    ) -> Result<Option<Reading>, StoreError> {
        let found = self.find_in(connection, client, key).await;
        found.map(|(reading, _)| reading).map_err(|error| failed(error, During::Statement))
    }

    async fn steps_in(&self, connection: &mut SqliteConnection, of: &Owner) -> Result<Vec<RecoveryPoint>, sqlx::Error> {
        let rows = bind_key!(sqlx::query(sql::STEPS), self.namespace, of).fetch_all(connection).await?;
        rows.iter().map(|row| read_point!(row)).collect()
    }

    async fn write_point(
        &self,
        connection: &mut SqliteConnection,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
    ) -> Result<bool, sqlx::Error> {
        let renew = bind_fence!(sqlx::query(sql::RENEW), self.namespace, owner).bind(milliseconds(lease));
        if renew.execute(&mut *connection).await?.rows_affected() == 0 {
            return Ok(false);
        }
        let write = bind_key!(sqlx::query(sql::CHECKPOINT), self.namespace, owner).bind(owner.attempt);
        bind_point!(write, point).execute(connection).await?;
        Ok(true)
    }
}

impl Store for SqliteStore {
    type Transaction = Transaction;
    type Connection = SqliteConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed<()>, StoreError> {
        for _ in 0..CLAIM_TRIES {
            // A replay only reads, and so does not queue for the right to write.
            let mut reader = self.reader().await?;
            let Some(reading) = self.find_on(&mut reader, &request.client, &request.key).await? else {
                if request.resumes {
                    continue;
                }
                let claim = exclusively!(self, Some(reader), |connection| {
                    bind_claim!(sqlx::query(sql::CLAIM), self.namespace, request).fetch_optional(connection)
                })?;
                let Some(row) = claim else { continue };
                let created_at = row.try_get("created_at").map_err(|error| failed(error, During::Statement))?;
                let owner = request.first_owner();
                return Ok(Claimed::Taken(Taken { owner, created_at, from: None, steps: Vec::new(), transaction: () }));
            };
            let record = &*reading.record;
            if decide(Some(record), request, reading.now) != Verdict::TakeOver {
                return Ok(Claimed::Found(reading));
            }
            let taken = exclusively!(self, Some(reader), |connection| {
                bind_take_over!(sqlx::query(sql::TAKE_OVER), self.namespace, request, record).execute(connection)
            })?;
            if taken.rows_affected() == 0 {
                continue;
            }
            let (owner, from, created_at) = (record.next_owner(), Some(record.state), record.created_at);
            let steps = self.steps_in(&mut *self.reader().await?, &owner).await;
            let steps = steps.map_err(|error| failed(error, During::Statement))?;
            return Ok(Claimed::Taken(Taken { owner, created_at, from, steps, transaction: () }));
        }
        Ok(Claimed::Busy { reused: false })
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Claimed<Transaction>, StoreError> {
        if let Some(reading) = self.find(&request.client, &request.key).await?
            && decide(Some(&reading.record), request, reading.now) != Verdict::TakeOver
        {
            return Ok(Claimed::Found(reading));
        }
        // With the right to write nobody else can hold the key, or take it before the transaction ends.
        let mut transaction = self.open_transaction().await?;
        let undone = |error| failed(error, During::Transaction);
        let (found, now) = self.find_in(&mut transaction, &request.client, &request.key).await.map_err(undone)?;
        let Some(reading) = found else {
            let (owner, created_at) = (request.first_owner(), now);
            return Ok(Claimed::Taken(Taken { owner, created_at, from: None, steps: Vec::new(), transaction }));
        };
        let record = &*reading.record;
        if decide(Some(record), request, reading.now) != Verdict::TakeOver {
            transaction.rollback().await.map_err(undone)?;
            return Ok(Claimed::Found(reading));
        }
        let (owner, from, created_at) = (record.next_owner(), Some(record.state), record.created_at);
        let steps = self.steps_in(&mut transaction, &owner).await.map_err(undone)?;
        Ok(Claimed::Taken(Taken { owner, created_at, from, steps, transaction }))
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        let renewed = exclusively!(self, |connection| {
            bind_fence!(sqlx::query(sql::RENEW), self.namespace, owner).bind(milliseconds(lease)).execute(connection)
        })?;
        Ok(renewed.rows_affected() == 1)
    }

    async fn transaction(&self, _owner: &Owner) -> Result<Transaction, StoreError> {
        self.open_transaction().await
    }

    async fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
        transaction: Option<Transaction>,
    ) -> Result<bool, StoreError> {
        let mut transaction = match transaction {
            Some(transaction) => transaction,
            None => self.open_transaction().await?,
        };
        let written = self.write_point(&mut transaction, owner, point, lease).await;
        transaction.end(written).await
    }

    async fn settle(
        &self,
        owner: &Owner,
        from: From<'_, Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        self.settle_from(owner, from, settlement).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<Reading>, StoreError> {
        self.find_on(&mut *self.reader().await?, client, key).await
    }
}
