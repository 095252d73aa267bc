//! The application's own tables: accounts, transfers, charges, payouts. Every row belongs to a client.

use std::{future::Future, ops::DerefMut};

use async_graphql_idempotency::{ClientId, Store, Upkeep};

use crate::{account::Account, charge::Charge, payout::Payout, status::PaymentStatus, transfer::Transfer};

mod backends;
mod statements;

pub(crate) use backends::SqlLedger;

/// The connection that a store's attempts work on.
pub(crate) type Connection<L> = <<L as Ledger>::Store as Store>::Connection;

/// The rows, in the database that the idempotency keys live in too: what a mutation writes on its attempt's
/// connection is committed with its key, or not at all.
pub(crate) trait Ledger: Clone + Send + Sync + 'static {
    /// Where the keys are.
    type Store: Upkeep;
    /// A transaction that has nothing to do with a key.
    type Transaction: DerefMut<Target = Connection<Self>> + Send;

    /// The store in the same database.
    fn store(&self) -> &Self::Store;

    /// Makes the tables where there are none, those of the store included.
    fn create_tables(&self) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Opens a transaction: for queries, and for what is done outside an attempt. Undone when dropped.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction, LedgerError>> + Send;

    fn insert_account(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
        account: &Account,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    fn account(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
        id: &str,
    ) -> impl Future<Output = Result<Option<Account>, LedgerError>> + Send;

    fn accounts(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
    ) -> impl Future<Output = Result<Vec<Account>, LedgerError>> + Send;

    /// Adds to an account's balance, or takes from it, and tells what the account is then.
    fn add_to_balance(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
        account: &str,
        amount: i64,
    ) -> impl Future<Output = Result<Option<Account>, LedgerError>> + Send;

    fn insert_transfer(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
        transfer: &Transfer,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    fn transfers(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
    ) -> impl Future<Output = Result<Vec<Transfer>, LedgerError>> + Send;

    fn insert_charge(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
        charge: &Charge,
    ) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Writes down what the gateway said to a charge.
    fn settle_charge(
        &self,
        connection: &mut Connection<Self>,
        id: &str,
        status: PaymentStatus,
        receipt: &str,
    ) -> impl Future<Output = Result<Charge, LedgerError>> + Send;

    fn charges(
        &self,
        connection: &mut Connection<Self>,
        client: &ClientId,
    ) -> impl Future<Output = Result<Vec<Charge>, LedgerError>> + Send;

    /// Keeps a payout that is about to be made, in a transaction of its own. One that an earlier attempt has kept
    /// stays.
    fn insert_payout(&self, client: &ClientId, payout: &Payout)
    -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Writes down what the gateway said to a payout, in a transaction of its own.
    fn settle_payout(
        &self,
        id: &str,
        status: PaymentStatus,
        receipt: &str,
    ) -> impl Future<Output = Result<Payout, LedgerError>> + Send;

    /// Removes a payout that was never made, in a transaction of its own.
    fn forget_payout(&self, id: &str) -> impl Future<Output = Result<(), LedgerError>> + Send;
}

/// The database failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LedgerError {
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Store(#[from] async_graphql_idempotency::StoreError),
}
