//! The statements. `store/postgres/sql.rs` has the same in the same order; what is one statement there and
//! several here runs in one `BEGIN IMMEDIATE` transaction.

use crate::store::row::record_columns;

macro_rules! now {
    () => {
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)"
    };
}

/// Whether an attempt of its owner may still write.
macro_rules! is_open {
    () => {
        "state IN ('in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery')"
    };
}

/// Milliseconds for which a record is left alone before a sweeper tries to recover it: none at first, more after every
/// try that failed, up to a day.
macro_rules! rest {
    () => {
        "min(10000 * ((1 << min(recoveries, 30)) - 1), 86400000)"
    };
}

pub(super) const MIGRATIONS: [&str; 3] = [
    include_str!("../../../migrations/sqlite/0001_records.sql"),
    include_str!("../../../migrations/sqlite/0002_steps.sql"),
    include_str!("../../../migrations/sqlite/0003_marks.sql"),
];

pub(super) const MIGRATION_TABLE: &str = "
CREATE TABLE IF NOT EXISTS idempotency_migrations (
    version INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT";

pub(super) const MIGRATION_APPLY: &str =
    "INSERT INTO idempotency_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING";

/// The columns of a table; none where there is no such table.
pub(super) const COLUMNS: &str = "SELECT name FROM pragma_table_info($1)";

/// Returns no row where the key has a record.
pub(super) const CLAIM: &str = concat!(
    "
INSERT INTO idempotency_records
    (namespace, client, key, mutation, fingerprint, selection, request_id, due_at, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, ", now!(), " + $8, $9)
ON CONFLICT (namespace, client, key) DO NOTHING
RETURNING created_at"
);

pub(super) const TAKE_OVER: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'in_progress', attempt = attempt + 1, due_at = ", now!(), " + $7, selection = $8,
    body = coalesce($9, body), reason = NULL, ended_at = NULL
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND state = $6 AND (state <> 'in_progress' OR due_at <= ", now!(), ")"
);

/// Settles a first attempt that has no record yet.
pub(super) const INSERT_SETTLED: &str = concat!(
    "
INSERT INTO idempotency_records
    (namespace, client, key, mutation, fingerprint, selection, request_id, state, body, reason, due_at, ended_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, ", now!(), " + $11, ", now!(), ")
ON CONFLICT (namespace, client, key) DO NOTHING"
);

/// Settles a later attempt, which found a record that was given back.
pub(super) const SETTLE_TAKEN: &str = concat!(
    "
UPDATE idempotency_records
SET attempt = $5, state = $6, body = $7, reason = $8, due_at = ", now!(), " + $9, ended_at = ", now!(), ", selection = $10
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5 - 1 AND state = 'released'"
);

/// Renews a lease for $6 milliseconds. A record that was believed lost, and whose owner has not ended, is in progress
/// again.
pub(super) const RENEW: &str = concat!(
    "
UPDATE idempotency_records
SET due_at = CASE state WHEN 'needs_recovery' THEN ", now!(), " + $6 ELSE max(due_at, ", now!(), " + $6) END,
    state = CASE state WHEN 'needs_recovery' THEN 'in_progress' ELSE state END,
    reason = CASE state WHEN 'needs_recovery' THEN NULL ELSE reason END
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND ", is_open!(), " AND (state <> 'needs_recovery' OR ended_at IS NULL)"
);

/// From an open state, or from that in $10. The retention of a settling record that has lapsed runs from the lapse.
pub(super) const SETTLE: &str = concat!(
    "
UPDATE idempotency_records
SET state = $6, body = $7, reason = $8,
    due_at = CASE WHEN $10 LIKE 'settling%' THEN due_at ELSE ", now!(), " END + $9, ended_at = ", now!(), "
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $10 IS NULL THEN ", is_open!(), " ELSE state = $10 END"
);

/// Leaves a key to recovery. If someone other than its owner does so ($7), the attempt's number is raised, so that the
/// attempt can't come back.
pub(super) const HOLD: &str = concat!(
    "
UPDATE idempotency_records
SET state = 'needs_recovery', attempt = attempt + ($7 IS NOT NULL), reason = $6, due_at = ", now!(), " + ", rest!(), ", look_at = ", now!(), " + ", rest!(), ",
    ended_at = ", now!(), "
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $7 IS NULL THEN ", is_open!(), " ELSE state = $7 END"
);

pub(super) const DELETE: &str = concat!(
    "
DELETE FROM idempotency_records
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $6 IS NULL THEN ", is_open!(), " ELSE state = $6 END"
);

/// The step is written only if [`RENEW`] found the record to be still the attempt's.
pub(super) const CHECKPOINT: &str = "
INSERT INTO idempotency_steps (namespace, client, key, attempt, name, kind, result, position)
VALUES ($1, $2, $3, $4, $5, $6, $7,
    (SELECT count(*) FROM idempotency_steps s WHERE s.namespace = $1 AND s.client = $2 AND s.key = $3))
ON CONFLICT (namespace, client, key, name) DO UPDATE SET attempt = excluded.attempt, result = excluded.result";

