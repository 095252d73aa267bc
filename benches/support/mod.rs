//! What the benchmarks stand on: a database server of their own, load, numbers, and a table.
#![allow(dead_code, reason = "not every benchmark needs all of it")]

pub(crate) mod figures;
pub(crate) mod load;
pub(crate) mod server;
pub(crate) mod table;
pub(crate) mod wire;

use std::{future::Future, str::FromStr, time::Duration};

/// A setting of a benchmark out of the environment, or its default.
pub(crate) fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A time out of the environment, in seconds with a fraction, or its default.
pub(crate) fn seconds(name: &str, default: f64) -> Duration {
    Duration::from_secs_f64(setting(name, default))
}

/// Whether only the benchmark's other kind of run was asked for: `cargo test --benches` builds and starts them too.
pub(crate) fn is_test() -> bool {
    std::env::args().any(|argument| argument == "--test") || !std::env::args().any(|argument| argument == "--bench")
}

/// Runs a benchmark on two workers (clients and database share the machine's cores) until it is done or
/// interrupted; either way what it holds is dropped, and with it the server that it started.
pub(crate) fn run(benchmark: impl Future<Output = ()>) {
    if is_test() {
        println!("a benchmark: run it with cargo bench");
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::select! {
            () = benchmark => {}
            () = interrupted() => eprintln!("interrupted"),
        }
    });
    // Loads that were interrupted are not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
}

#[cfg(unix)]
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt()).unwrap(), signal(SignalKind::terminate()).unwrap());
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

#[cfg(not(unix))]
async fn interrupted() {
    tokio::signal::ctrl_c().await.unwrap();
}
