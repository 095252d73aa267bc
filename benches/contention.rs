//! Duplicates of one key at once, in one process and spread over three.

use std::time::Duration;

use async_graphql_idempotency::PostgresStore;
use sqlx::{ConnectOptions, Executor};
use uuid::Uuid;

#[path = "contention/counting.rs"]
mod counting;
#[path = "contention/process.rs"]
mod process;
#[path = "support/mod.rs"]
mod support;

use process::{Elsewhere, Here, Order, Outcome};
use support::{
    figures::{float, median, ms},
    server::{Server, pool},
    table::{
        Table,
        Target::{self, AtMost},
    },
};

const DUPLICATES: [u32; 4] = [2, 20, 200, 2_000];
const WORK_MS: [u64; 2] = [1, 1_000];

fn main() {
    support::run(async {
        if process::is_child().await {
            return;
        }
        let mut table = Table::default();
        let server = Server::start().await;
        let database = server.database().await;
        let own = pool(database.clone(), 1).await;
        PostgresStore::new(own.clone()).migrate().await.unwrap();
        own.execute("CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY)").await.unwrap();
        let here = Here::new(database.clone()).await;
        let url = database.to_url_lossy();
        let mut processes = [0; 3].map(|_| Elsewhere::start(url.as_str()));
        for mutation in ["leased", "transactional"] {
            for spread in [false, true] {
                for work_ms in WORK_MS {
                    for duplicates in DUPLICATES {
                        let mut outcomes = Vec::new();
                        // The first warms up, and is not counted.
                        for time in 0..=if work_ms > 100 { 1 } else { 5 } {
                            let order = Order {
                                mutation: mutation.into(),
                                key: Uuid::new_v4().to_string(),
                                work_ms,
                                duplicates,
                                begin_at: counting::now() + 100_000,
                            };
                            let outcome = if spread {
                                spread_over(&mut processes, order).await
                            } else {
                                vec![here.run(&order).await]
                            };
                            outcomes.extend((time > 0).then_some(outcome));
                        }
                        report(&mut table, mutation, work_ms, duplicates, &outcomes);
                    }
                }
            }
        }
        drop(processes);
        server.done().await;
        let mut alone = Vec::new();
        for _ in 0..5 {
            alone.push(ms(process::engine_alone(2_000).await));
        }
        let detail =
            "from the first to the last, beside the figures of 1 ms: their last duplicates arrive after the commit";
        table.figure(
            "2000 requests of an unprotected field, the engine alone, ms",
            median(alone),
            Target::None,
            detail,
        );
        table.print("duplicates of one key");
    });
}

async fn spread_over(processes: &mut [Elsewhere; 3], order: Order) -> Vec<Outcome> {
    let mut left = order.duplicates;
    for (at, process) in (0..).zip(processes.iter_mut()) {
        let duplicates = left.div_ceil(3 - at);
        left -= duplicates;
        process.order(&Order { duplicates, ..order.clone() }).await;
    }
    let mut outcomes = Vec::new();
    for process in processes {
        outcomes.push(process.outcome().await);
    }
    outcomes
}

fn report(table: &mut Table, mutation: &str, work_ms: u64, duplicates: u32, times: &[Vec<Outcome>]) {
    let processes = times[0].len();
    let executed: u32 = times.iter().flatten().map(|outcome| outcome.executed).sum();
    let most = times.iter().flatten().map(|outcome| outcome.connections).max().unwrap_or(0);
    let calls = median(
        times.iter().map(|outcomes| float(outcomes.iter().map(|outcome| outcome.calls.cast_signed()).sum::<i64>())),
    );
    // The winner's own are two: it takes the key, and settles it.
    let per_duplicate = (calls - 2.0) / f64::from(duplicates - 1);
    let since_commit = median(times.iter().map(|outcomes| {
        let committed_at = outcomes.iter().filter_map(|outcome| outcome.committed_at).min().unwrap();
        let last_at = outcomes.iter().map(|outcome| outcome.last_at).max().unwrap();
        Duration::from_micros(u64::try_from(last_at - committed_at).unwrap_or(0)).as_secs_f64() * 1_000.0
    }));
    let case = format!(
        "{mutation}, {processes} process{}, {work_ms:4} ms, {duplicates:4} duplicates",
        if processes > 1 { "es" } else { "" }
    );
    let detail = format!("{calls} calls in all, executed {executed} times for {} keys", times.len());
    let target = if processes == 1 { AtMost(0.1) } else { Target::None };
    table.figure(format!("{case}: store calls per duplicate"), per_duplicate, target, detail);
    let target = match (duplicates, processes) {
        (2_000, 1) => AtMost(50.0),
        (2_000, _) => AtMost(300.0),
        _ => Target::None,
    };
    let detail = format!("at most {most} connections lent in a process");
    table.figure(format!("{case}: commit to last replay, ms"), since_commit, target, detail);
}
