//! Faults of transactions: of those that have a key, and of those of a step.

use async_graphql_idempotency::{
    State, Store, StoreError,
    policy::OnCrash,
    record::{Settlement, Timestamp},
    state::Outcome,
    store::{Claimed, From},
};
use uuid::Uuid;

use crate::mutant::{Fault, How, raw};

/// After the INSERT of a settlement.
const fn made(set: &'static str) -> How {
    How::Row("INSERT", "NEW.state <> 'in_progress'", set)
}

/// After the UPDATE of a settlement that takes over what was given back.
const fn taken_over(set: &'static str) -> How {
    How::Row("UPDATE", "OLD.state = 'released' AND NEW.state <> 'in_progress' AND NEW.attempt > OLD.attempt", set)
}

/// What a transaction is told of its key is something else.
macro_rules! begun {
    (|$store:ident, $taken:ident| $change:expr) => {
        How::Begin(|$store, request| {
            Box::pin(async move {
                let mut claimed = $store.inner.begin(request).await?;
                if let Claimed::Taken($taken) = &mut claimed {
                    $change;
                }
                Ok(claimed)
            })
        })
    };
}

/// What is found instead of a key is something else.
macro_rules! found {
    (|$store:ident, $found:ident| $told:expr) => {
        How::Begin(|$store, request| {
            Box::pin(async move {
                match $store.inner.begin(request).await? {
                    Claimed::Found($found) => $told,
                    other => Ok(other),
                }
            })
        })
    };
}

/// A settlement with a transaction that is open does something before.
macro_rules! before_its_end {
    (|$transaction:ident, $settlement:ident| $change:expr) => {
        How::Settle(|store, owner, mut from, $settlement| {
            Box::pin(async move {
                if let From::Transaction(Some($transaction), _) = &mut from {
                    $change;
                }
                store.inner.settle(owner, from, $settlement).await
            })
        })
    };
}

/// A settlement of a key that was taken for a transaction is done in another way.
macro_rules! settles {
    (|$store:ident, $owner:ident, $transaction:ident, $request:ident, $settlement:ident| $settle:expr) => {
        How::Settle(|$store, $owner, from, $settlement| {
            Box::pin(async move {
                match from {
                    From::Transaction($transaction, $request) => $settle,
                    other => $store.inner.settle($owner, other, $settlement).await,
                }
            })
        })
    };
}

pub fn faults() -> Vec<Fault> {
    [begins(), ends(), records(), steps()].concat()
}

fn begins() -> Vec<Fault> {
    vec![
        ("what runs in a transaction is committed at once", How::NoTransactions),
        (
            "a key that a transaction takes has a record at once",
            How::Begin(|store, request| {
                Box::pin(async move {
                    let claimed = store.inner.begin(request).await?;
                    let Claimed::Taken(mut taken) = claimed else { return Ok(claimed) };
                    if taken.from.is_none() {
                        drop(taken.transaction);
                        store.inner.claim(request).await?;
                        taken.transaction = store.inner.transaction(&taken.owner).await?;
                    }
                    Ok(Claimed::Taken(taken))
                })
            }),
        ),
        (
            "a transaction takes over what was lost",
            How::Begin(|store, request| {
                Box::pin(async move {
                    let mut request = request.clone();
                    request.on_crash = OnCrash::Release;
                    store.inner.begin(&request).await
                })
            }),
        ),
        (
            "a transaction takes over nothing",
            How::Begin(|store, request| {
                Box::pin(async move {
                    match store.inner.find(&request.client, &request.key).await? {
                        Some(found) => Ok(Claimed::Found(found)),
                        None => store.inner.begin(request).await,
                    }
                })
            }),
        ),
        ("a transaction is told no steps", begun!(|_store, taken| taken.steps.clear())),
        ("a transaction is told no state of before", begun!(|_store, taken| taken.from = None)),
        ("a transaction is told a fresh key as given back", begun!(|_store, taken| taken.from = Some(State::Released))),
        (
            "a transaction is told when it began",
            begun!(|_store, taken| if taken.from.is_some() {
                taken.created_at = Timestamp(taken.created_at.0 + 1);
            }),
        ),
        ("a transaction is told another request id", begun!(|_store, taken| taken.owner.request_id = Uuid::new_v4())),
        (
            "a transaction is told the attempt before its own",
            begun!(|_store, taken| if taken.from.is_some() {
                taken.owner.attempt -= 1;
            }),
        ),
        (
            "a transaction changes what was given back before it is settled",
            begun!(|_store, taken| {
                let change =
                    "UPDATE idempotency_records SET selection = 'begun' WHERE state = 'released' AND client = ";
                let of_client = format!("{change} '{}'; COMMIT; BEGIN IMMEDIATE", taken.owner.client);
                raw(&mut taken.transaction, &of_client).await?;
            }),
        ),
        (
            "a transaction is told of a record that it is busy",
            found!(|_store, _found| Ok(Claimed::Busy { reused: false })),
        ),
        (
            "a transaction is told of a record as an error",
            found!(|_store, _found| { Err(StoreError::Undone("it is there".into())) }),
        ),
        (
            "a transaction is told no response of a record",
            found!(|_store, found| {
                let mut found = found;
                let mut record = async_graphql_idempotency::Record::clone(&found.record);
                record.response = None;
                found.record = record.into();
                Ok(Claimed::Found(found))
            }),
        ),
        (
            "a transaction that finds a record renews it",
            found!(|store, found| {
                let renew = "UPDATE idempotency_records SET due_at = due_at + 1000 WHERE client = $1 AND key = $2";
                store.run_of(renew, &found.record.owner()).await?;
                Ok(Claimed::Found(found))
            }),
        ),
    ]
}

