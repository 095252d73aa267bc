//! The tables: made, looked for, and found.

use sqlx::{AssertSqlSafe, Row};

use super::{During, PostgresStore, Transaction, failed, failure::is_made_twice, ground::Ground, sql};
use crate::store::{StoreError, upkeep::TABLES};

/// How often the migrations are tried, where other processes make the same tables at once.
const MIGRATION_TRIES: usize = 8;

impl PostgresStore {
    /// The migrations, in order, for an application that runs them with its own.
    pub const MIGRATIONS: [&'static str; 3] = sql::MIGRATIONS;

    /// Brings the tables up to date. Any number of processes may call it at once. Where there is nothing to do, it only
    /// looks, whoever made the tables.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] names what is missing and can't be made: a right, or a column of tables that an
    /// application has made.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut tries = 0;
        let mut refusal = None;
        loop {
            tries += 1;
            let missing = self.missing().await?;
            match (missing.is_empty(), refusal) {
                (true, _) => return Ok(()),
                (false, Some(error)) if tries > MIGRATION_TRIES || !is_made_twice(&error) => {
                    let missing = missing.join(", ");
                    return Err(StoreError::Misconfigured(format!("{missing} (they can't be made: {error})").into()));
                }
                (false, _) => refusal = self.apply().await.err(),
            }
        }
    }

    /// Checks that every table, column and right that the store needs is there.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] names what is missing.
    pub async fn check(&self) -> Result<(), StoreError> {
        let missing = self.missing().await?;
        if missing.is_empty() { Ok(()) } else { Err(StoreError::Misconfigured(missing.join(", ").into())) }
    }

    async fn apply(&self) -> Result<(), sqlx::Error> {
        let mut transaction = Transaction::begin(self.pool.acquire().await?).await?;
        if let Some(schema) = &self.schema {
            let search_path = format!("SET LOCAL search_path = {schema}");
            sqlx::raw_sql(AssertSqlSafe(search_path)).execute(&mut *transaction).await?;
        }
        sqlx::raw_sql(sql::MIGRATION_TABLE).execute(&mut *transaction).await?;
        for (version, statements) in (1_i32..).zip(sql::MIGRATIONS) {
            // One process at a time: the others wait here, and find the work done.
            let applied = self.static_query(sql::MIGRATION_APPLY).bind(version).execute(&mut *transaction).await?;
            if applied.rows_affected() == 1 {
                sqlx::raw_sql(statements).execute(&mut *transaction).await?;
            }
        }
        transaction.commit().await
    }

    /// What the store needs and does not find.
    async fn missing(&self) -> Result<Vec<String>, StoreError> {
        let undone = |error| failed(error, During::Transaction);
        let mut session = self.session().await?;
        let (tables, columns): (Vec<&str>, Vec<&str>) =
            TABLES.iter().flat_map(|(table, columns)| columns.iter().map(move |column| (*table, *column))).unzip();
        let query = self.static_query(sql::MISSING).bind(tables).bind(columns);
        let schema = self.schema.as_deref().map(|schema| format!("{schema}.")).unwrap_or_default();
        let rows = query.bind(schema).fetch_all(&mut *session).await;
        let rows = session.finish(rows).await.map_err(undone)?;
        rows.iter().map(|row| row.try_get("what")).collect::<Result<_, _>>().map_err(undone)
    }

    /// Where the tables are.
    pub(super) async fn ground(&self) -> Result<&Ground, StoreError> {
        self.ground.get_or_try_init(|| self.find_ground()).await
    }

    async fn find_ground(&self) -> Result<Ground, StoreError> {
        let undone = |error| failed(error, During::Transaction);
        let mut session = self.session().await?;
        let row = self.static_query(sql::GROUND).fetch_one(&mut *session).await;
        let row = session.finish(row).await.map_err(undone)?;
        let isolation: String = row.try_get("isolation").map_err(undone)?;
        let found: Option<String> = row.try_get("schema").map_err(undone)?;
        let schema = self.schema.as_deref().map(str::to_owned).or(found);
        let schema = schema.ok_or_else(|| {
            StoreError::Misconfigured("there is no table idempotency_records: call migrate() at the start".into())
        })?;
        Ok(Ground::new(&schema, ["repeatable read", "serializable"].contains(&&*isolation)))
    }
}
