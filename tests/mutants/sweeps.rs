//! Faults of what time brings about.

use std::{sync::atomic::Ordering, time::Duration};

use async_graphql_idempotency::{
    Record, State, StoreError, Upkeep,
    store::{Batch, Filter, Sweep},
};

use crate::mutant::{Fault, How, Mutant};

const LAPSES: &str = "OLD.state = 'in_progress' AND NEW.state = 'needs_recovery' AND NEW.recoveries > OLD.recoveries";
const HANDED: &str = "NEW.recoveries > OLD.recoveries";
const HELD: &str = "OLD.state = 'needs_recovery' AND NEW.recoveries > OLD.recoveries";
const SETTLING: &str = "OLD.state LIKE 'settling%' AND NEW.recoveries > OLD.recoveries";
const EXPIRES: &str = "OLD.state NOT LIKE 'tombstone%' AND NEW.state LIKE 'tombstone%'";

const NO_BODY: &str = "CHECK (body IS NULL OR state NOT IN ('released', 'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'))";

const fn row(when: &'static str, set: &'static str) -> How {
    How::Row("UPDATE", when, set)
}

/// A sweep that is to do something else.
macro_rules! sweeps {
    (|$sweep:ident| $change:expr) => {
        How::Sweep(|store, mut $sweep| {
            Box::pin(async move {
                $change;
                store.inner.sweep(&$sweep).await
            })
        })
    };
}

/// A sweep that tells something else.
macro_rules! tells {
    (|$done:ident| $change:expr) => {
        How::Sweep(|store, sweep| {
            Box::pin(async move {
                let mut $done = store.inner.sweep(&sweep).await?;
                $change;
                Ok($done)
            })
        })
    };
}

/// A sweep before which something is done to the tables.
macro_rules! before {
    ($sql:literal) => {
        How::Sweep(|store, sweep| {
            Box::pin(async move {
                store.run($sql).await?;
                store.inner.sweep(&sweep).await
            })
        })
    };
}

/// Records that are such are never swept.
macro_rules! unseen {
    ($when:literal) => {
        How::Sql(concat!(
            "CREATE TRIGGER fault AFTER UPDATE OF look_at ON idempotency_records WHEN NEW.look_at < 9000000000000 AND (",
            $when,
            ") BEGIN UPDATE idempotency_records SET look_at = 9000000000000 WHERE (client, key) = (NEW.client, NEW.key); END"
        ))
    };
}

pub fn faults() -> Vec<Fault> {
    [told(), handed(), over()].concat()
}

