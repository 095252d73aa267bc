//! Writes what becomes of a record, in a transaction or by one statement.

use sqlx::SqliteConnection;

use super::{BUSY_TRIES, During, SqliteStore, Transaction, exclusively, failed, is_busy, sql};
use crate::{
    claim::ClaimRequest,
    record::{Owner, Settlement},
    state::State,
    store::{
        From, StoreError,
        row::{SettledRow, Write, bind_fence, bind_request, bind_settlement},
    },
};

impl SqliteStore {
    pub(super) async fn settle_from(
        &self,
        owner: &Owner,
        from: From<'_, Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        let write = Write::of(settlement);
        let (transaction, request) = match from {
            From::Open => return exclusively!(self, |connection| self.write(connection, owner, None, &write)),
            From::State(state) => {
                return exclusively!(self, |connection| self.write(connection, owner, Some(state), &write));
            }
            From::Transaction(transaction, request) => (transaction, request),
        };
        match (transaction, write) {
            (Some(transaction), _) if settlement.outcome().is_none() => {
                transaction.rollback().await.map(|()| true).map_err(|error| failed(error, During::Transaction))
            }
            (Some(mut transaction), Write::Settle(row)) => {
                let written = self.write_first(&mut transaction, owner, request, &row).await;
                transaction.end(written).await
            }
            (None, Write::Settle(row)) => {
                exclusively!(self, |connection| self.write_first(connection, owner, request, &row))
            }
            (_, Write::Hold(_) | Write::Delete) => Ok(true),
        }
    }

    /// Settles a record that is there.
    async fn write(
        &self,
        connection: &mut SqliteConnection,
        owner: &Owner,
        from: Option<State>,
        write: &Write<'_>,
    ) -> Result<bool, sqlx::Error> {
        let from = from.map(State::as_str);
        let fenced = |statement| bind_fence!(sqlx::query(statement), self.namespace, owner);
        let query = match write {
            Write::Settle(row) => bind_settlement!(fenced(sql::SETTLE), row).bind(from),
            Write::Hold(reason) => fenced(sql::HOLD).bind(*reason).bind(from),
            Write::Delete => fenced(sql::DELETE).bind(from),
        };
        Ok(query.execute(connection).await?.rows_affected() == 1)
    }

    /// Settles the key of an owner whose attempt has no record of its own yet.
    async fn write_first(
        &self,
        connection: &mut SqliteConnection,
        owner: &Owner,
        request: &ClaimRequest,
        row: &SettledRow<'_>,
    ) -> Result<bool, sqlx::Error> {
        let query = if owner.attempt == 1 {
            bind_settlement!(bind_request!(sqlx::query(sql::INSERT_SETTLED), self.namespace, request), row)
        } else {
            let fenced = bind_fence!(sqlx::query(sql::SETTLE_TAKEN), self.namespace, owner);
            bind_settlement!(fenced, row).bind(&*request.selection)
        };
        Ok(query.execute(connection).await?.rows_affected() == 1)
    }
}
