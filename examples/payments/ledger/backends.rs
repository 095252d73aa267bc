//! The ledger in Postgres and in SQLite.

use async_graphql_idempotency::{ClientId, PostgresStore, SqliteStore};
use sqlx::{PgConnection, Postgres, Sqlite, SqliteConnection};

use super::{Ledger, LedgerError, statements};
use crate::{account::Account, charge::Charge, payout::Payout, retry, status::PaymentStatus, transfer::Transfer};

/// A ledger in the database of a store.
#[derive(Clone)]
pub(crate) struct SqlLedger<S> {
    store: S,
    /// Whether statements are prepared once for a connection: not behind a pooler that shares connections.
    persistent: bool,
}

impl<S> SqlLedger<S> {
    pub(crate) fn new(store: S, persistent: bool) -> Self {
        Self { store, persistent }
    }
}

/// sqlx has one type for each database, and the statements are the same.
macro_rules! ledger {
    ($store:ty, $database:ty, $connection:ty) => {
        impl Ledger for SqlLedger<$store> {
            type Store = $store;
            type Transaction = sqlx::Transaction<'static, $database>;

            fn store(&self) -> &$store {
                &self.store
            }

            async fn create_tables(&self) -> Result<(), LedgerError> {
                self.store.migrate().await?;
                let pool = self.store.pool();
                retry::while_contended(|| sqlx::raw_sql(statements::CREATE_TABLES).execute(pool)).await?;
                Ok(())
            }

            async fn begin(&self) -> Result<Self::Transaction, LedgerError> {
                let pool = self.store.pool().clone();
                // In a task of its own: a BEGIN that is dropped half-way, because its client hung up, could leave a
                // transaction open on a pooled connection.
                let begun = tokio::spawn(async move { pool.begin().await }).await;
                Ok(begun.map_err(|panicked| sqlx::Error::Io(std::io::Error::other(panicked)))??)
            }

            async fn insert_account(
                &self,
                connection: &mut $connection,
                client: &ClientId,
                account: &Account,
            ) -> Result<(), LedgerError> {
                sqlx::query(statements::INSERT_ACCOUNT)
                    .persistent(self.persistent)
                    .bind(account.id.as_str())
                    .bind(client.as_str())
                    .bind(&account.owner)
                    .bind(&account.currency)
                    .bind(account.balance)
                    .bind(account.created_at)
                    .execute(connection)
                    .await?;
                Ok(())
            }

            async fn account(
                &self,
                connection: &mut $connection,
                client: &ClientId,
                id: &str,
            ) -> Result<Option<Account>, LedgerError> {
                let query = sqlx::query_as(statements::ACCOUNT).persistent(self.persistent);
                Ok(query.bind(client.as_str()).bind(id).fetch_optional(connection).await?)
            }

            async fn accounts(
                &self,
                connection: &mut $connection,
                client: &ClientId,
            ) -> Result<Vec<Account>, LedgerError> {
                let query = sqlx::query_as(statements::ACCOUNTS).persistent(self.persistent);
                Ok(query.bind(client.as_str()).fetch_all(connection).await?)
            }

            async fn add_to_balance(
                &self,
                connection: &mut $connection,
                client: &ClientId,
                account: &str,
                amount: i64,
            ) -> Result<Option<Account>, LedgerError> {
                let query = sqlx::query_as(statements::ADD_TO_BALANCE).persistent(self.persistent);
                Ok(query.bind(client.as_str()).bind(account).bind(amount).fetch_optional(connection).await?)
            }

            async fn insert_transfer(
                &self,
                connection: &mut $connection,
                client: &ClientId,
                transfer: &Transfer,
            ) -> Result<(), LedgerError> {
                sqlx::query(statements::INSERT_TRANSFER)
                    .persistent(self.persistent)
                    .bind(transfer.id.as_str())
                    .bind(client.as_str())
                    .bind(transfer.from.as_str())
                    .bind(transfer.to.as_str())
                    .bind(transfer.amount)
                    .bind(transfer.note.as_deref())
                    .bind(transfer.created_at)
                    .execute(connection)
                    .await?;
                Ok(())
            }

            async fn transfers(
                &self,
                connection: &mut $connection,
                client: &ClientId,
            ) -> Result<Vec<Transfer>, LedgerError> {
                let query = sqlx::query_as(statements::TRANSFERS).persistent(self.persistent);
                Ok(query.bind(client.as_str()).fetch_all(connection).await?)
            }

            async fn insert_charge(
                &self,
                connection: &mut $connection,
                client: &ClientId,
                charge: &Charge,
            ) -> Result<(), LedgerError> {
                sqlx::query(statements::INSERT_CHARGE)
                    .persistent(self.persistent)
                    .bind(charge.id.as_str())
                    .bind(client.as_str())
                    .bind(charge.account.as_str())
                    .bind(charge.amount)
                    .bind(&charge.currency)
                    .bind(charge.status.as_str())
                    .bind(charge.description.as_deref())
                    .bind(charge.metadata.as_deref())
                    .bind(charge.created_at)
                    .execute(connection)
                    .await?;
                Ok(())
            }

            async fn settle_charge(
                &self,
                connection: &mut $connection,
                id: &str,
                status: PaymentStatus,
                receipt: &str,
            ) -> Result<Charge, LedgerError> {
                let query = sqlx::query_as(statements::SETTLE_CHARGE).persistent(self.persistent);
                Ok(query.bind(id).bind(status.as_str()).bind(receipt).fetch_one(connection).await?)
            }

            async fn charges(
                &self,
                connection: &mut $connection,
                client: &ClientId,
            ) -> Result<Vec<Charge>, LedgerError> {
                let query = sqlx::query_as(statements::CHARGES).persistent(self.persistent);
                Ok(query.bind(client.as_str()).fetch_all(connection).await?)
            }

            async fn insert_payout(&self, client: &ClientId, payout: &Payout) -> Result<(), LedgerError> {
                let mut transaction = self.begin().await?;
                sqlx::query(statements::INSERT_PAYOUT)
                    .persistent(self.persistent)
                    .bind(payout.id.as_str())
                    .bind(client.as_str())
                    .bind(payout.account.as_str())
                    .bind(payout.amount)
                    .bind(&payout.currency)
                    .bind(payout.status.as_str())
                    .bind(payout.created_at)
                    .execute(&mut *transaction)
                    .await?;
                Ok(transaction.commit().await?)
            }

            async fn settle_payout(
                &self,
                id: &str,
                status: PaymentStatus,
                receipt: &str,
            ) -> Result<Payout, LedgerError> {
                let mut transaction = self.begin().await?;
                let query = sqlx::query_as(statements::SETTLE_PAYOUT).persistent(self.persistent);
                let payout = query.bind(id).bind(status.as_str()).bind(receipt).fetch_one(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(payout)
            }

            async fn forget_payout(&self, id: &str) -> Result<(), LedgerError> {
                let mut transaction = self.begin().await?;
                let query = sqlx::query(statements::FORGET_PAYOUT).persistent(self.persistent);
                query.bind(id).execute(&mut *transaction).await?;
                Ok(transaction.commit().await?)
            }
        }
    };
}

ledger!(PostgresStore, Postgres, PgConnection);
ledger!(SqliteStore, Sqlite, SqliteConnection);
