//! PostgreSQL servers that can be killed, copied and promoted.

use std::{
    fs::{self, File},
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::installation::Installation;

/// What a member is called where a primary tells who its synchronous standbys are.
const NAME: &str = "member";

/// How long anything may take that a cluster does with itself.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where members live.
struct Cluster {
    installation: Installation,
    members: AtomicU32,
    folder: TempDir,
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Cluster {
    fn create(installation: Installation) -> Self {
        let folder = installation.folder("idempotency-failover.");
        Self { installation, members: AtomicU32::new(0), folder }
    }

    /// A folder for another member, which is not made yet.
    fn next(&self) -> PathBuf {
        self.folder.path().join(self.members.fetch_add(1, Ordering::Relaxed).to_string())
    }

    fn command(&self, program: &str, data: &Path) -> Command {
        let mut command = self.installation.command(program);
        command.env("LC_ALL", "C").arg("-D").arg(data);
        command
    }

    async fn run(&self, mut command: Command) {
        command.stdout(Stdio::null());
        let done = tokio::process::Command::from(command).kill_on_drop(true).output();
        let output = tokio::time::timeout(PATIENCE, done).await.expect("it takes too long").unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A server, which is killed and removed with this.
pub(crate) struct Member {
    port: u16,
    child: Child,
    data: PathBuf,
    synchronous: bool,
    cluster: Arc<Cluster>,
}

impl Member {
    /// A new server, the first of its cluster; none where there is no PostgreSQL to be had. Where it is `synchronous`,
    /// it commits nothing that is not on a standby too.
    pub(crate) async fn first(synchronous: bool) -> Option<Self> {
        let named = std::env::var_os("TEST_POSTGRES_BIN").map(PathBuf::from);
        let Some(installation) = Installation::find(named, &["initdb", "postgres", "pg_basebackup"]) else {
            // Past the harness, which shows nothing of a test that passes.
            let reason = "skipped: TEST_POSTGRES_BIN has to name the folder of initdb, postgres and pg_basebackup\n";
            std::io::stderr().write_all(reason.as_bytes()).unwrap();
            return None;
        };
        let cluster = Arc::new(Cluster::create(installation));
        let data = cluster.next();
        let mut command = cluster.command("initdb", &data);
        command.args(["-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync"]);
        cluster.run(command).await;
        Some(Self::start(cluster, data, synchronous).await)
    }

    /// A copy of this primary that follows it; ready when the primary waits for it.
    pub(crate) async fn standby(&self) -> Self {
        let data = self.cluster.next();
        let mut command = self.cluster.command("pg_basebackup", &data);
        let from = format!("host=127.0.0.1 port={} user=postgres", self.port);
        command.args(["-d", &from, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        self.cluster.run(command).await;
        let standby = Self::start(Arc::clone(&self.cluster), data, self.synchronous).await;
        let waits = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'";
        let deadline = Instant::now() + PATIENCE;
        while self.number(waits).await != 1 {
            assert!(Instant::now() < deadline, "the standby does not follow: {}", standby.log());
            sleep(Duration::from_millis(20)).await;
        }
        standby
    }

    async fn start(cluster: Arc<Cluster>, data: PathBuf, synchronous: bool) -> Self {
        // Someone may take the port between the look and the start.
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut command = cluster.command("postgres", &data);
            for setting in [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "max_connections=100",
                "fsync=off",
                "wal_keep_size=512MB",
                // In the member's own folder, which goes with it however it ends.
                "dynamic_shared_memory_type=mmap",
                // A standby gives it to its primary as its name.
                &format!("cluster_name={NAME}"),
                &format!("synchronous_standby_names={}", if synchronous { NAME } else { "" }),
                &format!("port={port}"),
            ] {
                command.args(["-c", setting]);
            }
            let log = File::create(data.join("server.log")).unwrap();
            command.stdout(log.try_clone().unwrap()).stderr(log);
            let child = command.spawn().unwrap();
            let mut member = Self { port, child, data: data.clone(), synchronous, cluster: Arc::clone(&cluster) };
            if member.listens().await {
                return member;
            }
            eprintln!("a server did not start: {}", member.log());
        }
        panic!("no server starts");
    }

    /// Ready when it takes connections; false when it has ended.
    async fn listens(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            if PgConnection::connect(&self.url()).await.is_ok() {
                return true;
            }
            assert!(Instant::now() < deadline, "it does not listen: {}", self.log());
            sleep(Duration::from_millis(20)).await;
        }
        false
    }

    fn log(&self) -> String {
        fs::read_to_string(self.data.join("server.log")).unwrap_or_default()
    }

    /// Ready when it takes writes.
    pub(crate) async fn promote(&self) {
        self.run("SELECT pg_promote(true, 120)").await;
        assert_eq!(self.number("SELECT pg_is_in_recovery()::int::bigint").await, 0, "{}", self.log());
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn url(&self) -> String {
        url(self.port)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url()).await.unwrap()
    }

    pub(crate) async fn run(&self, statement: &str) {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement).execute(&mut self.connect().await).await.unwrap();
    }

    pub(crate) async fn number(&self, query: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(query.to_owned())).fetch_one(&mut self.connect().await).await.unwrap()
    }

    /// Ends it in the middle of whatever it is doing.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// The same, and starts it again on what it has written.
    pub(crate) async fn restart(self) -> Self {
        let (cluster, data, synchronous) = (Arc::clone(&self.cluster), self.data.clone(), self.synchronous);
        self.kill();
        Self::start(cluster, data, synchronous).await
    }

    /// The processes of the server, without the first.
    fn children(&self) -> Vec<String> {
        let parent = self.child.id().to_string();
        let all = said("ps", &["-A", "-o", "pid=,ppid="]);
        let pairs = all.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
        pairs.filter(|(_, of)| of.trim() == parent).map(|(pid, _)| pid.to_owned()).collect()
    }
}

/// The database of a member that is reached by a port.
pub(crate) fn url(port: u16) -> String {
    format!("postgres://postgres@127.0.0.1:{port}/postgres")
}

fn signal(signal: &str, processes: &[String]) {
    drop(Command::new("kill").arg(signal).args(processes).stderr(Stdio::null()).status());
}

impl Drop for Member {
    fn drop(&mut self) {
        let first = self.child.id().to_string();
        if matches!(self.child.try_wait(), Ok(None)) {
            // Stopped before, so that it starts nobody between the look and the kill.
            signal("-STOP", std::slice::from_ref(&first));
            let mut all = self.children();
            all.push(first);
            signal("-KILL", &all);
        }
        drop(self.child.wait());
        // The segment by which two servers on one folder would know of each other outlives a killed one.
        let pid_file = fs::read_to_string(self.data.join("postmaster.pid")).unwrap_or_default();
        if let Some(segment) = pid_file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            drop(Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status());
        }
    }
}
