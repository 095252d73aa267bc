//! Random histories of random mutations, and a judge that knows only the gateway, the rows and the answers.
//!
//! `HISTORIES` is how many are played on each backend (default 300), `HISTORY_SEED` the seed of the first worker; it is
//! printed. A history that breaks a rule is made smaller, as far as it still breaks one.
#![allow(missing_docs, unreachable_pub, reason = "tests")]
#![allow(clippy::unused_async, reason = "a schema's resolvers have the shape that the engine asks for")]

use std::{
    cell::{Cell, RefCell},
    env,
};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

#[path = "../behaviour/support/backend.rs"]
#[allow(dead_code, reason = "shared with the tests of behaviour")]
mod backend;
mod draw;
mod history;
mod honest;
mod judge;
mod oracle;
mod play;
mod process;
mod server;
mod stage;
#[path = "../shared/watched.rs"]
mod watched;

use backend::{Backend, PostgresBackend, SqliteBackend};
use play::play;
use process::Bench;

/// Histories at a time, on each backend.
const WORKERS: u32 = 2;

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number, not {value}")))
}

/// Plays histories until one breaks a rule.
fn no_history_breaks_a_rule<B: Backend>() {
    let seed: u64 = number("HISTORY_SEED").unwrap_or_else(rand_seed);
    let histories: u32 = number("HISTORIES").unwrap_or(300);
    // What a history makes panic is no news.
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or_default();
        if message != "by the history" {
            eprintln!("{panic}");
        }
    }));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| std::thread::spawn(move || work::<B>(seed + u64::from(worker), histories.div_ceil(WORKERS))))
        .collect();
    let broken: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().unwrap().err()).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

fn rand_seed() -> u64 {
    u64::from(uuid::Uuid::new_v4().as_fields().0)
}

fn work<B: Backend>(seed: u64, histories: u32) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut seeds = [0; 32];
    seeds[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: histories,
        failure_persistence: None,
        max_shrink_iters: 400,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seeds));
    let bench = RefCell::new(runtime.block_on(Bench::<B>::new()));
    // Which one broke a rule first, before it was made smaller.
    let (played, broken) = (Cell::new(0), Cell::new(None));
    let result = runner.run(&draw::histories(), |history| {
        played.set(played.get() + 1);
        let outcome = runtime.block_on(play(&mut bench.borrow_mut(), &history));
        if outcome.is_err() {
            broken.set(broken.get().or(Some(played.get())));
        }
        outcome.map_err(TestCaseError::fail)
    });
    runtime.block_on(bench.into_inner().end());
    match result {
        Ok(()) => Ok(()),
        Err(TestError::Fail(reason, history)) => {
            let at = broken.get().unwrap_or_default();
            Err(format!("HISTORY_SEED={seed}, history {at}, made smaller:\n{reason}\n{history:#?}"))
        }
        Err(error) => Err(format!("HISTORY_SEED={seed}: {error}")),
    }
}

#[test]
fn no_history_breaks_a_rule_on_sqlite() {
    no_history_breaks_a_rule::<SqliteBackend>();
}

#[test]
fn no_history_breaks_a_rule_on_postgres() {
    no_history_breaks_a_rule::<PostgresBackend>();
}
