//! What a side of the storm came to: by its answers, and by the gateway.

use std::collections::HashSet;

use async_graphql::{Response, ServerError, Value};

use crate::gateway_client::{GatewayClient, GatewayError};

pub(super) struct Outcome {
    /// Requests that got a charge for an answer.
    pub(super) answered: usize,
    /// Those of them that say they are replays.
    pub(super) replayed: usize,
    /// How many different charges they tell of.
    pub(super) different: usize,
    /// Charges at the gateway.
    pub(super) charges: usize,
    /// Their sum, in cents.
    pub(super) taken: i64,
}

impl Outcome {
    pub(super) async fn of(responses: &[Response], gateway: &GatewayClient) -> Result<Self, GatewayError> {
        let charges = gateway.charges().await?;
        let answers: Vec<_> = responses.iter().filter(|response| response.is_ok()).collect();
        Ok(Self {
            answered: answers.len(),
            replayed: answers.iter().filter(|response| is_replayed(response)).count(),
            different: answers.iter().map(|response| json(&response.data)).collect::<HashSet<_>>().len(),
            charges: charges.len(),
            taken: charges.iter().map(|charge| charge.amount).sum(),
        })
    }
}

/// A value as it is sent: two answers are the same if their bytes are.
fn json(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What the service tells by the header `Idempotent-Replayed` stands in the response's extensions.
fn is_replayed(response: &Response) -> bool {
    let Some(Value::Object(fields)) = response.extensions.get("idempotency") else {
        return false;
    };
    fields.values().all(|field| match field {
        Value::Object(mark) => mark.get("replayed") == Some(&Value::Boolean(true)),
        _ => false,
    })
}

/// The code of an error.
pub(super) fn code(error: &ServerError) -> Option<&str> {
    match error.extensions.as_ref()?.get("code")? {
        Value::String(code) => Some(code),
        _ => None,
    }
}
