//! Faults of who gets a key, of what is kept of the request, and of what others are told.

use std::{sync::Arc, time::Duration};

use async_graphql_idempotency::{
    Record, State, Store, StoreError,
    claim::{Verdict, decide},
    policy::OnCrash,
    record::{Reading, Timestamp},
    store::{Claimed, Taken},
};
use uuid::Uuid;

use crate::mutant::{Fault, How, Mutant};

const HOUR: i64 = 3_600_000;

/// After the INSERT of a claim.
const fn made(set: &'static str) -> How {
    How::Row("INSERT", "NEW.state = 'in_progress'", set)
}

/// After the UPDATE of a take-over.
const fn taken_over(set: &'static str) -> How {
    How::Row("UPDATE", "NEW.state = 'in_progress' AND NEW.attempt > OLD.attempt", set)
}

/// A claim's answer is another.
macro_rules! told {
    (|$claimed:ident| $change:expr) => {
        told!(|_store, $claimed| $change)
    };
    (|$store:ident, $claimed:ident| $change:expr) => {
        How::Claim(|$store, request| {
            Box::pin(async move {
                #[allow(unused_mut)]
                let mut $claimed = $store.inner.claim(request).await?;
                $change
            })
        })
    };
    // What was taken is told otherwise.
    (taken $taken:ident: $change:expr) => {
        told!(|claimed| {
            if let Claimed::Taken($taken) = &mut claimed {
                $change;
            }
            Ok(claimed)
        })
    };
    // What was found is told otherwise.
    (found $reading:ident, $record:ident: $change:expr) => {
        told!(|claimed| {
            if let Claimed::Found($reading) = &mut claimed {
                #[allow(unused_mut, unused_variables)]
                let mut $record = Record::clone(&$reading.record);
                $change;
                $reading.record = Arc::new($record);
            }
            Ok(claimed)
        })
    };
}

/// A claim asks for something else.
macro_rules! asked {
    (|$request:ident| $change:expr) => {
        How::Claim(|store, request| {
            Box::pin(async move {
                let mut $request = request.clone();
                $change;
                store.inner.claim(&$request).await
            })
        })
    };
}

/// A key is claimed anew where a record is such.
macro_rules! anew {
    (|$record:ident, $now:ident| $is:expr) => {
        How::Claim(|store, request| {
            Box::pin(async move {
                if let Some(Reading { record: $record, now: $now }) =
                    store.inner.find(&request.client, &request.key).await?
                    && $is
                {
                    let delete = "DELETE FROM idempotency_records WHERE client = $1 AND key = $2";
                    store.run_of(delete, &$record.owner()).await?;
                }
                store.inner.claim(request).await
            })
        })
    };
}

/// A claim that finds a record changes something.
macro_rules! found_changes {
    ($sql:literal) => {
        told!(|store, claimed| {
            if let Claimed::Found(found) = &claimed {
                store.run_of($sql, &found.record.owner()).await?;
            }
            Ok(claimed)
        })
    };
}

/// A record that is such is taken over, although it must not be.
macro_rules! taken_where {
    (|$record:ident, $now:ident, $request:ident| $is:expr) => {
        How::Claim(|store, $request| {
            Box::pin(async move {
                if let Some(Reading { record: $record, now: $now }) =
                    store.inner.find(&$request.client, &$request.key).await?
                    && $record.fingerprint == $request.fingerprint
                    && $is
                {
                    return take(store, &$record).await;
                }
                store.inner.claim($request).await
            })
        })
    };
}

/// A record that is such is never taken over.
macro_rules! not_taken {
    (|$record:ident| $is:expr) => {
        How::Claim(|store, request| {
            Box::pin(async move {
                match store.inner.find(&request.client, &request.key).await? {
                    Some(Reading { record: $record, now }) if $is => {
                        Ok(Claimed::Found(Reading { record: $record, now }))
                    }
                    _ => store.inner.claim(request).await,
                }
            })
        })
    };
}

/// Takes a record over, whoever has done so meanwhile.
async fn take(store: &Mutant, record: &Record) -> Result<Claimed<()>, StoreError> {
    const TAKE: &str = "UPDATE idempotency_records SET state = 'in_progress', attempt = attempt + 1, reason = NULL, \
        ended_at = NULL, due_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) + 60000 WHERE client = $1 AND key = $2";
    store.run_of(TAKE, &record.owner()).await?;
    Ok(taken(record))
}

