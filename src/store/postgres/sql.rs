//! The statements. `store/sqlite/sql.rs` has the same in the same order. `{}` stands for the schema, quoted and with
//! its dot: see [`super::ground`].
//!
//! Times are `clock_timestamp()`, the instant itself: `now()` is the time of BEGIN or, for a single statement, of its
//! arrival, before it waited for a lock. Only what is searched by an index is compared with `now()`.

use crate::store::row::record_columns;

/// Whether an attempt of its owner may still write.
macro_rules! is_open {
    () => {
        "state IN ('in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery')"
    };
}

/// Always true. Where the role's default is `synchronous_commit = off`, it is set to `on` for the transaction, so that
/// what the statement writes is durable once it is committed. A stronger setting stays.
macro_rules! durably {
    () => {
        "CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) = 'on' ELSE true END"
    };
}

/// How long a record is left alone before a sweeper tries to recover it: not at all at first, longer after every try
/// that failed, up to a day.
macro_rules! rest {
    () => {
        "least(10000 * (power(2, least(recoveries, 30)) - 1), 86400000) * interval '1 ms'"
    };
}

pub(super) const MIGRATIONS: [&str; 3] = [
    include_str!("../../../migrations/postgres/0001_records.sql"),
    include_str!("../../../migrations/postgres/0002_steps.sql"),
    include_str!("../../../migrations/postgres/0003_marks.sql"),
];

pub(super) const MIGRATION_TABLE: &str = "
CREATE TABLE IF NOT EXISTS idempotency_migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
)";

pub(super) const MIGRATION_APPLY: &str =
    "INSERT INTO idempotency_migrations (version) VALUES ($1) ON CONFLICT DO NOTHING";

/// Which of the columns in $2 (of the tables in $1, in the schema of prefix $3) are missing, and which rights.
pub(super) const MISSING: &str = "
WITH needed AS (
    SELECT t.name AS \"table\", c.name AS \"column\", to_regclass($3 || t.name) AS found
    FROM unnest($1::text[], $2::text[]) AS pair(t, c), LATERAL (SELECT pair.t AS name) AS t, LATERAL (SELECT pair.c AS name) AS c
)
SELECT DISTINCT 'the table ' || \"table\" AS what FROM needed WHERE found IS NULL
UNION ALL
SELECT 'the column ' || \"table\" || '.' || \"column\" FROM needed
WHERE found IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM pg_attribute WHERE attrelid = found AND attname = \"column\" AND NOT attisdropped
)
UNION ALL
SELECT DISTINCT 'the right to ' || verb || ' in ' || \"table\"
FROM needed, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS verb
WHERE found IS NOT NULL AND NOT has_table_privilege(found, verb)";

/// Where the tables are, as the search path finds them.
pub(super) const GROUND: &str = "
SELECT (
    SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass('idempotency_records')
) AS schema, current_setting('transaction_isolation') AS isolation";

/// Returns no row where the key has a record.
pub(super) const CLAIM: &str = concat!(
    "
INSERT INTO {}idempotency_records
    (namespace, client, key, mutation, fingerprint, selection, request_id, due_at, body)
SELECT $1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8 * interval '1 ms', $9 WHERE ", durably!(), "
ON CONFLICT (namespace, client, key) DO NOTHING
RETURNING created_at"
);

pub(super) const TAKE_OVER: &str = concat!(
    "
UPDATE {}idempotency_records
SET state = 'in_progress', attempt = attempt + 1, due_at = clock_timestamp() + $7 * interval '1 ms', selection = $8,
    body = coalesce($9, body), reason = NULL, ended_at = NULL
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND state = $6::text::{}idempotency_state AND (state <> 'in_progress' OR due_at <= clock_timestamp()) AND ", durably!()
);

