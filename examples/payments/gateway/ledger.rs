//! The gateway's own durable store: one row per idempotency key, in `SQLite` or Postgres.

use std::{borrow::Cow, time::Duration};

use sqlx::{
    AnyPool, Row,
    any::{AnyPoolOptions, AnyRow},
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::charge::{Charge, ChargeRequest, ChargeStatus};
use crate::retry;

/// Less than the patience of the gateway's clients, so that they hear of a failure.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// `created_at` is microseconds since 1970, which both databases keep and sort exactly.
const CREATE_TABLE: &str = "
    CREATE TABLE IF NOT EXISTS gateway_charges (
        idempotency_key TEXT PRIMARY KEY,
        id              TEXT NOT NULL UNIQUE,
        amount          BIGINT NOT NULL CHECK (amount > 0),
        currency        TEXT NOT NULL,
        description     TEXT,
        status          TEXT NOT NULL CHECK (status IN ('succeeded', 'declined')),
        created_at      BIGINT NOT NULL
    )";

/// The unique key is the referee between concurrent copies.
const INSERT: &str = "
    INSERT INTO gateway_charges
        (idempotency_key, id, amount, currency, description, status, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (idempotency_key) DO NOTHING";

const FIND: &str = "
    SELECT idempotency_key, id, amount, currency, status, created_at
    FROM gateway_charges
    WHERE idempotency_key = $1";

const ALL: &str = "
    SELECT idempotency_key, id, amount, currency, status, created_at
    FROM gateway_charges
    ORDER BY created_at, id";

/// The table `gateway_charges`.
#[derive(Clone)]
pub(crate) struct Ledger {
    pool: AnyPool,
}

impl Ledger {
    /// Connects, and makes the table where there is none.
    pub(crate) async fn open(database_url: &str) -> Result<Self, sqlx::Error> {
        sqlx::any::install_default_drivers();
        let pool = if database_url.starts_with("sqlite:") {
            open_sqlite(database_url).await?
        } else {
            AnyPoolOptions::new().acquire_timeout(CONNECT_TIMEOUT).connect(database_url).await?
        };
        retry::while_contended(|| sqlx::query(CREATE_TABLE).execute(&pool)).await?;
        Ok(Self { pool })
    }

    /// Keeps a new charge. False when the key has one already.
    pub(crate) async fn insert(
        &self,
        key: &str,
        request: &ChargeRequest,
        status: ChargeStatus,
    ) -> Result<bool, sqlx::Error> {
        let inserted = sqlx::query(INSERT)
            .bind(key)
            .bind(format!("ch_{}", Uuid::new_v4().simple()))
            .bind(request.amount)
            .bind(request.currency.as_str())
            .bind(request.description.as_deref())
            .bind(status.as_str())
            .bind(now_micros())
            .execute(&self.pool)
            .await?;
        Ok(inserted.rows_affected() == 1)
    }

    /// The charge of a key.
    pub(crate) async fn find(&self, key: &str) -> Result<Option<Charge>, sqlx::Error> {
        let row = sqlx::query(FIND).bind(key).fetch_optional(&self.pool).await?;
        row.as_ref().map(charge).transpose()
    }

    /// Every charge, oldest first.
    pub(crate) async fn all(&self) -> Result<Vec<Charge>, sqlx::Error> {
        let rows = sqlx::query(ALL).fetch_all(&self.pool).await?;
        rows.iter().map(charge).collect()
    }
}

/// One connection: `SQLite` has one writer anyway, and an in-memory database lives in its connection.
async fn open_sqlite(database_url: &str) -> Result<AnyPool, sqlx::Error> {
    let pool = AnyPoolOptions::new()
        .max_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::query("PRAGMA busy_timeout = 10000").execute(connection).await?;
                Ok(())
            })
        })
        .connect(&creating(database_url))
        .await?;
    // Stays with the file.
    retry::while_contended(|| sqlx::query("PRAGMA journal_mode = WAL").fetch_all(&pool)).await?;
    Ok(pool)
}

/// The URL with `mode=rwc`, which creates a missing file, unless it names a mode itself.
fn creating(database_url: &str) -> Cow<'_, str> {
    match database_url.split_once('?') {
        None => format!("{database_url}?mode=rwc").into(),
        Some((_, query)) if query.split('&').any(|pair| pair.starts_with("mode=")) => database_url.into(),
        Some(_) => format!("{database_url}&mode=rwc").into(),
    }
}

fn charge(row: &AnyRow) -> Result<Charge, sqlx::Error> {
    let status = match row.try_get("status")? {
        "declined" => ChargeStatus::Declined,
        _ => ChargeStatus::Succeeded,
    };
    let micros: i64 = row.try_get("created_at")?;
    let created_at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
        .map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Charge {
        id: row.try_get("id")?,
        idempotency_key: row.try_get("idempotency_key")?,
        amount: row.try_get("amount")?,
        currency: row.try_get("currency")?,
        status,
        created_at,
    })
}

fn now_micros() -> i64 {
    let micros = OffsetDateTime::now_utc().unix_timestamp_nanos() / 1000;
    // An i64 of microseconds reaches past the year 290 000.
    i64::try_from(micros).unwrap_or(i64::MAX)
}
