//! Faults of a lease's renewal, and of recovery points.

use std::time::Duration;

use async_graphql_idempotency::{
    State, Store, StoreError,
    record::{Owner, RecoveryPoint},
};

use crate::mutant::{Fault, How};

/// After the UPDATE that returns a record that was believed lost.
const fn returned(set: &'static str) -> How {
    How::Row("UPDATE", "OLD.state = 'needs_recovery' AND NEW.state = 'in_progress' AND NEW.attempt = OLD.attempt", set)
}

/// After the UPDATE of a renewal, or of a checkpoint's.
const fn renewed(set: &'static str) -> How {
    How::Row(
        "UPDATE",
        "NEW.state = OLD.state AND NEW.state IN ('in_progress', 'settling_succeeded') AND NEW.attempt = OLD.attempt \
         AND NEW.due_at > OLD.due_at",
        set,
    )
}

/// A renewal in another way.
macro_rules! renews {
    (|$store:ident, $owner:ident, $lease:ident| $renew:expr) => {
        How::Renew(|$store, $owner, $lease| Box::pin(async move { $renew }))
    };
}

/// A renewal that changes the record before.
macro_rules! renews_after {
    ($set:literal where $whose:literal) => {
        renews!(|store, owner, lease| {
            store.change(owner, $set, $whose).await?;
            store.inner.renew(owner, lease).await
        })
    };
}

/// A checkpoint in another way.
macro_rules! writes {
    (|$store:ident, $owner:ident, $given:ident| $write:expr) => {
        How::Checkpoint(|$store, $owner, $given| {
            Box::pin(async move {
                #[allow(unused_mut)]
                let mut $given = $given;
                $write
            })
        })
    };
}

/// A checkpoint of another owner.
macro_rules! writes_as {
    (|$store:ident, $owner:ident| $as:expr) => {
        writes!(|$store, $owner, given| {
            let owner = $as;
            // A renewal first, and its answer: a transaction may be open.
            match given.transaction {
                Some(_) => $store.inner.checkpoint($owner, given.point, given.lease, given.transaction).await,
                None => $store.inner.checkpoint(&owner, given.point, given.lease, None).await,
            }
        })
    };
}

pub fn faults() -> Vec<Fault> {
    [renewals(), checkpoints(), points()].concat()
}

fn renewals() -> Vec<Fault> {
    vec![
        ("a renewal does nothing", renews!(|_store, _owner, _lease| Ok(true))),
        ("a renewal is refused", renews!(|_store, _owner, _lease| Ok(false))),
        (
            "a renewal is told as refused",
            renews!(|store, owner, lease| store.inner.renew(owner, lease).await.map(|_| false)),
        ),
        (
            "a renewal that is refused is told as done",
            renews!(|store, owner, lease| store.inner.renew(owner, lease).await.map(|_| true)),
        ),
        (
            "a renewal that is refused is an error",
            renews!(|store, owner, lease| {
                if store.inner.renew(owner, lease).await? {
                    Ok(true)
                } else {
                    Err(StoreError::Undone("not the owner".into()))
                }
            }),
        ),
        (
            "a renewal is of whatever attempt",
            renews!(|store, owner, lease| {
                let attempt = store.latest(owner).await?.attempt;
                store.inner.renew(&Owner { attempt, ..owner.clone() }, lease).await
            }),
        ),
        (
            "a renewal is of whatever request id",
            renews!(|store, owner, lease| {
                let request_id = store.latest(owner).await?.request_id;
                store.inner.renew(&Owner { request_id, ..owner.clone() }, lease).await
            }),
        ),
        (
            "a renewal is of all keys of a client",
            renews!(|store, owner, lease| {
                let renewed = store.inner.renew(owner, lease).await?;
                if renewed {
                    store
                        .run_of(
                            "UPDATE idempotency_records SET due_at = (SELECT due_at FROM idempotency_records \
                    WHERE client = $1 AND key = $2) WHERE client = $1 AND state = 'in_progress'",
                            owner,
                        )
                        .await?;
                }
                Ok(renewed)
            }),
        ),
        (
            "a renewal is counted in seconds",
            renews!(|store, owner, lease| store.inner.renew(owner, lease / 1000).await),
        ),
        ("a renewal may shorten a lease", renews_after!("due_at = 0" where "true")),
        ("a renewal adds to the lease", renewed("due_at = OLD.due_at + (NEW.due_at - NEW.created_at)")),
        (
            "a renewal of what has lapsed is refused",
            renews!(|store, owner, lease| {
                let found = store.inner.find(&owner.client, &owner.key).await?;
                if found
                    .is_some_and(|found| found.record.state == State::InProgress && found.record.due_at <= found.now)
                {
                    return Ok(false);
                }
                store.inner.renew(owner, lease).await
            }),
        ),
        (
            "a renewal of what was believed lost is refused",
            renews!(|store, owner, lease| {
                match store.record(owner).await?.map(|record| record.state) {
                    Some(State::NeedsRecovery) => Ok(false),
                    _ => store.inner.renew(owner, lease).await,
                }
            }),
        ),
        (
            "a renewal of what is settling is refused",
            renews!(|store, owner, lease| {
                match store.record(owner).await?.map(|record| record.state) {
                    Some(State::Settling(_)) => Ok(false),
                    _ => store.inner.renew(owner, lease).await,
                }
            }),
        ),
        ("a renewal leaves what was believed lost as it is", returned("state = OLD.state")),
        ("a renewal keeps the reason", returned("reason = OLD.reason")),
        ("a renewal keeps the rest of what was believed lost", returned("due_at = OLD.due_at")),
        ("a renewal forgets the recoveries", returned("recoveries = 0")),
        ("a renewal forgets the kept request", returned("body = NULL")),
        ("a renewal is an attempt", returned("attempt = attempt + 1")),
        ("a renewal ends what was believed lost", returned("ended_at = due_at - 60000")),
        ("a renewal returns what is settling", renewed("state = 'in_progress'")),
        (
            "a renewal forgets a response that was made safe",
            How::Row(
                "UPDATE",
                "OLD.state LIKE 'settling%' AND NEW.state = OLD.state AND NEW.due_at > OLD.due_at",
                "body = NULL",
            ),
        ),
        (
            "a renewal returns what its owner has held",
            renews_after!("ended_at = NULL" where "state = 'needs_recovery'"),
        ),
        ("a renewal returns what was given back", renews_after!("state = 'in_progress'" where "state = 'released'")),
        ("a renewal extends a retention", renews_after!("due_at = due_at + 1000" where "state = 'succeeded'")),
    ]
}

