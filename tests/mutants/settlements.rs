//! Faults of what becomes of a record.

use async_graphql_idempotency::{
    State, Store, StoreError,
    record::{Owner, Settlement},
    store::From,
};

use crate::mutant::{Fault, How};

const FINISHES: &str = "OLD.state NOT IN ('succeeded', 'failed') AND NEW.state IN ('succeeded', 'failed')";
const FAILS: &str = "OLD.state <> 'failed' AND NEW.state = 'failed'";
const MADE_SAFE: &str = "OLD.state NOT LIKE 'settling%' AND NEW.state LIKE 'settling%'";
const GIVEN_BACK: &str = "NEW.state = 'released'";
const HELD: &str = "NEW.state = 'needs_recovery' AND NEW.recoveries = OLD.recoveries AND NEW.ended_at IS NOT NULL";
const ENDS: &str = "NEW.ended_at IS NOT NULL AND NEW.state NOT LIKE 'tombstone%'";

/// What the tables refuse, and this fault needs.
const NO_BODY: &str = "CHECK (body IS NULL OR state NOT IN ('released', 'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'))";

const fn row(when: &'static str, set: &'static str) -> How {
    How::Row("UPDATE", when, set)
}

/// A settlement in another way.
macro_rules! settles {
    (|$store:ident, $owner:ident, $from:ident, $settlement:ident| $settle:expr) => {
        How::Settle(|$store, $owner, $from, $settlement| Box::pin(async move { $settle }))
    };
}

/// A settlement of something else.
macro_rules! settles_as {
    (|$settlement:ident| $other:expr) => {
        settles!(|store, owner, from, $settlement| {
            #[allow(unused_mut)]
            let mut $settlement = $settlement.clone();
            $other;
            store.inner.settle(owner, from, &$settlement).await
        })
    };
}

/// A response is another.
macro_rules! response {
    (|$response:ident| $other:expr) => {
        settles_as!(|settlement| match &mut settlement {
            Settlement::Settling { response: $response, .. } | Settlement::Complete { response: $response, .. } =>
                $other,
            Settlement::Release { .. } | Settlement::Hold { .. } => {}
        })
    };
}

/// A settlement by another owner, where this is about such a state.
macro_rules! settles_by {
    (|$store:ident, $owner:ident, $from:pat_param| $other:expr) => {
        settles!(|$store, $owner, from, settlement| {
            if matches!(from, $from) {
                return $store.inner.settle(&$other, from, settlement).await;
            }
            $store.inner.settle($owner, from, settlement).await
        })
    };
}

/// What is to be done to the tables first, where this is about such a state.
macro_rules! prepares {
    ($from:pat, $sql:literal) => {
        settles!(|store, owner, from, settlement| {
            if matches!(from, $from) {
                store.run_of($sql, owner).await?;
            }
            store.inner.settle(owner, from, settlement).await
        })
    };
}

pub fn faults() -> Vec<Fault> {
    [states(), columns(), responses(), fences()].concat()
}

