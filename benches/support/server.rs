//! A PostgreSQL server of the benchmark's own, or the one that `BENCH_DATABASE_URL` names.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    sync::Mutex,
    time::{Duration, Instant},
};

use sqlx::{
    AssertSqlSafe, Connection, Executor, PgConnection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tempfile::TempDir;

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
    binaries: PathBuf,
    owner: Option<Owner>,
}

/// Whom the server runs as: PostgreSQL refuses to be root.
#[derive(Clone, Copy)]
struct Owner {
    user: u32,
    group: u32,
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
        let binaries = binaries().expect(
            "PostgreSQL's server is missing: install it, or set BENCH_DATABASE_URL to the URL of a superuser \
             on a server for benchmarks",
        );
        let owner = owner();
        let directory = tempfile::Builder::new().prefix("idempotency-bench.").tempdir_in(base(owner)).unwrap();
        #[cfg(unix)]
        if let Some(owner) = owner {
            std::os::unix::fs::chown(directory.path(), Some(owner.user), Some(owner.group)).unwrap();
        }
        let data = directory.path().join("data");
        let mut initdb = command(&binaries.join("initdb"), owner);
        initdb.arg("-D").arg(&data).args(["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale"]);
        assert!(initdb.stdout(Stdio::null()).status().unwrap().success(), "initdb failed");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = command(&binaries.join("postgres"), owner);
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in SETTINGS.iter().filter(|setting| has_contrib(&binaries) || !setting.contains("pg_stat")) {
            server.args(["-c", setting]);
        }
        let process = server.stdout(Stdio::null()).spawn().unwrap();
        (Self { process, directory, binaries, owner }, port)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut stop = command(&self.binaries.join("pg_ctl"), self.owner);
        stop.args(["stop", "-m", "immediate", "-D"]).arg(self.directory.path().join("data"));
        if !stop.stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
            drop(self.process.kill());
        }
        drop(self.process.wait());
    }
}

/// A command as the server's owner, in a directory that it may enter.
fn command(program: &Path, owner: Option<Owner>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").stdin(Stdio::null());
    #[cfg(unix)]
    if let Some(owner) = owner {
        std::os::unix::process::CommandExt::gid(&mut command, owner.group);
        std::os::unix::process::CommandExt::uid(&mut command, owner.user);
    }
    command
}

fn owner() -> Option<Owner> {
    if id(&["-u"])? != 0 {
        return None;
    }
    let user = if id(&["-u", "postgres"]).is_some() { "postgres" } else { "nobody" };
    Some(Owner { user: id(&["-u", user])?, group: id(&["-g", user])? })
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Another user may not be able to enter root's own directory for temporary files.
fn base(owner: Option<Owner>) -> PathBuf {
    if owner.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() }
}

/// The directory of the newest server's binaries.
fn binaries() -> Option<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut candidates: Vec<_> = installed.map(|version| version.path().join("bin")).collect();
    candidates.sort_by_key(|path| {
        let version = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse::<u32>().ok());
        std::cmp::Reverse(version)
    });
    candidates.extend(pg_config(Path::new("pg_config"), "--bindir"));
    candidates.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    candidates.into_iter().find(|path| ["initdb", "pg_ctl", "postgres"].iter().all(|name| path.join(name).exists()))
}

fn pg_config(program: &Path, question: &str) -> Option<PathBuf> {
    let output = Command::new(program).arg(question).stderr(Stdio::null()).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn has_contrib(binaries: &Path) -> bool {
    pg_config(&binaries.join("pg_config"), "--pkglibdir").is_some_and(|path| {
        ["so", "dylib", "dll"].iter().any(|end| path.join(format!("pg_stat_statements.{end}")).exists())
    })
}
