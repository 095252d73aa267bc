//! The tables: made, and looked for.

use sqlx::Row;

use super::{During, SqliteStore, failed, sql};
use crate::store::{StoreError, upkeep::TABLES};

impl SqliteStore {
    /// The migrations, in order, for an application that runs them with its own.
    pub const MIGRATIONS: [&'static str; 3] = sql::MIGRATIONS;

    /// Brings the tables up to date. Any number of processes may call it at once. Where there is nothing to do, it only
    /// looks, whoever made the tables.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] when tables that an application made are not up to date.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        if self.check().await.is_ok() {
            return Ok(());
        }
        let undone = |error| failed(error, During::Transaction);
        let mut transaction = self.open_transaction().await?;
        sqlx::raw_sql(sql::MIGRATION_TABLE).execute(&mut *transaction).await.map_err(undone)?;
        for (version, statements) in (1_i32..).zip(sql::MIGRATIONS) {
            let apply = sqlx::query(sql::MIGRATION_APPLY).bind(version);
            if apply.execute(&mut *transaction).await.map_err(undone)?.rows_affected() == 1 {
                sqlx::raw_sql(statements).execute(&mut *transaction).await.map_err(undone)?;
            }
        }
        transaction.commit().await.map_err(|error| failed(error, During::Commit))?;
        self.check().await
    }

    /// Checks that every table and column that the store needs is there.
    ///
    /// # Errors
    /// [`StoreError::Misconfigured`] names what is missing.
    pub async fn check(&self) -> Result<(), StoreError> {
        let undone = |error| failed(error, During::Transaction);
        let mut reader = self.reader().await?;
        let mut missing = Vec::new();
        for (table, columns) in TABLES {
            let rows = sqlx::query(sql::COLUMNS).bind(table).fetch_all(&mut *reader).await.map_err(undone)?;
            let found: Vec<String> =
                rows.iter().map(|row| row.try_get("name")).collect::<Result<_, _>>().map_err(undone)?;
            if found.is_empty() {
                missing.push(format!("the table {table}"));
                continue;
            }
            let lacks = columns.iter().filter(|column| !found.iter().any(|name| name == *column));
            missing.extend(lacks.map(|column| format!("the column {table}.{column}")));
        }
        if missing.is_empty() { Ok(()) } else { Err(StoreError::Misconfigured(missing.join(", ").into())) }
    }
}
