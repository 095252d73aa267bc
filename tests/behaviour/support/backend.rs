//! A database for each test, and what differs between the backends.

use std::{
    future::Future,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_graphql_idempotency::{PostgresStore, SqliteStore, Store, Upkeep, store::conformance::Effects};
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

/// The way of one process to its database, for tests that make it hard.
pub struct Ground {
    name: String,
    is_demoted: AtomicBool,
}

impl Default for Ground {
    fn default() -> Self {
        Self { name: format!("process-{}", uuid::Uuid::new_v4()), is_demoted: AtomicBool::new(false) }
    }
}

impl Ground {
    /// Whether its server takes no writes. Sessions that were told so stay so, as on a demoted server.
    pub fn demote(&self, is_demoted: bool) {
        self.is_demoted.store(is_demoted, Ordering::SeqCst);
    }
}

pub trait Backend: Send + Sync + 'static {
    type Store: Upkeep;
    /// The database; it goes when this goes.
    type Database: Send + Sync;

    const POSTGRES: bool = false;

    fn database() -> impl Future<Output = Self::Database> + Send;
    /// A migrated store with a pool of so many connections.
    fn open(database: &Self::Database, connections: u32) -> impl Future<Output = Self::Store> + Send;
    /// The same, on a way that can be cut and demoted, where the backend has one.
    fn open_on(
        database: &Self::Database,
        connections: u32,
        _ground: &Arc<Ground>,
    ) -> impl Future<Output = Self::Store> + Send {
        Self::open(database, connections)
    }
    /// Breaks every connection of a way.
    fn cut(_database: &Self::Database, _store: &Self::Store, _ground: &Ground) -> impl Future<Output = ()> + Send {
        async {}
    }
    /// Keeps everybody from the records for 50 ms.
    fn lock(database: &Self::Database, store: &Self::Store) -> impl Future<Output = ()> + Send;
    fn close(store: &Self::Store) -> impl Future<Output = ()> + Send;
    fn drop(database: Self::Database) -> impl Future<Output = ()> + Send;
    /// Runs statements on a connection of the tests' own.
    fn execute(database: &Self::Database, store: &Self::Store, sql: String) -> impl Future<Output = u64> + Send;
    /// The first column of each row as text, on a connection of the tests' own.
    fn texts(database: &Self::Database, store: &Self::Store, sql: String) -> impl Future<Output = Vec<String>> + Send;
    /// Writes an effect on a store's connection.
    fn write<'a>(
        connection: &'a mut <Self::Store as Store>::Connection,
        label: &'a str,
    ) -> BoxFuture<'a, Result<(), sqlx::Error>>;
    /// How many effects a store's connection sees.
    fn seen<'a>(
        connection: &'a mut <Self::Store as Store>::Connection,
        label: &'a str,
    ) -> BoxFuture<'a, Result<i64, sqlx::Error>>;
    /// Connections of the pool that nobody holds, and all that are open.
    fn idle(store: &Self::Store) -> (u32, u32);
    /// An effect on a connection out of the store's own pool.
    fn write_pooled<'a>(store: &'a Self::Store, label: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>>;
    /// Inserts the one row that a table may have: the second time it is a unique violation.
    fn insert_singular(connection: &mut <Self::Store as Store>::Connection) -> BoxFuture<'_, Result<(), sqlx::Error>>;
    /// How the conformance suite writes effects and counts them.
    fn effects(store: &Self::Store) -> Effects<Self::Store>;
    /// The same store in a namespace.
    fn in_namespace(store: &Self::Store, name: &str) -> Self::Store;
    /// Moves a column of a table back in time.
    fn earlier(table: &str, column: &str, by: Duration) -> String;
}

const EFFECTS: &str = "CREATE TABLE IF NOT EXISTS effects (id integer, label text NOT NULL);
CREATE TABLE IF NOT EXISTS singular (label text PRIMARY KEY)";
const INSERT: &str = "INSERT INTO effects (label) VALUES ($1)";
const COUNT: &str = "SELECT count(*) FROM effects WHERE label = $1";

fn sql(text: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(text)
}

