//! Faults of whose record it is, and of what is found under a name.

use std::sync::Arc;

use async_graphql_idempotency::{ClientId, IdempotencyKey, Record, State, Store, record::Reading};

use crate::mutant::{Fault, How, Names};

const HOUR: i64 = 3_600_000;

/// What is found is something else.
macro_rules! found {
    (|$reading:ident, $record:ident| $change:expr) => {
        How::Find(|store, client, key| {
            Box::pin(async move {
                let Some(mut $reading) = store.inner.find(client, key).await? else { return Ok(None) };
                #[allow(unused_mut, unused_variables)]
                let mut $record = Record::clone(&$reading.record);
                $change;
                $reading.record = Arc::new($record);
                Ok(Some($reading))
            })
        })
    };
}

pub fn faults() -> Vec<Fault> {
    [names(), finds()].concat()
}

fn renamed(client: impl Into<String>, key: impl Into<String>) -> Names {
    let client = client.into();
    let client = ClientId::new(client.clone()).unwrap_or_else(|_| ClientId::hashed(client));
    let key = key.into();
    (client, IdempotencyKey::new(key.clone()).unwrap_or_else(|_| IdempotencyKey::new(&key[..255]).unwrap()))
}

fn cut(text: &str, at: usize) -> &str {
    &text[..text.floor_char_boundary(at.min(text.len()))]
}

fn names() -> Vec<Fault> {
    let (client, key) = ("client      TEXT NOT NULL", "key         TEXT NOT NULL");
    vec![
        ("clients are compared without regard to case", How::Schema(client, "client TEXT COLLATE NOCASE NOT NULL")),
        ("keys are compared without regard to case", How::Schema(key, "key TEXT COLLATE NOCASE NOT NULL")),
        (
            "clients are compared without their trailing blanks",
            How::Schema(client, "client TEXT COLLATE RTRIM NOT NULL"),
        ),
        ("clients are trimmed", How::Names(|client, key| renamed(client.as_str().trim_end(), key.as_str()))),
        (
            "clients are normalised",
            How::Names(|client, key| renamed(client.as_str().replace("e\u{301}", "\u{e9}"), key.as_str())),
        ),
        (
            "clients are written in ASCII",
            How::Names(|client, key| renamed(client.as_str().replace(|c: char| !c.is_ascii(), "?"), key.as_str())),
        ),
        ("clients are cut at 100 bytes", How::Names(|client, key| renamed(cut(client.as_str(), 100), key.as_str()))),
        ("keys are cut at 64 bytes", How::Names(|client, key| renamed(client.as_str(), cut(key.as_str(), 64)))),
        ("client and key run together", How::Names(|client, key| renamed(format!("{client}:{key}"), "k"))),
        ("clients are not looked at", How::Names(|_, key| renamed("anybody", key.as_str()))),
        ("keys are not looked at", How::Names(|client, _| renamed(client.as_str(), "any"))),
    ]
}

fn finds() -> Vec<Fault> {
    vec![
        ("nothing is found", How::Find(|_, _, _| Box::pin(async { Ok(None) }))),
        (
            "what is over is not found",
            How::Find(|store, client, key| {
                Box::pin(async move {
                    let found = store.inner.find(client, key).await?;
                    Ok(found.filter(|found| !found.record.state.is_finished() || found.record.due_at > found.now))
                })
            }),
        ),
        (
            "a tombstone is not found",
            How::Find(|store, client, key| {
                Box::pin(async move {
                    Ok(store.inner.find(client, key).await?.filter(|found| !found.record.state.is_tombstone()))
                })
            }),
        ),
        (
            "what was given back is not found",
            How::Find(|store, client, key| {
                Box::pin(async move {
                    Ok(store.inner.find(client, key).await?.filter(|found| found.record.state != State::Released))
                })
            }),
        ),
        (
            "what was found once is not looked for again",
            How::Find(|store, client, key| {
                Box::pin(async move {
                    let Some(found) = store.inner.find(client, key).await? else { return Ok(None) };
                    let mut seen = store.memory.records.lock().unwrap();
                    let old = seen.iter().find(|record| &record.client == client && &record.key == key);
                    let record = old.unwrap_or(&found.record).clone();
                    seen.push(record.clone());
                    Ok(Some(Reading { record: record.into(), ..found }))
                })
            }),
        ),
        ("a clock is told that is late", found!(|reading, record| reading.now.0 -= HOUR)),
        ("a clock is told that is early", found!(|reading, record| reading.now.0 += HOUR)),
        ("a clock is told in seconds", found!(|reading, record| reading.now.0 /= 1000)),
        (
            "what has lapsed is found as lost",
            found!(|reading, record| {
                if record.state == State::InProgress && record.due_at <= reading.now {
                    record.state = State::NeedsRecovery;
                }
            }),
        ),
        (
            "a look extends the lease",
            How::Find(|store, client, key| {
                Box::pin(async move {
                    let found = store.inner.find(client, key).await?;
                    if let Some(found) = &found {
                        let extend =
                            "UPDATE idempotency_records SET due_at = due_at + 1 WHERE client = $1 AND key = $2";
                        store.run_of(extend, &found.record.owner()).await?;
                    }
                    Ok(found)
                })
            }),
        ),
    ]
}
