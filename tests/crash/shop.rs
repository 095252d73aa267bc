//! The mutations that die, and the process that runs them.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_graphql::{Context, EmptySubscription, Error, Object, Request, Response, Result, Schema};
use async_graphql_idempotency::{
    ClientId, Found, Idempotency, IdempotencyContext, IdempotencyKey, OnCrash, Policy, PostgresStore, SqliteStore,
    StoreError, Upkeep,
};
use serde::{Deserialize, Serialize};

use crate::watched::{Moment, Watch, Watched};

/// The environment variable that tells the process what to do.
pub(crate) const ORDER: &str = "CRASH_ORDER";
/// How the process says that it did not have to die.
const SURVIVED: i32 = 77;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) database: String,
    pub(crate) gateway: String,
    pub(crate) mutation: Mutation,
    pub(crate) key: String,
    /// The instant to die at, from 1; never for 0.
    pub(crate) instant: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mutation {
    /// Leased, in steps.
    Hold,
    Resume,
    Release,
    /// Leased, one call and no steps, with a reconciler.
    Reconciled,
    Transactional,
}

impl Mutation {
    fn field(self) -> &'static str {
        match self {
            Self::Hold | Self::Resume | Self::Release => "buy",
            Self::Reconciled => "pay",
            Self::Transactional => "book",
        }
    }
}

/// Counts the instants of a mutation, and kills the process at one of them.
pub(crate) struct Instants {
    passed: AtomicUsize,
    last: usize,
}

impl Instants {
    pub(crate) fn pass(&self) {
        if self.passed.fetch_add(1, Ordering::SeqCst) + 1 == self.last {
            // As sudden as kill -9: no destructor, no flush, no answer.
            std::process::abort();
        }
    }
}

impl Watch for Instants {
    async fn called(&self, _: &'static str) -> Option<(Moment, StoreError)> {
        self.pass();
        None
    }

    async fn answered(&self, _: &'static str) {
        self.pass();
    }
}

