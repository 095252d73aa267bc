//! Accounts.

use async_graphql::{ComplexObject, ID, InputObject, SimpleObject};
use async_graphql_idempotency::record::Timestamp;

/// What a new account has, so that transfers can be tried.
pub(crate) const OPENING_BALANCE: i64 = 100_000;

/// An account of the client. Transfers move its balance; charges and payouts go by the gateway.
#[derive(Clone, Debug, SimpleObject, sqlx::FromRow)]
#[graphql(complex)]
pub(crate) struct Account {
    #[sqlx(try_from = "String")]
    pub(crate) id: ID,
    pub(crate) owner: String,
    /// An ISO 4217 code.
    pub(crate) currency: String,
    /// In the minor unit of the currency.
    pub(crate) balance: i64,
    #[graphql(skip)]
    pub(crate) created_at: i64,
}

#[ComplexObject]
impl Account {
    /// RFC 3339, in UTC.
    async fn created_at(&self) -> String {
        Timestamp(self.created_at).rfc3339()
    }
}

/// The account to open.
#[derive(InputObject)]
pub(crate) struct OpenAccountInput {
    pub(crate) owner: String,
    /// An ISO 4217 code.
    #[graphql(default = "USD")]
    pub(crate) currency: String,
}
