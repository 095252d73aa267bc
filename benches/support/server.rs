//! A PostgreSQL server of the benchmark's own, or the one that `BENCH_DATABASE_URL` names.

use std::{
    net::TcpListener,
    path::Path,
    process::{Child, Stdio},
    str::FromStr,
    sync::Mutex,
    time::{Duration, Instant},
};

use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tempfile::TempDir;

#[path = "../../tests/shared/installation.rs"]
mod installation;

use installation::{Installation, pg_config};

/// What differs from initdb's defaults. `fsync`, `synchronous_commit` and `full_page_writes` stay on, as in production.
const SETTINGS: [&str; 9] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    // As a server with some memory has them; the defaults are for a very small one.
    "shared_buffers=1GB",
    "max_wal_size=8GB",
    "log_min_messages=fatal",
    // On the tables of seconds that a benchmark makes, as it would be on those of months.
    "autovacuum_naptime=5s",
    // Counts nothing unless a connection asks for it: see `counting`.
    "shared_preload_libraries=pg_stat_statements",
    "pg_stat_statements.track=none",
];

/// A server, and databases of this run's own on it. They go when this goes.
pub(crate) struct Server {
    admin: PgConnectOptions,
    /// None when the server is another's; then only the databases are dropped, by [`Server::done`].
    cluster: Option<Cluster>,
    databases: Mutex<Vec<String>>,
}

struct Cluster {
    process: Child,
    directory: TempDir,
    installation: Installation,
}

impl Server {
    /// Starts one, or takes the one of `BENCH_DATABASE_URL`.
    pub(crate) async fn start() -> Self {
        let (admin, cluster) = if let Ok(url) = std::env::var("BENCH_DATABASE_URL") {
            (PgConnectOptions::from_str(&url).unwrap(), None)
        } else {
            let (cluster, port) = Cluster::start();
            let options = PgConnectOptions::new().host("127.0.0.1").port(port).username("postgres");
            (options.database("postgres"), Some(cluster))
        };
        let server = Self { admin, cluster, databases: Mutex::default() };
        // Missing where contrib is; then nothing is counted.
        drop(server.connect().await.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").await);
        server
    }

    /// A new database.
    pub(crate) async fn database(&self) -> PgConnectOptions {
        let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
        self.connect().await.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
        self.databases.lock().unwrap().push(name.clone());
        self.admin.clone().database(&name)
    }

    /// A connection beside the databases.
    pub(crate) async fn connect(&self) -> PgConnection {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match PgConnection::connect_with(&self.admin).await {
                Ok(connection) => return connection,
                Err(error) if Instant::now() > deadline => panic!("the database server can't be reached: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// Drops the databases where the server stays.
    pub(crate) async fn done(self) {
        if self.cluster.is_none() {
            let names = std::mem::take(&mut *self.databases.lock().unwrap());
            for name in names {
                let drop = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
                self.connect().await.execute(drop).await.unwrap();
            }
        }
    }
}

/// A pool with sqlx's defaults but for its size.
pub(crate) async fn pool(options: PgConnectOptions, connections: u32) -> PgPool {
    let pool = PgPoolOptions::new().min_connections(connections).max_connections(connections);
    pool.acquire_timeout(Duration::from_mins(2)).connect_with(options).await.unwrap()
}

/// The same database, on connections whose statements the server counts.
pub(crate) fn counting(options: PgConnectOptions) -> PgConnectOptions {
    options.options([("pg_stat_statements.track", "top")])
}

impl Cluster {
    fn start() -> (Self, u16) {
        let installation = Installation::find(None, &["initdb", "pg_ctl", "postgres"]).expect(
            "PostgreSQL's server is missing: install it, or set BENCH_DATABASE_URL to the URL of a superuser \
             on a server for benchmarks",
        );
        let directory = installation.folder("idempotency-bench.");
        let data = directory.path().join("data");
        let mut initdb = installation.command("initdb");
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale"]);
        assert!(initdb.stdout(Stdio::null()).status().unwrap().success(), "initdb failed");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = installation.command("postgres");
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        let has_contrib = has_contrib(&installation.binaries);
        for setting in SETTINGS.iter().filter(|setting| has_contrib || !setting.contains("pg_stat")) {
            server.args(["-c", setting]);
        }
        let process = server.stdout(Stdio::null()).spawn().unwrap();
        (Self { process, directory, installation }, port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = self.installation.command("pg_ctl");
        stop.args(["stop", "-m", "immediate", "-D"]).arg(self.directory.path().join("data"));
        if !stop.stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
            drop(self.process.kill());
        }
        drop(self.process.wait());
    }
}

fn has_contrib(binaries: &Path) -> bool {
    pg_config(&binaries.join("pg_config"), "--pkglibdir").is_some_and(|path| {
        ["so", "dylib", "dll"].iter().any(|end| path.join(format!("pg_stat_statements.{end}")).exists())
    })
}
