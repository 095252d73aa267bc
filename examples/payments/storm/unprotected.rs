//! The same charge as a server without the crate makes it: the key is taken and not looked at.

#![allow(clippy::used_underscore_binding, reason = "the key is for the extension to look at; the macro passes it on")]

use async_graphql::{Object, Result};
use async_graphql_idempotency::IdempotencyKey;
use uuid::Uuid;

use crate::{
    charge::{Charge, ChargeInput},
    failure::Failure,
    gateway_client::GatewayClient,
    mutation::{new_id, now},
};

pub(super) struct Unprotected {
    pub(super) gateway: GatewayClient,
}

#[Object]
impl Unprotected {
    /// Charges a card. It keeps no row of it: what counts here is at the gateway.
    async fn charge(&self, _idempotency_key: IdempotencyKey, input: ChargeInput) -> Result<Charge, Failure> {
        // Nothing tells a retry from a new request, so each gets a new key at the gateway.
        let key = Uuid::new_v4().to_string();
        let answer = self.gateway.charge(&key, input.amount, &input.currency, None).await?;
        Ok(Charge {
            id: new_id("py"),
            account: input.account,
            amount: input.amount,
            currency: input.currency,
            status: answer.status.into(),
            description: input.description,
            metadata: None,
            receipt: Some(answer.id),
            created_at: now(),
        })
    }
}
