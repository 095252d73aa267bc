//! The crate against what a team would write by hand, through the engine: ratios of one run.

use std::time::Duration;

use sqlx::{
    PgConnection, Row,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

#[path = "throughput/lanes.rs"]
mod lanes;
#[path = "throughput/statements.rs"]
mod statements;
#[path = "support/mod.rs"]
mod support;

use support::{
    load::{Lane, Work, by_turns},
    server::{self, Server, counting},
    table::{
        Table,
        Target::{self, AtLeast, AtMost, Exactly},
    },
    wire::Wire,
};

/// Of every pool, so that nobody waits for a connection.
const CONNECTIONS: u32 = 40;
/// Requests that are counted for the round trips of one.
const COUNTED: u32 = 100;

fn main() {
    support::run(async {
        let mut table = Table::default();
        round_trips(&mut table).await;
        let server = Server::start().await;
        let (rounds, turn) = (support::setting("BENCH_ROUNDS", 11), support::seconds("BENCH_TURN", 0.5));
        let pool = server::pool(server.database().await, CONNECTIONS).await;
        compare("postgres", &lanes::postgres::lanes(pool.clone()).await, rounds, turn, &mut table).await;
        alone(&statements::lanes(pool).await, rounds, turn, &mut table).await;
        server.done().await;

        let directory = tempfile::tempdir().unwrap();
        let file = SqliteConnectOptions::new()
            .filename(directory.path().join("bench.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // A writer of the bare lanes may wait behind all others: SQLite is not fair.
            .busy_timeout(Duration::from_mins(1));
        let pool = SqlitePoolOptions::new().max_connections(CONNECTIONS).connect_with(file).await.unwrap();
        let (rounds, turn) = (support::setting("BENCH_SQLITE_ROUNDS", 5), support::seconds("BENCH_SQLITE_TURN", 0.4));
        compare("sqlite", &lanes::sqlite::lanes(pool).await, rounds, turn, &mut table).await;
        table.print("throughput through schema.execute: medians of ratios, by turns in one run");
    });
}

async fn compare(backend: &str, lanes: &[Lane; 7], rounds: usize, turn: Duration, table: &mut Table) {
    // In alphabetical order: (a) is 0.
    let [in_tx, leased, reads] = [&lanes[0..3], &lanes[3..5], &lanes[5..7]];
    let only: Option<usize> = std::env::var("BENCH_IN_FLIGHT").ok().and_then(|text| text.parse().ok());
    for in_flight in [1, 8, 32].into_iter().filter(|in_flight| only.is_none_or(|only| only == *in_flight)) {
        let measure = |ratio: &str| format!("{backend}, {in_flight:2} in flight: {ratio}");
        let [in_tx_least, leased_least, replay_least] = match (backend, in_flight) {
            ("postgres", _) => [AtLeast(0.95), AtLeast(0.9), AtLeast(0.85)],
            (_, 1 | 8) => [AtLeast(0.9), AtLeast(0.8), Target::None],
            _ => [Target::None; 3],
        };
        let rates = by_turns(in_tx, in_flight, rounds, turn).await;
        let detail = format!("{:.0} (c), {:.0} (b), {:.0} (a) a second", rates.of(2), rates.of(1), rates.of(0));
        table.figure(measure("(c) transactional / (b) by hand"), rates.ratio(2, 1), in_tx_least, &*detail);
        table.figure(measure("(c) transactional / (a) unprotected"), rates.ratio(2, 0), Target::None, "");
        if (backend, in_flight) == ("postgres", 8) {
            let cpu = rates.cpu_above(2, 1);
            table.figure(measure("client CPU of (c) above (b), us"), cpu, AtMost(15.0), "the server's is not in it");
        }
        let rates = by_turns(leased, in_flight, rounds, turn).await;
        let detail = format!("{:.0} (e), {:.0} (d) a second", rates.of(1), rates.of(0));
        table.figure(measure("(e) leased / (d) two statements"), rates.ratio(1, 0), leased_least, detail);
        let rates = by_turns(reads, in_flight, rounds, turn).await;
        let detail = format!("{:.0} (g), {:.0} (f) a second", rates.of(1), rates.of(0));
        table.figure(measure("(g) replay / (f) query of one row"), rates.ratio(1, 0), replay_least, detail);
    }
}

/// The same without the engine and the extension: the floor.
async fn alone(lanes: &[Lane; 6], rounds: usize, turn: Duration, table: &mut Table) {
    let measures =
        ["(c) transactional / (b) by hand", "(e) leased / (d) two statements", "(g) replay / (f) query of one row"];
    for (measure, lanes) in measures.into_iter().zip(lanes.chunks(2)) {
        let rates = by_turns(lanes, 8, rounds, turn).await;
        let detail = format!("{:.0} and {:.0} a second", rates.of(1), rates.of(0));
        let measure = format!("postgres,  8 in flight, the statements alone: {measure}");
        table.figure(measure, rates.ratio(1, 0), Target::None, detail);
    }
}

/// Counts what one request costs on the wire, through a pool of one connection, one request after the other.
async fn round_trips(table: &mut Table) {
    let server = Server::start().await;
    let (wire, options) = Wire::tap(counting(server.database().await)).await;
    let lanes = lanes::postgres::lanes(server::pool(options, 1).await).await;
    let mut counts = server.connect().await;
    // What is the application's own: BEGIN, its effect, COMMIT.
    let own_trips = [
        ("(a) unprotected", 3.0, Target::None),
        ("(b) by hand", 3.0, Target::None),
        ("(c) fresh transactional", 3.0, Exactly(2.0)),
        ("(d) two statements", 0.0, Target::None),
        ("(e) fresh leased", 0.0, Exactly(2.0)),
        ("(f) query of one row", 0.0, Target::None),
        ("(g) replay", 0.0, Exactly(1.0)),
    ];
    for (lane, (measure, own, target)) in lanes.iter().zip(own_trips) {
        repeat(&lane.work, 10).await; // prepares its statements
        let (before, calls_before) = (wire.trips().await, calls(&mut counts).await);
        repeat(&lane.work, COUNTED).await;
        let (after, calls_after) = (wire.trips().await, calls(&mut counts).await);
        let one =
            |after: u64, before: u64| support::figures::float((after - before).cast_signed()) / f64::from(COUNTED);
        let trips = one(after.statements, before.statements);
        let mut detail = format!("and {} of the pool's own pings", one(after.pings, before.pings));
        if let (Some(after), Some(before)) = (calls_after, calls_before) {
            detail = format!("{} statements in all, {detail}", (after - before) / f64::from(COUNTED));
        }
        let besides = if own > 0.0 { " besides BEGIN, effect, COMMIT" } else { "" };
        table.figure(format!("round trips, {measure}{besides}"), trips - own, target, detail);
    }
    server.done().await;
}

async fn repeat(work: &Work, times: u32) {
    for _ in 0..times {
        work().await;
    }
}

/// Statements that the server has counted. None where it can't.
async fn calls(connection: &mut PgConnection) -> Option<f64> {
    let row = sqlx::query("SELECT coalesce(sum(calls), 0)::float8 AS calls FROM pg_stat_statements");
    row.fetch_one(connection).await.ok()?.try_get("calls").ok()
}
