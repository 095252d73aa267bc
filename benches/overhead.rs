//! What the crate costs where it does not touch the store: queries, fingerprints, the decision, projection.
//!
//! Criterion measures each for itself; the table's ratios are of turns in one run, where what slows the machine
//! slows both.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use async_graphql_idempotency::{claim::decide, fingerprint::Canonical, record::Timestamp};
use criterion::{BenchmarkId, Criterion};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

#[path = "overhead/hashing.rs"]
mod hashing;
#[path = "overhead/queries.rs"]
mod queries;
#[path = "support/mod.rs"]
mod support;

use support::{
    figures::median,
    table::{
        Table,
        Target::{self, AtMost},
    },
};

const FIELDS: [i32; 3] = [10, 100, 1_000];
const BYTES: [usize; 3] = [100, 1 << 10, 64 << 10];
/// Of the replay: what was stored, and less of it in another order under other names.
const STORED: &str = "a b c d e f g h i j";
const NARROWER: &str = "j i x: h b a";

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1_500))
        .without_plots()
        .configure_from_args();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut table = Table::default();
    queries(&mut criterion, &runtime, &mut table);
    fingerprints(&mut criterion, &mut table);
    replays(&mut criterion, &runtime, &mut table);
    let (record, request) = hashing::finished();
    let mut decision = || decide(black_box(Some(&record)), black_box(&request), Timestamp(1));
    criterion.bench_function("decide", |bencher| bencher.iter(&mut decision));
    let nanoseconds = time(100_000, &mut decision) * 1e9;
    table.figure("decision about a record, ns", nanoseconds, Target::None, "");
    criterion.final_summary();
    if !support::is_test() {
        table.print("overhead: medians of ratios, by turns in one run");
    }
}

fn queries(criterion: &mut Criterion, runtime: &Runtime, table: &mut Table) {
    let schemas = runtime.block_on(queries::schemas());
    let mut group = criterion.benchmark_group("query");
    for fields in FIELDS {
        for (name, schema) in &schemas {
            group.bench_function(BenchmarkId::new(*name, fields), |bencher| {
                bencher.to_async(runtime).iter(|| queries::query(schema, fields));
            });
        }
        let [_, (_, nothing), (_, with_crate)] = &schemas;
        let [nothing, with_crate] =
            [nothing, with_crate].map(|schema| move || runtime.block_on(queries::query(schema, fields)));
        let (ratio, seconds) = by_turns(nothing, with_crate, 1_000 / usize::try_from(fields).unwrap());
        let target = if fields == 1_000 { AtMost(1.05) } else { Target::None };
        let measure = format!("query of {fields} fields: the crate / an extension that does nothing");
        table.figure(measure, ratio, target, format!("{:.1} us", seconds * 1e6));
    }
    group.finish();
}

fn fingerprints(criterion: &mut Criterion, table: &mut Table) {
    let mut group = criterion.benchmark_group("fingerprint");
    for bytes in BYTES {
        let (text, fields) = (hashing::one_string(bytes), hashing::many_fields(bytes));
        let mut canonical = Canonical::new();
        hashing::write_fields(&mut canonical, &fields);
        let written = canonical.as_str();
        group.bench_function(BenchmarkId::new("SHA-256", bytes), |bencher| bencher.iter(|| Sha256::digest(&text)));
        group.bench_function(BenchmarkId::new("a string", bytes), |bencher| {
            bencher.iter(|| hashing::of_string(&text));
        });
        group.bench_function(BenchmarkId::new("an object", bytes), |bencher| {
            bencher.iter(|| hashing::of_fields(&fields));
        });
        let target = if bytes == 64 << 10 { AtMost(3.0) } else { Target::None };
        let times = (64 << 10) / bytes;
        let plain = || Sha256::digest(black_box(&text));
        let (ratio, seconds) = by_turns(plain, || hashing::of_string(black_box(&text)), times);
        let measure = format!("fingerprint of a string of {bytes} bytes / SHA-256 of it");
        table.figure(measure, ratio, target, format!("{:.2} us", seconds * 1e6));
        let plain = || Sha256::digest(black_box(written));
        let (ratio, seconds) = by_turns(plain, || hashing::of_fields(black_box(&fields)), times);
        let measure = format!("fingerprint of an object of {} bytes / SHA-256 of it", written.len());
        table.figure(measure, ratio, target, format!("{:.2} us", seconds * 1e6));
    }
    group.finish();
}

fn replays(criterion: &mut Criterion, runtime: &Runtime, table: &mut Table) {
    let [.., (_, schema)] = runtime.block_on(queries::schemas());
    runtime.block_on(queries::replay(&schema, STORED));
    let mut group = criterion.benchmark_group("replay");
    for (name, selection) in [("same selection", STORED), ("projected", NARROWER)] {
        group.bench_function(name, |bencher| {
            bencher.to_async(runtime).iter(|| queries::replay(&schema, selection));
        });
    }
    group.finish();
    let [same, projected] = {
        let schema = &schema;
        [STORED, NARROWER].map(|selection| move || runtime.block_on(queries::replay(schema, selection)))
    };
    let (ratio, seconds) = by_turns(same, projected, 4);
    let measure = "replay of 100 fields: projected to 50 / as stored";
    table.figure(measure, ratio, Target::None, format!("{:.1} us", seconds * 1e6));
}

/// The median of the candidate's time over the baseline's, and the candidate's own in seconds.
fn by_turns<A, B>(mut baseline: impl FnMut() -> A, mut candidate: impl FnMut() -> B, times: usize) -> (f64, f64) {
    let turns: Vec<_> = (0..200)
        .map(|turn| {
            // By turns first and second.
            let first = (turn % 2 == 0).then(|| time(times, &mut candidate));
            let base = time(times, &mut baseline);
            (first.unwrap_or_else(|| time(times, &mut candidate)), base)
        })
        .skip(20)
        .collect();
    (median(turns.iter().map(|(own, base)| own / base)), median(turns.iter().map(|(own, _)| *own)))
}

/// Seconds that one of so many takes.
fn time<T>(times: usize, work: &mut impl FnMut() -> T) -> f64 {
    let begun = Instant::now();
    for _ in 0..times {
        black_box(work());
    }
    begun.elapsed().as_secs_f64() / support::figures::float(i64::try_from(times).unwrap())
}
