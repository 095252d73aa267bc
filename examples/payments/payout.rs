//! Payouts: money that leaves an account, through the gateway; and what became of one whose server died.

use async_graphql::{ComplexObject, ID, InputObject, SimpleObject};
use async_graphql_idempotency::{Found, IdempotencyKey, Record, record::Timestamp};
use serde_json::json;

use crate::{
    failure::Failure,
    gateway_client::GatewayClient,
    ledger::{Ledger, LedgerError},
    status::PaymentStatus,
};

/// A payout out of an account.
#[derive(Clone, Debug, SimpleObject, sqlx::FromRow)]
#[graphql(complex)]
pub(crate) struct Payout {
    /// The request id of its mutation, and the gateway's idempotency key.
    #[sqlx(try_from = "String")]
    pub(crate) id: ID,
    #[sqlx(try_from = "String")]
    pub(crate) account: ID,
    /// In the minor unit of the currency.
    pub(crate) amount: i64,
    /// An ISO 4217 code: the account's.
    pub(crate) currency: String,
    #[sqlx(try_from = "String")]
    pub(crate) status: PaymentStatus,
    /// The gateway's name for it.
    pub(crate) receipt: Option<String>,
    #[graphql(skip)]
    pub(crate) created_at: i64,
}

#[ComplexObject]
impl Payout {
    /// RFC 3339, in UTC.
    async fn created_at(&self) -> String {
        Timestamp(self.created_at).rfc3339()
    }
}

/// The payout to make.
// Its key is inside, which is as good as beside it.
#[derive(InputObject)]
pub(crate) struct PayoutInput {
    pub(crate) idempotency_key: IdempotencyKey,
    pub(crate) account: ID,
    /// In the minor unit of the account's currency; more than zero.
    pub(crate) amount: i64,
}

impl Payout {
    /// The value by its field names, as the mutation would have returned it.
    fn to_json(&self) -> serde_json::Value {
        json!({
            "__typename": "Payout",
            "id": self.id,
            "account": self.account,
            "amount": self.amount,
            "currency": self.currency,
            "status": self.status,
            "receipt": self.receipt,
            "createdAt": Timestamp(self.created_at).rfc3339(),
        })
    }
}

/// Asks the gateway what became of a payout whose server died: the gateway's word counts.
pub(crate) async fn reconcile<L: Ledger>(ledger: L, gateway: GatewayClient, record: Record) -> Found {
    find_out(&ledger, &gateway, &record).await.unwrap_or_else(|error| {
        tracing::warn!(request_id = %record.request_id, error, "a payout could not be reconciled");
        Found::Unknown
    })
}

async fn find_out<L: Ledger>(ledger: &L, gateway: &GatewayClient, record: &Record) -> Result<Found, String> {
    let id = record.request_id.to_string();
    let told = |error: LedgerError| error.to_string();
    let Some(made) = gateway.find(&id).await.map_err(|error| error.to_string())? else {
        ledger.forget_payout(&id).await.map_err(told)?;
        return Ok(Found::NotStarted);
    };
    let payout = ledger.settle_payout(&id, made.status.into(), &made.id).await.map_err(told)?;
    Ok(match payout.status {
        PaymentStatus::Declined => Found::Failed(Failure::Declined.into()),
        PaymentStatus::Succeeded | PaymentStatus::Pending => Found::Succeeded(payout.to_json()),
    })
}
