//! A fake payment gateway: the remote system that `charge` and `payout` have their effect in.
//!
//! It keeps its charges in a table of its own and makes one charge per `Idempotency-Key`, like a
//! real gateway. Unlike a real one it can be told to misbehave:
//!
//! | request | answer |
//! |---|---|
//! | `POST /charges` `{amount, currency, description}` | the charge: 200, or 402 when it is declined |
//! | `GET /charges` | every charge, oldest first, also during an outage |
//! | `GET /charges/{idempotency-key}` | the charge of that key, or 404 |
//! | `POST /faults` `{latencyMs, dropResponses, decline, outage}` | the faults now in force |

mod charge;
mod faults;
mod ledger;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::de::DeserializeOwned;
use tokio::net::TcpListener;

use charge::{Charge, ChargeRequest, ChargeStatus};
use faults::{Faults, FaultsChange};
use ledger::Ledger;

/// The longest `Idempotency-Key` that the gateway takes.
const MAX_KEY: usize = 255;

/// The gateway: durable charges, and the faults of this process.
#[derive(Clone)]
pub(crate) struct Gateway {
    ledger: Ledger,
    faults: Arc<Mutex<Faults>>,
}

/// Why a request got no charge.
enum Refusal {
    Malformed(String),
    NotFound,
    KeyReused,
    Outage,
    Ledger(sqlx::Error),
}

impl Gateway {
    /// Opens the gateway on a `sqlite:` or `postgres:` URL and makes its table where there is none.
    ///
    /// # Errors
    ///
    /// When the database can't be reached, or its table can't be made.
    pub(crate) async fn open(database_url: &str) -> Result<Self, sqlx::Error> {
        Ok(Self { ledger: Ledger::open(database_url).await?, faults: Arc::default() })
    }

    /// Makes the charge of a key, or finds the one that it made before.
    async fn charge(&self, key: &str, request: &ChargeRequest) -> Result<Charge, Refusal> {
        if let Some(charge) = self.ledger.find(key).await? {
            return request.matched(charge);
        }
        let declined = self.faults().take_decline();
        let status = if declined { ChargeStatus::Declined } else { ChargeStatus::Succeeded };
        let inserted = self.ledger.insert(key, request, status).await;
        if declined && !matches!(inserted, Ok(true)) {
            // A copy of this key was faster: the decline is left for another charge.
            self.faults().decline += 1;
        }
        inserted?;
        // Read back, so that the first answer is the very one that a retry will get.
        match self.ledger.find(key).await? {
            Some(charge) => request.matched(charge),
            None => Err(sqlx::Error::RowNotFound.into()),
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse_in_outage(&self) -> Result<(), Refusal> {
        if self.faults().outage {
            return Err(Refusal::Outage);
        }
        Ok(())
    }
}

/// Serves the gateway until `shutdown` completes and the requests in flight are answered.
///
/// # Errors
///
/// When the listener fails.
pub(crate) async fn serve(
    listener: TcpListener,
    gateway: Gateway,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, router(gateway)).with_graceful_shutdown(shutdown).await
}

fn router(gateway: Gateway) -> Router {
    Router::new()
        .route("/charges", post(create_charge).get(list_charges))
        .route("/charges/{key}", get(find_charge))
        .route("/faults", post(set_faults))
        .with_state(gateway)
}

async fn create_charge(State(gateway): State<Gateway>, headers: HeaderMap, body: Bytes) -> Result<Response, Refusal> {
    gateway.refuse_in_outage()?;
    let key = idempotency_key(&headers)?;
    let request: ChargeRequest = parse(&body)?;
    request.check()?;

    let charge = gateway.charge(key, &request).await;

    // From here on the charge is durable, whatever happens to the answer.
    let latency = gateway.faults().latency();
    tokio::time::sleep(latency).await;
    let charge = charge?;
    if gateway.faults().take_drop() {
        return Ok(no_answer());
    }
    Ok((charge.status.http(), Json(charge)).into_response())
}

async fn list_charges(State(gateway): State<Gateway>) -> Result<Json<Vec<Charge>>, Refusal> {
    Ok(Json(gateway.ledger.all().await?))
}

async fn find_charge(State(gateway): State<Gateway>, Path(key): Path<String>) -> Result<Json<Charge>, Refusal> {
    gateway.refuse_in_outage()?;
    let charge = gateway.ledger.find(&key).await?;
    charge.map(Json).ok_or(Refusal::NotFound)
}

async fn set_faults(State(gateway): State<Gateway>, body: Bytes) -> Result<Json<Faults>, Refusal> {
    let change: FaultsChange = parse(&body)?;
    let mut faults = gateway.faults();
    faults.apply(&change);
    Ok(Json(*faults))
}

fn idempotency_key(headers: &HeaderMap) -> Result<&str, Refusal> {
    let malformed = |why: &str| Refusal::Malformed(format!("Idempotency-Key {why}"));
    let key = headers
        .get("idempotency-key")
        .ok_or_else(|| malformed("is missing"))?
        .to_str()
        .map_err(|_| malformed("must be ASCII"))?;
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(malformed("must have 1 to 255 characters"));
    }
    Ok(key)
}

/// Reads a JSON body, whatever its `Content-Type`, so that a bare `curl -d` will do.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::Malformed(error.to_string()))
}

/// A response that fails before its first byte: hyper closes the connection without an answer.
fn no_answer() -> Response {
    let lost = std::future::ready(Err::<Bytes, _>(io::Error::other("response dropped")));
    Body::from_stream(futures_util::stream::once(lost)).into_response()
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::Ledger(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, message) = match self {
            Self::Malformed(message) => (StatusCode::BAD_REQUEST, message),
            Self::NotFound => (StatusCode::NOT_FOUND, "no such charge".to_owned()),
            Self::KeyReused => {
                (StatusCode::UNPROCESSABLE_ENTITY, "this Idempotency-Key was used for another charge".to_owned())
            }
            Self::Outage => (StatusCode::SERVICE_UNAVAILABLE, "the gateway is down, nothing was charged".to_owned()),
            Self::Ledger(error) => {
                tracing::error!(%error, "the gateway's database failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "the charge may have been made".to_owned())
            }
        };
        (status, Json(serde_json::json!({ "error": message }))).into_response()
    }
}
