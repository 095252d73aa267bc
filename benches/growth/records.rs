//! A database of records, filled by SQL or through the store.

use std::{sync::Arc, time::Duration};

use async_graphql_idempotency::{
    ClientId, IdempotencyKey, OnCrash, PostgresStore, Store,
    claim::{ClaimRequest, Verdict, decide},
    fingerprint::Fingerprint,
    record::Settlement,
    state::Outcome,
    store::{Claimed, From},
};
use sqlx::{AssertSqlSafe, Executor, PgPool, Row, postgres::PgConnectOptions};
use uuid::Uuid;

use super::{
    support::{
        figures::float,
        server::{Server, pool},
    },
    timed,
};

const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_hours(20);
const SELECTION: &str = "id amount currency note";
/// Records that one INSERT fills in.
const BATCH: u32 = 50_000;

/// How a record is made through the store.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// Claimed for a lease, and settled.
    AndSettled,
    /// In one transaction.
    AtOnce,
}

/// A database with the store's tables.
#[derive(Clone)]
pub(crate) struct Records {
    pub(crate) store: PostgresStore,
    /// For looking at the tables.
    pub(crate) own: PgPool,
    pub(crate) database: PgConnectOptions,
}

/// Bytes on disk.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) table: f64,
    pub(crate) indexes: f64,
}

/// What updates leave.
#[derive(Clone, Copy)]
pub(crate) struct Updates {
    /// Dead tuples.
    pub(crate) dead: i64,
    /// The share of updates that stayed on their page and touched no index (HOT).
    pub(crate) hot: f64,
}

impl Sizes {
    pub(crate) fn per(self, records: i64) -> Self {
        Self { table: self.table / float(records), indexes: self.indexes / float(records) }
    }
}

impl Records {
    pub(crate) async fn new(server: &Server) -> Self {
        let database = server.database().await;
        let store = PostgresStore::new(pool(database.clone(), 8).await);
        store.migrate().await.unwrap();
        Self { store, own: pool(database.clone(), 1).await, database }
    }

    /// Fills in finished records with a response of 200 bytes, of a thousand clients.
    pub(crate) async fn fill(&self, records: u32, due_at: &str) {
        let mut left = records;
        while left > 0 {
            let batch = left.min(BATCH);
            left -= batch;
            let fill = format!(
                "INSERT INTO idempotency_records
                     (namespace, client, key, mutation, fingerprint, selection, state, request_id, body, due_at, ended_at,
                      created_at)
                 SELECT '', encode(sha256((n % 1000)::text::bytea), 'hex'), gen_random_uuid()::text, 'pay',
                     '\\x{:02x}'::bytea || sha256(n::text::bytea), '{SELECTION}', 'succeeded', gen_random_uuid(),
                     convert_to(rpad('{{\"data\":', 200, md5(n::text)), 'UTF8'),
                     {due_at} + n * interval '1 ms', now(),
                     {due_at} + n * interval '1 ms' - interval '{} hours'
                 FROM generate_series(1, {batch}) n",
                Fingerprint::VERSION,
                RETENTION.as_secs() / 3_600,
            );
            self.own.execute(AssertSqlSafe(fill)).await.unwrap();
        }
        self.vacuum().await;
        self.own.execute("CHECKPOINT").await.unwrap();
    }

    pub(crate) async fn vacuum(&self) {
        self.own.execute("VACUUM ANALYZE idempotency_records").await.unwrap();
    }