pub(super) const STEPS: &str = "
SELECT name, kind, attempt, result FROM idempotency_steps
WHERE namespace = $1 AND client = $2 AND key = $3 ORDER BY position";

/// One row, with a record or without.
pub(super) const FIND: &str = concat!(
    "
SELECT ", now!(), " AS now, ", record_columns!(), "
FROM (SELECT 1) AS one LEFT JOIN idempotency_records r ON r.namespace = $1 AND r.client = $2 AND r.key = $3"
);

pub(super) const LIST: &str = concat!(
    "
SELECT r.client, r.key, ", record_columns!(), " FROM idempotency_records r
WHERE r.namespace = $1 AND ($2 IS NULL OR r.state = $2)
  AND ($2 IS NOT 'needs_recovery' OR r.look_at IS NOT NULL)
  AND ($3 IS NULL OR r.mutation = $3) AND ($4 IS NULL OR r.client = $4)
  AND ($5 IS NULL OR r.created_at <= ", now!(), " - $5)
ORDER BY r.created_at, r.client, r.key LIMIT $6"
);

pub(super) const COUNT: &str = "
SELECT r.mutation, r.state, count(*) AS records, min(r.created_at) AS oldest
FROM idempotency_records r WHERE r.namespace = $1 GROUP BY r.mutation, r.state ORDER BY r.mutation, r.state";

pub(super) const MARKS: &str =
    "INSERT INTO idempotency_marks (namespace, pass) VALUES ($1, 'open'), ($1, 'over') ON CONFLICT DO NOTHING";

/// How far a pass has come, if the last one was at least $3 ago.
pub(super) const MARK: &str = concat!(
    "
SELECT position FROM idempotency_marks WHERE namespace = $1 AND pass = $2 AND passed_at <= ", now!(), " - $3"
);

/// The youngest of the next $4 records that are at least $3 old, behind position $2; none when there are fewer.
pub(super) const PASS_END: &str = concat!(
    "
SELECT created_at FROM idempotency_records
WHERE namespace = $1 AND created_at > $2 AND created_at <= ", now!(), " - $3
ORDER BY created_at LIMIT 1 OFFSET $4 - 1"
);

/// Sets `look_at` of the records behind position $2, up to $5 or else up to those that are $3 old: open ones or all
/// ($4).
pub(super) const PASS_LOOK: &str = concat!(
    "
UPDATE idempotency_records SET look_at = due_at
WHERE namespace = $1 AND created_at > $2 AND created_at <= coalesce($5, ", now!(), " - $3) AND look_at IS NULL
  AND ($4 = 'over' OR ", is_open!(), ")"
);

/// Moves the mark of pass $2 to $4. Without $4, every record that is $3 old was looked through, and the mark moves to a
/// minute before that age, for records that are committed after younger ones.
pub(super) const PASS_MOVE: &str = concat!(
    "
UPDATE idempotency_marks
SET position = coalesce($4, ", now!(), " - $3 - 60000),
    passed_at = CASE WHEN $4 IS NULL THEN ", now!(), " ELSE passed_at END
WHERE namespace = $1 AND pass = $2"
);

/// The records whose time to look at them has come, as they are.
pub(super) const DUE: &str = concat!(
    "
SELECT r.client, r.key, CAST(r.state AS text) AS state, r.due_at <= ", now!(), " AS is_over
FROM idempotency_records r WHERE r.namespace = $1 AND r.look_at <= ", now!(), " ORDER BY r.look_at LIMIT $2"
);

/// What is due for one of them: this and the next statements.
pub(super) const LOOK_LATER: &str = "
UPDATE idempotency_records SET look_at = due_at WHERE namespace = $1 AND client = $2 AND key = $3";

pub(super) const EXPIRE_STEPS: &str = "
DELETE FROM idempotency_steps WHERE namespace = $1 AND client = $2 AND key = $3";

pub(super) const EXPIRE: &str = "
UPDATE idempotency_records
SET state = 'tombstone_' || state, body = NULL, reason = NULL, selection = '', due_at = due_at + $4,
    look_at = due_at + $4
WHERE namespace = $1 AND client = $2 AND key = $3";

pub(super) const PURGE: &str = "
DELETE FROM idempotency_records WHERE namespace = $1 AND client = $2 AND key = $3";

pub(super) const HAND_OUT: &str = concat!(
    "
UPDATE idempotency_records
SET state = CASE state WHEN 'in_progress' THEN 'needs_recovery' ELSE state END,
    reason = CASE state WHEN 'in_progress' THEN 'the lease of attempt ' || attempt || ' lapsed' ELSE reason END,
    look_at = ", now!(), " + min($4 * (1 << min(recoveries, 30)), 86400000),
    due_at = CASE
        WHEN state IN ('in_progress', 'needs_recovery') THEN ", now!(), " + min($4 * (1 << min(recoveries, 30)), 86400000)
        ELSE due_at END,
    recoveries = recoveries + 1
WHERE namespace = $1 AND client = $2 AND key = $3"
);