/// What the shop needs of a database, whichever it is.
pub(crate) trait Shop: Upkeep {
    fn insert(
        connection: &mut Self::Connection,
        table: &'static str,
        key: &str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn rows(&self, table: &'static str, key: &str) -> impl Future<Output = i64> + Send;
    fn create(&self) -> impl Future<Output = ()> + Send;
}

const TABLES: &str =
    "CREATE TABLE IF NOT EXISTS orders (key TEXT NOT NULL); CREATE TABLE IF NOT EXISTS payments (key TEXT NOT NULL)";

macro_rules! shop {
    ($store:ty, $connection:ty) => {
        impl Shop for $store {
            async fn insert(connection: &mut $connection, table: &'static str, key: &str) -> sqlx::Result<()> {
                let statement = format!("INSERT INTO {table} (key) VALUES ($1)");
                sqlx::query(sqlx::AssertSqlSafe(statement)).bind(key).execute(connection).await?;
                Ok(())
            }

            async fn rows(&self, table: &'static str, key: &str) -> i64 {
                let statement = format!("SELECT count(*) FROM {table} WHERE key = $1");
                sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).bind(key).fetch_one(self.pool()).await.unwrap()
            }

            async fn create(&self) {
                self.migrate().await.unwrap();
                sqlx::raw_sql(TABLES).execute(self.pool()).await.unwrap();
            }
        }
    };
}

shop!(PostgresStore, sqlx::PgConnection);
shop!(SqliteStore, sqlx::SqliteConnection);

type Dying<S> = Watched<S, Instants>;

pub(crate) struct Query;

#[Object]
impl Query {
    async fn version(&self) -> i32 {
        1
    }
}

pub(crate) struct Mutations<S> {
    gateway: String,
    instants: Arc<Instants>,
    store: std::marker::PhantomData<S>,
}

#[Object]
impl<S: Shop> Mutations<S> {
    /// Local, remote, local.
    async fn buy(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<String> {
        let attempt = ctx.attempt::<Dying<S>>()?;
        let key = idempotency_key.as_str();
        attempt.local("create_order", async |tx| self.insert(tx, "orders", key).await).await?;
        let charge: String = attempt.remote("charge_card", async |id| self.charge(id).await).await?;
        attempt.local("record_payment", async |tx| self.insert(tx, "payments", key).await).await?;
        self.instants.pass();
        Ok(charge)
    }

    async fn pay(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<String> {
        let attempt = ctx.attempt::<Dying<S>>()?;
        let _ = idempotency_key;
        self.charge(attempt.request_id()).await
    }

    async fn book(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<String> {
        let attempt = ctx.attempt::<Dying<S>>()?;
        let mut tx = attempt.transaction().await?;
        self.insert(&mut tx, "orders", idempotency_key.as_str()).await?;
        Ok(format!("booked {idempotency_key}"))
    }
}

impl<S: Shop> Mutations<S> {
    async fn insert(&self, connection: &mut S::Connection, table: &'static str, key: &str) -> Result<()> {
        self.instants.pass();
        S::insert(connection, table, key).await?;
        self.instants.pass();
        Ok(())
    }

    async fn charge(&self, id: uuid::Uuid) -> Result<String> {
        self.instants.pass();
        let answer = reqwest::Client::new().post(format!("{}/{id}", self.gateway)).send().await?;
        let charge = answer.error_for_status().map_err(Error::from)?.text().await?;
        self.instants.pass();
        Ok(charge)
    }
}

pub(crate) type ShopSchema<S> = Schema<Query, Mutations<S>, EmptySubscription>;

/// A lease short enough to wait for, and long enough for a busy machine to renew.
pub(crate) const LEASE: Duration = Duration::from_millis(400);

pub(crate) fn schema<S: Shop>(store: S, order: &Order) -> (ShopSchema<S>, Idempotency<Dying<S>>) {
    let instants = Arc::new(Instants { passed: AtomicUsize::new(0), last: order.instant });
    let store = Watched::new(store, Arc::clone(&instants));
    let policy = Policy::leased().lease(LEASE).wait(Duration::from_secs(2));
    let gateway = order.gateway.clone();
    let idempotency = Idempotency::builder(store)
        .policy(
            "buy",
            policy.clone().on_crash(match order.mutation {
                Mutation::Resume => OnCrash::Resume,
                Mutation::Release => OnCrash::Release,
                Mutation::Hold | Mutation::Reconciled | Mutation::Transactional => OnCrash::Hold,
            }),
        )
        .policy("pay", policy)
        .policy("book", Policy::transactional().wait(Duration::from_secs(2)))
        .reconcile("pay", move |record| {
            let url = format!("{gateway}/{}", record.request_id);
            async move {
                match reqwest::get(url).await {
                    Ok(answer) if answer.status().is_success() => {
                        answer.text().await.map_or(Found::Unknown, |charge| Found::Succeeded(charge.into()))
                    }
                    Ok(answer) if answer.status().as_u16() == 404 => Found::NotStarted,
                    _ => Found::Unknown,
                }
            }
        })
        .build()
        .unwrap();
    let mutations = Mutations { gateway: order.gateway.clone(), instants, store: std::marker::PhantomData };
    let schema = Schema::build(Query, mutations, EmptySubscription).extension(idempotency.clone()).finish();
    (schema, idempotency)
}

pub(crate) fn client() -> ClientId {
    ClientId::new("customer").unwrap()
}

pub(crate) async fn send<S: Shop>(schema: &ShopSchema<S>, order: &Order) -> Response {
    let document = format!("mutation {{ {}(idempotencyKey: \"{}\") }}", order.mutation.field(), order.key);
    schema.execute(Request::new(document).data(client())).await
}

/// In the process of its own: runs the mutation, and dies in it where the order says so.
pub(crate) fn die_in_the_middle(order: &str) {
    let order: Order = serde_json::from_str(order).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        if order.database.starts_with("sqlite:") {
            let store = SqliteStore::connect(&order.database).await.unwrap();
            send(&schema(store, &order).0, &order).await;
        } else {
            let store = PostgresStore::connect(&order.database).await.unwrap();
            send(&schema(store, &order).0, &order).await;
        }
    });
    std::process::exit(SURVIVED);
}

/// Starts the process. Whether it died.
pub(crate) async fn dies(order: &Order) -> bool {
    let mut process = Command::new(std::env::current_exe().unwrap());
    process.args(["--exact", "the_process_that_dies", "--test-threads=1"]);
    process.env(ORDER, serde_json::to_string(order).unwrap()).stdout(Stdio::null()).stderr(Stdio::null());
    let ended = tokio::task::spawn_blocking(move || process.status().unwrap()).await.unwrap();
    match ended.code() {
        Some(SURVIVED) => false,
        // A signal has no code.
        None => true,
        Some(code) => panic!("the process ended with {code}"),
    }
}
