//! What a sweeper and an operator ask.

use std::time::Duration;

use sqlx::{Row, SqliteConnection};

use super::{During, SqliteStore, failed, sql};
use crate::{
    key::{ClientId, IdempotencyKey},
    record::{Record, RecoveryPoint},
    state::State,
    store::{
        Batch, Count, Filter, StoreError, Sweep, Upkeep,
        row::{bind_filter, milliseconds, read_any_record, read_count, read_point, read_state},
        upkeep::PASS_BATCHES,
    },
};

impl Upkeep for SqliteStore {
    async fn list(&self, filter: &Filter) -> Result<Vec<Record>, StoreError> {
        let mut reader = self.reader().await?;
        let list = bind_filter!(sqlx::query(sql::LIST), self.namespace, filter);
        let rows = list.fetch_all(&mut *reader).await.map_err(|error| failed(error, During::Statement))?;
        let records: Result<_, _> = rows.iter().map(|row| read_any_record!(row)).collect();
        records.map_err(|error| failed(error, During::Statement))
    }

    async fn steps(&self, client: &ClientId, key: &IdempotencyKey) -> Result<Vec<RecoveryPoint>, StoreError> {
        let steps = sqlx::query(sql::STEPS).bind(&*self.namespace).bind(client.as_str()).bind(key.as_str());
        let rows = steps.fetch_all(&mut *self.reader().await?).await;
        let rows = rows.map_err(|error| failed(error, During::Statement))?;
        let steps: Result<_, _> = rows.iter().map(|row| read_point!(row)).collect();
        steps.map_err(|error| failed(error, During::Statement))
    }

    async fn count(&self) -> Result<Vec<Count>, StoreError> {
        let rows = sqlx::query(sql::COUNT).bind(&*self.namespace).fetch_all(&mut *self.reader().await?).await;
        let rows = rows.map_err(|error| failed(error, During::Statement))?;
        let counts: Result<_, _> = rows.iter().map(|row| read_count!(row)).collect();
        counts.map_err(|error| failed(error, During::Statement))
    }

    async fn check(&self) -> Result<(), StoreError> {
        Self::check(self).await
    }

    async fn sweep(&self, sweep: &Sweep) -> Result<Batch, StoreError> {
        let undone = |error| failed(error, During::Transaction);
        let mut done = Batch::default();
        let mut transaction = self.open_transaction().await?;
        let marks = sqlx::query(sql::MARKS).bind(&*self.namespace);
        marks.execute(&mut *transaction).await.map_err(undone)?;
        for (pass, age) in [("open", sweep.shortest_lease), ("over", sweep.shortest_retention)] {
            done.more |= self.pass(&mut transaction, sweep, pass, age).await.map_err(undone)?;
        }
        self.age(&mut transaction, sweep, &mut done).await.map_err(undone)?;
        transaction.commit().await.map_err(|error| failed(error, During::Statement))?;
        Ok(done)
    }
}

impl SqliteStore {
    /// Looks through the records that have reached an age. `true` when there are more.
    async fn pass(
        &self,
        connection: &mut SqliteConnection,
        sweep: &Sweep,
        pass: &str,
        age: Duration,
    ) -> Result<bool, sqlx::Error> {
        let mark = sqlx::query(sql::MARK).bind(&*self.namespace).bind(pass).bind(milliseconds(sweep.every));
        let mark = mark.fetch_optional(&mut *connection).await?;
        let Some(mark) = mark else { return Ok(false) };
        let (position, age) = (mark.try_get::<i64, _>("position")?, milliseconds(age));
        let end = sqlx::query(sql::PASS_END).bind(&*self.namespace).bind(position).bind(age);
        let end = end.bind(i64::from(sweep.batch) * PASS_BATCHES).fetch_optional(&mut *connection).await?;
        let end = end.map(|row| row.try_get::<i64, _>("created_at")).transpose()?;
        let look = sqlx::query(sql::PASS_LOOK).bind(&*self.namespace).bind(position).bind(age).bind(pass).bind(end);
        look.execute(&mut *connection).await?;
        let moves = sqlx::query(sql::PASS_MOVE).bind(&*self.namespace).bind(pass).bind(age);
        moves.bind(end).execute(connection).await?;
        Ok(end.is_some())
    }

    /// Carries out what is due for the records whose `look_at` has come.
    async fn age(&self, connection: &mut SqliteConnection, sweep: &Sweep, done: &mut Batch) -> Result<(), sqlx::Error> {
        let due = sqlx::query(sql::DUE).bind(&*self.namespace).bind(i64::from(sweep.batch));
        let due = due.fetch_all(&mut *connection).await?;
        done.more |= due.len() >= sweep.batch as usize;
        for row in &due {
            let (client, key): (String, String) = (row.try_get("client")?, row.try_get("key")?);
            let run = |statement: &'static str| sqlx::query(statement).bind(&*self.namespace).bind(&client).bind(&key);
            let state = read_state!(row);
            match (state, row.try_get("is_over")?) {
                (_, false) => {
                    run(sql::LOOK_LATER).execute(&mut *connection).await?;
                }
                (State::Succeeded | State::Failed | State::Released, true) => {
                    done.expired += 1;
                    run(sql::EXPIRE_STEPS).execute(&mut *connection).await?;
                    run(sql::EXPIRE).bind(milliseconds(sweep.tombstone)).execute(&mut *connection).await?;
                }
                (State::Tombstone(_), true) => {
                    done.purged += 1;
                    run(sql::PURGE).execute(&mut *connection).await?;
                }
                (State::InProgress | State::Settling(_) | State::NeedsRecovery, true) => {
                    done.lapsed += u64::from(state == State::InProgress);
                    run(sql::HAND_OUT).bind(milliseconds(sweep.backoff)).execute(&mut *connection).await?;
                    let row = run(sql::FIND).fetch_one(&mut *connection).await?;
                    let client =
                        crate::key::ClientId::new(client).map_err(|_| crate::store::row::unreadable("client"))?;
                    let key = crate::key::IdempotencyKey::new(key).map_err(|_| crate::store::row::unreadable("key"))?;
                    done.recoverable.push(crate::store::row::read_record!(&row, client, key)?);
                }
            }
        }
        Ok(())
    }
}
