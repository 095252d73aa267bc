-- The tables after all migrations: where you are. `migrations/postgres` is how you got there.

-- Types instead of CHECKs: PostgreSQL reads every CHECK of a table anew at each write, which cost a fifth of a claim.
CREATE TYPE idempotency_state AS ENUM (
    'in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery', 'succeeded', 'failed', 'released',
    'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'
);

-- What is kept of each (namespace, client, key): names collate "C", so they are compared byte for byte.
-- A settlement changes no indexed column, so that PostgreSQL updates the row in its place; the room on each page is
-- for that.
CREATE TABLE idempotency_records (
    -- Fixed widths first, widest alignment first: no byte is padding.
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- When the state stops being true by itself: the lease's, the retention's or the tombstone's end, or the next try
    -- of a recovery.
    due_at      timestamptz NOT NULL,
    -- When its latest attempt ended; null while one runs, or was lost.
    ended_at    timestamptz,
    -- When a sweeper looks at it; null until one has come by.
    look_at     timestamptz,
    request_id  uuid NOT NULL,
    attempt     integer NOT NULL DEFAULT 1,
    recoveries  integer NOT NULL DEFAULT 0,
    state       idempotency_state NOT NULL DEFAULT 'in_progress',
    namespace   varchar(63) COLLATE "C" NOT NULL,
    client      varchar(255) COLLATE "C" NOT NULL,
    key         varchar(255) COLLATE "C" NOT NULL,
    mutation    text COLLATE "C" NOT NULL,
    -- The version of its rules, one byte, and SHA-256.
    fingerprint bytea NOT NULL,
    selection   text COLLATE "C" NOT NULL,
    -- The response of a record that has one, the kept request of an open one; one column, so that no record has both.
    body        bytea,
    reason      text,
    PRIMARY KEY (namespace, client, key)
) WITH (fillfactor = 90);

-- A sweeper's way to what is young, and to what it has seen before.
CREATE INDEX idempotency_records_young ON idempotency_records (namespace, created_at);
CREATE INDEX idempotency_records_look ON idempotency_records (namespace, look_at) WHERE look_at IS NOT NULL;

-- The recovery points of a record: a step without a result was begun and has not finished.
CREATE TABLE idempotency_steps (
    namespace varchar(63) COLLATE "C" NOT NULL,
    client    varchar(255) COLLATE "C" NOT NULL,
    key       varchar(255) COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    position  integer NOT NULL,
    kind      text COLLATE "C" NOT NULL CHECK (kind IN ('local', 'remote')),
    attempt   integer NOT NULL CHECK (attempt >= 1),
    result    text,
    PRIMARY KEY (namespace, client, key, name),
    FOREIGN KEY (namespace, client, key) REFERENCES idempotency_records (namespace, client, key) ON DELETE CASCADE,
    CONSTRAINT only_a_remote_step_is_unfinished CHECK (result IS NOT NULL OR kind = 'remote')
);

-- How far sweepers have looked through the young records, so that each is looked at once: 'open' for leases that may
-- have lapsed, 'over' for retentions that may be over.
CREATE TABLE idempotency_marks (
    namespace varchar(63) COLLATE "C" NOT NULL,
    pass      text COLLATE "C" NOT NULL CHECK (pass IN ('open', 'over')),
    position  timestamptz NOT NULL DEFAULT '-infinity',
    passed_at timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (namespace, pass)
);

-- Which migrations have been applied.
CREATE TABLE idempotency_migrations (
    version integer PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);
