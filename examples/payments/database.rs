//! Which database: the URL decides.

use std::time::Duration;

use async_graphql_idempotency::{PostgresStore, SqliteStore};
use sqlx::{
    postgres::PgPoolOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

use crate::{
    cli::PoolOptions,
    ledger::{LedgerError, SqlLedger},
    retry,
};

/// Shorter than the patience of a client, so that it hears of a database that is away or overloaded.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a SQLite writer waits for that of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A ledger with its store, in one of the two databases. Everything above is generic over them.
pub(crate) enum Database {
    Postgres(SqlLedger<PostgresStore>),
    Sqlite(SqlLedger<SqliteStore>),
}

/// Whether a database that does not exist is made; only SQLite can do that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    Create,
    Refuse,
}

impl Database {
    /// Connects. The tables are not looked at.
    pub(crate) async fn open(url: &str, options: &PoolOptions, missing: Missing) -> Result<Self, LedgerError> {
        if url.starts_with("sqlite:") {
            let file: SqliteConnectOptions = url.parse()?;
            let file = file
                .create_if_missing(missing == Missing::Create)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(BUSY_TIMEOUT);
            let pool = SqlitePoolOptions::new().max_connections(options.pool).acquire_timeout(ACQUIRE_TIMEOUT);
            let pool = retry::while_contended(|| pool.clone().connect_with(file.clone())).await?;
            return Ok(Self::Sqlite(SqlLedger::new(SqliteStore::new(pool), true)));
        }
        let pool = PgPoolOptions::new().max_connections(options.pool).acquire_timeout(ACQUIRE_TIMEOUT);
        let store = PostgresStore::new(pool.connect(url).await?);
        let store = if options.pgbouncer { store.transaction_pooling() } else { store };
        Ok(Self::Postgres(SqlLedger::new(store, !options.pgbouncer)))
    }
}

/// Runs an expression with the ledger of whichever database it is.
macro_rules! with_ledger {
    ($database:expr, $ledger:ident => $run:expr) => {
        match $database {
            $crate::database::Database::Postgres($ledger) => $run,
            $crate::database::Database::Sqlite($ledger) => $run,
        }
    };
}
pub(crate) use with_ledger;