fn states() -> Vec<Fault> {
    vec![
        ("a failure is kept as a success", row(FAILS, "state = 'succeeded'")),
        ("a success is kept as a failure", row("NEW.state = 'succeeded'", "state = 'failed'")),
        ("what is made safe is kept as finished", row(MADE_SAFE, "state = replace(state, 'settling_', '')")),
        ("what is made safe is in progress", row(MADE_SAFE, "state = 'in_progress', body = NULL")),
        ("a failure that is made safe is kept as a success", row(MADE_SAFE, "state = 'settling_succeeded'")),
        ("what is given back needs recovery", row(GIVEN_BACK, "state = 'needs_recovery'")),
        ("what is held is given back", row(HELD, "state = 'released', body = NULL")),
        ("what is held is in progress", row(HELD, "state = 'in_progress'")),
        (
            "what is given back and stays is deleted",
            settles_as!(|settlement| {
                if let Settlement::Release { stays, .. } = &mut settlement {
                    *stays = None;
                }
            }),
        ),
        (
            "what is given back is never deleted",
            settles!(|store, owner, from, settlement| {
                let mut settlement = settlement.clone();
                if let (Settlement::Release { stays, .. }, From::Open | From::State(_)) = (&mut settlement, &from) {
                    *stays = stays.or(Some(std::time::Duration::from_mins(1)));
                }
                store.inner.settle(owner, from, &settlement).await
            }),
        ),
        (
            "what others give back is deleted",
            settles!(|store, owner, from, settlement| {
                let mut settlement = settlement.clone();
                if let (Settlement::Release { stays, .. }, From::State(_)) = (&mut settlement, &from) {
                    *stays = None;
                }
                store.inner.settle(owner, from, &settlement).await
            }),
        ),
        ("a settlement does nothing", settles!(|_store, _owner, _from, _settlement| Ok(true))),
        (
            "a settlement is told as refused",
            settles!(|store, owner, from, settlement| {
                store.inner.settle(owner, from, settlement).await.map(|_| false)
            }),
        ),
        (
            "a settlement that is refused is told as done",
            settles!(|store, owner, from, settlement| {
                store.inner.settle(owner, from, settlement).await.map(|_| true)
            }),
        ),
        (
            "a settlement that is refused is an error",
            settles!(|store, owner, from, settlement| {
                if store.inner.settle(owner, from, settlement).await? {
                    Ok(true)
                } else {
                    Err(StoreError::Undone("not the owner".into()))
                }
            }),
        ),
    ]
}

