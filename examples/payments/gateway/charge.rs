//! What the gateway charges: the request, and the charge that it becomes.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize, Serializer};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Refusal;

/// A charge as it is kept, and as it is answered.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Charge {
    pub(crate) id: String,
    pub(crate) idempotency_key: String,
    pub(crate) amount: i64,
    pub(crate) currency: String,
    pub(crate) status: ChargeStatus,
    #[serde(serialize_with = "rfc3339")]
    pub(crate) created_at: OffsetDateTime,
}

/// How a charge ended. Both are final: a retry of the key gets the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChargeStatus {
    Succeeded,
    Declined,
}

/// The body of `POST /charges`.
#[derive(Debug, Deserialize)]
pub(crate) struct ChargeRequest {
    /// In the minor unit of the currency.
    pub(crate) amount: i64,
    /// An ISO 4217 code.
    pub(crate) currency: String,
    pub(crate) description: Option<String>,
}

impl ChargeRequest {
    /// Refuses what no gateway would charge.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if self.amount <= 0 {
            return Err(Refusal::Malformed("amount must be positive".to_owned()));
        }
        let letters = self.currency.bytes().all(|byte| byte.is_ascii_uppercase());
        if self.currency.len() != 3 || !letters {
            return Err(Refusal::Malformed("currency must be three capital letters".to_owned()));
        }
        Ok(())
    }

    /// The charge, if it is what this request asks for.
    pub(crate) fn matched(&self, charge: Charge) -> Result<Charge, Refusal> {
        if charge.amount == self.amount && charge.currency == self.currency {
            Ok(charge)
        } else {
            Err(Refusal::KeyReused)
        }
    }
}

impl ChargeStatus {
    /// The word in the database.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Declined => "declined",
        }
    }

    /// The HTTP status of the answer to `POST /charges`.
    pub(crate) fn http(self) -> StatusCode {
        match self {
            Self::Succeeded => StatusCode::OK,
            Self::Declined => StatusCode::PAYMENT_REQUIRED,
        }
    }
}

fn rfc3339<S: Serializer>(time: &OffsetDateTime, serializer: S) -> Result<S::Ok, S::Error> {
    let text = time.format(&Rfc3339).map_err(serde::ser::Error::custom)?;
    serializer.serialize_str(&text)
}
