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
