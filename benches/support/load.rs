//! So many requests in flight, for so long; baseline and candidate by turns.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use cpu_time::ProcessTime;

use super::figures::{float, median};

/// Does one request. Panics when it fails: a benchmark of failures is worth nothing.
pub(crate) type Work = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// Something to measure, by its letter.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

impl Lane {
    pub(crate) fn new<F>(name: &'static str, work: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { name, work: Arc::new(move || Box::pin(work())) }
    }
}

/// What a turn of a lane has shown.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// Requests per second.
    rate: f64,
    /// Microseconds of this process's CPU for each request; the database's are not in it.
    cpu: f64,
}

/// The turns of each lane, round by round.
pub(crate) struct Rates {
    rounds: Vec<Vec<Turn>>,
}

impl Rates {
    /// The median rate of a lane.
    pub(crate) fn of(&self, lane: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[lane].rate))
    }

    /// The median of the ratios of the rounds: what slows a whole round down is not in it.
    pub(crate) fn ratio(&self, candidate: usize, baseline: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[candidate].rate / round[baseline].rate))
    }

    /// The median of what a request of the candidate takes of this process's CPU above one of the baseline, in
    /// microseconds.
    pub(crate) fn cpu_above(&self, candidate: usize, baseline: usize) -> f64 {
        median(self.rounds.iter().map(|round| round[candidate].cpu - round[baseline].cpu))
    }
}

/// Measures lanes by turns, in another order each round, after a turn of each that does not count.
pub(crate) async fn by_turns(lanes: &[Lane], in_flight: usize, rounds: usize, turn: Duration) -> Rates {
    for lane in lanes {
        take_turn(lane, in_flight, turn).await;
    }
    let mut rates = Rates { rounds: Vec::new() };
    for round in 0..rounds {
        let mut measured = vec![Turn::default(); lanes.len()];
        for turn_of in 0..lanes.len() {
            // Forwards and backwards, from another start each time: nobody always runs in the wake of the same.
            let at = if round % 2 == 0 { round + turn_of } else { lanes.len() + round - turn_of } % lanes.len();
            measured[at] = take_turn(&lanes[at], in_flight, turn).await;
        }
        rates.rounds.push(measured);
    }
    rates
}

async fn take_turn(lane: &Lane, in_flight: usize, turn: Duration) -> Turn {
    let (begun, cpu) = (Instant::now(), ProcessTime::now());
    let workers: Vec<_> = (0..in_flight)
        .map(|_| {
            let work = Arc::clone(&lane.work);
            tokio::spawn(async move {
                let mut done = 0_u64;
                while begun.elapsed() < turn {
                    work().await;
                    done += 1;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for worker in workers {
        done += worker.await.unwrap_or_else(|error| panic!("{}: {error}", lane.name));
    }
    let done = float(i64::try_from(done).unwrap_or(i64::MAX));
    Turn { rate: done / begun.elapsed().as_secs_f64(), cpu: cpu.elapsed().as_secs_f64() * 1e6 / done }
}
