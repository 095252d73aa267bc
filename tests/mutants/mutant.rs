//! A store that is wrong in one way: a `SqliteStore`, and one of its verbs or of its tables replaced.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, Record, SqliteStore, Store, StoreError, Upkeep,
    claim::ClaimRequest,
    record::{Owner, Reading, RecoveryPoint, Settlement},
    store::{Batch, Claimed, Count, Filter, From, Sweep, Taken, sqlite::Transaction},
};
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, SqlSafeStr, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;
pub type Names = (ClientId, IdempotencyKey);

/// What a fault is called, and what is wrong.
pub type Fault = (&'static str, How);

/// What is wrong with a store.
#[derive(Clone, Copy)]
pub enum How {
    Nothing,
    /// A part of the tables' definition is another.
    Schema(&'static str, &'static str),
    /// After a write to the records (`INSERT`, say) for which this is true, columns are set.
    Row(&'static str, &'static str, &'static str),
    /// The same for the steps.
    Step(&'static str, &'static str, &'static str),
    /// A trigger, or whatever else of SQL.
    Sql(&'static str),
    /// Both: what the tables don't allow, and what is done all the same.
    Unchecked(&'static str, &'static str),
    /// Clients and keys are taken for others.
    Names(fn(&ClientId, &IdempotencyKey) -> Names),
    /// What runs in a transaction is committed at once.
    NoTransactions,
    Claim(for<'a> fn(&'a Mutant, &'a ClaimRequest) -> Answer<'a, Claimed<()>>),
    Begin(for<'a> fn(&'a Mutant, &'a ClaimRequest) -> Answer<'a, Claimed<Transaction>>),
    Renew(for<'a> fn(&'a Mutant, &'a Owner, Duration) -> Answer<'a, bool>),
    Opens(for<'a> fn(&'a Mutant, &'a Owner) -> Answer<'a, Transaction>),
    Checkpoint(for<'a> fn(&'a Mutant, &'a Owner, Point<'a>) -> Answer<'a, bool>),
    Settle(for<'a> fn(&'a Mutant, &'a Owner, From<'a, Transaction>, &'a Settlement) -> Answer<'a, bool>),
    Find(for<'a> fn(&'a Mutant, &'a ClientId, &'a IdempotencyKey) -> Answer<'a, Option<Reading>>),
    List(for<'a> fn(&'a Mutant, Filter) -> Answer<'a, Vec<Record>>),
    Steps(for<'a> fn(&'a Mutant, &'a ClientId, &'a IdempotencyKey) -> Answer<'a, Vec<RecoveryPoint>>),
    Count(for<'a> fn(&'a Mutant) -> Answer<'a, Vec<Count>>),
    Check(for<'a> fn(&'a Mutant) -> Answer<'a, ()>),
    Sweep(for<'a> fn(&'a Mutant, Sweep) -> Answer<'a, Batch>),
}

/// What a checkpoint is given.
pub struct Point<'a> {
    pub point: &'a RecoveryPoint,
    pub lease: Duration,
    pub transaction: Option<Transaction>,
}

pub struct Mutant {
    pub inner: SqliteStore,
    how: How,
    /// What some faults remember.
    pub memory: &'static Memory,
}

#[derive(Default)]
pub struct Memory {
    pub records: Mutex<Vec<Record>>,
    pub running: AtomicUsize,
}

impl Clone for Mutant {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), how: self.how, memory: self.memory }
    }
}

pub fn undone(error: sqlx::Error) -> StoreError {
    StoreError::Undone(error.into())
}

pub async fn raw(connection: &mut SqliteConnection, sql: &str) -> Result<(), StoreError> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.map(drop).map_err(undone)
}

