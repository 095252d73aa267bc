//! The statements: the same text for Postgres and SQLite.

pub(super) const CREATE_TABLES: &str = "
CREATE TABLE IF NOT EXISTS accounts (
    id           TEXT PRIMARY KEY,
    client       TEXT NOT NULL,
    owner        TEXT NOT NULL,
    currency     TEXT NOT NULL,
    balance      BIGINT NOT NULL,
    created_at   BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS accounts_of_client ON accounts (client, created_at);

CREATE TABLE IF NOT EXISTS transfers (
    id           TEXT PRIMARY KEY,
    client       TEXT NOT NULL,
    from_account TEXT NOT NULL REFERENCES accounts (id),
    to_account   TEXT NOT NULL REFERENCES accounts (id),
    amount       BIGINT NOT NULL CHECK (amount > 0),
    note         TEXT,
    created_at   BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS transfers_of_client ON transfers (client, created_at);

CREATE TABLE IF NOT EXISTS charges (
    id           TEXT PRIMARY KEY,
    client       TEXT NOT NULL,
    account      TEXT NOT NULL REFERENCES accounts (id),
    amount       BIGINT NOT NULL CHECK (amount > 0),
    currency     TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('pending', 'succeeded', 'declined')),
    description  TEXT,
    metadata     TEXT,
    receipt      TEXT,
    created_at   BIGINT NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_of_client ON charges (client, created_at);

CREATE TABLE IF NOT EXISTS payouts (
    id           TEXT PRIMARY KEY,
    client       TEXT NOT NULL,
    account      TEXT NOT NULL REFERENCES accounts (id),
    amount       BIGINT NOT NULL CHECK (amount > 0),
    currency     TEXT NOT NULL,
    status       TEXT NOT NULL CHECK (status IN ('pending', 'succeeded', 'declined')),
    receipt      TEXT,
    created_at   BIGINT NOT NULL
)";

pub(super) const INSERT_ACCOUNT: &str = "
INSERT INTO accounts (id, client, owner, currency, balance, created_at) VALUES ($1, $2, $3, $4, $5, $6)";

pub(super) const ACCOUNT: &str = "
SELECT id, owner, currency, balance, created_at FROM accounts WHERE client = $1 AND id = $2";

pub(super) const ACCOUNTS: &str = "
SELECT id, owner, currency, balance, created_at FROM accounts WHERE client = $1 ORDER BY created_at, id";

pub(super) const ADD_TO_BALANCE: &str = "
UPDATE accounts SET balance = balance + $3 WHERE client = $1 AND id = $2
RETURNING id, owner, currency, balance, created_at";

pub(super) const INSERT_TRANSFER: &str = "
INSERT INTO transfers (id, client, from_account, to_account, amount, note, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)";

pub(super) const TRANSFERS: &str = "
SELECT id, from_account, to_account, amount, note, created_at FROM transfers
WHERE client = $1 ORDER BY created_at, id";

pub(super) const INSERT_CHARGE: &str = "
INSERT INTO charges (id, client, account, amount, currency, status, description, metadata, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";

pub(super) const SETTLE_CHARGE: &str = "
UPDATE charges SET status = $2, receipt = $3 WHERE id = $1
RETURNING id, account, amount, currency, status, description, metadata, receipt, created_at";

pub(super) const CHARGES: &str = "
SELECT id, account, amount, currency, status, description, metadata, receipt, created_at FROM charges
WHERE client = $1 ORDER BY created_at, id";

pub(super) const INSERT_PAYOUT: &str = "
INSERT INTO payouts (id, client, account, amount, currency, status, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (id) DO NOTHING";

pub(super) const SETTLE_PAYOUT: &str = "
UPDATE payouts SET status = $2, receipt = $3 WHERE id = $1
RETURNING id, account, amount, currency, status, receipt, created_at";

pub(super) const FORGET_PAYOUT: &str = "DELETE FROM payouts WHERE id = $1 AND status = 'pending'";