fn columns() -> Vec<Fault> {
    vec![
        ("a settlement forgets the selection", row(ENDS, "selection = ''")),
        ("a settlement forgets the mutation", row(ENDS, "mutation = ''")),
        ("a settlement changes the fingerprint", row(ENDS, "fingerprint = randomblob(33)")),
        ("a settlement changes the request id", row(ENDS, "request_id = randomblob(16)")),
        ("a settlement is an attempt", row(FINISHES, "attempt = attempt + 1")),
        ("a settlement forgets the recoveries", row(ENDS, "recoveries = 0")),
        ("a settlement counts as a recovery", row(FINISHES, "recoveries = recoveries + 1")),
        ("a settlement makes the record younger", row(ENDS, "created_at = ended_at + 1")),
        ("the end of what finishes is not kept", row(FINISHES, "ended_at = NULL")),
        ("the end of what is made safe is not kept", row(MADE_SAFE, "ended_at = NULL")),
        ("the end of what is given back is not kept", row(GIVEN_BACK, "ended_at = NULL")),
        ("the end of what is held is not kept", row(HELD, "ended_at = NULL")),
        ("an end is when the record was made", row(ENDS, "ended_at = created_at - 10000")),
        (
            "a retention runs from when the record was made",
            row(FINISHES, "due_at = created_at + (due_at - ended_at) - 1"),
        ),
        ("a retention runs from the end of the lease", row(FINISHES, "due_at = due_at + OLD.due_at - ended_at")),
        ("a retention is counted in seconds", row(FINISHES, "due_at = ended_at + (due_at - ended_at) / 1000")),
        ("a retention is that of the lease", row(FINISHES, "due_at = OLD.due_at")),
        ("what is made safe keeps the lease of before", row(MADE_SAFE, "due_at = OLD.due_at - 1000000")),
        ("what is given back stays for ever", row(GIVEN_BACK, "due_at = due_at + 1000000")),
        ("what is given back is over at once", row(GIVEN_BACK, "due_at = ended_at")),
        ("what is held rests at first", row(HELD, "due_at = due_at + 30000, look_at = look_at + 30000")),
        (
            "what has lapsed while it was settling is kept from its settlement on",
            row(
                "OLD.state LIKE 'settling%' AND NEW.ended_at > OLD.due_at AND NEW.state NOT LIKE 'settling%'",
                "due_at = ended_at + 60000",
            ),
        ),
        (
            "what an owner settles in the end is kept from its lease's end on",
            row(
                "OLD.state LIKE 'settling%' AND NEW.ended_at <= OLD.due_at AND NEW.state NOT LIKE 'settling%'",
                "due_at = OLD.due_at + 60000",
            ),
        ),
        ("the reason of what finishes is lost", row(FINISHES, "reason = NULL")),
        ("the reason of what is given back is lost", row(GIVEN_BACK, "reason = NULL")),
        ("the reason of what is held is lost", row(HELD, "reason = NULL")),
        ("a reason is cut at 255 bytes", row(ENDS, "reason = substr(reason, 1, 255)")),
        ("the reason of before stays", row(ENDS, "reason = coalesce(NEW.reason, OLD.reason)")),
        ("what finishes has a reason", row(FINISHES, "reason = coalesce(reason, 'finished')")),
        ("what is held forgets its request", row(HELD, "body = NULL")),
        (
            "what others hold forgets its request",
            row("NEW.state = 'needs_recovery' AND NEW.attempt > OLD.attempt", "body = NULL"),
        ),
        (
            "what others hold stays the attempt's",
            row("NEW.state = 'needs_recovery' AND NEW.attempt > OLD.attempt", "attempt = OLD.attempt"),
        ),
        ("what its owner holds is taken from it", row(HELD, "attempt = OLD.attempt + 1")),
        (
            "what is given back keeps its request",
            How::Unchecked(
                NO_BODY,
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state = 'released' BEGIN UPDATE \
             idempotency_records SET body = OLD.body WHERE (client, key) = (NEW.client, NEW.key); END",
            ),
        ),
        ("what finishes without a response has its request for one", row(FINISHES, "body = coalesce(body, OLD.body)")),
        (
            "a settlement deletes the steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state = 'succeeded' BEGIN DELETE FROM \
             idempotency_steps WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        (
            "what is given back loses its steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state = 'released' BEGIN DELETE FROM \
             idempotency_steps WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        (
            "what is held loses its steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN NEW.state = 'needs_recovery' BEGIN DELETE FROM \
             idempotency_steps WHERE (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
        (
            "what is deleted leaves its steps",
            How::Schema(
                "FOREIGN KEY (namespace, client, key) REFERENCES idempotency_records (namespace, client, key) ON DELETE CASCADE,",
                "",
            ),
        ),
    ]
}

fn responses() -> Vec<Fault> {
    vec![
        ("a response is forgotten", response!(|response| *response = None)),
        ("the response of a failure is forgotten", row(FAILS, "body = NULL")),
        ("a response that is made safe is forgotten", row(MADE_SAFE, "body = NULL")),
        (
            "an empty response is kept as none",
            response!(|response| *response = response.take().filter(|r| !r.is_empty())),
        ),
        ("no response is kept as an empty one", response!(|response| *response = response.take().or(Some(Vec::new())))),
        (
            "a response is cut at a NUL",
            response!(|response| if let Some(response) = response {
                response.truncate(response.iter().position(|byte| *byte == 0).unwrap_or(response.len()));
            }),
        ),
        (
            "a response is kept as text",
            response!(|response| if let Some(response) = response {
                *response = String::from_utf8_lossy(response).into_owned().into_bytes();
            }),
        ),
        (
            "a response is kept in ASCII",
            response!(|response| if let Some(response) = response {
                response.iter_mut().for_each(|byte| *byte &= 0x7f);
            }),
        ),
        (
            "a response is trimmed",
            response!(|response| if let Some(response) = response {
                *response = response.trim_ascii().to_vec();
            }),
        ),
        (
            "a response is cut at 64 KB",
            response!(|response| if let Some(response) = response {
                response.truncate(65_535);
            }),
        ),
        (
            "a response that was made safe stays at the end",
            row("OLD.state LIKE 'settling%' AND NEW.state NOT LIKE 'settling%'", "body = OLD.body"),
        ),
    ]
}

fn fences() -> Vec<Fault> {
    vec![
        (
            "an owner of whatever attempt settles its key",
            settles_by!(|store, owner, From::Open| {
                Owner { attempt: store.latest(owner).await?.attempt, ..owner.clone() }
            }),
        ),
        (
            "an owner of whatever request id settles its key",
            settles_by!(|store, owner, From::Open| {
                Owner { request_id: store.latest(owner).await?.request_id, ..owner.clone() }
            }),
        ),
        (
            "others settle a key of whatever attempt",
            settles_by!(|store, owner, From::State(_)| {
                Owner { attempt: store.latest(owner).await?.attempt, ..owner.clone() }
            }),
        ),
        (
            "others settle a key of whatever request id",
            settles_by!(|store, owner, From::State(_)| {
                Owner { request_id: store.latest(owner).await?.request_id, ..owner.clone() }
            }),
        ),
        (
            "others settle a key from whatever open state",
            settles!(|store, owner, from, settlement| {
                let from = if matches!(from, From::State(_)) { From::Open } else { from };
                store.inner.settle(owner, from, settlement).await
            }),
        ),
        (
            "others settle only a key that needs recovery",
            settles!(|store, owner, from, settlement| {
                if matches!(from, From::State(state) if state != State::NeedsRecovery) {
                    return Ok(false);
                }
                store.inner.settle(owner, from, settlement).await
            }),
        ),
        (
            "an owner that was believed lost can't settle its key",
            settles!(|store, owner, from, settlement| {
                let from = if matches!(from, From::Open) { From::State(State::InProgress) } else { from };
                store.inner.settle(owner, from, settlement).await
            }),
        ),
        (
            "an owner whose lease has lapsed can't settle its key",
            settles!(|store, owner, from, settlement| {
                if let Some(found) = store.inner.find(&owner.client, &owner.key).await?
                    && matches!(from, From::Open)
                    && found.record.state == State::InProgress
                    && found.record.due_at <= found.now
                {
                    return Ok(false);
                }
                store.inner.settle(owner, from, settlement).await
            }),
        ),
        (
            "what is finished is settled again",
            prepares!(
                From::Open,
                "UPDATE idempotency_records SET state = 'in_progress' \
            WHERE client = $1 AND key = $2 AND state IN ('succeeded', 'failed')"
            ),
        ),
        (
            "what is finished is settled again by others",
            prepares!(
                From::State(_),
                "UPDATE idempotency_records \
            SET state = 'in_progress' WHERE client = $1 AND key = $2 AND state = 'failed'"
            ),
        ),
        (
            "an owner settles what it has given back",
            prepares!(
                From::Open,
                "UPDATE idempotency_records \
            SET state = 'in_progress' WHERE client = $1 AND key = $2 AND state = 'released'"
            ),
        ),
        (
            "a key without a record is settled",
            settles!(|store, owner, from, settlement| {
                if matches!(from, From::Open) {
                    store.run_of("INSERT INTO idempotency_records (namespace, client, key, mutation, fingerprint, selection, \
                    request_id, due_at) VALUES ('', $1, $2, '', zeroblob(33), '', randomblob(16), 0) ON CONFLICT DO NOTHING", owner)
                    .await?;
                    let latest = store.latest(owner).await?;
                    let is_new = store.record(owner).await?.is_some_and(|record| record.mutation.is_empty());
                    return store.inner.settle(if is_new { &latest } else { owner }, from, settlement).await;
                }
                store.inner.settle(owner, from, settlement).await
            }),
        ),
        (
            "a settlement is of all keys of a client",
            settles!(|store, owner, from, settlement| {
                let settled = store.inner.settle(owner, from, settlement).await?;
                if settled && matches!(settlement, Settlement::Complete { .. }) {
                    store.run_of("UPDATE idempotency_records SET state = 'succeeded', body = NULL WHERE client = $1 AND key <> $2 \
                    AND state = 'in_progress'", owner).await?;
                }
                Ok(settled)
            }),
        ),
        (
            "what is given back without a trace takes the client's other keys along",
            settles!(|store, owner, from, settlement| {
                let settled = store.inner.settle(owner, from, settlement).await?;
                if settled && matches!(settlement, Settlement::Release { stays: None, .. }) {
                    store.run_of("DELETE FROM idempotency_records WHERE client = $1 AND key <> $2", owner).await?;
                }
                Ok(settled)
            }),
        ),
    ]
}
