-- What is kept of each (client, key). Times are milliseconds since 1970-01-01T00:00:00Z.
CREATE TABLE idempotency_records (
    request_id          BLOB NOT NULL CHECK (length(request_id) = 16),
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    -- When the state stops being true by itself: the lease's, the retention's or the tombstone's end, or the
    -- next try of a recovery.
    due_at              INTEGER NOT NULL,
    attempt             INTEGER NOT NULL CHECK (attempt >= 1),
    recoveries          INTEGER NOT NULL DEFAULT 0 CHECK (recoveries >= 0),
    fingerprint_version INTEGER NOT NULL,
    fingerprint         BLOB NOT NULL CHECK (length(fingerprint) = 32),
    client              TEXT NOT NULL CHECK (length(CAST(client AS BLOB)) BETWEEN 1 AND 255),
    key                 TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    mutation            TEXT NOT NULL,
    state               TEXT NOT NULL
        CHECK (state IN ('in_progress', 'needs_recovery', 'succeeded', 'failed', 'released', 'tombstone')),
    selection           TEXT NOT NULL,
    -- The response of a finished record, the request of an open one; one column, so that no record has both.
    body                BLOB,
    reason              TEXT,
    PRIMARY KEY (client, key),
    CONSTRAINT only_an_open_or_finished_record_has_a_body CHECK (body IS NULL OR state NOT IN ('released', 'tombstone'))
) STRICT;

-- The sweeper's way in, and an operator's.
CREATE INDEX idempotency_records_due ON idempotency_records (state, due_at);
