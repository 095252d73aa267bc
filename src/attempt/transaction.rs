//! The transaction of a transactional attempt, which its resolvers hold by turns.

use std::{
    ops::{Deref, DerefMut},
    sync::Mutex as StdMutex,
    time::Duration,
};

use tokio::{
    sync::{MappedMutexGuard, Mutex, MutexGuard},
    time::timeout,
};

use super::{AttemptError, lock};
use crate::store::Store;

/// The attempt's transaction; none once it has ended.
pub(crate) struct Slot<S: Store> {
    transaction: Mutex<Option<S::Transaction>>,
    /// The resolver that has it.
    holder: StdMutex<Option<u64>>,
}

impl<S: Store> Slot<S> {
    pub(crate) fn new(transaction: S::Transaction) -> Self {
        Self { transaction: Mutex::new(Some(transaction)), holder: StdMutex::default() }
    }

    /// Holds the transaction for a resolver, which waits so long for another one that has it.
    pub(super) async fn hold(
        &self,
        resolver: u64,
        patience: Duration,
    ) -> Result<TransactionGuard<'_, S>, AttemptError> {
        let guard = match self.transaction.try_lock() {
            Ok(guard) => guard,
            Err(_) if *lock(&self.holder) == Some(resolver) => return Err(AttemptError::TransactionHeld),
            Err(_) => {
                let waited = timeout(patience, self.transaction.lock()).await;
                waited.map_err(|_| AttemptError::TransactionBusy)?
            }
        };
        let transaction = MutexGuard::try_map(guard, Option::as_mut).map_err(|_| AttemptError::Over)?;
        *lock(&self.holder) = Some(resolver);
        Ok(TransactionGuard { transaction, holder: &self.holder })
    }

    /// Takes the transaction away for good.
    pub(crate) async fn take(&self) -> Option<S::Transaction> {
        self.transaction.lock().await.take()
    }
}

/// The transaction of a transactional mutation, for as long as it is held. Derefs to the store's connection.
pub struct TransactionGuard<'attempt, S: Store> {
    transaction: MappedMutexGuard<'attempt, S::Transaction>,
    holder: &'attempt StdMutex<Option<u64>>,
}

impl<S: Store> Drop for TransactionGuard<'_, S> {
    fn drop(&mut self) {
        lock(self.holder).take();
    }
}

impl<S: Store> Deref for TransactionGuard<'_, S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.transaction
    }
}

impl<S: Store> DerefMut for TransactionGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.transaction
    }
}
