//! What the server knows of the gateway: its HTTP answers, and what they mean for a charge.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::json;

/// How long an answer may take before its outcome counts as unknown.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Shorter than `TIMEOUT`, so that a host that never accepts isn't mistaken for a lost answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A charge, as the gateway answers it; and as a step of `charge` keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Charge {
    /// The gateway's own name for it.
    pub(crate) id: String,
    /// In the minor unit of the currency.
    pub(crate) amount: i64,
    /// How it ended.
    pub(crate) status: ChargeStatus,
}

/// How a charge ended.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChargeStatus {
    /// The money moved.
    Succeeded,
    /// It did not, and won't for this key.
    Declined,
}

/// Why the gateway has not charged, or has not said so. The variants differ in what a caller may conclude.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    /// Nothing happened: the gateway wasn't reached, or said that it did nothing.
    #[error("The payment gateway is unavailable, nothing was charged.")]
    Unavailable,
    /// The request itself is at fault, nothing was charged.
    #[error("The payment gateway refused the request: {0}")]
    Rejected(String),
    /// The request was sent and there is no answer to go by: the charge may have been made.
    #[error("The payment gateway did not answer, the charge may have been made.")]
    Unknown,
}

/// Talks to one gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayClient {
    http: Client,
    base_url: String,
}

impl GatewayClient {
    /// A client of the gateway at `base_url`, `http://127.0.0.1:8001` for one.
    ///
    /// # Errors
    ///
    /// When the HTTP client can't be set up.
    pub(crate) fn new(base_url: &str) -> Result<Self, reqwest::Error> {
        let http = Client::builder()
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            // The gateway is a neighbour: the environment's proxy would not find it.
            .no_proxy()
            .build()?;
        let base_url = base_url.trim_end_matches('/').to_owned();
        Ok(Self { http, base_url })
    }

    /// Charges once per key, however often it is called. A declined charge is an answer too, the same for every
    /// retry of the key.
    ///
    /// # Errors
    ///
    /// Each [`GatewayError`] says whether the charge was made.
    pub(crate) async fn charge(
        &self,
        idempotency_key: &str,
        amount: i64,
        currency: &str,
        description: Option<&str>,
    ) -> Result<Charge, GatewayError> {
        let body = json!({ "amount": amount, "currency": currency, "description": description });
        let request = self.http.post(self.url(&["charges"])?).header("Idempotency-Key", idempotency_key).json(&body);
        let response = send(request).await?;
        match response.status() {
            StatusCode::PAYMENT_REQUIRED => read(response).await,
            _ => read(succeeded(response).await?).await,
        }
    }

    /// Asks what became of a key.
    ///
    /// # Errors
    ///
    /// When there is no answer. [`GatewayError::Unavailable`] and [`GatewayError::Unknown`] mean
    /// the same here: asking changes nothing.
    pub(crate) async fn find(&self, idempotency_key: &str) -> Result<Option<Charge>, GatewayError> {
        let request = self.http.get(self.url(&["charges", idempotency_key])?);
        let response = send(request).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        read(succeeded(response).await?).await.map(Some)
    }

    /// Every charge at the gateway, oldest first.
    ///
    /// # Errors
    ///
    /// As of [`find`](Self::find).
    pub(crate) async fn charges(&self) -> Result<Vec<Charge>, GatewayError> {
        let response = send(self.http.get(self.url(&["charges"])?)).await?;
        read(succeeded(response).await?).await
    }

    /// The URL of a path, with each segment escaped.
    fn url(&self, segments: &[&str]) -> Result<Url, GatewayError> {
        let malformed = || GatewayError::Rejected(format!("{} is not a URL", self.base_url));
        let mut url = Url::parse(&self.base_url).map_err(|_| malformed())?;
        url.path_segments_mut().map_err(|()| malformed())?.pop_if_empty().extend(segments);
        Ok(url)
    }
}

async fn send(request: RequestBuilder) -> Result<Response, GatewayError> {
    request.send().await.map_err(|error| {
        if error.is_builder() {
            GatewayError::Rejected(error.to_string())
        } else if error.is_connect() {
            GatewayError::Unavailable
        } else {
            GatewayError::Unknown
        }
    })
}

/// The response, if its status is a success.
async fn succeeded(response: Response) -> Result<Response, GatewayError> {
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::SERVICE_UNAVAILABLE => Err(GatewayError::Unavailable),
        status if status.is_client_error() => Err(GatewayError::Rejected(reason(response).await)),
        _ => Err(GatewayError::Unknown),
    }
}

/// The message of a refusal, or at least its status.
async fn reason(response: Response) -> String {
    #[derive(Deserialize)]
    struct Body {
        error: String,
    }

    let status = response.status();
    match response.json::<Body>().await {
        Ok(body) => body.error,
        Err(_) => status.to_string(),
    }
}

/// Reads the body. Where that fails the status alone isn't taken for an outcome.
async fn read<T: DeserializeOwned>(response: Response) -> Result<T, GatewayError> {
    response.json().await.map_err(|_| GatewayError::Unknown)
}
