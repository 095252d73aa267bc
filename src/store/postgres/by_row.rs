//! For engines without advisory locks: a transaction takes its key by making the record first, and settles it at the
//! end.

use sqlx::Row;

use super::{
    PostgresStore, Transaction,
    failure::{During, failed, is_locked, is_read_only, is_serialization_failure},
    ground::Ground,
    sql,
};
use crate::{
    claim::ClaimRequest,
    store::{CLAIM_TRIES, Claimed, StoreError, Taken, row::bind_claim},
};

/// How long a look waits for another transaction that has made the record.
const BRIEFLY: &str = "20ms";

impl PostgresStore {
    pub(super) async fn begin_by_row(
        &self,
        ground: &Ground,
        request: &ClaimRequest,
    ) -> Result<Claimed<Transaction>, StoreError> {
        for _ in 0..CLAIM_TRIES {
            let mut transaction = self.open_transaction().await?;
            let taken = match self.take_by_row(ground, &mut transaction, request).await {
                Ok(None) => continue,
                Ok(Some(taken)) => taken,
                Err(error) if is_locked(&error) => return Ok(Claimed::Busy { reused: false }),
                Err(error) if is_serialization_failure(&error) => continue,
                Err(error) => {
                    if is_read_only(&error) {
                        transaction.leave();
                    }
                    return Err(failed(error, During::Transaction));
                }
            };
            return Ok(taken.map(|taken| taken.within(transaction)));
        }
        Ok(Claimed::Busy { reused: false })
    }

    async fn take_by_row(
        &self,
        ground: &Ground,
        transaction: &mut Transaction,
        request: &ClaimRequest,
    ) -> Result<Option<Claimed<()>>, sqlx::Error> {
        let patience = self.static_query(sql::PATIENCE).bind(BRIEFLY).fetch_one(&mut **transaction).await?;
        let patience: String = patience.try_get("before")?;
        let claim = bind_claim!(self.query(&ground.claim), self.namespace, request);
        let claimed = match claim.fetch_optional(&mut **transaction).await? {
            Some(row) => {
                let (owner, created_at) = (request.first_owner(), row.try_get("created_at")?);
                let taken = Taken { owner, created_at, from: None, steps: Vec::new(), transaction: () };
                Some(Claimed::Taken(taken))
            }
            None => self.meet(ground, transaction, request).await?,
        };
        // The application's own statements wait as long as the application has set.
        self.static_query(sql::PATIENCE).bind(patience).fetch_one(&mut **transaction).await?;
        Ok(claimed)
    }
}
