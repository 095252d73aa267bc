//! How a request fails, what the client is told, and what that does to its key.

use async_graphql::{Error, ErrorExtensions};
use async_graphql_idempotency::{AttemptError, Mark, MarkError};

use crate::{gateway_client::GatewayError, ledger::LedgerError};

/// Why a resolver has no result.
///
/// It has no `Display`, so that `?` can't turn it into a GraphQL error by the way: only by the conversion below.
#[derive(Debug)]
pub(crate) enum Failure {
    Unauthenticated,
    BadUserInput(&'static str),
    AccountNotFound,
    CurrencyMismatch,
    InsufficientFunds,
    Declined,
    Gateway(GatewayError),
    Ledger(LedgerError),
    Attempt(AttemptError),
}

impl Failure {
    /// What a failed call to the gateway means in this attempt. "Nothing happened" is about this call only: once an
    /// earlier attempt may have made one too, nobody knows.
    pub(crate) fn of_gateway(error: GatewayError, attempt: i32) -> Self {
        Self::Gateway(if attempt > 1 { GatewayError::Unknown } else { error })
    }

    fn message(&self) -> String {
        match self {
            Self::Unauthenticated => "Send a bearer token: any will do.".to_owned(),
            Self::BadUserInput(rule) => (*rule).to_owned(),
            Self::AccountNotFound => "There is no such account.".to_owned(),
            Self::CurrencyMismatch => "The accounts have different currencies.".to_owned(),
            Self::InsufficientFunds => "The account does not have that much money.".to_owned(),
            Self::Declined => "The card was declined.".to_owned(),
            Self::Gateway(error) => error.to_string(),
            // The database's own words are for the log.
            Self::Ledger(_) => "Something went wrong in the server.".to_owned(),
            Self::Attempt(error) => format!("{error}."),
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Unauthenticated => "UNAUTHENTICATED",
            Self::BadUserInput(_) => "BAD_USER_INPUT",
            Self::AccountNotFound => "ACCOUNT_NOT_FOUND",
            Self::CurrencyMismatch => "CURRENCY_MISMATCH",
            Self::InsufficientFunds => "INSUFFICIENT_FUNDS",
            Self::Declined => "CARD_DECLINED",
            Self::Gateway(GatewayError::Unavailable) => "GATEWAY_UNAVAILABLE",
            Self::Gateway(GatewayError::Rejected(_)) => "GATEWAY_REJECTED",
            Self::Gateway(GatewayError::Unknown) => "GATEWAY_UNKNOWN",
            Self::Attempt(error) => error.code().as_str(),
            Self::Ledger(_) => "INTERNAL_SERVER_ERROR",
        }
    }

    /// What is known about the world, where the policy's own rule would not get it right.
    pub(crate) fn mark(&self) -> Option<Mark> {
        match self {
            // The gateway's answer, for good.
            Self::Declined => Some(Mark::Final),
            // Nothing was charged: the client may try again with the same key.
            Self::Gateway(GatewayError::Unavailable | GatewayError::Rejected(_)) => Some(Mark::Release),
            // Money may have moved: it is for a resumption or the reconciler to find out.
            Self::Gateway(GatewayError::Unknown) | Self::Ledger(_) => Some(Mark::Unknown),
            Self::Unauthenticated
            | Self::BadUserInput(_)
            | Self::AccountNotFound
            | Self::CurrencyMismatch
            | Self::InsufficientFunds
            | Self::Attempt(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        if let Failure::Ledger(error) = &failure {
            tracing::error!(error = error as &dyn std::error::Error, "the ledger failed");
        }
        let error = Error::new(failure.message()).extend_with(|_, extensions| extensions.set("code", failure.code()));
        match failure.mark() {
            Some(mark) => error.mark(mark),
            None => error,
        }
    }
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        Self::Gateway(error)
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl From<AttemptError> for Failure {
    fn from(error: AttemptError) -> Self {
        Self::Attempt(error)
    }
}
