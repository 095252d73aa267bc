//! Charges: money that a card pays in, through the gateway.

use async_graphql::{ComplexObject, ID, InputObject, Json, SimpleObject, Value};
use async_graphql_idempotency::{ClientId, record::Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    ledger::{Connection, Ledger},
    status::PaymentStatus,
};

/// A charge in favour of an account.
// The steps of the mutation keep it, as JSON.
#[derive(Clone, Debug, SimpleObject, sqlx::FromRow, Serialize, Deserialize)]
#[graphql(complex)]
pub(crate) struct Charge {
    #[sqlx(try_from = "String")]
    pub(crate) id: ID,
    #[sqlx(try_from = "String")]
    pub(crate) account: ID,
    /// In the minor unit of the currency.
    pub(crate) amount: i64,
    /// An ISO 4217 code.
    pub(crate) currency: String,
    #[sqlx(try_from = "String")]
    pub(crate) status: PaymentStatus,
    pub(crate) description: Option<String>,
    // JSON text, so that it comes back as it was sent.
    #[graphql(skip)]
    pub(crate) metadata: Option<String>,
    /// The gateway's name for it.
    pub(crate) receipt: Option<String>,
    #[graphql(skip)]
    pub(crate) created_at: i64,
}

#[ComplexObject]
impl Charge {
    /// Whatever the client gave with it.
    async fn metadata(&self) -> Option<Json<Value>> {
        self.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok()).map(Json)
    }

    /// RFC 3339, in UTC.
    async fn created_at(&self) -> String {
        Timestamp(self.created_at).rfc3339()
    }
}

/// The charge to make.
#[derive(InputObject)]
pub(crate) struct ChargeInput {
    pub(crate) account: ID,
    /// In the minor unit of the currency; more than zero.
    pub(crate) amount: i64,
    /// An ISO 4217 code.
    #[graphql(default = "USD")]
    pub(crate) currency: String,
    pub(crate) description: Option<String>,
    /// Anything; it is given back as it is.
    pub(crate) metadata: Option<Json<Value>>,
}

impl Charge {
    /// Keeps a charge that is about to be made.
    pub(crate) async fn create<L: Ledger>(
        self,
        ledger: &L,
        connection: &mut Connection<L>,
        client: &ClientId,
    ) -> Result<Self, Failure> {
        let account = ledger.account(connection, client, &self.account).await?;
        account.ok_or(Failure::AccountNotFound)?;
        ledger.insert_charge(connection, client, &self).await?;
        Ok(self)
    }
}