impl Mutant {
    pub async fn open(how: How, directory: &tempfile::TempDir) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(directory.path().join("mutant.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5))
            .pragma("synchronous", "off");
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        let mut schema = include_str!("../../schema/sqlite.sql").to_owned();
        if let How::Schema(part, other) | How::Unchecked(part, other) = how {
            let other = if matches!(how, How::Unchecked(..)) { "CHECK (true)" } else { other };
            assert!(schema.contains(part), "the schema has no {part}");
            schema = schema.replace(part, other);
        }
        schema.push_str("; CREATE TABLE effects (label TEXT NOT NULL);");
        match how {
            How::Row(on, when, set) => schema.push_str(&format!(
                "CREATE TRIGGER fault AFTER {on} ON idempotency_records WHEN {when} \
                 BEGIN UPDATE idempotency_records SET {set} WHERE (client, key) = (NEW.client, NEW.key); END"
            )),
            How::Step(on, when, set) => schema.push_str(&format!(
                "CREATE TRIGGER fault AFTER {on} ON idempotency_steps WHEN {when} \
                 BEGIN UPDATE idempotency_steps SET {set} WHERE (client, key, name) = (NEW.client, NEW.key, NEW.name); END"
            )),
            How::Sql(sql) | How::Unchecked(_, sql) => schema.push_str(sql),
            _ => {}
        }
        sqlx::raw_sql(AssertSqlSafe(schema)).execute(&pool).await.unwrap();
        let inner = SqliteStore::new(pool);
        inner.migrate().await.unwrap();
        Self { inner, how, memory: Box::leak(Box::default()) }
    }

    /// Runs a statement on the tables.
    pub async fn run(&self, sql: &'static str) -> Result<(), StoreError> {
        sqlx::query(sql).execute(self.inner.pool()).await.map(drop).map_err(undone)
    }

    /// Runs a statement about a client ($1) and a key ($2).
    pub async fn run_of(&self, sql: impl SqlSafeStr, owner: &Owner) -> Result<(), StoreError> {
        let query = sqlx::query(sql).bind(owner.client.as_str()).bind(owner.key.as_str());
        query.execute(self.inner.pool()).await.map(drop).map_err(undone)
    }

    /// Changes the record of an owner's key, if it is one of those.
    pub async fn change(&self, owner: &Owner, set: &str, whose: &str) -> Result<(), StoreError> {
        let sql = format!("UPDATE idempotency_records SET {set} WHERE client = $1 AND key = $2 AND {whose}");
        self.run_of(AssertSqlSafe(sql), owner).await
    }

    /// The record of an owner's key.
    pub async fn record(&self, owner: &Owner) -> Result<Option<Record>, StoreError> {
        Ok(self.inner.find(&owner.client, &owner.key).await?.map(|found| Record::clone(&found.record)))
    }

    /// The latest owner of a key, whoever asks.
    pub async fn latest(&self, owner: &Owner) -> Result<Owner, StoreError> {
        Ok(self.record(owner).await?.map_or_else(|| owner.clone(), |record| record.owner()))
    }

    fn named(&self, client: &ClientId, key: &IdempotencyKey) -> Names {
        match self.how {
            How::Names(names) => names(client, key),
            _ => (client.clone(), key.clone()),
        }
    }

    fn owner(&self, owner: &Owner) -> Owner {
        let (client, key) = self.named(&owner.client, &owner.key);
        Owner { client, key, ..owner.clone() }
    }

    fn request(&self, request: &ClaimRequest) -> ClaimRequest {
        let (client, key) = self.named(&request.client, &request.key);
        ClaimRequest { client, key, ..request.clone() }
    }

    /// A claim under the names that were asked.
    fn told<T>(&self, claimed: Claimed<T>, asked: &ClaimRequest) -> Claimed<T> {
        match claimed {
            Claimed::Found(reading) => Claimed::Found(told(reading, &asked.client, &asked.key)),
            Claimed::Taken(taken) => {
                let owner = Owner { client: asked.client.clone(), key: asked.key.clone(), ..taken.owner };
                Claimed::Taken(Taken { owner, ..taken })
            }
            busy @ Claimed::Busy { .. } => busy,
        }
    }

    async fn open_up(&self, transaction: &mut Transaction) -> Result<(), StoreError> {
        if matches!(self.how, How::NoTransactions) { raw(transaction, "COMMIT").await } else { Ok(()) }
    }

    async fn close_up(&self, transaction: Option<&mut Transaction>) -> Result<(), StoreError> {
        match transaction {
            Some(transaction) if matches!(self.how, How::NoTransactions) => raw(transaction, "BEGIN IMMEDIATE").await,
            _ => Ok(()),
        }
    }
}

fn told(reading: Reading, client: &ClientId, key: &IdempotencyKey) -> Reading {
    let record = Record { client: client.clone(), key: key.clone(), ..Record::clone(&reading.record) };
    Reading { record: record.into(), ..reading }
}

impl Store for Mutant {
    type Transaction = Transaction;
    type Connection = SqliteConnection;