fn taken(record: &Record) -> Claimed<()> {
    let (owner, created_at) = (record.next_owner(), record.created_at);
    Claimed::Taken(Taken { owner, created_at, from: Some(record.state), steps: Vec::new(), transaction: () })
}

pub fn faults() -> Vec<Fault> {
    [columns(), claims(), take_overs()].concat()
}

fn columns() -> Vec<Fault> {
    vec![
        ("a claim keeps another mutation", made("mutation = upper(mutation)")),
        ("a claim cuts the mutation", made("mutation = substr(mutation, 1, 255)")),
        ("a claim keeps another fingerprint", made("fingerprint = CAST(substr(fingerprint, 1, 32) || 'x' AS BLOB)")),
        (
            "a claim keeps another version of the rules",
            made("fingerprint = CAST('x' || substr(fingerprint, 2) AS BLOB)"),
        ),
        ("a claim forgets the selection", made("selection = ''")),
        ("a claim cuts the selection", made("selection = substr(selection, 1, 4096)")),
        ("a claim needs recovery at once", made("state = 'needs_recovery'")),
        ("a claim makes a request id of its own", made("request_id = randomblob(16)")),
        ("a claim is attempt 2", made("attempt = 2")),
        ("a claim forgets the kept request", made("body = NULL")),
        ("a claim keeps a request where there is none", made("body = coalesce(body, x'')")),
        ("a kept request is cut at a NUL", made("body = substr(body, 1, instr(body || x'00', x'00') - 1)")),
        ("a kept request is cut at 64 KB", made("body = substr(body, 1, 65535)")),
        ("a claim has a reason", made("reason = 'claimed'")),
        ("a claim counts as a recovery", made("recoveries = 1")),
        ("a claim was made an hour ago", made("created_at = created_at - 3600000")),
        ("a claim is made in an hour", made("created_at = created_at + 3600000")),
        ("a claim has ended", made("ended_at = created_at")),
        ("a lease is counted in seconds", made("due_at = created_at + (due_at - created_at) / 1000")),
        ("a lease is counted in microseconds", made("due_at = created_at + (due_at - created_at) * 1000")),
        ("a lease ends by a clock that is late", made("due_at = due_at - 30000")),
        ("a lease ends by a clock that is early", made("due_at = due_at + 30000")),
        ("a lease ends at a whole second", made("due_at = due_at / 1000 * 1000")),
    ]
}

