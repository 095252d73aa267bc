//! Behind PgBouncer in transaction mode.

use std::process::{Command, Stdio};

use crate::{
    clients::{Client, new_key},
    database::PostgresDatabase,
    process::{Gateway, Setup},
};

/// PgBouncer with few server connections, so that clients change them all the time.
struct Pooler {
    child: std::process::Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    async fn start(database: &PostgresDatabase) -> Self {
        let binary = std::env::var("TEST_PGBOUNCER").expect("TEST_PGBOUNCER names PgBouncer; tests/run.sh installs it");
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (host, server_port) =
            database.address().rsplit_once(':').map(|(host, port)| (host.to_owned(), port.to_owned())).unwrap();
        let user = database.user();
        let users = folder.path().join("users.txt");
        std::fs::write(&users, format!("\"{user}\" \"\"\n")).unwrap();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host={host} port={server_port} user={user}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = 5\n\
             max_client_conn = 200\nignore_startup_parameters = extra_float_digits,options\n",
            users.display()
        );
        std::fs::write(&config, text).unwrap();
        // It refuses to run as root.
        let mut command = if is_root() {
            make_readable(folder.path());
            let mut command = Command::new(&binary);
            command.args(["-u", "postgres"]);
            command
        } else {
            Command::new(&binary)
        };
        let child = command.arg(&config).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pooler = Self { child, port, _folder: folder };
        for _ in 0..100 {
            if tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return pooler;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        panic!("PgBouncer does not listen");
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

fn make_readable(folder: &std::path::Path) {
    let status = Command::new("chmod").args(["-R", "a+rX"]).arg(folder).status().unwrap();
    assert!(status.success());
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_behind_a_pooler_work_and_leave_nothing_locked() {
    let database = PostgresDatabase::create("server").await;
    let pooler = Pooler::start(&database).await;
    let gateway = Gateway::start();
    let options = ["--pgbouncer", "--wait", "30s", "--lease", "1s", "--sweep-every", "200ms"];
    let setup = Setup::new(&database.url_through(pooler.port), &gateway, &options);
    let servers = [setup.start(), setup.start()];
    let clients = [Client::of(&servers[0].url), Client::of(&servers[1].url)];
    let account = clients[0].open_account().await;
    for amount in 601..611 {
        let key = new_key();
        let copies: Vec<_> = (0..10)
            .map(|copy| {
                let (client, key, account) = (clients[copy % 2].clone(), key.clone(), account.clone());
                tokio::spawn(async move { client.charge(&key, &account, amount).await })
            })
            .collect();
        let mut data = std::collections::HashSet::new();
        for copy in copies {
            let answer = copy.await.unwrap();
            assert_eq!((answer.status, answer.code()), (200, None), "{answer:?}");
            data.insert(answer.data());
        }
        assert_eq!((data.len(), gateway.charges_of(amount).await), (1, 1));
    }
    gateway.latency(500).await;
    let key = new_key();
    let (running, sent) = (clients[0].clone(), (key.clone(), account.clone()));
    let lost = tokio::spawn(async move { running.try_charge(&sent.0, &sent.1, 699).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let [first, _second] = servers;
    first.kill();
    assert!(lost.await.unwrap().is_err());
    let retry = clients[1].charge_until_final(&key, &account, 699).await;
    assert_eq!((retry.status, retry.code(), gateway.charges_of(699).await), (200, None, 1), "{retry:?}");
    let locks = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                 WHERE d.datname = current_database() AND l.locktype = 'advisory'";
    assert_eq!(database.number(locks).await, 0);
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(database.number(idle).await, 0);
}
