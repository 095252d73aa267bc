//! The statements. `store/sqlite/sql.rs` has the same in the same order.

use crate::store::row::record_columns;

/// Milliseconds that a record rests before the sweeper tries to recover it: none at first, and ever longer, up to a
/// day, where tries have been in vain.
macro_rules! rest {
    () => {
        "least(10000 * (power(2, least(recoveries, 30)) - 1), 86400000)"
    };
}

pub(super) const MIGRATIONS: [&str; 2] = [
    include_str!("../../../migrations/postgres/0001_records.sql"),
    include_str!("../../../migrations/postgres/0002_steps.sql"),
];

pub(super) const MIGRATION_LOCK: &str = "SELECT pg_advisory_xact_lock(7163847195523491011)";

pub(super) const MIGRATION_TABLE: &str = "
CREATE TABLE IF NOT EXISTS idempotency_migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)";

pub(super) const MIGRATION_APPLY: &str =
    "INSERT INTO idempotency_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING";

/// Neither taken nor a record: somebody committed the key after this statement's snapshot; try again.
pub(super) const CLAIM: &str = concat!(
    "
WITH taken AS (
    INSERT INTO idempotency_records
        (client, key, mutation, fingerprint, fingerprint_version, selection, state, request_id, attempt,
         due_at, body, created_at, updated_at)
    SELECT $1, $2, $3, $4, $5, $6, 'in_progress', $7, 1, now() + $8 * interval '1 ms', $9, now(), now()
    WHERE NOT $10
    ON CONFLICT (client, key) DO NOTHING
    RETURNING created_at
)
SELECT now() AS now, (SELECT created_at FROM taken) AS taken_at, ", record_columns!(), "
FROM (SELECT 1) AS one LEFT JOIN idempotency_records r ON r.client = $1 AND r.key = $2"
);

pub(super) const TAKE_OVER: &str = "
UPDATE idempotency_records
SET state = 'in_progress', attempt = attempt + 1, due_at = now() + $6 * interval '1 ms', selection = $7,
    body = coalesce($8, body), reason = NULL, updated_at = now()
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5::idempotency_state
  AND (state <> 'in_progress' OR due_at <= now())";

/// The first statement of a transaction, or one by itself ($6): takes the key, or tells who has it.
///
/// A transaction that reads from one snapshot ends in vain when its snapshot is older than its lock, and what a
/// serializable one has read is checked, by the page, against what others write. So where transactions are such, this
/// runs by itself first, and within them it does not look.
pub(super) const LOCK: &str = concat!(
    "
SELECT CASE WHEN pg_try_advisory_xact_lock($3) THEN pg_try_advisory_xact_lock($4, $5) IS NOT NULL ELSE false END AS free,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS one_snapshot,
    now() AS now, ", record_columns!(), "
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT * FROM idempotency_records
    WHERE client = $1 AND key = $2
      AND ($6 OR current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable'))
) AS r ON true"
);

/// `pg_locks` tells a lock of one bigint by its halves and `objsubid` 1, a lock of two integers by those and 2.
pub(super) const HOLDER_DIFFERS: &str = "
SELECT EXISTS (
    SELECT 1 FROM pg_locks held JOIN pg_locks print ON print.pid = held.pid AND print.database = held.database
    WHERE held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
      AND held.classid::bigint = $1 AND held.objid::bigint = $2
      AND print.locktype = 'advisory' AND print.objsubid = 2 AND print.granted
      AND print.classid::bigint = $3 AND print.objid::bigint <> $4
) AS differs";

/// How long statements of the transaction wait for locks, from now on and before.
pub(super) const PATIENCE: &str =
    "SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', $1, true) AS after";

pub(super) const INSERT_SETTLED: &str = "
INSERT INTO idempotency_records
    (client, key, mutation, fingerprint, fingerprint_version, selection, state, request_id, attempt,
     body, reason, due_at, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7::idempotency_state, $8, 1, $9, $10, clock_timestamp() + $11 * interval '1 ms', now(), clock_timestamp())
ON CONFLICT (client, key) DO NOTHING";

pub(super) const RENEW: &str = "
UPDATE idempotency_records SET due_at = now() + $5 * interval '1 ms'
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = 'in_progress'";

pub(super) const SETTLE: &str = "
UPDATE idempotency_records
SET state = $6::idempotency_state, body = $7, reason = $8, due_at = now() + $9 * interval '1 ms', updated_at = now()
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5::idempotency_state";