fn ends() -> Vec<Fault> {
    vec![
        (
            "effects are committed before the outcome is known",
            before_its_end!(|transaction, _settlement| raw(transaction, "COMMIT; BEGIN IMMEDIATE").await?),
        ),
        (
            "a key that is given back keeps its effects",
            before_its_end!(|transaction, settlement| {
                if matches!(settlement, Settlement::Release { .. }) {
                    raw(transaction, "COMMIT; BEGIN IMMEDIATE").await?;
                }
            }),
        ),
        (
            "a key that is held keeps its effects",
            before_its_end!(|transaction, settlement| {
                if matches!(settlement, Settlement::Hold { .. }) {
                    raw(transaction, "COMMIT; BEGIN IMMEDIATE").await?;
                }
            }),
        ),
        (
            "effects are lost",
            before_its_end!(|transaction, _settlement| raw(transaction, "ROLLBACK; BEGIN IMMEDIATE").await?),
        ),
        (
            "the effects of a failure are lost",
            before_its_end!(|transaction, settlement| {
                if settlement.outcome() == Some(Outcome::Failed) {
                    raw(transaction, "ROLLBACK; BEGIN IMMEDIATE").await?;
                }
            }),
        ),
        (
            "the effects of what is made safe are lost",
            before_its_end!(|transaction, settlement| {
                if matches!(settlement, Settlement::Settling { .. }) {
                    raw(transaction, "ROLLBACK; BEGIN IMMEDIATE").await?;
                }
            }),
        ),
        (
            "a transaction that is undone is told as refused",
            settles!(|store, owner, transaction, request, settlement| {
                let settled = store.inner.settle(owner, From::Transaction(transaction, request), settlement).await?;
                Ok(settled && settlement.outcome().is_some())
            }),
        ),
        (
            "a transaction that is undone leaves a record",
            settles!(|store, owner, transaction, request, settlement| {
                let undone = settlement.outcome().is_none();
                let settled = store.inner.settle(owner, From::Transaction(transaction, request), settlement).await?;
                if undone && let Claimed::Taken(taken) = store.inner.claim(request).await? {
                    store.inner.settle(&taken.owner, From::Open, settlement).await?;
                }
                Ok(settled)
            }),
        ),
        (
            "a settlement without its transaction writes nothing",
            settles!(|store, owner, transaction, request, settlement| {
                if transaction.is_none() {
                    return Ok(true);
                }
                store.inner.settle(owner, From::Transaction(transaction, request), settlement).await
            }),
        ),
        (
            "a settlement without its transaction is refused",
            settles!(|store, owner, transaction, request, settlement| {
                if transaction.is_none() {
                    return Ok(false);
                }
                store.inner.settle(owner, From::Transaction(transaction, request), settlement).await
            }),
        ),
        (
            "a settlement without its transaction writes over another",
            settles!(|store, owner, transaction, request, settlement| {
                if transaction.is_none() {
                    store.run_of("DELETE FROM idempotency_records WHERE client = $1 AND key = $2", owner).await?;
                }
                store.inner.settle(owner, From::Transaction(transaction, request), settlement).await
            }),
        ),
        (
            "a transaction is told that it was settled whatever came of it",
            settles!(|store, owner, transaction, request, settlement| {
                store.inner.settle(owner, From::Transaction(transaction, request), settlement).await.map(|_| true)
            }),
        ),
    ]
}