fn checkpoints() -> Vec<Fault> {
    vec![
        (
            "a checkpoint writes nothing",
            writes!(|store, owner, given| {
                drop(given.transaction.take());
                store.inner.renew(owner, given.lease).await
            }),
        ),
        (
            "a checkpoint is told as refused",
            writes!(|store, owner, given| {
                store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await.map(|_| false)
            }),
        ),
        (
            "a checkpoint that is refused is told as done",
            writes!(|store, owner, given| {
                store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await.map(|_| true)
            }),
        ),
        (
            "a checkpoint is of whatever attempt",
            writes_as!(|store, owner| { Owner { attempt: store.latest(owner).await?.attempt, ..owner.clone() } }),
        ),
        (
            "a checkpoint is of whatever request id",
            writes_as!(|store, owner| { Owner { request_id: store.latest(owner).await?.request_id, ..owner.clone() } }),
        ),
        (
            "a checkpoint in a transaction is not fenced",
            writes!(|store, owner, given| {
                let Some(transaction) = given.transaction.take() else {
                    return store.inner.checkpoint(owner, given.point, given.lease, None).await;
                };
                drop(transaction);
                store.inner.checkpoint(&store.latest(owner).await?, given.point, given.lease, None).await
            }),
        ),
        (
            "a checkpoint does not renew the lease",
            writes!(|store, owner, given| {
                store.inner.checkpoint(owner, given.point, Duration::ZERO, given.transaction).await
            }),
        ),
        (
            "a checkpoint in a transaction does not renew the lease",
            writes!(|store, owner, given| {
                let lease = if given.transaction.is_some() { Duration::ZERO } else { given.lease };
                store.inner.checkpoint(owner, given.point, lease, given.transaction).await
            }),
        ),
        (
            "a checkpoint in a transaction renews from its beginning",
            writes!(|store, owner, given| {
                let lease = given
                    .lease
                    .checked_sub(Duration::from_millis(if given.transaction.is_some() { 200 } else { 0 }))
                    .unwrap();
                store.inner.checkpoint(owner, given.point, lease, given.transaction).await
            }),
        ),
        (
            "a checkpoint may shorten the lease",
            writes!(|store, owner, given| {
                if given.transaction.is_none() {
                    store.change(owner, "due_at = 0", "true").await?;
                }
                store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
            }),
        ),
        (
            "a checkpoint leaves what was believed lost as it is",
            writes!(|store, owner, given| {
                let lost = store.record(owner).await?.is_some_and(|record| record.state == State::NeedsRecovery);
                let written = store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await?;
                if lost {
                    store.change(owner, "state = 'needs_recovery'", "true").await?;
                }
                Ok(written)
            }),
        ),
        (
            "a checkpoint of what was believed lost is refused",
            writes!(|store, owner, given| {
                match store.record(owner).await?.map(|record| record.state) {
                    Some(State::NeedsRecovery) => Ok(false),
                    _ => store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await,
                }
            }),
        ),
        (
            "a checkpoint of what has lapsed is refused",
            writes!(|store, owner, given| {
                let found = store.inner.find(&owner.client, &owner.key).await?;
                if found
                    .is_some_and(|found| found.record.state == State::InProgress && found.record.due_at <= found.now)
                {
                    return Ok(false);
                }
                store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
            }),
        ),
        (
            "a checkpoint returns what its owner has held",
            writes!(|store, owner, given| {
                if given.transaction.is_none() {
                    store.change(owner, "ended_at = NULL", "state = 'needs_recovery'").await?;
                }
                store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
            }),
        ),
        (
            "a checkpoint returns what is settling",
            writes!(|store, owner, given| {
                let written = store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await?;
                store.change(owner, "state = 'in_progress', body = NULL", "state LIKE 'settling%'").await?;
                Ok(written)
            }),
        ),
        (
            "a checkpoint forgets the kept request",
            writes!(|store, owner, given| {
                let written = store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await?;
                store.change(owner, "body = NULL", "state = 'in_progress'").await?;
                Ok(written)
            }),
        ),
    ]
}

