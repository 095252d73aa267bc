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