fn told() -> Vec<Fault> {
    vec![
        ("a sweep does nothing", How::Sweep(|_, _| Box::pin(async { Ok(Batch::default()) }))),
        ("a sweep is an error", How::Sweep(|_, _| Box::pin(async { Err(StoreError::Undone("locked".into())) }))),
        ("a sweep hands out nothing", tells!(|done| done.recoverable.clear())),
        ("a sweep hands out half", tells!(|done| done.recoverable.truncate(done.recoverable.len().div_ceil(2)))),
        ("a sweep tells no lapses", tells!(|done| done.lapsed = 0)),
        ("a sweep tells no tombstones", tells!(|done| done.expired = 0)),
        ("a sweep tells no purges", tells!(|done| done.purged = 0)),
        ("a sweep counts what it holds as lapsed", tells!(|done| done.lapsed = done.recoverable.len() as u64)),
        ("there is never more", tells!(|done| done.more = false)),
        ("there is always more", tells!(|done| done.more = true)),
        ("a sweep is of all records at once", sweeps!(|sweep| sweep.batch = 100_000)),
        ("a sweep changes one record too many", sweeps!(|sweep| sweep.batch += 1)),
        (
            "a sweep changes a batch for each of its duties",
            How::Sweep(|store, sweep| {
                Box::pin(async move {
                    let mut done = store.inner.sweep(&sweep).await?;
                    let more = store.inner.sweep(&sweep).await?;
                    done.recoverable.extend(more.recoverable);
                    done.lapsed += more.lapsed;
                    done.expired += more.expired;
                    done.purged += more.purged;
                    done.more = more.more;
                    Ok(done)
                })
            }),
        ),
        (
            "what is handed out is told as it was before",
            tells!(|done| for record in &mut done.recoverable {
                record.recoveries -= 1;
            }),
        ),
        (
            "what is handed out is told as in progress",
            tells!(|done| for record in &mut done.recoverable {
                if record.state == State::NeedsRecovery {
                    record.state = State::InProgress;
                }
            }),
        ),
        (
            "what is handed out has no request",
            tells!(|done| for record in &mut done.recoverable {
                record.request = None;
            }),
        ),
        (
            "what is handed out has no response",
            tells!(|done| for record in &mut done.recoverable {
                record.response = None;
            }),
        ),
        ("two sweepers at a time get the same record", How::Sweep(|store, sweep| Box::pin(shared(store, sweep)))),
        (
            "one sweeper gets the same record twice",
            How::Sweep(|store, sweep| {
                Box::pin(async move {
                    let mut done = store.inner.sweep(&sweep).await?;
                    let mut before = store.memory.records.lock().unwrap();
                    let now = done.recoverable.clone();
                    done.recoverable.extend(std::mem::replace(&mut *before, now));
                    Ok(done)
                })
            }),
        ),
    ]
}

/// Sweepers that run at the same time all get what one of them has found.
async fn shared(store: &Mutant, sweep: Sweep) -> Result<Batch, StoreError> {
    let beside = store.memory.running.load(Ordering::SeqCst) > 1;
    let mut done = store.inner.sweep(&sweep).await?;
    let mut found: Vec<Record> = done.recoverable.clone();
    let mut last = store.memory.records.lock().unwrap();
    if beside {
        done.recoverable.extend(last.drain(..));
    }
    std::mem::swap(&mut *last, &mut found);
    Ok(done)
}

