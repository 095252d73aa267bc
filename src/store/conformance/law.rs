//! What every law needs: keys of its own, the store's answers, and what is to be seen.

use std::future::Future;

use tokio::sync::{Mutex, MutexGuard};

pub(super) use std::{sync::Arc, time::Duration};

pub(super) use uuid::Uuid;

pub(super) use super::{Broken, Effects};
pub(super) use crate::{
    claim::{ClaimRequest, Verdict, decide},
    error::ErrorCode,
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    policy::OnCrash,
    record::{Owner, Reading, Record, RecoveryPoint, Settlement, StepKind, Timestamp},
    state::{Ended, Outcome, State},
    store::{Batch, Claimed, Filter, From, StoreError, Sweep, Taken, Upkeep},
};

/// How often a law is tried that the machine was too slow for, or in which the store undid something: a database may
/// undo any transaction that is serializable, for reasons of its own.
pub(super) const TRIES: u32 = 10;

/// Laws as functions, and one that runs all of them.
macro_rules! laws {
    ($($(#[$doc:meta])* $name:ident($law:ident) $body:block)*) => {
        $($(#[$doc])* pub async fn $name<S: Upkeep>(store: &S, effects: &Effects<S>) -> Result<(), Broken> {
            let mut tries = 0;
            loop {
                tries += 1;
                let law = Law { name: stringify!($name), store, effects, tries };
                let $law = &law;
                let kept: Result<(), Broken> = async {
                    $body
                    Ok(())
                }
                .await;
                match kept {
                    Err(Broken::Late { .. } | Broken::Store { source: StoreError::Undone(_), .. }) if tries < TRIES => {}
                    kept => return kept,
                }
            }
        })*

        pub(super) async fn all<S: Upkeep>(store: &S, effects: &Effects<S>) -> Result<(), Broken> {
            $($name(store, effects).await?;)*
            Ok(())
        }
    };
}

/// What a law says, and what was seen instead.
macro_rules! ensure {
    ($law:expr, $condition:expr, $($seen:tt)+) => {
        if !$condition {
            return Err(Broken::Law { law: $law.name, what: format!($($seen)+) });
        }
    };
}

pub(super) use {ensure, laws};

/// A time that no law outlasts, and one that a law waits for.
pub(super) const LONG: Duration = Duration::from_mins(1);
pub(super) const SHORT: Duration = Duration::from_millis(60);
/// How far apart two times may be that are the same instant.
const NEAR: Duration = Duration::from_secs(5);

/// A sweep is about all records, so the laws that sweep take turns.
static SWEEPING: Mutex<()> = Mutex::const_new(());

/// A law while it runs.
pub(super) struct Law<'a, S: Upkeep> {
    pub(super) name: &'static str,
    pub(super) store: &'a S,
    pub(super) effects: &'a Effects<S>,
    /// Which try of it this is.
    pub(super) tries: u32,
}

impl<S: Upkeep> Law<'_, S> {
    pub(super) fn broken(&self, what: impl Into<String>) -> Broken {
        Broken::Law { law: self.name, what: what.into() }
    }

    /// An answer of the store.
    pub(super) fn told<T>(&self, answer: Result<T, StoreError>) -> Result<T, Broken> {
        answer.map_err(|source| Broken::Store { law: self.name, source })
    }

    /// A request with a key of its own.
    pub(super) fn request(&self) -> ClaimRequest {
        let unique = Uuid::new_v4().to_string();
        ClaimRequest {
            // Both are short and of ASCII letters.
            client: ClientId::new(format!("{} {unique}", self.name)).unwrap_or_else(|_| ClientId::hashed("")),
            key: IdempotencyKey::new(unique.clone()).unwrap_or_else(|_| unreachable!()),
            mutation: format!("law {unique}").into(),
            fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [7; 32] },
            selection: "id name".into(),
            request_id: Uuid::new_v4(),
            lease: LONG,
            retention: LONG,
            on_crash: OnCrash::Hold,
            request: Some(b"kept".to_vec()),
            resumes: false,
        }
    }

    pub(super) async fn find(&self, request: &ClaimRequest) -> Result<Option<Reading>, Broken> {
        self.told(self.store.find(&request.client, &request.key).await)
    }

    pub(super) async fn reading(&self, request: &ClaimRequest) -> Result<Reading, Broken> {
        self.find(request).await?.ok_or_else(|| self.broken("there is no record"))
    }

    pub(super) async fn record(&self, request: &ClaimRequest) -> Result<Record, Broken> {
        Ok(Record::clone(&self.reading(request).await?.record))
    }

    /// A time that is waited for, and before which something has to be seen: longer at each try.
    pub(super) fn short(&self) -> Duration {
        SHORT * self.tries
    }

    /// Rests until such a time is over.
    pub(super) async fn rest(&self) {
        tokio::time::sleep(self.short() + self.short() / 2).await;
    }

    /// An error when a time is over before which a law had to look.
    pub(super) async fn in_time(&self, request: &ClaimRequest, time: Timestamp) -> Result<(), Broken> {
        if self.reading(request).await?.now < time { Ok(()) } else { Err(Broken::Late { law: self.name }) }
    }

    pub(super) async fn steps(&self, request: &ClaimRequest) -> Result<Vec<RecoveryPoint>, Broken> {
        self.told(self.store.steps(&request.client, &request.key).await)
    }

    pub(super) async fn claim(&self, request: &ClaimRequest) -> Result<Claimed<()>, Broken> {
        self.told(self.store.claim(request).await)
    }

    /// Takes a key that is free to take.
    pub(super) async fn take(&self, request: &ClaimRequest) -> Result<Taken<()>, Broken> {
        match self.claim(request).await? {
            Claimed::Taken(taken) => Ok(taken),
            other => Err(self.broken(format!("a key that is free to take was not taken: {other:?}"))),
        }
    }

    pub(super) async fn owner(&self, request: &ClaimRequest) -> Result<Owner, Broken> {
        Ok(self.take(request).await?.owner)
    }

    pub(super) async fn begin(&self, request: &ClaimRequest) -> Result<Taken<S::Transaction>, Broken> {
        // A transaction that was dropped is undone in the background, and soon.
        for _ in 0..100 {
            match self.told(self.store.begin(request).await)? {
                Claimed::Taken(taken) => return Ok(taken),
                Claimed::Found(reading) => return Err(self.broken(format!("a free key was found: {reading:?}"))),
                Claimed::Busy { .. } => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        Err(self.broken("a free key was busy"))
    }

    /// The verdict that a claim gets on a key that is not the caller's.
    pub(super) async fn verdict(&self, request: &ClaimRequest) -> Result<Verdict, Broken> {
        match self.claim(request).await? {
            Claimed::Found(reading) => Ok(decide(Some(&reading.record), request, reading.now)),
            other => Err(self.broken(format!("a record that is somebody's was not found: {other:?}"))),
        }
    }

    pub(super) async fn code(&self, request: &ClaimRequest) -> Result<Option<ErrorCode>, Broken> {
        Ok(match self.verdict(request).await? {
            Verdict::Refuse(error) => Some(error.code),
            _ => None,
        })
    }

    pub(super) async fn settle(&self, owner: &Owner, settlement: &Settlement) -> Result<bool, Broken> {
        self.told(self.store.settle(owner, From::Open, settlement).await)
    }

    pub(super) async fn settle_from(
        &self,
        owner: &Owner,
        state: State,
        settlement: &Settlement,
    ) -> Result<bool, Broken> {
        self.told(self.store.settle(owner, From::State(state), settlement).await)
    }

    pub(super) async fn write(&self, connection: &mut S::Connection, label: &str) -> Result<(), Broken> {
        (self.effects.write)(connection, label).await.map_err(Broken::Suite)
    }

    pub(super) async fn count(&self, label: &str) -> Result<i64, Broken> {
        (self.effects.count)(label).await.map_err(Broken::Suite)
    }

    /// The same count, after some time for what is undone in the background.
    pub(super) async fn count_soon(&self, label: &str, expected: i64) -> Result<i64, Broken> {
        for _ in 0..50 {
            if self.count(label).await? == expected {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.count(label).await
    }

    /// Whether nothing of a key changes when something is done.
    pub(super) async fn is_unchanged<F>(&self, request: &ClaimRequest, doing: F) -> Result<bool, Broken>
    where
        F: Future<Output = Result<(), Broken>>,
    {
        let before = (self.find(request).await?.map(|found| found.record), self.steps(request).await?);
        doing.await?;
        let after = (self.find(request).await?.map(|found| found.record), self.steps(request).await?);
        Ok(before == after)
    }

    /// Sweeps until nothing is left to do. Returns the records of the request's client that were handed out.
    pub(super) async fn sweep(&self, request: &ClaimRequest, sweep: Sweep) -> Result<Vec<Record>, Broken> {
        let mut handed = Vec::new();
        for _ in 0..1_000 {
            let Batch { recoverable, more, .. } = self.told(self.store.sweep(&sweep).await)?;
            handed.extend(recoverable.into_iter().filter(|record| record.client == request.client));
            if !more {
                return Ok(handed);
            }
        }
        Err(self.broken("there was more and more to sweep"))
    }

    /// The turn to sweep, and a sweep that finds everything that is due.
    pub(super) async fn turn(&self) -> (MutexGuard<'static, ()>, Sweep) {
        let sweep = Sweep {
            batch: 100,
            backoff: LONG,
            tombstone: LONG,
            shortest_lease: Duration::from_millis(1),
            shortest_retention: Duration::from_millis(1),
            every: Duration::ZERO,
        };
        (SWEEPING.lock().await, sweep)
    }
}

pub(super) fn finish(response: &[u8]) -> Settlement {
    let response = Some(response.to_vec());
    Settlement::Complete { outcome: Outcome::Succeeded, response, retention: LONG, reason: None }
}

pub(super) fn settling(response: &[u8], lease: Duration) -> Settlement {
    Settlement::Settling { outcome: Outcome::Succeeded, response: Some(response.to_vec()), lease }
}

pub(super) fn release(stays: Option<Duration>) -> Settlement {
    Settlement::Release { stays, reason: Some("given back".to_owned()) }
}

pub(super) fn hold() -> Settlement {
    Settlement::Hold { reason: "unknown".to_owned() }
}

pub(super) fn point(owner: &Owner, name: &str, kind: StepKind, result: Option<&str>) -> RecoveryPoint {
    RecoveryPoint { name: name.to_owned(), kind, attempt: owner.attempt, result: result.map(str::to_owned) }
}

/// Whether a time lies about so far ahead of now.
pub(super) fn is_ahead(time: Timestamp, now: Timestamp, ahead: Duration) -> bool {
    let (earliest, latest) = (now.after(ahead.saturating_sub(NEAR)), now.after(ahead));
    (earliest..=latest).contains(&time)
}

/// Whether a time is now, or was a moment ago.
pub(super) fn is_now(time: Timestamp, now: Timestamp) -> bool {
    time <= now && time.until(now) < NEAR
}

/// Joins tasks.
pub(super) async fn join<T>(tasks: Vec<tokio::task::JoinHandle<T>>) -> Result<Vec<T>, Broken> {
    let mut ended = Vec::new();
    for task in tasks {
        ended.push(task.await.map_err(|panic| Broken::Suite(panic.into()))?);
    }
    Ok(ended)
}
