-- What is kept of each (client, key). Client and key collate "C": compared byte for byte.
CREATE TABLE idempotency_records (
    client              text COLLATE "C" NOT NULL CHECK (octet_length(client) BETWEEN 1 AND 255),
    key                 text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    mutation            text COLLATE "C" NOT NULL,
    fingerprint         bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    fingerprint_version smallint NOT NULL,
    selection           text COLLATE "C" NOT NULL,
    state               text COLLATE "C" NOT NULL
        CHECK (state IN ('in_progress', 'needs_recovery', 'succeeded', 'failed', 'released', 'tombstone')),
    request_id          uuid NOT NULL,
    attempt             integer NOT NULL CHECK (attempt >= 1),
    -- When the state stops being true by itself: the lease's, the retention's or the tombstone's end, or the
    -- next try of a recovery.
    due_at              timestamptz NOT NULL,
    response            bytea,
    request             bytea,
    reason              text,
    recoveries          integer NOT NULL DEFAULT 0 CHECK (recoveries >= 0),
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    PRIMARY KEY (client, key),
    CONSTRAINT only_a_finished_record_has_a_response CHECK (response IS NULL OR state IN ('succeeded', 'failed')),
    CONSTRAINT only_an_open_record_has_a_request
        CHECK (request IS NULL OR state IN ('in_progress', 'needs_recovery'))
);

-- The sweeper's ways in. A record is in one of them at a time, by its state.
CREATE INDEX idempotency_records_leased ON idempotency_records (due_at) WHERE state = 'in_progress';
CREATE INDEX idempotency_records_held ON idempotency_records (due_at) WHERE state = 'needs_recovery';
CREATE INDEX idempotency_records_kept ON idempotency_records (due_at)
    WHERE state IN ('succeeded', 'failed', 'released');
CREATE INDEX idempotency_records_tombstones ON idempotency_records (due_at) WHERE state = 'tombstone';
