//! Where statements run: a pooled connection, or a transaction on one.

use std::ops::{Deref, DerefMut};

use sqlx::{PgConnection, Postgres, pool::PoolConnection, postgres::PgTransactionManager};
use sqlx_core::transaction::TransactionManager;

/// Where statements that are atomic together run: one statement commits itself, unless a pooler might hand each
/// of its messages to another server.
pub(super) enum Session {
    Connection(PoolConnection<Postgres>),
    Transaction(Transaction),
}

impl Session {
    pub(super) async fn finish<T>(self, result: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
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
    pub(super) async fn begin(connection: PoolConnection<Postgres>) -> Result<Self, sqlx::Error> {
        let mut transaction = Self { connection, open: false };
        PgTransactionManager::begin(&mut transaction, None).await?;
        transaction.open = true;
        Ok(transaction)
    }

    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        PgTransactionManager::commit(&mut self).await?;
        self.open = false;
        Ok(())
    }

    pub(super) async fn rollback(mut self) -> Result<(), sqlx::Error> {
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
