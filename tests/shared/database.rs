//! Databases of a test's own, on the server that `TEST_DATABASE_URL` names.
#![allow(dead_code, reason = "each test binary uses a part of it")]

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

    /// Host and port of the server.
    pub(crate) fn address(&self) -> String {
        let (host, _) =
            self.url.split_once("://").map_or(("", ""), |(_, rest)| rest.split_once('/').unwrap_or((rest, "")));
        host.rsplit_once('@').map_or(host, |(_, host)| host).to_owned()
    }

    pub(crate) fn user(&self) -> String {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let user = rest.split_once('@').map_or("postgres", |(user, _)| user);
        user.split(':').next().unwrap_or("postgres").to_owned()
    }

    /// The URL by way of another port.
    pub(crate) fn url_through(&self, port: u16) -> String {
        self.url.replacen(&self.address(), &format!("127.0.0.1:{port}"), 1)
    }

    pub(crate) async fn run(&self, statement: &str) {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut connection).await.unwrap()
    }

    /// Each record's state and attempt, oldest first.
    pub(crate) async fn states(&self) -> Vec<(String, i32)> {
        const STATES: &str = "SELECT state::text, attempt FROM idempotency_records ORDER BY created_at, key";
        let mut connection = PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_as(STATES).fetch_all(&mut connection).await.unwrap()
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