/// The first statement of a transaction, or one by itself ($7): takes the key, or returns the record that it has.
///
/// `REPEATABLE READ` and `SERIALIZABLE` transactions read from one snapshot. They fail in the end if the snapshot is
/// older than the lock, and what a serializable one reads is checked, page by page, against what others write. So for
/// them this runs by itself first, and inside of them it does not look for the record.
pub(super) const LOCK: &str = concat!(
    "
SELECT CASE WHEN pg_try_advisory_xact_lock($4) THEN pg_try_advisory_xact_lock($5, $6) IS NOT NULL ELSE false END AS free,
    current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AS one_snapshot,
    current_setting('transaction_read_only') = 'on' AS read_only, clock_timestamp() AS now, ", record_columns!(), "
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT * FROM {}idempotency_records
    WHERE namespace = $1 AND client = $2 AND key = $3
      AND ($7 OR current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable'))
) AS r ON true"
);

/// `pg_locks` shows a lock on one bigint as its halves with `objsubid` 1, and a lock on two integers as these with 2.
pub(super) const HOLDER_DIFFERS: &str = "
SELECT EXISTS (
    SELECT 1 FROM pg_locks held JOIN pg_locks print ON print.pid = held.pid AND print.database = held.database
    WHERE held.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND held.locktype = 'advisory' AND held.objsubid = 1 AND held.granted
      AND held.classid::bigint = $1 AND held.objid::bigint = $2
      AND print.locktype = 'advisory' AND print.objsubid = 2 AND print.granted
      AND print.classid::bigint = $3 AND print.objid::bigint <> $4
) AS differs";

/// Sets how long statements of the transaction wait for locks, and returns the setting from before.
pub(super) const PATIENCE: &str =
    "SELECT current_setting('lock_timeout') AS before, set_config('lock_timeout', $1, true) AS after";

/// Reads settings of the transaction, and puts them back.
pub(super) const KEPT: &str = "SELECT name, current_setting(name, true) AS value FROM unnest($1::text[]) AS name";
pub(super) const PUT_BACK: &str =
    "SELECT set_config(name, coalesce(value, ''), true) FROM unnest($1::text[], $2::text[]) AS kept(name, value)";

