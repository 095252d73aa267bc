//! The sweeper's rates, and what claims feel of it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use async_graphql::{EmptyMutation, EmptySubscription, Object, Schema};
use async_graphql_idempotency::{Idempotency, PostgresStore, Swept, Upkeep, store::Sweep};

use super::{
    records::{RETENTION, Records, Written},
    support::{
        self,
        figures::{float, ms, percentile},
        server::pool,
        table::{
            Table,
            Target::{self, AtMost},
        },
    },
};

/// As a sweeper has them by default.
const BATCH: u32 = 50;
const TOMBSTONE: Duration = Duration::from_hours(720);
/// Batches that are timed.
const BATCHES: u32 = 400;
/// Expired so long ago that their tombstones are over, too: a sweeper expires them and purges them.
const LONG_AGO: &str = "now() - interval '31 days'";

/// Records a second, without the rests that a sweeper takes.
pub(crate) async fn rates(records: &Records, table: &mut Table) {
    records.fill(BATCH * BATCHES, LONG_AGO).await;
    let store = PostgresStore::new(records.own.clone());
    let sweep = Sweep {
        batch: BATCH,
        backoff: Duration::from_secs(10),
        tombstone: TOMBSTONE,
        shortest_lease: Duration::from_secs(30),
        shortest_retention: RETENTION,
        every: Duration::from_secs(10),
    };
    let begun = Instant::now();
    let (mut expired, mut purged, mut batches) = (0, 0, 0);
    while purged < u64::from(BATCH * BATCHES) {
        let done = store.sweep(&sweep).await.unwrap();
        (expired, purged, batches) = (expired + done.expired, purged + done.purged, batches + 1);
        assert!(done.more || purged >= u64::from(BATCH * BATCHES), "{done:?}");
    }
    assert_eq!((expired, purged), (u64::from(BATCH * BATCHES), u64::from(BATCH * BATCHES)));
    let rate = f64::from(BATCH * BATCHES) / begun.elapsed().as_secs_f64();
    let detail = format!("batches of {BATCH}, {:.1} ms each", ms(begun.elapsed()) / f64::from(batches));
    table.figure("found, expired and purged: records a second", rate, Target::None, detail);
}

struct Query;

#[Object]
impl Query {
    async fn nothing(&self) -> i32 {
        0
    }
}

/// Claims beside a sweeper that has a million records to expire and to purge, and without it.
pub(crate) async fn beside_claims(records: &Records, table: &mut Table) {
    let expired = support::setting("GROWTH_EXPIRED", 1_000_000);
    records.fill(expired, LONG_AGO).await;
    let size = records.sizes().await;
    let watched = support::seconds("GROWTH_WATCH", 30.0);
    let mut idle = claims(records, watched, &AtomicBool::new(false)).await;

    let swept = Arc::new(AtomicBool::new(false));
    let begun = Instant::now();
    let sweeping = tokio::task::spawn_blocking({
        // A thread and a runtime of its own, as near as one process comes to a sweeper in another.
        let (over, database) = (Arc::clone(&swept), records.database.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = PostgresStore::new(pool(database, 2).await);
                let schema = Schema::new(Query, EmptyMutation, EmptySubscription);
                let sweeper = Idempotency::builder(store).build().unwrap().sweeper(schema);
                let result = tokio::select! {
                    result = sweeper.run_once() => result.unwrap(),
                    () = stopped(&over) => Swept::default(),
                };
                over.store(true, Ordering::Relaxed);
                result
            })
        }
    });
    let mut beside = claims(records, watched, &swept).await;
    // In full where there is time for it; else what it did meanwhile is what counts.
    let in_full = std::env::var("GROWTH").is_ok() || swept.load(Ordering::Relaxed);
    if in_full {
        let done = sweeping.await.unwrap();
        assert!(done.expired >= u64::from(expired) && done.purged >= u64::from(expired), "{done:?}");
        let rate = f64::from(expired) / begun.elapsed().as_secs_f64();
        table.figure("a sweeper with its rests: records expired and purged a second", rate, Target::None, "");
    } else {
        swept.store(true, Ordering::Relaxed);
        sweeping.await.unwrap();
    }
    let [idle_p50, idle_p99] = [0.5, 0.99].map(|share| percentile(&mut idle, share));
    let [p50, p99] = [0.5, 0.99].map(|share| percentile(&mut beside, share));
    let detail = format!(
        "p99 {p99:.2} beside {idle_p99:.2} ms, p50 {p50:.2} beside {idle_p50:.2} ms; {} claims; {} dead tuples",
        beside.len(),
        records.updates().await.dead,
    );
    table.figure(format!("claim p99 while {expired} expired are swept / idle"), p99 / idle_p99, AtMost(1.5), detail);
    if in_full {
        records.vacuum().await;
        let (after, count) = (records.sizes().await, float(records.count().await));
        let detail = format!(
            "{:.0} MB before, {:.0} MB after",
            (size.table + size.indexes) / 1e6,
            (after.table + after.indexes) / 1e6
        );
        let per_record = (after.table + after.indexes) / count;
        table.figure("bytes per record that is left, once all is swept and vacuumed", per_record, Target::None, detail);
    }
}

async fn stopped(over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Claims at a pace that leaves the machine time for others, and how long they took in milliseconds.
async fn claims(records: &Records, watched: Duration, until: &AtomicBool) -> Vec<f64> {
    let begun = Instant::now();
    let mut taken = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(8));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while begun.elapsed() < watched && !until.load(Ordering::Relaxed) {
        ticks.tick().await;
        taken.push(ms(records.claim(Written::AndSettled).await));
    }
    taken
}