/// A point that is written is another.
macro_rules! written {
    (|$point:ident| $change:expr) => {
        writes!(|store, owner, given| {
            let mut $point = RecoveryPoint::clone(given.point);
            $change;
            store.inner.checkpoint(owner, &$point, given.lease, given.transaction).await
        })
    };
}

fn points() -> Vec<Fault> {
    vec![
        ("steps are known by their names without regard to case", written!(|point| point.name.make_ascii_lowercase())),
        ("the names of steps are cut at 255 bytes", written!(|point| point.name.truncate(255))),
        ("all steps have one name", written!(|point| point.name = "step".into())),
        (
            "a step's result is cut at 64 KB",
            written!(|point| if let Some(result) = &mut point.result {
                result.truncate(65_535);
            }),
        ),
        (
            "a step's result loses its escapes",
            written!(|point| {
                point.result = point.result.map(|result| result.replace("\\u0000", ""));
            }),
        ),
        (
            "a step's result is written in ASCII",
            written!(|point| {
                point.result = point.result.map(|result| result.replace(|c: char| !c.is_ascii(), "?"));
            }),
        ),
        (
            "a step whose result is null has none",
            written!(|point| {
                point.result = point.result.filter(|result| point.kind.as_str() == "local" || result != "null");
            }),
        ),
        ("a step without a result has null", written!(|point| point.result = point.result.or(Some("null".into())))),
        (
            "a step's result is trimmed",
            written!(|point| point.result = point.result.map(|result| result.trim().into())),
        ),
        ("a finished step is kept as a remote one", How::Step("INSERT", "NEW.kind = 'local'", "kind = 'remote'")),
        ("a finished step is kept as a local one", How::Step("INSERT", "NEW.result IS NOT NULL", "kind = 'local'")),
        (
            "a step that finishes is kept as a local one",
            How::Step("UPDATE", "NEW.result IS NOT NULL", "kind = 'local'"),
        ),
        ("a step's attempt stays the first that wrote it", How::Step("UPDATE", "true", "attempt = OLD.attempt")),
        ("a step is of attempt 1", How::Step("INSERT", "true", "attempt = 1")),
        ("a step's first result stays", How::Step("UPDATE", "OLD.result IS NOT NULL", "result = OLD.result")),
        ("a step that is written again has no result", How::Step("UPDATE", "NEW.kind = 'remote'", "result = NULL")),
        ("a step that finishes goes to the end", How::Step("UPDATE", "true", "position = position + 100")),
        ("steps are in the order of their names", How::Step("INSERT", "true", "position = unicode(name)")),
        ("steps are in the order from the last", How::Step("INSERT", "true", "position = -position")),
        (
            "a step that is begun twice is refused",
            How::Sql(
                "CREATE TRIGGER fault BEFORE UPDATE ON idempotency_steps BEGIN SELECT RAISE(ABORT, 'it is there'); END",
            ),
        ),
        (
            "a record has room for two steps",
            How::Sql(
                "CREATE TRIGGER fault BEFORE INSERT ON idempotency_steps WHEN NEW.position > 1 BEGIN SELECT RAISE(IGNORE); END",
            ),
        ),
    ]
}
