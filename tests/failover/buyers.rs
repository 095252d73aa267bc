//! Clients that buy and buy, and send each key again until they have a final answer.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};
use uuid::Uuid;

use crate::clients::{Answer, Client, new_key};

/// No key is without a final answer for longer.
const STUCK: Duration = Duration::from_mins(1);

/// A key, and the final answer that it got.
#[derive(Clone)]
pub(crate) struct Sale {
    pub(crate) key: String,
    pub(crate) amount: i64,
    pub(crate) answer: Answer,
}

/// What all buyers share.
pub(crate) struct Market {
    servers: [Client; 2],
    account: String,
    open: AtomicBool,
    /// How many answers had which code.
    codes: Mutex<BTreeMap<String, usize>>,
}

impl Market {
    pub(crate) async fn open(urls: [&str; 2]) -> Arc<Self> {
        let servers = urls.map(Client::of);
        let account = servers[0].open_account().await;
        Arc::new(Self { servers, account, open: AtomicBool::new(true), codes: Mutex::default() })
    }

    /// A client that buys one thing after the other, with keys and amounts of its own, until the market closes.
    pub(crate) fn buyer(self: &Arc<Self>, number: i64) -> JoinHandle<Vec<Sale>> {
        let market = Arc::clone(self);
        tokio::spawn(async move {
            let mut sales: Vec<Sale> = Vec::new();
            let mut amount = 1_000_000 * (number + 1);
            while market.open.load(Ordering::Relaxed) {
                amount += 1;
                let key = new_key();
                let answer = market.buy(&key, amount).await;
                sales.push(Sale { key, amount, answer });
                // Now and then it looks at an old receipt.
                if sales.len().is_multiple_of(5) {
                    market.holds(&sales[random(sales.len())]).await;
                }
            }
            sales
        })
    }

    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
    }

    pub(crate) fn codes(&self) -> BTreeMap<String, usize> {
        self.codes.lock().unwrap().clone()
    }

    pub(crate) fn refusals(&self) -> usize {
        self.codes.lock().unwrap().values().sum()
    }

    /// Sends a charge, to one server and the other, until its answer is final.
    async fn buy(&self, key: &str, amount: i64) -> Answer {
        let deadline = Instant::now() + STUCK;
        let mut turn = random(2);
        loop {
            // A server lives, so there is an answer, and in good time.
            let answer = self.servers[turn].charge(key, &self.account, amount).await;
            if self.is_final(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{key} is stuck: {answer:?}");
            turn = 1 - turn;
            sleep(Duration::from_millis(30)).await;
        }
    }

    /// Every error says by its code what it is.
    fn is_final(&self, answer: &Answer) -> bool {
        let told = answer.json();
        if told["errors"].is_null() {
            return true;
        }
        let extensions = &told["errors"][0]["extensions"];
        let code = extensions["code"].as_str().unwrap_or_else(|| panic!("an error without a code: {}", answer.text));
        *self.codes.lock().unwrap().entry(code.to_owned()).or_default() += 1;
        // The application's own word for "try again".
        extensions["retryable"] != json!(true) && code != "INTERNAL_SERVER_ERROR"
    }

    /// What was final stays as it is.
    pub(crate) async fn holds(&self, sale: &Sale) {
        let Sale { key, amount, answer } = sale;
        let again = self.buy(key, *amount).await;
        assert_eq!((again.data(), again.code()), (answer.data(), answer.code()), "the answer of {key} has changed");
        assert!(again.replayed || again.code().is_some(), "{key} was not replayed: {again:?}");
    }
}

/// Anything from 0 to `below`.
pub(crate) fn random(below: usize) -> usize {
    usize::try_from(Uuid::new_v4().as_u64_pair().0 >> 1).unwrap_or_default() % below
}