macro_rules! work {
    () => {
        fn write<'a>(
            connection: &'a mut <Self::Store as Store>::Connection,
            label: &'a str,
        ) -> BoxFuture<'a, Result<(), sqlx::Error>> {
            Box::pin(async move {
                sqlx::query(INSERT).bind(label).execute(&mut *connection).await?;
                Ok(())
            })
        }

        fn seen<'a>(
            connection: &'a mut <Self::Store as Store>::Connection,
            label: &'a str,
        ) -> BoxFuture<'a, Result<i64, sqlx::Error>> {
            Box::pin(async move { sqlx::query_scalar(COUNT).bind(label).fetch_one(&mut *connection).await })
        }

        fn write_pooled<'a>(store: &'a Self::Store, label: &'a str) -> BoxFuture<'a, Result<(), sqlx::Error>> {
            Box::pin(async move {
                sqlx::query(INSERT).bind(label).execute(store.pool()).await?;
                Ok(())
            })
        }

        fn insert_singular(
            connection: &mut <Self::Store as Store>::Connection,
        ) -> BoxFuture<'_, Result<(), sqlx::Error>> {
            Box::pin(async move {
                sqlx::query("INSERT INTO singular (label) VALUES ('only')").execute(&mut *connection).await.map(drop)
            })
        }

        fn idle(store: &Self::Store) -> (u32, u32) {
            (u32::try_from(store.pool().num_idle()).unwrap(), store.pool().size())
        }

        fn effects(store: &Self::Store) -> Effects<Self::Store> {
            let pool = store.pool().clone();
            Effects::new(
                |connection: &mut <Self::Store as Store>::Connection, label| {
                    Box::pin(async move { Ok(Self::write(connection, label).await?) })
                },
                move |label| {
                    let pool = pool.clone();
                    Box::pin(async move { Ok(Self::seen(&mut *pool.acquire().await?, label).await?) })
                },
            )
        }

        fn in_namespace(store: &Self::Store, name: &str) -> Self::Store {
            store.clone().namespace(name)
        }

        async fn close(store: &Self::Store) {
            store.pool().close().await;
        }
    };
}

pub struct PostgresBackend;

pub struct PostgresDatabase {
    name: String,
    admin: PgConnectOptions,
    own: sqlx::PgPool,
}

pub fn admin() -> PgConnectOptions {
    let url = std::env::var("TEST_DATABASE_URL")
        .expect("TEST_DATABASE_URL must name a PostgreSQL server for tests, as a superuser; tests/run.sh starts one");
    PgConnectOptions::from_str(&url).unwrap()
}

impl PostgresDatabase {
    pub fn options(&self) -> PgConnectOptions {
        self.admin.clone().database(&self.name)
    }
}

impl Backend for PostgresBackend {
    type Store = PostgresStore;
    type Database = PostgresDatabase;

    const POSTGRES: bool = true;

    async fn database() -> PostgresDatabase {
        let admin = admin();
        let name = format!("behaviour_{}", uuid::Uuid::new_v4().simple());
        let mut connection = PgConnection::connect_with(&admin).await.unwrap();
        connection.execute(sql(format!("CREATE DATABASE {name}"))).await.unwrap();
        connection.close().await.unwrap();
        let own = PgPoolOptions::new().max_connections(2).connect_lazy_with(admin.clone().database(&name));
        own.execute(sqlx::raw_sql(EFFECTS)).await.unwrap();
        PostgresDatabase { name, admin, own }
    }

    async fn open(database: &PostgresDatabase, connections: u32) -> PostgresStore {
        let pool = PgPoolOptions::new().max_connections(connections).connect_with(database.options()).await.unwrap();
        let store = PostgresStore::new(pool);
        store.migrate().await.unwrap();
        store
    }

    async fn open_on(database: &PostgresDatabase, connections: u32, ground: &Arc<Ground>) -> PostgresStore {
        let (at_first, at_each) = (Arc::clone(ground), Arc::clone(ground));
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .after_connect(move |connection, _| {
                let is_demoted = at_first.is_demoted.load(Ordering::SeqCst);
                Box::pin(read_only(connection, is_demoted))
            })
            .before_acquire(move |connection, _| {
                let is_demoted = at_each.is_demoted.load(Ordering::SeqCst);
                Box::pin(async move { read_only(connection, is_demoted).await.map(|()| true) })
            })
            .connect_with(database.options().application_name(&ground.name))
            .await
            .unwrap();
        let store = PostgresStore::new(pool);
        store.migrate().await.unwrap();
        store
    }

