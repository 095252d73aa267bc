//! How far a charge or a payout is.

use async_graphql::Enum;
use serde::{Deserialize, Serialize};

use crate::gateway_client;

/// How far a charge or a payout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum PaymentStatus {
    /// The gateway has not answered yet.
    Pending,
    /// The money moved.
    Succeeded,
    /// The gateway declined it; no money moved.
    Declined,
}

impl PaymentStatus {
    /// The word in the `status` columns.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Succeeded => "succeeded",
            Self::Declined => "declined",
        }
    }
}

impl TryFrom<String> for PaymentStatus {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        [Self::Pending, Self::Succeeded, Self::Declined]
            .into_iter()
            .find(|status| status.as_str() == word)
            .ok_or_else(|| format!("{word} is no status"))
    }
}

impl From<gateway_client::ChargeStatus> for PaymentStatus {
    fn from(status: gateway_client::ChargeStatus) -> Self {
        match status {
            gateway_client::ChargeStatus::Succeeded => Self::Succeeded,
            gateway_client::ChargeStatus::Declined => Self::Declined,
        }
    }
}
