-- How far sweepers have looked through the young records, so that each is looked at once: 'open' for leases that may
-- have lapsed, 'over' for retentions that may be over.
CREATE TABLE idempotency_marks (
    namespace TEXT NOT NULL,
    pass      TEXT NOT NULL CHECK (pass IN ('open', 'over')),
    position  INTEGER NOT NULL DEFAULT 0,
    passed_at INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, pass)
) STRICT, WITHOUT ROWID;