    async fn cut(database: &PostgresDatabase, store: &PostgresStore, ground: &Ground) {
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{}'",
            ground.name
        );
        Self::texts(database, store, cut).await;
    }

    async fn lock(database: &PostgresDatabase, store: &PostgresStore) {
        // Not behind a transaction that is left open: whoever comes next would wait behind this.
        const LOCK: &str = "DO $$ BEGIN SET LOCAL lock_timeout = '50ms';
            LOCK TABLE idempotency_records IN ACCESS EXCLUSIVE MODE; PERFORM pg_sleep(0.05);
            EXCEPTION WHEN lock_not_available THEN NULL; END $$";
        Self::execute(database, store, LOCK.to_owned()).await;
    }

    async fn drop(database: PostgresDatabase) {
        database.own.close().await;
        let mut connection = PgConnection::connect_with(&database.admin).await.unwrap();
        connection.execute(sql(format!("DROP DATABASE {} WITH (FORCE)", database.name))).await.unwrap();
        connection.close().await.unwrap();
    }

    async fn execute(database: &PostgresDatabase, _store: &PostgresStore, text: String) -> u64 {
        sqlx::query(sql(text)).execute(&database.own).await.unwrap().rows_affected()
    }

    async fn texts(database: &PostgresDatabase, _store: &PostgresStore, text: String) -> Vec<String> {
        sqlx::query_scalar(sql(format!("SELECT t.x::text FROM ({text}) AS t(x)")))
            .fetch_all(&database.own)
            .await
            .unwrap()
    }

    fn earlier(table: &str, column: &str, by: Duration) -> String {
        format!("UPDATE {table} SET {column} = {column} - {} * interval '1 ms'", by.as_millis())
    }

    work!();
}

/// Tells a session that its server takes no writes. That it takes them again is for a new session to find out.
async fn read_only(connection: &mut PgConnection, is_demoted: bool) -> Result<(), sqlx::Error> {
    if is_demoted {
        connection.execute("SET default_transaction_read_only = on").await?;
    }
    Ok(())
}

pub struct SqliteBackend;

pub struct SqliteDatabase {
    directory: tempfile::TempDir,
    own: sqlx::SqlitePool,
}

impl SqliteDatabase {
    fn options(&self) -> SqliteConnectOptions {
        options(&self.directory)
    }
}

fn options(directory: &tempfile::TempDir) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(directory.path().join("test.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5))
        .pragma("synchronous", "off")
}

impl Backend for SqliteBackend {
    type Store = SqliteStore;
    type Database = SqliteDatabase;

    async fn database() -> SqliteDatabase {
        let directory = tempfile::tempdir().unwrap();
        let own = SqlitePoolOptions::new().max_connections(2).connect_with(options(&directory)).await.unwrap();
        own.execute(sqlx::raw_sql(EFFECTS)).await.unwrap();
        SqliteDatabase { directory, own }
    }

    async fn open(database: &SqliteDatabase, connections: u32) -> SqliteStore {
        let pool =
            SqlitePoolOptions::new().max_connections(connections).connect_with(database.options()).await.unwrap();
        let store = SqliteStore::new(pool);
        store.migrate().await.unwrap();
        store
    }

    async fn lock(database: &SqliteDatabase, _store: &SqliteStore) {
        let Ok(mut connection) = database.own.acquire().await else { return };
        if connection.execute("BEGIN EXCLUSIVE").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            connection.execute("ROLLBACK").await.unwrap();
        }
    }

    async fn drop(database: SqliteDatabase) {
        database.own.close().await;
    }

    async fn execute(database: &SqliteDatabase, _store: &SqliteStore, text: String) -> u64 {
        sqlx::query(sql(text)).execute(&database.own).await.unwrap().rows_affected()
    }

    async fn texts(database: &SqliteDatabase, _store: &SqliteStore, text: String) -> Vec<String> {
        sqlite_texts(&database.own, text).await
    }

    fn earlier(table: &str, column: &str, by: Duration) -> String {
        format!("UPDATE {table} SET {column} = {column} - {}", by.as_millis())
    }

    work!();
}

async fn sqlite_texts(pool: &sqlx::SqlitePool, text: String) -> Vec<String> {
    let text = sql(format!("WITH t(x) AS ({text}) SELECT CAST(x AS BLOB) FROM t"));
    let rows: Vec<Vec<u8>> = sqlx::query_scalar(text).fetch_all(pool).await.unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(row).into_owned()).collect()
}

/// SQLite in memory: the tests look through the store's only connection.
pub struct InMemory;

impl Backend for InMemory {
    type Store = SqliteStore;
    type Database = ();

    async fn database() {}

    async fn open((): &(), _connections: u32) -> SqliteStore {
        let store = SqliteStore::in_memory().await.unwrap();
        store.pool().execute(sqlx::raw_sql(EFFECTS)).await.unwrap();
        store
    }

    async fn lock((): &(), _store: &SqliteStore) {}

    async fn drop((): ()) {}

    async fn execute((): &(), store: &SqliteStore, text: String) -> u64 {
        sqlx::query(sql(text)).execute(store.pool()).await.unwrap().rows_affected()
    }

    async fn texts((): &(), store: &SqliteStore, text: String) -> Vec<String> {
        sqlite_texts(store.pool(), text).await
    }

    fn earlier(table: &str, column: &str, by: Duration) -> String {
        SqliteBackend::earlier(table, column, by)
    }

    work!();
}
