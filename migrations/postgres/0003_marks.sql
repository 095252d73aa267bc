-- How far sweepers have looked through the young records, so that each is looked at once: 'open' for leases that may
-- have lapsed, 'over' for retentions that may be over.
CREATE TABLE idempotency_marks (
    namespace varchar(63) COLLATE "C" NOT NULL,
    pass      text COLLATE "C" NOT NULL CHECK (pass IN ('open', 'over')),
    position  timestamptz NOT NULL DEFAULT '-infinity',
    passed_at timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (namespace, pass)
);
