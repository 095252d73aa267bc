//! What a sweeper and an operator ask.

use sqlx::Row;

use super::{During, PostgresStore, SERIALIZATION_TRIES, atomically, failed, is_serialization_failure};
use crate::{
    key::{ClientId, IdempotencyKey},
    record::{Record, RecoveryPoint},
    store::{
        Batch, Count, Filter, StoreError, Sweep, Upkeep,
        row::{bind_filter, milliseconds, read_any_record, read_count, read_point},
        upkeep::PASS_BATCHES,
    },
};

impl Upkeep for PostgresStore {
    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let ground = self.ground().await?;
        atomically!(self, |connection| {
            let rows = bind_filter!(self.query(&ground.list), self.namespace, filter).fetch_all(connection).await?;
            rows.iter().map(|row| read_any_record!(row)).collect()
        })
    }

    async fn steps(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        let ground = self.ground().await?;
        atomically!(self, |connection| {
            let steps = self.query(&ground.steps).bind(&*self.namespace).bind(client.as_str()).bind(key.as_str());
            let rows = steps.fetch_all(connection).await?;
            rows.iter().map(|row| read_point!(row)).collect()
        })
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        let ground = self.ground().await?;
        atomically!(self, |connection| {
            let rows = self.query(&ground.count).bind(&*self.namespace).fetch_all(connection).await?;
            rows.iter().map(|row| read_count!(row)).collect()
        })
    }

    async fn check(&self) -> Result<(), StoreError> {
        Self::check(self).await
    }

    async fn sweep(&self, sweep: &Sweep) -> Result<Batch, StoreError> {
        let ground = self.ground().await?;
        let batch = i64::from(sweep.batch);
        let mut done = Batch::default();
        atomically!(self, |connection| { self.query(&ground.marks).bind(&*self.namespace).execute(connection).await })?;
        for (pass, age) in [("open", sweep.shortest_lease), ("over", sweep.shortest_retention)] {
            done.more |= atomically!(self, |connection| {
                let query = self.query(&ground.pass).bind(&*self.namespace).bind(pass).bind(milliseconds(age));
                let query = query.bind(batch * PASS_BATCHES).bind(milliseconds(sweep.every));
                query.fetch_one(connection).await?.try_get::<bool, _>("more")
            })?;
        }
        let rows = atomically!(self, |connection| {
            let query = self.query(&ground.age).bind(&*self.namespace).bind(batch);
            let query = query.bind(milliseconds(sweep.tombstone)).bind(milliseconds(sweep.backoff));
            query.fetch_all(connection).await
        })?;
        read_batch(&rows, batch, &mut done).map_err(|error| failed(error, During::Statement))?;
        Ok(done)
    }
}

fn read_batch(rows: &[sqlx::postgres::PgRow], batch: i64, done: &mut Batch) -> Result<(), sqlx::Error> {
    for row in rows {
        done.more |= row.try_get::<i64, _>("due")? >= batch;
        done.purged = row.try_get::<i64, _>("ended")?.try_into().unwrap_or_default();
        let Some(was) = row.try_get::<Option<String>, _>("was")? else { continue };
        done.expired += u64::from(row.try_get::<bool, _>("expires")?);
        if row.try_get("is_handed")? {
            done.lapsed += u64::from(was == "in_progress");
            done.recoverable.push(read_any_record!(row)?);
        }
    }
    Ok(())
}
