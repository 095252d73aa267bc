//! The statements. `store/postgres/sql.rs` has the same in the same order; what is one statement there and
//! several here runs in one `BEGIN IMMEDIATE` transaction.

use crate::store::row::record_columns;

macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// Milliseconds that a record rests before the sweeper tries to recover it: none at first, and ever longer, up to a
/// day, where tries have been in vain.
macro_rules! rest {
    () => {
        "min(10000 * ((1 << min(recoveries, 30)) - 1), 86400000)"
    };
}

pub(super) const MIGRATIONS: [&str; 2] = [
    include_str!("../../../migrations/sqlite/0001_records.sql"),
    include_str!("../../../migrations/sqlite/0002_steps.sql"),
];

pub(super) const MIGRATION_TABLE: &str = "
CREATE TABLE IF NOT EXISTS idempotency_migrations (
    version INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT";

pub(super) const MIGRATION_APPLY: &str =
    "INSERT INTO idempotency_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING";

pub(super) const CLAIM: &str = concat!(
    "
INSERT INTO idempotency_records
    (client, key, mutation, fingerprint, fingerprint_version, selection, state, request_id, attempt,
     due_at, body, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, 'in_progress', $7, 1, ", now!(), " + $8, $9, ", now!(), ", ", now!(), ")
ON CONFLICT (client, key) DO NOTHING"
);

pub(super) const TAKE_OVER: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'in_progress', attempt = attempt + 1, due_at = ", now!(), " + $6, selection = $7,
    body = coalesce($8, body), reason = NULL, updated_at = ", now!(), "
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5
  AND (state <> 'in_progress' OR due_at <= ", now!(), ")"
);

pub(super) const INSERT_SETTLED: &str = concat!(
    "
INSERT INTO idempotency_records
    (client, key, mutation, fingerprint, fingerprint_version, selection, state, request_id, attempt,
     body, reason, due_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1, $9, $10, ", now!(), " + $11, ", now!(), ", ", now!(), ")
ON CONFLICT (client, key) DO NOTHING"
);

pub(super) const RENEW: &str = concat!(
    "
UPDATE idempotency_records SET due_at = ", now!(), " + $5
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = 'in_progress'"
);

pub(super) const SETTLE: &str = concat!(
    "
UPDATE idempotency_records
SET state = $6, body = $7, reason = $8, due_at = ", now!(), " + $9, updated_at = ", now!(), "
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5"
);

pub(super) const HOLD: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'needs_recovery', reason = $6, due_at = ", now!(), " + ", rest!(), ", updated_at = ", now!(), "
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5"
);

/// A record with finished steps stays, so that nothing of them is done again; [`RELEASE_GONE`] takes another.
pub(super) const RELEASE_KEPT: &str = concat!(
    "
UPDATE idempotency_records
SET state = $6, body = $7, reason = $8, due_at = ", now!(), " + $9, updated_at = ", now!(), "
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5
  AND EXISTS (SELECT 1 FROM idempotency_steps WHERE client = $1 AND key = $2 AND result IS NOT NULL)"
);

pub(super) const RELEASE_GONE: &str = "
DELETE FROM idempotency_records
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5";

/// The step is written only if [`RENEW`] found the record to be still the attempt's.
pub(super) const CHECKPOINT: &str = "
INSERT INTO idempotency_steps (client, key, name, position, kind, attempt, result)
VALUES ($1, $2, $3,
    (SELECT count(*) FROM idempotency_steps s WHERE s.client = $1 AND s.key = $2), $4, $5, $6)
ON CONFLICT (client, key, name) DO UPDATE SET attempt = excluded.attempt, result = excluded.result";

pub(super) const POINTS: &str = "
SELECT name, kind, attempt, result FROM idempotency_steps WHERE client = $1 AND key = $2 ORDER BY position";

pub(super) const FIND: &str = concat!(
    "
SELECT ", now!(), " AS now, ", record_columns!(), "
FROM (SELECT 1) AS one LEFT JOIN idempotency_records r ON r.client = $1 AND r.key = $2"
);

pub(super) const LIST: &str = concat!(
    "
SELECT r.client, r.key, ", record_columns!(), " FROM idempotency_records r
WHERE ($1 IS NULL OR r.state = $1) AND ($2 IS NULL OR r.mutation = $2)
  AND ($3 IS NULL OR r.client = $3)
  AND ($4 IS NULL OR r.updated_at <= ", now!(), " - $4)
ORDER BY r.updated_at, r.client, r.key LIMIT $5"
);

pub(super) const COUNT: &str = "
SELECT r.mutation, r.state, count(*) AS records, min(r.updated_at) AS oldest
FROM idempotency_records r GROUP BY r.mutation, r.state ORDER BY r.mutation, r.state";

pub(super) const LAPSE: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'needs_recovery', reason = 'the lease of attempt ' || attempt || ' lapsed', updated_at = ", now!(), ",
    due_at = ", now!(), " + ", rest!(), "
WHERE (client, key) IN (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= ", now!(), " AND state = 'in_progress' ORDER BY due_at LIMIT $1
)"
);

pub(super) const RECOVERABLE: &str = concat!(
    "
UPDATE idempotency_records AS r
SET recoveries = r.recoveries + 1,
    due_at = ", now!(), " + min($2 * (1 << min(r.recoveries, 30)), 86400000)
WHERE (r.client, r.key) IN (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= ", now!(), " AND state = 'needs_recovery' ORDER BY due_at LIMIT $1
)
RETURNING client, key, mutation, fingerprint, fingerprint_version, selection, state, request_id, attempt,
    due_at, body, reason, recoveries, created_at, updated_at"
);

pub(super) const EXPIRE_STEPS: &str = concat!(
    "
DELETE FROM idempotency_steps
WHERE (client, key) IN (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= ", now!(), " AND state IN ('succeeded', 'failed', 'released') LIMIT $1
)"
);

pub(super) const EXPIRE: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'tombstone', body = NULL, reason = NULL, selection = '',
    due_at = due_at + $2, updated_at = ", now!(), "
WHERE (client, key) IN (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= ", now!(), " AND state IN ('succeeded', 'failed', 'released') LIMIT $1
)"
);

pub(super) const PURGE: &str = concat!(
    "
DELETE FROM idempotency_records
WHERE (client, key) IN (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= ", now!(), " AND state = 'tombstone' LIMIT $1
)"
);