fn claims() -> Vec<Fault> {
    vec![
        (
            "the last of many claims takes the key",
            How::Sql(
                "CREATE TRIGGER fault BEFORE INSERT ON idempotency_records BEGIN DELETE FROM idempotency_records \
                 WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        (
            "whoever finds a running attempt takes its key",
            told!(|claimed| Ok(match claimed {
                Claimed::Found(Reading { record, .. }) if record.state == State::InProgress => taken(&record),
                other => other,
            })),
        ),
        ("the owner that is told has another request id", told!(taken taken: taken.owner.request_id = Uuid::new_v4())),
        ("the owner that is told is of the attempt before", told!(taken taken: taken.owner.attempt -= 1)),
        ("the time that is told is not the record's", told!(taken taken: taken.created_at = Timestamp(0))),
        ("a fresh key is told as taken over", told!(taken taken: taken.from = taken.from.or(Some(State::Released)))),
        (
            "what is found is told as busy",
            told!(|claimed| Ok(match claimed {
                Claimed::Found(_) => Claimed::Busy { reused: false },
                other => other,
            })),
        ),
        (
            "what is running is told as busy with another request",
            told!(|claimed| Ok(match claimed {
                Claimed::Found(found) if found.record.state == State::InProgress => Claimed::Busy { reused: true },
                other => other,
            })),
        ),
        (
            "what is found is told as an error",
            told!(|claimed| match claimed {
                Claimed::Found(_) => Err(StoreError::Undone("it is there".into())),
                other => Ok(other),
            }),
        ),
        ("a claim is told another clock", told!(found reading, record: reading.now.0 -= HOUR)),
        ("a claim is told no response", told!(found reading, record: record.response = None)),
        ("a claim is told a reason that is not there", told!(found reading, record: record.reason = Some("?".into()))),
        (
            "what is over is told as if it were not",
            told!(found reading, record: if record.state.is_finished() {
                reading.now = reading.now.min(Timestamp(record.due_at.0 - 1));
            }),
        ),
        ("a tombstone is told as free to take", anew!(|record, _now| record.state.is_tombstone())),
        ("what is over is free to take", anew!(|record, now| record.state.is_finished() && record.due_at <= now)),
        ("a resumption makes a record", asked!(|request| request.resumes = false)),
        (
            "a resumption takes nothing over",
            How::Claim(|store, request| {
                Box::pin(async move {
                    if request.resumes { Ok(Claimed::Busy { reused: false }) } else { store.inner.claim(request).await }
                })
            }),
        ),
        (
            "a replay extends the retention",
            found_changes!(
                "UPDATE idempotency_records SET due_at = due_at + 1000 \
            WHERE client = $1 AND key = $2 AND state = 'succeeded'"
            ),
        ),
        (
            "a claim of another renews the lease",
            found_changes!(
                "UPDATE idempotency_records SET due_at = due_at + 1000 \
            WHERE client = $1 AND key = $2 AND state = 'in_progress'"
            ),
        ),
        (
            "a claim of another forgets the steps",
            found_changes!("DELETE FROM idempotency_steps WHERE client = $1 AND key = $2"),
        ),
        (
            "another payload is told as the same",
            How::Claim(|store, request| {
                Box::pin(async move {
                    let mut request = request.clone();
                    if let Some(found) = store.inner.find(&request.client, &request.key).await? {
                        request.fingerprint = found.record.fingerprint;
                    }
                    store.inner.claim(&request).await
                })
            }),
        ),
    ]
}

fn take_overs() -> Vec<Fault> {
    vec![
        ("a take-over is the same attempt", taken_over("attempt = OLD.attempt")),
        ("a take-over skips an attempt", taken_over("attempt = OLD.attempt + 2")),
        ("a take-over changes the request id", taken_over("request_id = randomblob(16)")),
        ("a take-over keeps the selection of before", taken_over("selection = OLD.selection")),
        ("a take-over forgets the kept request", taken_over("body = NULL")),
        ("a take-over keeps the request of before", taken_over("body = coalesce(OLD.body, body)")),
        ("a take-over keeps the reason", taken_over("reason = OLD.reason")),
        ("a take-over gives a reason", taken_over("reason = 'taken over'")),
        ("a take-over counts as a recovery", taken_over("recoveries = recoveries + 1")),
        ("a take-over forgets the recoveries", taken_over("recoveries = 0")),
        ("a take-over keeps the lease of before", taken_over("due_at = OLD.due_at")),
        ("a take-over keeps the end of before", taken_over("ended_at = OLD.ended_at")),
        ("a take-over makes the record younger", taken_over("created_at = created_at + 1")),
        ("a take-over forgets the mutation", taken_over("mutation = ''")),
        ("a take-over leaves the state", taken_over("state = OLD.state")),
        (
            "a take-over deletes the steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE OF attempt ON idempotency_records BEGIN DELETE FROM idempotency_steps \
                 WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        ("a take-over is told no steps", told!(taken taken: taken.steps.clear())),
        ("a take-over is told the steps from the last", told!(taken taken: taken.steps.reverse())),
        ("a take-over is told no state of before", told!(taken taken: taken.from = None)),
        (
            "a take-over is told that nobody was lost",
            told!(taken taken: taken.from = taken.from.map(|_| State::Released)),
        ),
        (
            "many take-overs win",
            taken_where!(|record, now, request| {
                let is = decide(Some(&record), request, now) == Verdict::TakeOver;
                tokio::time::sleep(Duration::from_millis(if is { 3 } else { 0 })).await;
                is
            }),
        ),
        (
            "a running attempt is taken over where a lost one would be",
            taken_where!(|record, _now, request| {
                record.state == State::InProgress && request.on_crash != OnCrash::Hold
            }),
        ),
        (
            "what is settling is taken over where a lost attempt would be",
            taken_where!(|record, now, request| {
                matches!(record.state, State::Settling(_)) && record.due_at <= now && request.on_crash != OnCrash::Hold
            }),
        ),
        ("what is held is taken over", taken_where!(|record, _now, _request| record.state == State::NeedsRecovery)),
        (
            "what has lapsed is taken over where it is held",
            taken_where!(|record, now, _request| { record.state == State::InProgress && record.due_at <= now }),
        ),
        ("what was given back is not taken over", not_taken!(|record| record.state == State::Released)),
        ("what has lapsed is not taken over before a sweep", not_taken!(|record| record.state == State::InProgress)),
        ("what needs recovery is not taken over", not_taken!(|record| record.state == State::NeedsRecovery)),
    ]
}