/// Settles a first attempt that has no record yet.
pub(super) const INSERT_SETTLED: &str = concat!(
    "
INSERT INTO {}idempotency_records
    (namespace, client, key, mutation, fingerprint, selection, request_id, state, body, reason, due_at, ended_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8::text::{}idempotency_state, $9, $10, clock_timestamp() + $11 * interval '1 ms',
    clock_timestamp()
WHERE ", durably!(), "
ON CONFLICT (namespace, client, key) DO NOTHING"
);

/// Settles a later attempt, which found a record that was given back.
pub(super) const SETTLE_TAKEN: &str = concat!(
    "
UPDATE {}idempotency_records
SET attempt = $5, state = $6::text::{}idempotency_state, body = $7, reason = $8,
    due_at = clock_timestamp() + $9 * interval '1 ms', ended_at = clock_timestamp(), selection = $10
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5 - 1 AND state = 'released' AND ",
    durably!()
);

/// Renews a lease for $6 milliseconds. A record that was believed lost, and whose owner has not ended, is in progress
/// again.
macro_rules! renew {
    () => {
        concat!(
            "
UPDATE {}idempotency_records
SET due_at = CASE state
        WHEN 'needs_recovery' THEN clock_timestamp() + $6 * interval '1 ms'
        ELSE greatest(due_at, clock_timestamp() + $6 * interval '1 ms')
    END,
    state = CASE state WHEN 'needs_recovery' THEN 'in_progress' ELSE state END,
    reason = CASE state WHEN 'needs_recovery' THEN NULL ELSE reason END
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND ", is_open!(), " AND (state <> 'needs_recovery' OR ended_at IS NULL) AND ", durably!()
        )
    };
}

pub(super) const RENEW: &str = renew!();

/// From an open state, or from that in $10. The retention of a settling record that has lapsed runs from the lapse.
pub(super) const SETTLE: &str = concat!(
    "
UPDATE {}idempotency_records
SET state = $6::text::{}idempotency_state, body = $7, reason = $8,
    due_at = CASE WHEN $10::text LIKE 'settling%' THEN due_at ELSE clock_timestamp() END + $9 * interval '1 ms',
    ended_at = clock_timestamp()
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $10::text IS NULL THEN ", is_open!(), " ELSE state = $10::text::{}idempotency_state END AND ", durably!()
);

/// Leaves a key to recovery. If someone other than its owner does so ($7), the attempt's number is raised, so that the
/// attempt can't come back.
pub(super) const HOLD: &str = concat!(
    "
UPDATE {}idempotency_records
SET state = 'needs_recovery', attempt = attempt + CASE WHEN $7::text IS NULL THEN 0 ELSE 1 END, reason = $6, due_at = clock_timestamp() + ", rest!(), ", look_at = clock_timestamp() + ", rest!(), ",
    ended_at = clock_timestamp()
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $7::text IS NULL THEN ", is_open!(), " ELSE state = $7::text::{}idempotency_state END AND ", durably!()
);

pub(super) const DELETE: &str = concat!(
    "
DELETE FROM {}idempotency_records
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5
  AND CASE WHEN $6::text IS NULL THEN ", is_open!(), " ELSE state = $6::text::{}idempotency_state END AND ", durably!()
);

/// The first statement of a local step that reads from one snapshot: locks the record, so that nobody changes it.
pub(super) const HOLD_STILL: &str = "
SELECT 1 FROM {}idempotency_records
WHERE namespace = $1 AND client = $2 AND key = $3 AND request_id = $4 AND attempt = $5 FOR NO KEY UPDATE";

/// The step is written only if the record is still the attempt's.
pub(super) const CHECKPOINT: &str = concat!(
    "
WITH held AS (", renew!(), "
    RETURNING namespace, client, key, attempt
)
INSERT INTO {}idempotency_steps (namespace, client, key, name, position, kind, attempt, result)
SELECT held.namespace, held.client, held.key, $7,
    (SELECT count(*) FROM {}idempotency_steps s WHERE s.namespace = $1 AND s.client = $2 AND s.key = $3),
    $8, held.attempt, $9
FROM held
ON CONFLICT (namespace, client, key, name) DO UPDATE SET attempt = excluded.attempt, result = excluded.result"
);

pub(super) const STEPS: &str = "
SELECT name, kind, attempt, result FROM {}idempotency_steps
WHERE namespace = $1 AND client = $2 AND key = $3 ORDER BY position";

pub(super) const FIND: &str = concat!(
    "
SELECT clock_timestamp() AS now, ", record_columns!(), " FROM {}idempotency_records r
WHERE r.namespace = $1 AND r.client = $2 AND r.key = $3"
);

/// Every record that needs recovery has a `look_at`, so that the index on it finds them.
pub(super) const LIST: &str = concat!(
    "
SELECT r.client, r.key, ", record_columns!(), " FROM {}idempotency_records r
WHERE r.namespace = $1 AND ($2::text IS NULL OR r.state = $2::text::{}idempotency_state)
  AND ($2::text IS DISTINCT FROM 'needs_recovery' OR r.look_at IS NOT NULL)
  AND ($3::text IS NULL OR r.mutation = $3) AND ($4::text IS NULL OR r.client = $4)
  AND ($5::bigint IS NULL OR r.created_at <= now() - $5 * interval '1 ms')
ORDER BY r.created_at, r.client, r.key LIMIT $6"
);

pub(super) const COUNT: &str = "
SELECT r.mutation, r.state::text AS state, count(*) AS records, min(r.created_at) AS oldest
FROM {}idempotency_records r WHERE r.namespace = $1 GROUP BY r.mutation, r.state ORDER BY r.mutation, r.state";

pub(super) const MARKS: &str =
    "INSERT INTO {}idempotency_marks (namespace, pass) VALUES ($1, 'open'), ($1, 'over') ON CONFLICT DO NOTHING";

/// Looks through the next records that are at least $3 old: those that a sweep must look at (open ones, or all: $2) get
/// their `look_at`. The last minute is looked through twice, since a record may be committed after younger ones. One
/// process at a time does it, if the last pass is at least $5 ago.
pub(super) const PASS: &str = "
WITH mark AS (
    SELECT position FROM {}idempotency_marks 
    WHERE namespace = $1 AND pass = $2 AND passed_at <= now() - $5 * interval '1 ms' FOR UPDATE SKIP LOCKED
), seen AS (
    SELECT r.client, r.key, r.created_at
    FROM mark, {}idempotency_records r
    WHERE r.namespace = $1 AND r.created_at > mark.position AND r.created_at <= now() - $3 * interval '1 ms'
    ORDER BY r.created_at FETCH FIRST ($4) ROWS WITH TIES
), looked AS (
    UPDATE {}idempotency_records r SET look_at = r.due_at
    FROM seen WHERE r.namespace = $1 AND r.client = seen.client AND r.key = seen.key AND r.look_at IS NULL
      AND ($2 = 'over' OR r.state IN ('in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery'))
), moved AS (
    UPDATE {}idempotency_marks m
    SET position = CASE WHEN ends.more THEN ends.last ELSE now() - $3 * interval '1 ms' - interval '1 min' END,
        passed_at = CASE WHEN ends.more THEN m.passed_at ELSE now() END
    FROM mark, (SELECT count(*) >= $4 AS more, max(created_at) AS last FROM seen) AS ends
    WHERE m.namespace = $1 AND m.pass = $2
    RETURNING ends.more
)
SELECT coalesce((SELECT more FROM moved), false) AS more";

/// Carries out what is due for the records whose `look_at` has come.
pub(super) const AGE: &str = concat!(
    "
WITH due AS (
    SELECT client, key, state, due_at <= now() AS is_over,
        due_at <= now() AND state IN ('succeeded', 'failed', 'released') AS expires,
        due_at <= now() AND state IN ('tombstone_succeeded', 'tombstone_failed', 'tombstone_released') AS ends,
        due_at <= now() AND ", is_open!(), " AS is_handed,
        now() + least($4 * power(2, least(recoveries, 30)), 86400000) * interval '1 ms' AS rests_until
    FROM {}idempotency_records WHERE namespace = $1 AND look_at <= now()
    ORDER BY look_at LIMIT $2 FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM {}idempotency_steps s USING due
    WHERE s.namespace = $1 AND s.client = due.client AND s.key = due.key AND due.expires
), ended AS (
    DELETE FROM {}idempotency_records r USING due
    WHERE r.namespace = $1 AND r.client = due.client AND r.key = due.key AND due.ends
    RETURNING r.client, r.key
), aged AS (
    UPDATE {}idempotency_records r
    SET state = CASE WHEN NOT due.is_over THEN r.state ELSE
            CASE r.state
                WHEN 'in_progress' THEN 'needs_recovery'
                WHEN 'succeeded' THEN 'tombstone_succeeded'
                WHEN 'failed' THEN 'tombstone_failed'
                WHEN 'released' THEN 'tombstone_released'
                ELSE r.state
            END END,
        reason = CASE
            WHEN due.expires THEN NULL
            WHEN due.is_handed AND r.state = 'in_progress' THEN 'the lease of attempt ' || r.attempt || ' lapsed'
            ELSE r.reason END,
        body = CASE WHEN due.expires THEN NULL ELSE r.body END,
        selection = CASE WHEN due.expires THEN '' ELSE r.selection END,
        recoveries = r.recoveries + due.is_handed::integer,
        due_at = CASE
            WHEN due.expires THEN r.due_at + $3 * interval '1 ms'
            WHEN due.is_handed AND r.state IN ('in_progress', 'needs_recovery') THEN due.rests_until
            ELSE r.due_at END,
        look_at = CASE
            WHEN due.expires THEN r.due_at + $3 * interval '1 ms'
            WHEN due.is_handed THEN due.rests_until
            ELSE r.due_at END
    FROM due
    WHERE r.namespace = $1 AND r.client = due.client AND r.key = due.key AND NOT due.ends
    RETURNING due.state::text AS was, due.is_handed, due.expires, r.client, r.key, ", record_columns!(), "
)
SELECT (SELECT count(*) FROM due) AS due, (SELECT count(*) FROM ended) AS ended, aged.*
FROM (SELECT 1) AS one LEFT JOIN aged ON true"
);
