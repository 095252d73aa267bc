//! Servers, gateways and signals.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

/// A process that is killed with this.
pub(crate) struct Process {
    child: Child,
    /// What it said it listens on.
    pub(crate) url: String,
}

fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let binary = test.parent().unwrap().parent().unwrap().join("examples").join("payments");
    assert!(binary.exists(), "no {}: cargo build --example payments", binary.display());
    binary
}

impl Process {
    /// Starts a command and waits for the line that tells where it listens.
    pub(crate) fn start(mut command: Command, says: &str) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().expect("the process ended before it listened").unwrap();
            if let Some((_, url)) = line.split_once(says) {
                break url.trim().to_owned();
            }
        };
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, url }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    /// Asks it to end, and to leave nothing behind; for some seconds.
    pub(crate) fn end(mut self) {
        self.signal("-TERM");
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn kill_now(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_now();
    }
}

pub(crate) struct Gateway {
    process: Process,
    http: reqwest::Client,
    _folder: TempDir,
}

impl Gateway {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(example());
        let database = format!("sqlite:{}", folder.path().join("gateway.db").display());
        command.args(["gateway", "--listen", "127.0.0.1:0", "--database-url", &database]);
        Self { process: Process::start(command, "gateway on "), http: reqwest::Client::new(), _folder: folder }
    }

    pub(crate) fn url(&self) -> &str {
        &self.process.url
    }

    pub(crate) async fn charges(&self) -> Vec<Value> {
        let answer = self.http.get(format!("{}/charges", self.url())).send().await.unwrap();
        answer.json().await.unwrap()
    }

    /// The charges of one amount: tests tell their keys apart by it.
    pub(crate) async fn charges_of(&self, amount: i64) -> usize {
        self.charges().await.iter().filter(|charge| charge["amount"] == json!(amount)).count()
    }

    pub(crate) async fn latency(&self, milliseconds: u64) {
        let faults = json!({ "latencyMs": milliseconds });
        let answer = self.http.post(format!("{}/faults", self.url())).json(&faults).send().await.unwrap();
        assert!(answer.status().is_success());
    }
}

/// What a server is started with.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) database: String,
    pub(crate) gateway: String,
    pub(crate) options: Vec<String>,
}

impl Setup {
    pub(crate) fn new(database: &str, gateway: &Gateway, options: &[&str]) -> Self {
        Self {
            database: database.to_owned(),
            gateway: gateway.url().to_owned(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
        }
    }

    pub(crate) fn command(&self, listen: &str) -> Command {
        let mut command = Command::new(example());
        command.args(["--listen", listen, "--database-url", &self.database, "--gateway", &self.gateway]);
        command.args(&self.options);
        command
    }

    pub(crate) fn start(&self) -> Process {
        self.start_on("127.0.0.1:0")
    }

    pub(crate) fn start_on(&self, listen: &str) -> Process {
        Process::start(self.command(listen), "listening on ")
    }
}

/// A SQLite file that is removed with this.
pub(crate) struct SqliteFile {
    folder: TempDir,
}

impl SqliteFile {
    pub(crate) fn create() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.folder.path().join("payments.db").display())
    }
}
