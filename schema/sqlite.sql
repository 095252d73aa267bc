-- The tables after all migrations: where you are. `migrations/sqlite` is how you got there.

-- What is kept of each (namespace, client, key). Times are milliseconds since 1970-01-01T00:00:00Z.
-- A settlement changes no indexed column, so that it writes one page.
CREATE TABLE idempotency_records (
    created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER)),
    -- When the state stops being true by itself: the lease's, the retention's or the tombstone's end, or the next try
    -- of a recovery.
    due_at      INTEGER NOT NULL,
    -- When its latest attempt ended; null while one runs, or was lost.
    ended_at    INTEGER,
    -- When a sweeper looks at it; null until one has come by.
    look_at     INTEGER,
    request_id  BLOB NOT NULL CHECK (length(request_id) = 16),
    attempt     INTEGER NOT NULL DEFAULT 1 CHECK (attempt >= 1),
    recoveries  INTEGER NOT NULL DEFAULT 0 CHECK (recoveries >= 0),
    state       TEXT NOT NULL DEFAULT 'in_progress' CHECK (state IN (
        'in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery', 'succeeded', 'failed', 'released',
        'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'
    )),
    namespace   TEXT NOT NULL CHECK (length(CAST(namespace AS BLOB)) <= 63),
    client      TEXT NOT NULL CHECK (length(CAST(client AS BLOB)) BETWEEN 1 AND 255),
    key         TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    mutation    TEXT NOT NULL,
    -- The version of its rules, one byte, and SHA-256.
    fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 33),
    selection   TEXT NOT NULL,
    -- The response of a record that has one, the kept request of an open one; one column, so that no record has both.
    body        BLOB,
    reason      TEXT,
    PRIMARY KEY (namespace, client, key),
    CONSTRAINT what_was_given_back_or_is_over_has_no_body
        CHECK (body IS NULL OR state NOT IN ('released', 'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'))
) STRICT, WITHOUT ROWID;

-- A sweeper's way to what is young, and to what it has seen before.
CREATE INDEX idempotency_records_young ON idempotency_records (namespace, created_at);
CREATE INDEX idempotency_records_look ON idempotency_records (namespace, look_at) WHERE look_at IS NOT NULL;

-- The recovery points of a record: a step without a result was begun and has not finished.
CREATE TABLE idempotency_steps (
    namespace TEXT NOT NULL,
    client    TEXT NOT NULL,
    key       TEXT NOT NULL,
    name      TEXT NOT NULL,
    position  INTEGER NOT NULL,
    kind      TEXT NOT NULL CHECK (kind IN ('local', 'remote')),
    attempt   INTEGER NOT NULL CHECK (attempt >= 1),
    result    TEXT,
    PRIMARY KEY (namespace, client, key, name),
    FOREIGN KEY (namespace, client, key) REFERENCES idempotency_records (namespace, client, key) ON DELETE CASCADE,
    CONSTRAINT only_a_remote_step_is_unfinished CHECK (result IS NOT NULL OR kind = 'remote')
) STRICT, WITHOUT ROWID;

-- How far sweepers have looked through the young records, so that each is looked at once: 'open' for leases that may
-- have lapsed, 'over' for retentions that may be over.
CREATE TABLE idempotency_marks (
    namespace TEXT NOT NULL,
    pass      TEXT NOT NULL CHECK (pass IN ('open', 'over')),
    position  INTEGER NOT NULL DEFAULT 0,
    passed_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, pass)
) STRICT, WITHOUT ROWID;

-- Which migrations have been applied.
CREATE TABLE idempotency_migrations (
    version INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;
