//! Databases of a test's own, on the server that `TEST_DATABASE_URL` names.

use std::{
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// A database that is dropped with this.
pub(crate) struct PostgresDatabase {
    name: String,
    pub(crate) url: String,
}

fn server() -> String {
    std::env::var("TEST_DATABASE_URL").expect("TEST_DATABASE_URL names a PostgreSQL server; tests/run.sh starts one")
}

/// The server's URL with another database.
fn url_of(name: &str) -> String {
    let server = server();
    let (head, query) = server.split_once('?').map_or((server.as_str(), None), |(head, query)| (head, Some(query)));
    let base = head.rsplit_once('/').map_or(head, |(base, _)| base);
    match query {
        Some(query) => format!("{base}/{name}?{query}"),
        None => format!("{base}/{name}"),
    }
}

impl PostgresDatabase {
    pub(crate) async fn create(prefix: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}_{}_{}", process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&server()).await.unwrap();
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.unwrap();
        Self { url: url_of(&name), name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for PostgresDatabase {
    fn drop(&mut self) {
        let name = self.name.clone();
        // A runtime of its own: the test's may be the one that is dropping this.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                let mut connection = PgConnection::connect(&server()).await.ok()?;
                let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
                sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await.ok()
            })
        });
        drop(dropping.join());
    }
}