fn records() -> Vec<Fault> {
    vec![
        ("a transaction keeps another mutation", made("mutation = upper(mutation)")),
        (
            "a transaction keeps another fingerprint",
            made("fingerprint = CAST(substr(fingerprint, 1, 32) || 'x' AS BLOB)"),
        ),
        ("a transaction forgets the selection", made("selection = ''")),
        ("a transaction makes a request id of its own", made("request_id = randomblob(16)")),
        ("a transaction is attempt 2", made("attempt = 2")),
        ("a transaction counts as a recovery", made("recoveries = 1")),
        ("a transaction forgets the response", made("body = NULL")),
        ("a transaction forgets the reason", made("reason = NULL")),
        ("a transaction's failure is kept as a success", made("state = replace(state, 'failed', 'succeeded')")),
        ("a transaction's end is not kept", made("ended_at = NULL")),
        ("a transaction's record was made an hour ago", made("created_at = created_at - 3600000")),
        ("a transaction's retention is counted in seconds", made("due_at = ended_at + (due_at - ended_at) / 1000")),
        ("what a transaction makes safe is kept as finished", made("state = replace(state, 'settling_', '')")),
        ("a transaction's retention runs from its beginning", made("due_at = due_at - 200")),
        ("a transaction ended when it began", made("ended_at = ended_at - 200")),
        ("a transaction that takes over is the attempt of before", taken_over("attempt = OLD.attempt")),
        ("a transaction that takes over changes the request id", taken_over("request_id = randomblob(16)")),
        ("a transaction that takes over keeps the selection of before", taken_over("selection = OLD.selection")),
        ("a transaction that takes over makes the record younger", taken_over("created_at = created_at + 1")),
        ("a transaction that takes over keeps the end of before", taken_over("ended_at = OLD.ended_at")),
        ("a transaction that takes over keeps the retention of before", taken_over("due_at = OLD.due_at")),
        ("a transaction that takes over keeps the reason of before", taken_over("reason = OLD.reason")),
        ("a transaction that takes over forgets the reason", taken_over("reason = NULL")),
        ("a transaction that takes over forgets the response", taken_over("body = NULL")),
        ("a transaction that takes over forgets the recoveries", taken_over("recoveries = 0")),
        ("a transaction that takes over changes the mutation", taken_over("mutation = ''")),
        (
            "a transaction that takes over deletes the steps",
            How::Sql(
                "CREATE TRIGGER fault AFTER UPDATE ON idempotency_records WHEN OLD.state = 'released' AND \
                 NEW.state <> 'in_progress' AND NEW.attempt > OLD.attempt BEGIN DELETE FROM idempotency_steps WHERE \
                 (namespace, client, key) = (NEW.namespace, NEW.client, NEW.key); END",
            ),
        ),
    ]
}

fn steps() -> Vec<Fault> {
    vec![
        ("a step gets no transaction", How::Opens(|_, _| Box::pin(async { Err(StoreError::Undone("none".into())) }))),
        (
            "a step's effects are committed before its point",
            How::Checkpoint(|store, owner, mut given| {
                Box::pin(async move {
                    if let Some(transaction) = &mut given.transaction {
                        raw(transaction, "COMMIT; BEGIN IMMEDIATE").await?;
                    }
                    store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
                })
            }),
        ),
        (
            "a step's effects are lost",
            How::Checkpoint(|store, owner, mut given| {
                Box::pin(async move {
                    if let Some(transaction) = &mut given.transaction {
                        raw(transaction, "ROLLBACK; BEGIN IMMEDIATE").await?;
                    }
                    store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
                })
            }),
        ),
        (
            "a step's effects are kept without its point",
            How::Checkpoint(|store, owner, mut given| {
                Box::pin(async move {
                    if let Some(mut transaction) = given.transaction.take() {
                        raw(&mut transaction, "COMMIT; BEGIN").await?;
                        drop(transaction);
                        return store.inner.renew(owner, given.lease).await;
                    }
                    store.inner.checkpoint(owner, given.point, given.lease, given.transaction).await
                })
            }),
        ),
    ]
}
