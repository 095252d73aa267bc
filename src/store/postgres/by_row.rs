//! A transaction takes its key by its record, which it makes first and settles at the end: where an engine has no
//! advisory locks.

use sqlx::{PgConnection, Row};

use super::{PostgresStore, Transaction, has_code, is_serialization_failure, read_found, sql};
use crate::{
    claim::ClaimRequest,
    record::Settlement,
    state::State,
    store::{
        Begun, CLAIM_TRIES, Store, StoreError,
        row::{SettledRow, bind_claim, bind_fence, bind_request, bind_settlement},
    },
};

/// How long a claim waits in the database for another transaction that has made the record.
const BRIEFLY: &str = "20ms";

impl PostgresStore {
    pub(super) async fn begin_by_row(&self, request: &ClaimRequest) -> Result<Begun<Transaction>, StoreError> {
        for _ in 0..CLAIM_TRIES {
            let mut transaction = self.transaction().await?;
            let patience = self.query(sql::PATIENCE).bind(BRIEFLY).fetch_one(&mut *transaction).await?;
            let patience: String = patience.try_get("before")?;
            let claim = bind_claim!(self.query(sql::CLAIM), request).bind(false);
            let row = match claim.fetch_one(&mut *transaction).await {
                Ok(row) => row,
                Err(error) if has_code(&error, &["55P03"]) => return Ok(Begun::Busy { reused: false }),
                Err(error) if is_serialization_failure(&error) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(created_at) = row.try_get("taken_at")? {
                // What the application's own statements wait is the application's.
                self.query(sql::PATIENCE).bind(patience).fetch_one(&mut *transaction).await?;
                return Ok(Begun::Taken { transaction, created_at });
            }
            if let Some((record, now)) = read_found(&row, &request.client, &request.key)? {
                return Ok(Begun::found(record, now, request));
            }
        }
        Ok(Begun::Busy { reused: false })
    }

    /// Settles the transaction's own record.
    pub(super) async fn settle_row(
        &self,
        connection: &mut PgConnection,
        request: &ClaimRequest,
        settlement: &Settlement,
    ) -> Result<bool, sqlx::Error> {
        let (owner, row) = (request.owner(request.request_id, 1), SettledRow::of(settlement));
        let settle = bind_settlement!(bind_fence!(self.query(sql::SETTLE), owner), State::InProgress, row);
        Ok(settle.execute(connection).await?.rows_affected() == 1)
    }
}