fn handed() -> Vec<Fault> {
    vec![
        ("what has lapsed is left in progress", unseen!("NEW.state = 'in_progress'")),
        ("what has lapsed stays in progress", row(LAPSES, "state = 'in_progress'")),
        ("what has lapsed is given back", row(LAPSES, "state = 'released', body = NULL")),
        ("what has lapsed has no reason", row(LAPSES, "reason = NULL")),
        ("what has lapsed has a reason that does not tell the attempt", row(LAPSES, "reason = 'lapsed'")),
        ("what has lapsed has ended", row(LAPSES, "ended_at = OLD.due_at")),
        ("what has lapsed is taken from its attempt", row(LAPSES, "attempt = attempt + 1")),
        ("what has lapsed forgets its request", row(LAPSES, "body = NULL")),
        ("what has lapsed forgets its selection", row(LAPSES, "selection = ''")),
        ("what has lapsed changes its request id", row(LAPSES, "request_id = randomblob(16)")),
        ("what has lapsed is younger", row(LAPSES, "created_at = created_at + 1")),
        ("what has lapsed does not rest", row(LAPSES, "due_at = OLD.due_at, look_at = OLD.due_at")),
        (
            "what has lapsed loses its steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.recoveries > OLD.recoveries BEGIN DELETE \
             FROM idempotency_steps WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        (
            "what has not lapsed is handed out",
            before!("UPDATE idempotency_records SET due_at = 0 WHERE state = 'in_progress'"),
        ),
        (
            "what is settling is handed out before it has lapsed",
            before!("UPDATE idempotency_records SET look_at = 0, due_at = 0 WHERE state LIKE 'settling%'"),
        ),
        (
            "what is not due is handed out",
            before!("UPDATE idempotency_records SET due_at = 0, look_at = 0 WHERE state = 'needs_recovery'"),
        ),
        (
            "what is held is never handed out",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state = 'needs_recovery' AND \
             NEW.recoveries = 0 BEGIN UPDATE idempotency_records SET look_at = 9000000000000 WHERE (client, key) = (NEW.client, NEW.key); END",
            ),
        ),
        (
            "what is held is handed out once",
            row("NEW.recoveries = 2 AND OLD.recoveries = 1", "look_at = 9000000000000"),
        ),
        ("what is held gets another reason", row(HELD, "reason = 'lapsed'")),
        ("what is held is an attempt more", row(HELD, "attempt = attempt + 1")),
        ("what is held forgets when it ended", row(HELD, "ended_at = NULL")),
        ("what is held does not rest", row(HELD, "due_at = OLD.due_at, look_at = OLD.due_at")),
        ("what is held rests, and is told as due", row(HELD, "due_at = OLD.due_at")),
        ("a recovery is not counted", row(HANDED, "recoveries = OLD.recoveries")),
        ("a recovery is counted twice", row(HANDED, "recoveries = recoveries + 1")),
        ("what is held rests as long as before", How::Sweep(|store, sweep| Box::pin(flat(store, sweep)))),
        (
            "what is held rests for more than a day",
            row(
                "NEW.recoveries > OLD.recoveries AND NEW.look_at - OLD.due_at > 80000000",
                "due_at = due_at + 86400000, look_at = look_at + 86400000",
            ),
        ),
        ("a rest is counted in seconds", sweeps!(|sweep| sweep.backoff /= 1000)),
        ("a rest is always ten seconds", sweeps!(|sweep| sweep.backoff = Duration::from_secs(10))),
        ("what is settling is never handed out", unseen!("NEW.state LIKE 'settling%'")),
        ("what is settling needs recovery when it lapses", row(SETTLING, "state = 'needs_recovery', body = NULL")),
        ("what is settling is finished when it lapses", row(SETTLING, "state = replace(state, 'settling_', '')")),
        ("what is settling is due again when it lapses", row(SETTLING, "due_at = look_at")),
        ("what is settling forgets its response when it lapses", row(SETTLING, "body = NULL")),
        ("what is settling does not rest", row(SETTLING, "look_at = OLD.due_at")),
        (
            "what is looked at too early is not looked at again",
            unseen!(
                "NEW.state = 'in_progress' AND NEW.look_at = \
            NEW.due_at AND OLD.look_at IS NOT NULL"
            ),
        ),
    ]
}

/// The rest does not grow.
async fn flat(store: &Mutant, sweep: Sweep) -> Result<Batch, StoreError> {
    let done = store.inner.sweep(&sweep).await?;
    for record in &done.recoverable {
        let rest = i64::try_from(sweep.backoff.as_millis()).unwrap();
        let rests = rest << (record.recoveries - 1).min(20);
        let sooner = sqlx::query(
            "UPDATE idempotency_records SET due_at = due_at - $3, look_at = look_at - $3 WHERE client = $1 AND key = $2 \
             AND state = 'needs_recovery'",
        );
        let sooner = sooner.bind(record.client.as_str()).bind(record.key.as_str()).bind(rests - rest);
        sooner.execute(store.inner.pool()).await.map_err(crate::mutant::undone)?;
    }
    Ok(done)
}

