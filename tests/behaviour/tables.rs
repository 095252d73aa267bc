//! The tables that migrations make are those that `schema/` shows.

use async_graphql_idempotency::{PostgresStore, SqliteStore};
use sqlx::{Connection, PgConnection, SqliteConnection};

#[path = "../shared/database.rs"]
mod database;

use database::PostgresDatabase;

#[tokio::test]
async fn the_postgres_tables_are_as_shown() {
    const SHAPE: &str = "
        SELECT concat_ws(' ', table_name, ordinal_position, column_name, data_type, is_nullable, column_default, collation_name)
        FROM information_schema.columns WHERE table_schema = 'public'
        UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
        UNION ALL SELECT conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
        ORDER BY 1";
    let (migrated, shown) = (PostgresDatabase::create("tables").await, PostgresDatabase::create("tables").await);
    let store = PostgresStore::connect(&migrated.url).await.unwrap();
    store.migrate().await.unwrap();
    // Again, as every start of a server does.
    store.migrate().await.unwrap();
    shown.run(include_str!("../../schema/postgres.sql")).await;
    let mut shapes = Vec::new();
    for database in [&migrated, &shown] {
        let mut connection = PgConnection::connect(&database.url).await.unwrap();
        let shape: Vec<String> = sqlx::query_scalar(SHAPE).fetch_all(&mut connection).await.unwrap();
        shapes.push(shape);
    }
    assert_eq!(shapes[0], shapes[1]);
    assert!(shapes[0].len() > 20, "{shapes:?}");
}

#[tokio::test]
async fn the_sqlite_tables_are_as_shown() {
    const SHAPE: &str =
        "SELECT replace(sql, 'IF NOT EXISTS ', '') FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name";
    let store = SqliteStore::in_memory().await.unwrap();
    store.migrate().await.unwrap();
    let mut shown = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql(include_str!("../../schema/sqlite.sql")).execute(&mut shown).await.unwrap();
    let migrated: Vec<String> = sqlx::query_scalar(SHAPE).fetch_all(store.pool()).await.unwrap();
    let shown: Vec<String> = sqlx::query_scalar(SHAPE).fetch_all(&mut shown).await.unwrap();
    assert_eq!(migrated, shown);
    assert!(migrated.len() > 3, "{migrated:?}");
}
