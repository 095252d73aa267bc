//! Where statements run: a pooled connection, or a transaction on one.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
};

use sqlx::{Error, PgConnection, Postgres, pool::PoolConnection, postgres::PgTransactionManager};
use sqlx_core::transaction::TransactionManager;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::failure::is_read_only;

/// Where statements that are atomic together run. A single statement commits itself, so a connection is enough for it,
/// unless a pooler may send each of its messages to another server.
pub(super) enum Session {
    Connection(PoolConnection<Postgres>),
    Transaction(Transaction),
}

impl Session {
    pub(super) async fn finish<T>(mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result
            && is_read_only(error)
        {
            self.leave();
        }
        match self {
            Self::Transaction(transaction) if result.is_ok() => transaction.commit().await.and(result),
            Self::Connection(_) | Self::Transaction(_) => result,
        }
    }

    /// The connection is not used again: its server takes no writes, and a new connection may find one that does.
    fn leave(&mut self) {
        match self {
            Self::Connection(connection) => connection.close_on_drop(),
            Self::Transaction(transaction) => transaction.leave(),
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
    /// Settings as they were when the transaction began, to be put back before the store writes.
    pub(super) kept: Option<Kept>,
    /// The right to hold one of the connections that are lent to transactional attempts.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

/// Names of settings, and their values.
pub(super) type Kept = (Vec<String>, Vec<String>);

impl Transaction {
    pub(super) async fn begin(connection: PoolConnection<Postgres>) -> Result<Self, Error> {
        let mut transaction = Self { connection, open: false, kept: None, permit: None };
        PgTransactionManager::begin(&mut transaction, None).await?;
        transaction.open = true;
        Ok(transaction)
    }

    /// Commits, savepoints that were left open included.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        while PgTransactionManager::get_transaction_depth(&self) > 0 {
            PgTransactionManager::commit(&mut self).await?;
        }
        self.open = false;
        Ok(())
    }

    pub(super) async fn rollback(mut self) -> Result<(), Error> {
        while PgTransactionManager::get_transaction_depth(&self) > 0 {
            PgTransactionManager::rollback(&mut self).await?;
        }
        self.open = false;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.connection.close_on_drop();
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
        // Queued, and run before the connection is used again.
        while self.open && PgTransactionManager::get_transaction_depth(&self.connection) > 0 {
            PgTransactionManager::start_rollback(&mut self.connection);
        }
    }
}

/// The right to hold connections of a pool for long: all but `free` of them, and at least one.
pub(super) fn lent(all: u32, free: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(all.saturating_sub(free).max(1)).unwrap_or(usize::MAX >> 3)))
}
