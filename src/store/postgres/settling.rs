//! Writes what becomes of a record, in a transaction or by one statement.

use sqlx::PgConnection;

use super::{
    PostgresStore, SERIALIZATION_TRIES, Transaction, atomically,
    failure::{During, failed, is_serialization_failure},
    ground::Ground,
    sql,
};
use crate::{
    claim::ClaimRequest,
    record::{Owner, Record, Settlement},
    state::State,
    store::{
        From, Store, StoreError,
        row::{SettledRow, Write, bind_fence, bind_request, bind_settlement},
    },
};

impl PostgresStore {
    pub(super) async fn settle_from(
        &self,
        owner: &Owner,
        from: From<'_, Transaction>,
        settlement: &Settlement,
    ) -> Result<bool, StoreError> {
        let ground = self.ground().await?;
        let write = Write::of(settlement);
        let (transaction, request) = match from {
            From::Open => return atomically!(self, |c| { self.write(ground, c, owner, None, &write).await }),
            From::State(state) => {
                return atomically!(self, |c| { self.write(ground, c, owner, Some(state), &write).await });
            }
            From::Transaction(transaction, request) => (transaction, request),
        };
        let (mut transaction, row) = match (transaction, write) {
            (Some(transaction), _) if settlement.outcome().is_none() => {
                let rolled_back = transaction.rollback().await;
                return rolled_back.map(|()| true).map_err(|error| failed(error, During::Transaction));
            }
            (Some(transaction), Write::Settle(row)) => (transaction, row),
            (None, Write::Settle(row)) => {
                return atomically!(self, |c| { self.write_first(ground, c, owner, request, &row).await });
            }
            (_, Write::Hold(_) | Write::Delete) => return Ok(true),
        };
        let written = async {
            self.put_back(&mut transaction).await?;
            if self.advisory_locks {
                self.write_first(ground, &mut transaction, owner, request, &row).await
            } else {
                self.write(ground, &mut transaction, owner, None, &Write::Settle(row)).await
            }
        };
        // After an error COMMIT is not sent.
        if written.await.map_err(|error| failed(error, During::Transaction))? {
            transaction.commit().await.map(|()| true).map_err(|error| failed(error, During::Commit))
        } else {
            // By a row, a transaction makes its record itself, and nobody else can change it.
            let by_row = !self.advisory_locks;
            let given_back = |record: &Record| record.state == State::Released && record.next_owner() == *owner;
            self.refuse(transaction, owner, |record| record.map_or(by_row, given_back)).await
        }
    }

    /// Undoes a transaction in which its owner's record could not be written: another attempt has it by now, or the
    /// resolver has changed a setting by which row-level security hides the record, which no retry would mend. `is_as_was`
    /// tells from what is found afterwards whether the record could have been written.
    pub(super) async fn refuse(
        &self,
        transaction: Transaction,
        owner: &Owner,
        is_as_was: impl FnOnce(Option<&Record>) -> bool + Send,
    ) -> Result<bool, StoreError> {
        transaction.rollback().await.map_err(|error| failed(error, During::Transaction))?;
        let found = self.find(&owner.client, &owner.key).await?;
        if is_as_was(found.as_ref().map(|reading| &*reading.record)) {
            return Err(StoreError::Misconfigured("the record can't be seen from the transaction".into()));
        }
        Ok(false)
    }

    /// Settles a record that is there.
    async fn write(
        &self,
        ground: &Ground,
        connection: &mut PgConnection,
        owner: &Owner,
        from: Option<State>,
        write: &Write<'_>,
    ) -> Result<bool, sqlx::Error> {
        let from = from.map(State::as_str);
        let fenced = |statement| bind_fence!(self.query(statement), self.namespace, owner);
        let query = match write {
            Write::Settle(row) => bind_settlement!(fenced(&ground.settle), row).bind(from),
            Write::Hold(reason) => fenced(&ground.hold).bind(*reason).bind(from),
            Write::Delete => fenced(&ground.delete).bind(from),
        };
        Ok(query.execute(connection).await?.rows_affected() == 1)
    }

    /// Settles the key of an owner whose attempt has no record of its own yet.
    async fn write_first(
        &self,
        ground: &Ground,
        connection: &mut PgConnection,
        owner: &Owner,
        request: &ClaimRequest,
        row: &SettledRow<'_>,
    ) -> Result<bool, sqlx::Error> {
        let query = if owner.attempt == 1 {
            bind_settlement!(bind_request!(self.query(&ground.insert_settled), self.namespace, request), row)
        } else {
            let fenced = bind_fence!(self.query(&ground.settle_taken), self.namespace, owner);
            bind_settlement!(fenced, row).bind(&*request.selection)
        };
        Ok(query.execute(connection).await?.rows_affected() == 1)
    }

    /// Remembers those settings of a transaction that a resolver may change.
    pub(super) async fn keep(&self, transaction: &mut Transaction) -> Result<(), sqlx::Error> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let query = self.static_query(sql::KEPT).bind(&self.kept[..]);
        let rows = query.fetch_all(&mut **transaction).await?;
        let value = |row| sqlx::Row::try_get::<Option<String>, _>(row, "value").map(Option::unwrap_or_default);
        let names = rows.iter().map(|row| sqlx::Row::try_get(row, "name")).collect::<Result<_, _>>()?;
        transaction.kept = Some((names, rows.iter().map(value).collect::<Result<_, _>>()?));
        Ok(())
    }

    /// Puts them back.
    pub(super) async fn put_back(&self, transaction: &mut Transaction) -> Result<(), sqlx::Error> {
        if let Some((names, values)) = transaction.kept.take() {
            let query = self.static_query(sql::PUT_BACK).bind(names).bind(values);
            query.fetch_all(&mut **transaction).await?;
        }
        Ok(())
    }
}
