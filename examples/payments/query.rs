//! The queries. Each shows the client its own rows only.

use async_graphql::{Context, ID, Object, Result};
use async_graphql_idempotency::ClientId;

use crate::{account::Account, charge::Charge, failure::Failure, ledger::Ledger, transfer::Transfer};

pub(crate) struct Query<L> {
    pub(crate) ledger: L,
}

#[Object]
impl<L: Ledger> Query<L> {
    /// An account of the client.
    async fn account(&self, ctx: &Context<'_>, id: ID) -> Result<Option<Account>, Failure> {
        let mut transaction = self.ledger.begin().await?;
        Ok(self.ledger.account(&mut transaction, client(ctx)?, &id).await?)
    }

    /// The client's accounts, oldest first.
    async fn accounts(&self, ctx: &Context<'_>) -> Result<Vec<Account>, Failure> {
        let mut transaction = self.ledger.begin().await?;
        Ok(self.ledger.accounts(&mut transaction, client(ctx)?).await?)
    }

    /// The client's charges, oldest first.
    async fn charges(&self, ctx: &Context<'_>) -> Result<Vec<Charge>, Failure> {
        let mut transaction = self.ledger.begin().await?;
        Ok(self.ledger.charges(&mut transaction, client(ctx)?).await?)
    }

    /// The client's transfers, oldest first.
    async fn transfers(&self, ctx: &Context<'_>) -> Result<Vec<Transfer>, Failure> {
        let mut transaction = self.ledger.begin().await?;
        Ok(self.ledger.transfers(&mut transaction, client(ctx)?).await?)
    }
}

/// Who sent the request: put there by the service, or by the sweeper from the record.
pub(crate) fn client<'a>(ctx: &Context<'a>) -> Result<&'a ClientId, Failure> {
    ctx.data_opt().ok_or(Failure::Unauthenticated)
}
