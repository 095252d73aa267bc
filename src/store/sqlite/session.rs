//! Where statements that write run: a transaction with the right to write.

use std::ops::{Deref, DerefMut};

use sqlx::{Sqlite, SqliteConnection};
use tokio::sync::OwnedSemaphorePermit;

/// An open transaction with the right to write. Derefs to the connection; undone when dropped.
#[derive(Debug)]
pub struct Transaction {
    inner: sqlx::Transaction<'static, Sqlite>,
    _permit: OwnedSemaphorePermit,
}

impl Transaction {
    pub(super) fn new(inner: sqlx::Transaction<'static, Sqlite>, permit: OwnedSemaphorePermit) -> Self {
        Self { inner, _permit: permit }
    }

    pub(super) async fn commit(self) -> Result<(), sqlx::Error> {
        self.inner.commit().await
    }

    pub(super) async fn rollback(self) -> Result<(), sqlx::Error> {
        self.inner.rollback().await
    }
}

impl Deref for Transaction {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        &self.inner
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        &mut self.inner
    }
}
