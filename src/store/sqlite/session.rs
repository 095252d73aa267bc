//! Where statements that are atomic together run: a transaction with the right to write.

use std::ops::{Deref, DerefMut};

use sqlx::{Sqlite, SqliteConnection};
use tokio::sync::OwnedSemaphorePermit;

use super::failure::{During, failed};
use crate::store::StoreError;

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

    /// Commits what was written, or undoes it where nothing was.
    pub(super) async fn end(self, written: Result<bool, sqlx::Error>) -> Result<bool, StoreError> {
        // After an error COMMIT is not sent.
        if written.map_err(|error| failed(error, During::Transaction))? {
            self.inner.commit().await.map(|()| true).map_err(|error| failed(error, During::Commit))
        } else {
            self.rollback().await.map(|()| false).map_err(|error| failed(error, During::Transaction))
        }
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