    /// Makes records through the store, four at a time.
    pub(crate) async fn claims(&self, records: u32, written: Written) {
        let workers = (0..4).map(|_| {
            let records_of = self.clone();
            tokio::spawn(async move {
                for _ in 0..records / 4 {
                    records_of.claim(written).await;
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
    }

    /// Makes one record; how long its claim took.
    pub(crate) async fn claim(&self, written: Written) -> Duration {
        let mut request = request(ClientId::hashed(rand_client()), &Uuid::new_v4().to_string());
        request.request_id = Uuid::new_v4();
        let settlement = Settlement::Complete {
            outcome: Outcome::Succeeded,
            response: Some(Uuid::new_v4().simple().to_string().repeat(7).as_bytes()[..200].to_vec()),
            retention: RETENTION,
            reason: None,
        };
        if written == Written::AtOnce {
            let (begun, taken) = timed(self.store.begin(&request)).await;
            let Claimed::Taken(key) = begun.unwrap() else { panic!("a fresh key is free") };
            let from = From::Transaction(Some(key.transaction), &request);
            assert!(self.store.settle(&key.owner, from, &settlement).await.unwrap());
            return taken;
        }
        let (claimed, taken) = timed(self.store.claim(&request)).await;
        let Claimed::Taken(key) = claimed.unwrap() else { panic!("a fresh key is free") };
        assert!(self.store.settle(&key.owner, From::Open, &settlement).await.unwrap());
        taken
    }

    /// Requests whose records are finished.
    pub(crate) async fn sample(&self, records: usize) -> Vec<ClaimRequest> {
        // Of blocks, twice as many as are needed: the planner's count of rows is a guess.
        let sample = format!(
            "SELECT client, key, fingerprint FROM idempotency_records
                 TABLESAMPLE SYSTEM (least(100, 200.0 * {records} / {}))
             WHERE state = 'succeeded' AND due_at > now() LIMIT {records}",
            self.count().await,
        );
        let rows = sqlx::query(AssertSqlSafe(sample)).fetch_all(&self.own).await.unwrap();
        let requests = rows.iter().map(|row| {
            let mut request = request(ClientId::new(row.get::<String, _>("client")).unwrap(), row.get("key"));
            request.fingerprint = Fingerprint::from_bytes(row.get("fingerprint")).unwrap();
            request
        });
        requests.collect()
    }

    /// How long the claim of a finished key took.
    pub(crate) async fn replay(&self, request: &ClaimRequest) -> Duration {
        let (claimed, taken) = timed(self.store.claim(request)).await;
        let Claimed::Found(found) = claimed.unwrap() else { panic!("a finished key is found") };
        assert_eq!(decide(Some(&found.record), request, found.now), Verdict::Replay);
        taken
    }

    pub(crate) async fn sizes(&self) -> Sizes {
        let sizes = "SELECT pg_table_size('idempotency_records'), pg_indexes_size('idempotency_records')";
        let row = sqlx::query(sizes).fetch_one(&self.own).await.unwrap();
        Sizes { table: float(row.get::<i64, _>(0)), indexes: float(row.get::<i64, _>(1)) }
    }

    pub(crate) async fn indexes(&self) -> Vec<(String, i64)> {
        let indexes = "SELECT indexrelname::text, pg_relation_size(indexrelid) FROM pg_stat_user_indexes
             WHERE relname = 'idempotency_records' ORDER BY 2 DESC";
        let rows = sqlx::query(indexes).fetch_all(&self.own).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    pub(crate) async fn count(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM idempotency_records").fetch_one(&self.own).await.unwrap()
    }

    /// What the updates so far have left, as the server counts it.
    pub(crate) async fn updates(&self) -> Updates {
        // The server's counters lag by up to a second.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let counted = "SELECT n_dead_tup, n_tup_hot_upd / greatest(n_tup_upd, 1)::float8
             FROM pg_stat_user_tables WHERE relname = 'idempotency_records'";
        let row = sqlx::query(counted).fetch_one(&self.own).await.unwrap();
        Updates { dead: row.get(0), hot: row.get(1) }
    }
}

/// One of a thousand, the same as [`Records::fill`] has.
fn rand_client() -> String {
    (Uuid::new_v4().as_u128() % 1_000).to_string()
}

fn request(client: ClientId, key: &str) -> ClaimRequest {
    ClaimRequest {
        client,
        key: IdempotencyKey::new(key).unwrap(),
        mutation: Arc::from("pay"),
        fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [7; 32] },
        selection: Arc::from(SELECTION),
        request_id: Uuid::nil(),
        lease: LEASE,
        retention: RETENTION,
        on_crash: OnCrash::Hold,
        request: None,
        resumes: false,
    }
}