pub(super) const HOLD: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'needs_recovery', reason = $6, due_at = now() + ", rest!(), " * interval '1 ms', updated_at = now()
WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5::idempotency_state"
);

/// A record with finished steps stays, so that nothing of them is done again; another goes.
pub(super) const RELEASE: &str = "
WITH kept AS (
    SELECT EXISTS (
        SELECT 1 FROM idempotency_steps WHERE client = $1 AND key = $2 AND result IS NOT NULL
    ) AS steps
), released AS (
    UPDATE idempotency_records
    SET state = $6::idempotency_state, body = $7, reason = $8, due_at = now() + $9 * interval '1 ms', updated_at = now()
    WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5::idempotency_state AND (SELECT steps FROM kept)
    RETURNING 1
), gone AS (
    DELETE FROM idempotency_records
    WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = $5::idempotency_state
      AND NOT (SELECT steps FROM kept)
    RETURNING 1
)
SELECT 1 FROM released UNION ALL SELECT 1 FROM gone";

/// The step is written only if the record is still the attempt's.
pub(super) const CHECKPOINT: &str = "
WITH held AS (
    UPDATE idempotency_records SET due_at = now() + $5 * interval '1 ms'
    WHERE client = $1 AND key = $2 AND request_id = $3 AND attempt = $4 AND state = 'in_progress'
    RETURNING client, key, attempt
)
INSERT INTO idempotency_steps (client, key, name, position, kind, attempt, result)
SELECT held.client, held.key, $6,
    (SELECT count(*) FROM idempotency_steps s WHERE s.client = $1 AND s.key = $2), $7, held.attempt, $8
FROM held
ON CONFLICT (client, key, name) DO UPDATE SET attempt = excluded.attempt, result = excluded.result";

pub(super) const POINTS: &str = "
SELECT name, kind, attempt, result FROM idempotency_steps WHERE client = $1 AND key = $2 ORDER BY position";

pub(super) const FIND: &str = concat!(
    "
SELECT now() AS now, ", record_columns!(), " FROM idempotency_records r WHERE r.client = $1 AND r.key = $2"
);

pub(super) const LIST: &str = concat!(
    "
SELECT r.client, r.key, ", record_columns!(), " FROM idempotency_records r
WHERE ($1::text IS NULL OR r.state = $1::idempotency_state) AND ($2::text IS NULL OR r.mutation = $2)
  AND ($3::text IS NULL OR r.client = $3)
  AND ($4::bigint IS NULL OR r.updated_at <= now() - $4 * interval '1 ms')
ORDER BY r.updated_at, r.client, r.key LIMIT $5"
);

pub(super) const COUNT: &str = "
SELECT r.mutation, r.state::text AS state, count(*) AS records, min(r.updated_at) AS oldest
FROM idempotency_records r GROUP BY r.mutation, r.state ORDER BY r.mutation, r.state";

pub(super) const LAPSE: &str = concat!(
    "
WITH lapsed AS (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= now() AND state = 'in_progress'
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE idempotency_records r
SET state = 'needs_recovery', reason = 'the lease of attempt ' || r.attempt || ' lapsed', updated_at = now(),
    due_at = now() + ", rest!(), " * interval '1 ms'
FROM lapsed WHERE r.client = lapsed.client AND r.key = lapsed.key"
);

pub(super) const RECOVERABLE: &str = concat!(
    "
WITH due AS (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= now() AND state = 'needs_recovery'
    ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE idempotency_records r
SET recoveries = r.recoveries + 1,
    due_at = now() + least($2 * power(2, least(r.recoveries, 30)), 86400000) * interval '1 ms'
FROM due WHERE r.client = due.client AND r.key = due.key
RETURNING r.client, r.key, ", record_columns!()
);

pub(super) const EXPIRE: &str = "
WITH over AS (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= now() AND state IN ('succeeded', 'failed', 'released')
    LIMIT $1 FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM idempotency_steps s USING over WHERE s.client = over.client AND s.key = over.key
)
UPDATE idempotency_records r
SET state = 'tombstone', body = NULL, reason = NULL, selection = '',
    due_at = r.due_at + $2 * interval '1 ms', updated_at = now()
FROM over WHERE r.client = over.client AND r.key = over.key";

pub(super) const PURGE: &str = "
WITH over AS (
    SELECT client, key FROM idempotency_records
    WHERE due_at <= now() AND state = 'tombstone'
    LIMIT $1 FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_records r USING over WHERE r.client = over.client AND r.key = over.key";
