//! A transaction takes its key by an advisory lock, and makes its record at the end.

use std::sync::atomic::Ordering;

use sha2::{Digest, Sha256};
use sqlx::{PgConnection, Row};

use super::{PostgresStore, Transaction, read_found, sql};
use crate::{
    claim::ClaimRequest,
    record::Timestamp,
    store::{Begun, Store, StoreError},
};

impl PostgresStore {
    pub(super) async fn begin_by_lock(&self, request: &ClaimRequest) -> Result<Begun<Transaction>, StoreError> {
        let lock = Lock::of(request);
        loop {
            let by_itself = self.one_snapshot.load(Ordering::Relaxed);
            if by_itself {
                let mut session = self.session().await?;
                let locked = self.lock(&mut session, request, lock, true).await;
                if let Locked::Elsewhere(other) = session.finish(locked).await? {
                    return Ok(other);
                }
            }
            let mut transaction = self.transaction().await?;
            match self.lock(&mut transaction, request, lock, false).await? {
                Locked::Elsewhere(other) => return Ok(other),
                Locked::Here { created_at, one_snapshot } if by_itself || !one_snapshot => {
                    return Ok(Begun::Taken { transaction, created_at });
                }
                Locked::Here { .. } => {
                    // Awaited, or the lock could still be held when it is tried again.
                    transaction.rollback().await?;
                    self.one_snapshot.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    /// Locks the key until the transaction ends that this connection is in, or tells who has it.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        request: &ClaimRequest,
        lock: Lock,
        by_itself: bool,
    ) -> Result<Locked, sqlx::Error> {
        let query = self.query(sql::LOCK).bind(request.client.as_str()).bind(request.key.as_str());
        let query = query.bind(lock.key).bind(lock.class).bind(lock.print).bind(by_itself);
        let row = query.fetch_one(&mut *connection).await?;
        if let Some((record, now)) = read_found(&row, &request.client, &request.key)? {
            return Ok(Locked::Elsewhere(Begun::found(record, now, request)));
        }
        if !row.try_get("free")? {
            return Ok(Locked::Elsewhere(Begun::Busy { reused: self.holder_differs(connection, lock).await }));
        }
        Ok(Locked::Here { created_at: row.try_get("now")?, one_snapshot: row.try_get("one_snapshot")? })
    }

    /// Whether the transaction that holds a key does so for another fingerprint. Where the engine does not tell of
    /// its locks, nobody knows.
    async fn holder_differs(&self, connection: &mut PgConnection, lock: Lock) -> bool {
        let differs = self
            .query(sql::HOLDER_DIFFERS)
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
    /// A finished record, or another transaction.
    Elsewhere(Begun<Transaction>),
    /// The transaction that asked.
    Here { created_at: Timestamp, one_snapshot: bool },
}

/// The advisory locks of a transactional attempt. Two keys that share one can only make each other wait.
#[derive(Clone, Copy)]
struct Lock {
    /// Of the key.
    key: i64,
    /// With `class`, which is of the key too, a second lock that tells others the fingerprint.
    print: i32,
    class: i32,
}

impl Lock {
    fn of(request: &ClaimRequest) -> Self {
        let digest = Sha256::new()
            .chain_update(b"async-graphql-idempotency\0")
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
