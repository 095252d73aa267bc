-- The tables of the migrations, partitioned by a hash of the client: for an application that makes them itself, before
-- migrate() is called. Eight partitions here; choose as many as the table's size asks for, since their number is hard to
-- change later. No statement of the store looks at more than one of them, but a sweeper's and an operator's.
CREATE TYPE idempotency_state AS ENUM (
    'in_progress', 'settling_succeeded', 'settling_failed', 'needs_recovery', 'succeeded', 'failed', 'released',
    'tombstone_succeeded', 'tombstone_failed', 'tombstone_released'
);

CREATE TABLE idempotency_records (
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at      timestamptz NOT NULL,
    ended_at    timestamptz,
    look_at     timestamptz,
    request_id  uuid NOT NULL,
    attempt     integer NOT NULL DEFAULT 1,
    recoveries  integer NOT NULL DEFAULT 0,
    state       idempotency_state NOT NULL DEFAULT 'in_progress',
    namespace   varchar(63) COLLATE "C" NOT NULL,
    client      varchar(255) COLLATE "C" NOT NULL,
    key         varchar(255) COLLATE "C" NOT NULL,
    mutation    text COLLATE "C" NOT NULL,
    fingerprint bytea NOT NULL,
    selection   text COLLATE "C" NOT NULL,
    body        bytea,
    reason      text,
    PRIMARY KEY (namespace, client, key)
) PARTITION BY HASH (client);

CREATE INDEX idempotency_records_young ON idempotency_records (namespace, created_at);
CREATE INDEX idempotency_records_look ON idempotency_records (namespace, look_at) WHERE look_at IS NOT NULL;
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
) PARTITION BY HASH (client);

DO $$
BEGIN
    FOR part IN 0..7 LOOP
        EXECUTE format(
            'CREATE TABLE idempotency_records_%s PARTITION OF idempotency_records
             FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (fillfactor = 90)', part, part);
        EXECUTE format(
            'CREATE TABLE idempotency_steps_%s PARTITION OF idempotency_steps
             FOR VALUES WITH (MODULUS 8, REMAINDER %s)', part, part);
    END LOOP;
END
$$;

CREATE TABLE idempotency_marks (
    namespace varchar(63) COLLATE "C" NOT NULL,
    pass      text COLLATE "C" NOT NULL CHECK (pass IN ('open', 'over')),
    position  timestamptz NOT NULL DEFAULT '-infinity',
    passed_at timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (namespace, pass)
);
