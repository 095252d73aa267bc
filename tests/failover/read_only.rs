//! The server takes no writes for a while, as one that was demoted, and takes them again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use crate::{
    ALONE,
    clients::{Answer, Client, new_key},
    member::{self, Member},
    process::{Gateway, Setup},
    proxy::Proxy,
};

/// So many clients, each with one mutation at a time and twelve a second: two hundred a second in all.
const CLIENTS: usize = 16;
const EVERY: Duration = Duration::from_millis(80);
/// How long it takes until every connection has heard of a new setting.
const HEARD: Duration = Duration::from_millis(500);
/// How long it may take until everything works again.
const HEALED: Duration = Duration::from_secs(3);

/// A mutation that was sent once, and what came back.
struct Try {
    sent: Instant,
    answered: Instant,
    /// Of a charge; every second one opens an account instead, in a transaction.
    amount: Option<i64>,
    key: String,
    answer: Answer,
}

impl Try {
    fn is_refused(&self) -> bool {
        (self.answer.status, self.answer.code().as_deref()) == (503, Some("IDEMPOTENCY_STORE_UNAVAILABLE"))
    }
}

struct Load {
    servers: [Client; 2],
    account: String,
    /// Whether clients send.
    runs: AtomicBool,
    over: AtomicBool,
    in_flight: AtomicUsize,
    number: AtomicI64,
    tries: Mutex<Vec<Try>>,
}

impl Load {
    async fn of(urls: [&str; 2]) -> Arc<Self> {
        let servers = urls.map(Client::of);
        let account = servers[0].open_account().await;
        let no = || AtomicBool::new(false);
        let (in_flight, number) = (AtomicUsize::new(0), AtomicI64::new(0));
        Arc::new(Self { servers, account, runs: no(), over: no(), in_flight, number, tries: Mutex::default() })
    }

    /// Clients that send mutations of both kinds to both servers, while the load runs and until it is over.
    fn clients(self: &Arc<Self>) -> JoinSet<()> {
        let client = || {
            let load = Arc::clone(self);
            async move {
                let mut every = interval(EVERY);
                every.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !load.over.load(SeqCst) {
                    every.tick().await;
                    load.in_flight.fetch_add(1, SeqCst);
                    if load.runs.load(SeqCst) {
                        load.send().await;
                    }
                    load.in_flight.fetch_sub(1, SeqCst);
                }
            }
        };
        std::iter::repeat_with(client).take(CLIENTS).collect()
    }

    async fn send(&self) {
        let number = self.number.fetch_add(1, SeqCst);
        let amount = (number % 2 == 0).then_some(5_000_000 + number);
        let (sent, key) = (Instant::now(), new_key());
        let answer = self.ask(usize::from(number / 2 % 2 == 0), &key, amount).await;
        let one = Try { sent, answered: Instant::now(), amount, key, answer };
        self.tries.lock().unwrap().push(one);
    }

    async fn ask(&self, server: usize, key: &str, amount: Option<i64>) -> Answer {
        const OPEN: &str =
            r#"mutation ($k: IdempotencyKey!) { openAccount(idempotencyKey: $k, input: { owner: "Bob" }) { id } }"#;
        match amount {
            Some(amount) => self.servers[server].charge(key, &self.account, amount).await,
            None => self.servers[server].send(OPEN, json!({ "k": key })).await,
        }
    }

    async fn run_for(&self, time: Duration) {
        self.runs.store(true, SeqCst);
        sleep(time).await;
    }

    /// Sends nothing, and waits for every answer.
    async fn rest(&self) {
        self.runs.store(false, SeqCst);
        while self.in_flight.load(SeqCst) > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn read_only(database: &Member, on: bool) -> Instant {
    let value = if on { "on" } else { "off" };
    database.run(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}")).await;
    database.run("SELECT pg_reload_conf()").await;
    Instant::now()
}

/// What was sent and answered meanwhile was refused, and started nothing.
async fn all_were_refused(load: &Load, gateway: &Gateway, from: Instant, until: Instant) -> usize {
    let charged = charges(gateway).await;
    let tries = load.tries.lock().unwrap();
    let sent: Vec<_> = tries.iter().filter(|one| one.sent >= from && one.answered <= until).collect();
    for one in &sent {
        assert!(one.is_refused(), "not refused: {:?}", one.answer);
        assert!(!one.amount.is_some_and(|amount| charged.contains_key(&amount)), "refused, and charged");
    }
    sent.len()
}

/// How many there are of each amount.
async fn charges(gateway: &Gateway) -> BTreeMap<i64, usize> {
    let mut charges = BTreeMap::new();
    for charge in gateway.charges().await {
        *charges.entry(charge["amount"].as_i64().unwrap()).or_default() += 1;
    }
    charges
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_starts_nothing_and_works_again_at_once() {
    let _alone = ALONE.lock().await;
    let Some(database) = Member::first(false).await else { return };
    let address = Proxy::start(database.address()).await;
    let gateway = Gateway::start();
    let options = ["--lease", "2s", "--wait", "500ms", "--sweep-every", "1s"];
    let setup = Setup::new(&member::url(address.port), &gateway, &options);
    let servers = [setup.start(), setup.start()];
    let load = Load::of([&servers[0].url, &servers[1].url]).await;
    let clients = load.clients();

    // Nothing is in flight: what is refused from now on leaves nothing behind that goes on asking.
    read_only(&database, true).await;
    sleep(HEARD).await;
    let from = Instant::now();
    load.run_for(Duration::from_millis(1_500)).await;
    load.rest().await;
    let refused = all_were_refused(&load, &gateway, from, Instant::now()).await;
    sleep(HEARD).await;
    let opened = address.opened();
    sleep(Duration::from_secs(1)).await;
    let asked = address.opened() - opened;
    assert!(asked < 20, "{asked} connections in a second, {HEARD:?} after {refused} refusals");
    read_only(&database, false).await;
    sleep(HEARD).await;

    // In the midst of everything.
    load.run_for(Duration::from_secs(1)).await;
    read_only(&database, true).await;
    sleep(HEARD).await;
    let from = Instant::now();
    sleep(Duration::from_secs(4)).await;
    let until = Instant::now();
    let refused = refused + all_were_refused(&load, &gateway, from, until).await;
    let writable = read_only(&database, false).await;
    sleep(HEALED + HEARD).await;
    load.over.store(true, SeqCst);
    clients.join_all().await;

    let tries = std::mem::take(&mut *load.tries.lock().unwrap());
    let (failed, done): (Vec<_>, Vec<_>) = tries.iter().partition(|one| one.answer.code().is_some());
    let healed = failed.iter().map(|one| one.sent.saturating_duration_since(writable)).max().unwrap();
    let cut_short = failed.iter().filter(|one| !one.is_refused()).count();
    eprintln!(
        "{} mutations: {} done, {refused} refused, {cut_short} cut short; {asked} connections at rest; healed after {healed:?}",
        tries.len(),
        done.len()
    );
    assert!(healed < HEALED, "a mutation failed that was sent {healed:?} after");
    for one in failed {
        let again = load.ask(0, &one.key, one.amount).await;
        assert_eq!((again.status, again.code()), (200, None), "{again:?} after {:?}", one.answer);
    }
    assert_eq!(charges(&gateway).await, tries.iter().filter_map(|one| Some((one.amount?, 1))).collect());
}
