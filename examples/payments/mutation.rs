//! The mutations, one of each kind.
//!
//! | mutation | policy | how it works |
//! |---|---|---|
//! | `openAccount`, `transfer` | transactional | on the attempt's transaction: rows, key and response commit together |
//! | `charge` | leased, resumed after a crash | named steps: local, remote, local |
//! | `payout` | leased, held after a crash | knows nothing of steps; a reconciler asks the gateway |

#![allow(clippy::used_underscore_binding, reason = "the key is for the extension to look at; the macro passes it on")]

use std::time::{SystemTime, UNIX_EPOCH};

use async_graphql::{Context, ID, Object, Result};
use async_graphql_idempotency::{ClientId, IdempotencyContext, IdempotencyKey, Mark, MarkError};
use uuid::Uuid;

use crate::{
    account::{Account, OPENING_BALANCE, OpenAccountInput},
    charge::{Charge, ChargeInput},
    failure::Failure,
    gateway_client::GatewayClient,
    input,
    ledger::Ledger,
    payout::{Payout, PayoutInput},
    query::client,
    status::PaymentStatus,
    transfer::{Transfer, TransferInput},
};

pub(crate) struct Mutation<L> {
    pub(crate) ledger: L,
    pub(crate) gateway: GatewayClient,
}

#[Object]
impl<L: Ledger> Mutation<L> {
    /// Opens an account with some money in it, so that transfers can be tried.
    async fn open_account(
        &self,
        ctx: &Context<'_>,
        _idempotency_key: IdempotencyKey,
        input: OpenAccountInput,
    ) -> Result<Account> {
        let account = Account {
            id: new_id("acc"),
            owner: input::text(input.owner)?,
            currency: input::currency(input.currency)?,
            balance: OPENING_BALANCE,
            created_at: now(),
        };
        let attempt = ctx.attempt::<L::Store>()?;
        let mut transaction = attempt.transaction().await?;
        self.ledger.insert_account(&mut transaction, client(ctx)?, &account).await.map_err(Failure::from)?;
        Ok(account)
    }

    /// Moves money between two accounts of the client.
    async fn transfer(
        &self,
        ctx: &Context<'_>,
        _idempotency_key: IdempotencyKey,
        input: TransferInput,
    ) -> Result<Transfer> {
        if input.from == input.to {
            return Err(Failure::BadUserInput("The accounts must be two.").into());
        }
        let transfer = Transfer {
            id: new_id("tr"),
            from: input.from,
            to: input.to,
            amount: input::amount(input.amount)?,
            note: input.note.map(input::text).transpose()?,
            created_at: now(),
        };
        let attempt = ctx.attempt::<L::Store>()?;
        let mut transaction = attempt.transaction().await?;
        // An error rolls back whatever was written before it, and the key is free again.
        Ok(transfer.make(&self.ledger, &mut transaction, client(ctx)?).await?)
    }

    /// Charges a card in favour of an account.
    async fn charge(&self, ctx: &Context<'_>, _idempotency_key: IdempotencyKey, input: ChargeInput) -> Result<Charge> {
        let charge = Charge {
            id: new_id("py"),
            account: input.account,
            amount: input::amount(input.amount)?,
            currency: input::currency(input.currency)?,
            status: PaymentStatus::Pending,
            description: input.description.map(input::text).transpose()?,
            metadata: input.metadata.map(|metadata| serde_json::to_string(&metadata)).transpose()?,
            receipt: None,
            created_at: now(),
        };
        let client = client(ctx)?;
        let attempt = ctx.attempt::<L::Store>()?;

        // A resumed attempt gets the charge that an earlier one made, and not the one above.
        let charge = attempt
            .local("create_charge", async |connection| {
                // Nothing has left the house yet: whatever goes wrong here, the client may try again.
                charge.create(&self.ledger, connection, client).await.mark(Mark::Release)
            })
            .await?;

        let answer = attempt
            .remote("charge_card", async |request_id| {
                let key = request_id.to_string();
                let description = charge.description.as_deref();
                let answer = self.gateway.charge(&key, charge.amount, &charge.currency, description).await;
                answer.map_err(|error| Failure::of_gateway(error, attempt.number()))
            })
            .await?;

        let charge = attempt
            .local("record_payment", async |connection| {
                let status = answer.status.into();
                Ok::<_, Failure>(self.ledger.settle_charge(connection, &charge.id, status, &answer.id).await?)
            })
            .await?;
        if charge.status == PaymentStatus::Declined {
            return Err(Failure::Declined.into());
        }
        Ok(charge)
    }

    /// Pays money out of an account.
    async fn payout(&self, ctx: &Context<'_>, input: PayoutInput) -> Result<Payout> {
        let client = client(ctx)?;
        let attempt = ctx.attempt::<L::Store>()?;
        let id = attempt.request_id().to_string();
        let amount = input::amount(input.amount)?;

        // Nothing has left the house yet: whatever goes wrong, the client may try again.
        let account = self.account(client, &input.account).await.mark(Mark::Release)?;
        let payout = Payout {
            id: ID(id.clone()),
            account: account.id,
            amount,
            currency: account.currency,
            status: PaymentStatus::Pending,
            receipt: None,
            created_at: now(),
        };
        // Kept first, so that whoever finds out later what became of it knows the account.
        self.ledger.insert_payout(client, &payout).await.map_err(Failure::from).mark(Mark::Release)?;

        let answer = match self.gateway.charge(&id, amount, &payout.currency, None).await {
            Ok(answer) => answer,
            Err(error) => {
                let failure = Failure::of_gateway(error, attempt.number());
                if failure.mark() == Some(Mark::Release) {
                    self.ledger.forget_payout(&id).await.map_err(Failure::from)?;
                }
                return Err(failure.into());
            }
        };
        let settled = self.ledger.settle_payout(&id, answer.status.into(), &answer.id).await;
        let payout = settled.map_err(Failure::from)?;
        if payout.status == PaymentStatus::Declined {
            return Err(Failure::Declined.into());
        }
        Ok(payout)
    }
}

impl<L: Ledger> Mutation<L> {
    async fn account(&self, client: &ClientId, id: &str) -> Result<Account, Failure> {
        let mut transaction = self.ledger.begin().await?;
        self.ledger.account(&mut transaction, client, id).await?.ok_or(Failure::AccountNotFound)
    }
}

/// A name for a new row.
pub(crate) fn new_id(kind: &str) -> ID {
    ID(format!("{kind}_{}", Uuid::new_v4().simple()))
}

/// Milliseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
