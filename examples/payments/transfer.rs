//! Transfers between accounts.

use async_graphql::{ComplexObject, ID, InputObject, SimpleObject};
use async_graphql_idempotency::{ClientId, record::Timestamp};

use crate::{
    account::Account,
    failure::Failure,
    ledger::{Connection, Ledger},
};

/// Money that was moved between two accounts of the client.
#[derive(Clone, Debug, SimpleObject, sqlx::FromRow)]
#[graphql(complex)]
pub(crate) struct Transfer {
    #[sqlx(try_from = "String")]
    pub(crate) id: ID,
    #[sqlx(rename = "from_account", try_from = "String")]
    pub(crate) from: ID,
    #[sqlx(rename = "to_account", try_from = "String")]
    pub(crate) to: ID,
    /// In the minor unit of the accounts' currency.
    pub(crate) amount: i64,
    pub(crate) note: Option<String>,
    #[graphql(skip)]
    pub(crate) created_at: i64,
}

#[ComplexObject]
impl Transfer {
    /// RFC 3339, in UTC.
    async fn created_at(&self) -> String {
        Timestamp(self.created_at).rfc3339()
    }
}

/// The money to move.
#[derive(InputObject)]
pub(crate) struct TransferInput {
    pub(crate) from: ID,
    pub(crate) to: ID,
    /// In the minor unit of the accounts' currency; more than zero.
    pub(crate) amount: i64,
    pub(crate) note: Option<String>,
}

impl Transfer {
    /// Moves the money and keeps the transfer. After an error the connection's transaction has to be undone.
    pub(crate) async fn make<L: Ledger>(
        self,
        ledger: &L,
        connection: &mut Connection<L>,
        client: &ClientId,
    ) -> Result<Self, Failure> {
        let mut ends = [(&self.from, -self.amount), (&self.to, self.amount)];
        // Accounts are always locked in the same order, so that two transfers in opposite directions can't wait for
        // each other.
        ends.sort_by_key(|(account, _)| account.as_str());
        let mut accounts = Vec::new();
        for (account, amount) in ends {
            let account = ledger.add_to_balance(connection, client, account, amount).await?;
            accounts.push(account.ok_or(Failure::AccountNotFound)?);
        }
        if accounts.iter().any(|account: &Account| account.balance < 0) {
            return Err(Failure::InsufficientFunds);
        }
        if accounts.iter().any(|account| account.currency != accounts[0].currency) {
            return Err(Failure::CurrencyMismatch);
        }
        ledger.insert_transfer(connection, client, &self).await?;
        Ok(self)
    }
}
