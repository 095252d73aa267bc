//! A transaction takes its key by an advisory lock, and makes its record at the end.

use sha2::{Digest, Sha256};
use sqlx::{PgConnection, Row};

use super::{
    PostgresStore, SERIALIZATION_TRIES, Transaction, atomically,
    failure::{During, failed, is_serialization_failure},
    ground::Ground,
    read_reading, sql,
};
use crate::{
    claim::{ClaimRequest, Verdict, decide},
    record::Timestamp,
    store::{Claimed, StoreError, Taken},
};

impl PostgresStore {
    pub(super) async fn begin_by_lock(
        &self,
        ground: &Ground,
        request: &ClaimRequest,
    ) -> Result<Claimed<Transaction>, StoreError> {
        let undone = |error| failed(error, During::Transaction);
        let lock = Lock::of(&self.namespace, request);
        loop {
            // A transaction with one snapshot would not see what was committed while it took its lock, so the record is
            // looked at before it begins.
            let mut seen = None;
            if ground.is_one_snapshot() {
                match atomically!(self, |connection| { self.lock(ground, connection, request, lock, true).await })? {
                    Locked::Here { taken, .. } => seen = Some(taken),
                    Locked::Elsewhere(other) => return Ok(other),
                    Locked::ReadOnly => {}
                }
            }
            let mut transaction = self.open_transaction().await?;
            match self.lock(ground, &mut transaction, request, lock, false).await.map_err(undone)? {
                Locked::ReadOnly => {
                    // Another server may take writes by now, and is found by a new connection.
                    transaction.leave();
                    return Err(StoreError::Undone("the server takes no writes".into()));
                }
                Locked::Elsewhere(other) => return Ok(other),
                Locked::Here { one_snapshot: true, .. } if seen.is_none() => {
                    // Awaited, because a rollback in the background could still hold the lock at the next try.
                    transaction.rollback().await.map_err(undone)?;
                    ground.saw_one_snapshot();
                }
                Locked::Here { taken, .. } => {
                    let mut taken = seen.unwrap_or(taken);
                    if taken.from.is_some() {
                        taken.steps = self.steps_in(ground, &mut transaction, &taken.owner).await.map_err(undone)?;
                    }
                    return Ok(Claimed::Taken(taken.within(transaction)));
                }
            }
        }
    }

    /// Locks the key until the transaction on this connection ends, or returns who has it.
    async fn lock(
        &self,
        ground: &Ground,
        connection: &mut PgConnection,
        request: &ClaimRequest,
        lock: Lock,
        by_itself: bool,
    ) -> Result<Locked, sqlx::Error> {
        let query = crate::store::row::bind_key!(self.query(&ground.lock), self.namespace, request);
        let query = query.bind(lock.key).bind(lock.class).bind(lock.print).bind(by_itself);
        let row = query.fetch_one(&mut *connection).await?;
        let now: Timestamp = row.try_get("now")?;
        let mut taken =
            Taken { owner: request.first_owner(), created_at: now, from: None, steps: Vec::new(), transaction: () };
        if row.try_get::<Option<String>, _>("state")?.is_some() {
            let reading = read_reading(&row, &request.client, &request.key)?;
            if decide(Some(&reading.record), request, now) != Verdict::TakeOver {
                return Ok(Locked::Elsewhere(Claimed::Found(reading)));
            }
            taken.owner = reading.record.next_owner();
            taken.created_at = reading.record.created_at;
            taken.from = Some(reading.record.state);
        }
        if row.try_get("read_only")? {
            return Ok(Locked::ReadOnly);
        }
        if !row.try_get("free")? {
            return Ok(Locked::Elsewhere(Claimed::Busy { reused: self.holder_differs(connection, lock).await }));
        }
        Ok(Locked::Here { taken, one_snapshot: row.try_get("one_snapshot")? })
    }

    /// Whether the transaction that holds a key does so for another fingerprint. `false` also where the engine does not
    /// show its locks.
    async fn holder_differs(&self, connection: &mut PgConnection, lock: Lock) -> bool {
        let differs = self
            .static_query(sql::HOLDER_DIFFERS)
            .bind(lock.key >> 32 & 0xffff_ffff)
            .bind(lock.key & 0xffff_ffff)
            .bind(i64::from(lock.class) & 0xffff_ffff)
            .bind(i64::from(lock.print) & 0xffff_ffff)
            .fetch_one(connection)
            .await;
        differs.and_then(|row| row.try_get("differs")).unwrap_or_else(|error| {
            tracing::debug!(%error, "the locks can't be looked at");
            false
        })
    }
}

/// Who has a key.
enum Locked {
    /// Nobody: this server takes no writes.
    ReadOnly,
    /// A record, or another transaction.
    Elsewhere(Claimed<Transaction>),
    /// The transaction that asked.
    Here { taken: Taken<()>, one_snapshot: bool },
}

/// The advisory locks of a transactional attempt. Two keys that share one can only make each other wait.
#[derive(Clone, Copy)]
struct Lock {
    /// A hash of the key.
    key: i64,
    /// With `class`, another hash of the key, this makes a second lock, by which others see the fingerprint.
    print: i32,
    class: i32,
}

impl Lock {
    fn of(namespace: &str, request: &ClaimRequest) -> Self {
        let digest = Sha256::new()
            .chain_update(b"async-graphql-idempotency\0")
            .chain_update(namespace)
            .chain_update(b"\0")
            .chain_update(request.client.as_str())
            .chain_update(b"\0")
            .chain_update(request.key.as_str())
            .finalize();
        let number = |bytes: &[u8]| bytes.iter().fold(0_i64, |number, byte| number << 8 | i64::from(*byte));
        let small = |bytes: &[u8; 4]| i32::from_be_bytes(*bytes);
        let [a, b, c, d, ..] = request.fingerprint.hash;
        let class = digest[8..].first_chunk().map_or(0, small);
        Self { key: number(&digest[..8]), class, print: small(&[a, b, c, d]) }
    }
}
