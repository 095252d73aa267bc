//! One process of those that the duplicates are spread over: this one, or a child that runs the same program.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use async_graphql::{Context, EmptySubscription, Object, Request, Result, Schema, Variables};
use async_graphql_idempotency::{ClientId, Idempotency, IdempotencyContext, IdempotencyKey, Policy, PostgresStore};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    counting::{Counting, now},
    support::server::pool,
};

/// In a child's environment: the database.
const CHILD: &str = "IDEMPOTENCY_BENCH_CHILD";
/// Of each process's pool.
const CONNECTIONS: u32 = 16;

type Store = Counting<PostgresStore>;
type WorkSchema = Schema<Query, Mutation, EmptySubscription>;

/// Duplicates to send.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) mutation: String,
    pub(crate) key: String,
    pub(crate) work_ms: u64,
    pub(crate) duplicates: u32,
    /// When all processes begin.
    pub(crate) begin_at: i64,
}

/// What became of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) calls: u64,
    pub(crate) executed: u32,
    /// The most connections that were lent at a time.
    pub(crate) connections: u32,
    /// When the winner's outcome was committed, if the winner was here.
    pub(crate) committed_at: Option<i64>,
    /// When the last of them had its answer.
    pub(crate) last_at: i64,
}

struct Query;

#[Object]
impl Query {
    async fn version(&self) -> i32 {
        1
    }
}

struct Mutation;

#[Object]
impl Mutation {
    async fn transactional(&self, ctx: &Context<'_>, key: IdempotencyKey, work_ms: u64) -> Result<String> {
        let attempt = ctx.attempt::<Store>()?;
        let mut tx = attempt.transaction().await?;
        sqlx::query("INSERT INTO effects DEFAULT VALUES").execute(&mut *tx).await?;
        work(ctx, work_ms).await?;
        Ok(key.to_string())
    }

    async fn leased(&self, ctx: &Context<'_>, key: IdempotencyKey, work_ms: u64) -> Result<String> {
        work(ctx, work_ms).await?;
        Ok(key.to_string())
    }
}

/// What the engine itself takes for as many requests, of an unprotected field that does nothing.
pub(crate) async fn engine_alone(requests: u32) -> Duration {
    let schema = Schema::new(Query, Bare, EmptySubscription);
    let document = "mutation Work($key: String!, $workMs: Int!) { leased(key: $key, workMs: $workMs) }";
    let variables = Variables::from_json(serde_json::json!({ "key": "key", "workMs": 1 }));
    let requests: Vec<_> = (0..requests).map(|_| Request::new(document).variables(variables.clone())).collect();
    let begun = Instant::now();
    let tasks: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let schema = schema.clone();
            tokio::spawn(async move { assert!(schema.execute(request).await.errors.is_empty()) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    begun.elapsed()
}

struct Bare;

#[Object]
impl Bare {
    async fn leased(&self, key: String, work_ms: u64) -> String {
        let _ = work_ms;
        key
    }
}

async fn work(ctx: &Context<'_>, work_ms: u64) -> Result<()> {
    ctx.data::<Arc<AtomicU32>>()?.fetch_add(1, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(work_ms)).await;
    Ok(())
}

/// A process's own part.
pub(crate) struct Here {
    schema: WorkSchema,
    store: Store,
    pool: PgPool,
    executed: Arc<AtomicU32>,
}

impl Here {
    pub(crate) async fn new(options: sqlx::postgres::PgConnectOptions) -> Self {
        let pool = pool(options, CONNECTIONS).await;
        let store = Counting::counting(PostgresStore::new(pool.clone()));
        let idempotency = Idempotency::builder(store.clone()).policy("transactional", Policy::transactional());
        let executed = Arc::new(AtomicU32::new(0));
        let schema = Schema::build(Query, Mutation, EmptySubscription)
            .extension(idempotency.build().unwrap())
            .data(Arc::clone(&executed))
            .finish();
        Self { schema, store, pool, executed }
    }

    /// Sends duplicates, all at once, each in a task of its own as a server has them.
    pub(crate) async fn run(&self, order: &Order) -> Outcome {
        self.store.take();
        self.executed.store(0, Ordering::Relaxed);
        let document = format!(
            "mutation Work($key: IdempotencyKey!, $workMs: Int!) {{ {}(key: $key, workMs: $workMs) }}",
            order.mutation
        );
        let variables = Variables::from_json(serde_json::json!({ "key": order.key, "workMs": order.work_ms }));
        let client = ClientId::new("client").unwrap();
        let request = || Request::new(&document).variables(variables.clone()).data(client.clone());
        let requests: Vec<_> = (0..order.duplicates).map(|_| request()).collect();
        let over = Arc::new(AtomicBool::new(false));
        let watch = tokio::spawn(most_lent(self.pool.clone(), Arc::clone(&over)));
        let left = u64::try_from(order.begin_at - now()).unwrap_or(0);
        tokio::time::sleep(Duration::from_micros(left)).await;
        let tasks: Vec<_> = requests
            .into_iter()
            .map(|request| {
                let schema = self.schema.clone();
                tokio::spawn(async move {
                    let response = schema.execute(request).await;
                    assert!(response.errors.is_empty(), "{:?}", response.errors);
                    now()
                })
            })
            .collect();
        let mut last_at = 0;
        for task in tasks {
            last_at = last_at.max(task.await.unwrap());
        }
        over.store(true, Ordering::Relaxed);
        let connections = watch.await.unwrap();
        let (calls, committed_at) = self.store.take();
        Outcome { calls, executed: self.executed.load(Ordering::Relaxed), connections, committed_at, last_at }
    }
}

async fn most_lent(pool: PgPool, over: Arc<AtomicBool>) -> u32 {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        most = most.max(pool.size().saturating_sub(u32::try_from(pool.num_idle()).unwrap_or(0)));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    most
}

/// A process of its own.
pub(crate) struct Elsewhere {
    orders: ChildStdin,
    outcomes: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Elsewhere {
    pub(crate) fn start(url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("--bench").env(CHILD, url).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap();
        let (orders, outcomes) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { orders, outcomes: BufReader::new(outcomes).lines(), _process: process }
    }

    pub(crate) async fn order(&mut self, order: &Order) {
        let line = serde_json::to_string(order).unwrap() + "\n";
        self.orders.write_all(line.as_bytes()).await.unwrap();
    }

    pub(crate) async fn outcome(&mut self) -> Outcome {
        let line = self.outcomes.next_line().await.unwrap().expect("a child has died");
        serde_json::from_str(&line).unwrap()
    }
}

/// Whether this is a child; then it has done what it was told.
pub(crate) async fn is_child() -> bool {
    let Ok(url) = std::env::var(CHILD) else { return false };
    let here = Here::new(url.parse().unwrap()).await;
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = orders.next_line().await {
        let outcome = here.run(&serde_json::from_str(&line).unwrap()).await;
        println!("{}", serde_json::to_string(&outcome).unwrap());
    }
    true
}
