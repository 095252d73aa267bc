//! What becomes of the store as its table grows: claim, replay, sweep, purge and bytes.
//!
//! `GROWTH=10m` goes on to 10 million records (about 8 GB on disk, and half an hour).

use std::time::{Duration, Instant};

#[path = "growth/records.rs"]
mod records;
#[path = "support/mod.rs"]
mod support;
#[path = "growth/sweeping.rs"]
mod sweeping;

use records::{Records, Updates, Written};
use support::{
    figures::{float, ms, percentile},
    server::Server,
    table::{
        Table,
        Target::{self, AtLeast, AtMost},
    },
};

/// Claims and replays that are timed at a size.
const TIMED: usize = 4_000;
/// Turns of them, so that what slows the machine slows both tables.
const TURNS: usize = 20;
/// Records that are made through the store for their size on disk.
const REAL: u32 = 20_000;

fn main() {
    support::run(async {
        let mut table = Table::default();
        let server = Server::start().await;
        bytes(&server, &mut table).await;
        let small = Records::new(&server).await;
        small.fill(10_000, "now() + interval '20 hours'").await;
        let large = Records::new(&server).await;
        let sizes: &[u32] = match std::env::var("GROWTH").as_deref() {
            Ok("10m") => &[10_000, 1_000_000, 10_000_000],
            _ => &[10_000, 1_000_000],
        };
        let mut filled = 0;
        for size in sizes {
            large.fill(size - filled, "now() + interval '20 hours'").await;
            filled = *size;
            compare(&small, &large, *size, &mut table).await;
        }
        sweeping::rates(&large, &mut table).await;
        sweeping::beside_claims(&large, &mut table).await;
        server.done().await;
        table.print("growth on postgres");
    });
}

/// Claim and replay of a large table beside those of a small one.
async fn compare(small: &Records, large: &Records, size: u32, table: &mut Table) {
    let (mut claims, mut replays) = ([vec![], vec![]], [vec![], vec![]]);
    let finished = [small.sample(TIMED).await, large.sample(TIMED).await];
    for turn in 0..=TURNS {
        for (at, records) in [small, large].into_iter().enumerate() {
            let from = turn * TIMED / TURNS;
            for request in finished[at].iter().cycle().skip(from).take(TIMED / TURNS) {
                let taken = records.replay(request).await;
                // The first turn warms up.
                replays[at].extend((turn > 0).then_some(ms(taken)));
            }
            for _ in 0..TIMED / TURNS {
                let taken = records.claim(Written::AndSettled).await;
                claims[at].extend((turn > 0).then_some(ms(taken)));
            }
        }
    }
    let per_record = large.sizes().await.per(large.count().await);
    let (table_bytes, index_bytes, dead) = (per_record.table, per_record.indexes, large.updates().await.dead);
    table.figure(
        format!("{size} records, filled: bytes of the table and its indexes per record"),
        table_bytes + index_bytes,
        Target::None,
        format!("{table_bytes:.0} and {index_bytes:.0}; {dead} dead tuples"),
    );
    for (verb, [small, large]) in [("claim", &mut claims), ("replay", &mut replays)] {
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(large, share));
        let [small_p50, small_p99] = [0.5, 0.99].map(|share| percentile(small, share));
        let detail = format!("p50 {p50:.2} ms, p99 {p99:.2} ms beside {small_p50:.2} and {small_p99:.2}");
        // The target is about 10 million.
        let target = if verb == "claim" { AtMost(1.15) } else { Target::None };
        table.figure(format!("{size} records: {verb} p50 / at 10000"), p50 / small_p50, target, detail);
    }
}

/// What a record that was made through the store takes on disk.
async fn bytes(server: &Server, table: &mut Table) {
    for (name, written) in [("leased", Written::AndSettled), ("transactional", Written::AtOnce)] {
        let records = Records::new(server).await;
        let begun = Instant::now();
        records.claims(REAL, written).await;
        let rate = f64::from(REAL) / begun.elapsed().as_secs_f64();
        let Updates { dead, hot } = records.updates().await;
        records.vacuum().await;
        let first = records.sizes().await.per(REAL.into());
        // What vacuum has freed of the first is used by the next: the size that lasts.
        for _ in 0..3 {
            records.claims(REAL, written).await;
            records.vacuum().await;
        }
        let sizes = records.sizes().await;
        let lasting = sizes.per((4 * REAL).into());
        let detail = format!(
            "table {:.0}, indexes {:.0}; {:.0} after the first {REAL}, with {dead} dead tuples; {rate:.0} a second",
            lasting.table,
            lasting.indexes,
            first.table + first.indexes,
        );
        let measure = format!("{name}: bytes on disk per finished record");
        table.figure(measure, lasting.table + lasting.indexes, AtMost(653.0), detail);
        if written == Written::AndSettled {
            table.figure("leased: share of settlements that are HOT updates", hot, AtLeast(0.95), "4 in flight");
        }
        for (index, bytes) in records.indexes().await {
            println!("{name}: {index} takes {:.0} bytes a record", float(bytes) / f64::from(4 * REAL));
        }
    }
}

/// The time of something, with what it came to.
async fn timed<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let begun = Instant::now();
    let value = work.await;
    (value, begun.elapsed())
}