fn over() -> Vec<Fault> {
    vec![
        ("nothing becomes a tombstone", unseen!("NEW.state IN ('succeeded', 'failed', 'released')")),
        ("what was given back becomes no tombstone", unseen!("NEW.state = 'released'")),
        ("what has failed becomes no tombstone", unseen!("NEW.state = 'failed'")),
        (
            "what is over is deleted at once",
            before!(
                "DELETE FROM idempotency_records WHERE state = 'succeeded' AND due_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)"
            ),
        ),
        (
            "what is not over becomes a tombstone",
            before!("UPDATE idempotency_records SET due_at = created_at WHERE state IN ('succeeded', 'failed')"),
        ),
        ("a failure's tombstone is that of a success", row(EXPIRES, "state = replace(state, 'failed', 'succeeded')")),
        (
            "what was given back has the tombstone of a success",
            row(EXPIRES, "state = replace(state, 'released', 'succeeded')"),
        ),
        (
            "a tombstone keeps the response",
            How::Unchecked(
                NO_BODY,
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state LIKE 'tombstone%' BEGIN UPDATE \
             idempotency_records SET body = OLD.body WHERE (client, key) = (NEW.client, NEW.key); END",
            ),
        ),
        ("a tombstone keeps the reason", row(EXPIRES, "reason = OLD.reason")),
        ("a tombstone keeps the selection", row(EXPIRES, "selection = OLD.selection")),
        ("a tombstone forgets the mutation", row(EXPIRES, "mutation = ''")),
        ("a tombstone forgets the fingerprint", row(EXPIRES, "fingerprint = zeroblob(33)")),
        ("a tombstone forgets the request id", row(EXPIRES, "request_id = zeroblob(16)")),
        ("a tombstone forgets the attempt", row(EXPIRES, "attempt = 1 + attempt")),
        ("a tombstone forgets when it ended", row(EXPIRES, "ended_at = NULL")),
        ("a tombstone is younger", row(EXPIRES, "created_at = created_at + 1")),
        (
            "a tombstone keeps the steps",
            How::Sql(
                "CREATE TRIGGER fault BEFORE DELETE ON idempotency_steps WHEN EXISTS (SELECT 1 FROM idempotency_records r WHERE \
             r.client = OLD.client AND r.key = OLD.key) BEGIN SELECT RAISE(IGNORE); END",
            ),
        ),
        ("a tombstone lasts from the sweep on", row(EXPIRES, "due_at = due_at + 20, look_at = look_at + 20")),
        ("a tombstone lasts as long as the retention did", sweeps!(|sweep| sweep.tombstone = Duration::from_mins(1))),
        ("a tombstone is counted in seconds", sweeps!(|sweep| sweep.tombstone /= 1000)),
        ("a tombstone lasts for ever", row(EXPIRES, "look_at = 9000000000000")),
        (
            "a tombstone that is not over is deleted",
            before!("DELETE FROM idempotency_records WHERE state LIKE 'tombstone%'"),
        ),
        (
            "what needs recovery is deleted in the end",
            before!("DELETE FROM idempotency_records WHERE state = 'needs_recovery' AND recoveries > 1"),
        ),
        (
            "what needs recovery becomes a tombstone",
            row("NEW.recoveries = 2", "state = 'tombstone_failed', body = NULL"),
        ),
        (
            "what is settling is deleted in the end",
            before!("DELETE FROM idempotency_records WHERE state LIKE 'settling%' AND recoveries > 1"),
        ),
        ("what needs recovery forgets its request in the end", row("NEW.recoveries = 2", "body = NULL")),
        (
            "a sweep takes the client's other keys along",
            How::Sweep(|store, sweep| {
                Box::pin(async move {
                    let done = store.inner.sweep(&sweep).await?;
                    for record in &done.recoverable {
                        store
                            .run_of(
                                "UPDATE idempotency_records SET reason = 'lapsed' WHERE client = $1 AND key <> $2",
                                &record.owner(),
                            )
                            .await?;
                    }
                    Ok(done)
                })
            }),
        ),
        (
            "what is open for long is finished",
            How::Sweep(|store, sweep| {
                Box::pin(async move {
                    let filter = Filter { state: Some(State::InProgress), ..Filter::default() };
                    if !store.inner.list(&filter).await?.is_empty() {
                        store.run("UPDATE idempotency_records SET state = 'failed', body = NULL WHERE state = 'in_progress' AND \
                        due_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)").await?;
                    }
                    store.inner.sweep(&sweep).await
                })
            }),
        ),
    ]
}