    async fn claim(&self, request: &ClaimRequest) -> Result<Claimed<()>, StoreError> {
        match self.how {
            How::Claim(claim) => claim(self, request).await,
            _ => self.inner.claim(&self.request(request)).await.map(|claimed| self.told(claimed, request)),
        }
    }

    async fn begin(&self, request: &ClaimRequest) -> Result<Claimed<Transaction>, StoreError> {
        if let How::Begin(begin) = self.how {
            return begin(self, request).await;
        }
        let mut claimed = self.told(self.inner.begin(&self.request(request)).await?, request);
        if let Claimed::Taken(taken) = &mut claimed {
            self.open_up(&mut taken.transaction).await?;
        }
        Ok(claimed)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<bool, StoreError> {
        match self.how {
            How::Renew(renew) => renew(self, owner, lease).await,
            _ => self.inner.renew(&self.owner(owner), lease).await,
        }
    }

    async fn transaction(&self, owner: &Owner) -> Result<Transaction, StoreError> {
        if let How::Opens(open) = self.how {
            return open(self, owner).await;
        }
        let mut transaction = self.inner.transaction(&self.owner(owner)).await?;
        self.open_up(&mut transaction).await?;
        Ok(transaction)
    }

    async fn checkpoint(
        &self,
        owner: &Owner,
        point: &RecoveryPoint,
        lease: Duration,
        mut transaction: Option<Transaction>,
    ) -> Result<bool, StoreError> {
        if let How::Checkpoint(write) = self.how {
            return write(self, owner, Point { point, lease, transaction }).await;
        }
        self.close_up(transaction.as_mut()).await?;
        self.inner.checkpoint(&self.owner(owner), point, lease, transaction).await
    }

    async fn settle(
        &self,
        owner: &Owner,
        mut from: From<'_, Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        if let How::Settle(settle) = self.how {
            return settle(self, owner, from, settlement).await;
        }
        let owner = self.owner(owner);
        if let From::Transaction(transaction, request) = &mut from {
            self.close_up(transaction.as_mut()).await?;
            let request = self.request(request);
            return self.inner.settle(&owner, From::Transaction(transaction.take(), &request), settlement).await;
        }
        self.inner.settle(&owner, from, settlement).await
    }

    async fn find(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Option<Reading>, StoreError> {
        if let How::Find(find) = self.how {
            return find(self, client, key).await;
        }
        let named = self.named(client, key);
        Ok(self.inner.find(&named.0, &named.1).await?.map(|reading| told(reading, client, key)))
    }
}

impl Upkeep for Mutant {
    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        match self.how {
            How::List(list) => list(self, filter.clone()).await,
            _ => self.inner.list(filter).await,
        }
    }

    async fn steps(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        let named = self.named(client, key);
        match self.how {
            How::Steps(steps) => steps(self, client, key).await,
            _ => self.inner.steps(&named.0, &named.1).await,
        }
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        match self.how {
            How::Count(count) => count(self).await,
            _ => self.inner.count().await,
        }
    }

    async fn check(&self) -> Result<(), StoreError> {
        match self.how {
            How::Check(check) => check(self).await,
            _ => Upkeep::check(&self.inner).await,
        }
    }

    async fn sweep(&self, sweep: &Sweep) -> Result<Batch, StoreError> {
        self.memory.running.fetch_add(1, Ordering::SeqCst);
        let done = match self.how {
            How::Sweep(run) => run(self, *sweep).await,
            _ => self.inner.sweep(sweep).await,
        };
        self.memory.running.fetch_sub(1, Ordering::SeqCst);
        done
    }
}
