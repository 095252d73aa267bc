//! A test's world: its database, its servers, what its resolvers do.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_graphql::{Context, EmptySubscription, Request, Response, Result, Schema, Value};
use async_graphql_idempotency::{
    ClientId, Idempotency, IdempotencyContext, IdempotencyKey, Policy, Record, Store, Swept,
    graphql::IdempotencyBuilder,
};
use futures_util::future::BoxFuture;

use super::{
    Backend, Faulty, Gateway, PostgresBackend,
    schema::{Mutation, Query, Receipt, Script, Scripts, Seen, TestSchema, effect},
};

pub type StoreOf<B> = Faulty<<B as Backend>::Store>;

pub struct World<B: Backend> {
    pub database: B::Database,
    pub store: StoreOf<B>,
    pub gateway: Gateway,
    scripts: Scripts,
}

impl World<PostgresBackend> {
    /// Transactions have this isolation level by default, on every connection but those that are open already.
    pub async fn isolated(level: &str) -> Self {
        let world = Self::new().await;
        let name = &world.texts("SELECT current_database()").await[0];
        world.execute(format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")).await;
        // A test's table is so small that PostgreSQL reads it whole, and a serializable transaction then conflicts with
        // whatever else was written. An application's is not.
        world.execute(format!("ALTER DATABASE {name} SET enable_seqscan = off")).await;
        world
    }
}

/// One server process.
pub struct Server<B: Backend> {
    pub idempotency: Idempotency<StoreOf<B>>,
    pub schema: TestSchema,
}

impl<B: Backend> Clone for Server<B> {
    fn clone(&self) -> Self {
        Self { idempotency: self.idempotency.clone(), schema: self.schema.clone() }
    }
}

pub const CLIENT: &str = "client";

impl<B: Backend> World<B> {
    pub async fn new() -> Self {
        Self::with_pool(8).await
    }

    pub async fn with_pool(connections: u32) -> Self {
        let database = B::database().await;
        let store = Faulty::faulty(B::open(&database, connections).await);
        let count = Mutex::new(0);
        let default = script(move |ctx| {
            let number = {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count
            };
            Box::pin(async move {
                effect::<B>(ctx, ctx.field().name()).await?;
                Ok(Receipt::new(format!("receipt-{number}")))
            })
        });
        let scripts = Scripts { own: Arc::default(), default };
        Self { database, store, gateway: Gateway::default(), scripts }
    }

    /// The same database behind another pool.
    pub async fn other_store(&self, connections: u32) -> StoreOf<B> {
        Faulty::faulty(B::open(&self.database, connections).await)
    }

    /// What a mutation does.
    pub fn on(
        &self,
        mutation: &'static str,
        script: impl for<'a, 'c> Fn(&'a Context<'c>) -> BoxFuture<'a, Result<Receipt>> + Send + Sync + 'static,
    ) {
        self.scripts.own.lock().unwrap().insert(mutation, Arc::new(script));
    }

    /// A server that treats every mutation by one policy, the late ones late.
    pub fn server(&self, policy: Policy) -> Server<B> {
        self.server_with(policy, |builder| builder)
    }

    pub fn server_with(
        &self,
        policy: Policy,
        setup: impl FnOnce(IdempotencyBuilder<StoreOf<B>>) -> IdempotencyBuilder<StoreOf<B>>,
    ) -> Server<B> {
        self.server_on(self.store.clone(), policy, setup)
    }

    pub fn server_on(
        &self,
        store: StoreOf<B>,
        policy: Policy,
        setup: impl FnOnce(IdempotencyBuilder<StoreOf<B>>) -> IdempotencyBuilder<StoreOf<B>>,
    ) -> Server<B> {
        let builder = Idempotency::builder(store.clone())
            .default_policy(policy.clone())
            .policy("late", policy.clone().late())
            .policy("lateInside", policy.clone().late())
            .policy("lateNever", policy.late())
            .exempt("exempt");
        let idempotency = setup(builder).build().unwrap();
        let schema = self.schema(Schema::build(Query, Mutation::default(), EmptySubscription), &store, &idempotency);
        Server { idempotency, schema }
    }

    /// Any other schema over the same scripts.
    pub fn schema<M: async_graphql::ObjectType + 'static>(
        &self,
        builder: async_graphql::SchemaBuilder<Query, M, EmptySubscription>,
        store: &StoreOf<B>,
        idempotency: &Idempotency<StoreOf<B>>,
    ) -> Schema<Query, M, EmptySubscription> {
        let seen: Arc<Seen> = {
            fn retyped<F>(f: F) -> F
            where
                F: for<'a, 'c> Fn(&'a Context<'c>) -> BoxFuture<'a, Result<i64>>,
            {
                f
            }
            Arc::new(retyped(|ctx| {
                Box::pin(async move {
                    let attempt = ctx.attempt::<StoreOf<B>>()?;
                    let mut transaction = attempt.transaction().await?;
                    Ok(B::seen(&mut transaction, "act").await?)
                })
            }))
        };
        builder.extension(idempotency.clone()).data(self.scripts.clone()).data(store.clone()).data(seen).finish()
    }

    /// The usual schema, built otherwise.
    pub fn schema_with(
        &self,
        idempotency: &Idempotency<StoreOf<B>>,
        build: impl FnOnce(
            async_graphql::SchemaBuilder<Query, Mutation, EmptySubscription>,
        ) -> async_graphql::SchemaBuilder<Query, Mutation, EmptySubscription>,
    ) -> TestSchema {
        let builder = Schema::build(Query, Mutation::default(), EmptySubscription).limit_recursive_depth(64);
        self.schema(build(builder), &self.store, idempotency)
    }

    pub async fn execute(&self, sql: impl Into<String>) -> u64 {
        B::execute(&self.database, &self.store.inner, sql.into()).await
    }

    pub async fn texts(&self, sql: impl Into<String>) -> Vec<String> {
        B::texts(&self.database, &self.store.inner, sql.into()).await
    }

    pub async fn number(&self, sql: impl Into<String>) -> i64 {
        self.texts(sql).await[0].parse().unwrap()
    }

    /// How many effects there are, of all mutations.
    pub async fn effects(&self) -> i64 {
        self.number("SELECT count(*) FROM effects").await
    }

    /// Forgets every record, every effect and every charge.
    pub async fn afresh(&self) {
        self.execute("DELETE FROM idempotency_records").await;
        self.execute("DELETE FROM effects").await;
        self.gateway.forget();
    }

    pub async fn records(&self) -> i64 {
        self.number("SELECT count(*) FROM idempotency_records").await
    }

    /// The state of the one record of a key, or "none".
    pub async fn state(&self, key: &str) -> String {
        let states = self.texts(format!("SELECT state FROM idempotency_records WHERE key = '{key}'")).await;
        states.into_iter().next().unwrap_or_else(|| "none".to_owned())
    }

    pub async fn record(&self, key: &str) -> Option<Record> {
        let found = self.store.inner.find(&client(CLIENT), &IdempotencyKey::new(key).unwrap()).await.unwrap();
        found.map(|found| Record::clone(&found.record))
    }

    /// Waits until a key's record is in a state; a background task may still be about it.
    pub async fn until_state(&self, key: &str, state: &str) {
        let mut seen = String::new();
        for _ in 0..200 {
            seen = self.state(key).await;
            if seen == state {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the key {key} is {seen}, not {state}");
    }

    /// Lets time pass: everything was so much earlier.
    pub async fn pass(&self, time: Duration) {
        for column in ["created_at", "due_at", "look_at", "ended_at"] {
            self.execute(B::earlier("idempotency_records", column, time)).await;
        }
        for column in ["position", "passed_at"] {
            self.execute(B::earlier("idempotency_marks", column, time)).await;
        }
    }

    pub async fn done(self) {
        let Self { database, store, .. } = self;
        B::close(&store.inner).await;
        B::drop(database).await;
    }
}

/// A script out of a closure.
fn script(
    script: impl for<'a, 'c> Fn(&'a Context<'c>) -> BoxFuture<'a, Result<Receipt>> + Send + Sync + 'static,
) -> Arc<Script> {
    Arc::new(script)
}

impl<B: Backend> Server<B> {
    /// Executes a document for the usual client.
    pub async fn run(&self, document: impl Into<String>) -> Response {
        self.schema.execute(request(document)).await
    }

    pub async fn execute(&self, request: Request) -> Response {
        self.schema.execute(request).await
    }

    /// A task of its own, as a server runs it.
    pub fn spawn(&self, document: impl Into<String>) -> tokio::task::JoinHandle<Response> {
        self.spawn_request(request(document))
    }

    pub fn spawn_request(&self, request: Request) -> tokio::task::JoinHandle<Response> {
        let schema = self.schema.clone();
        tokio::spawn(async move { schema.execute(request).await })
    }

    pub async fn sweep(&self) -> Swept {
        self.idempotency.sweeper(self.schema.clone()).run_once().await.unwrap()
    }
}

pub fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

pub fn request(document: impl Into<String>) -> Request {
    request_of(CLIENT, document)
}

pub fn request_of(name: &str, document: impl Into<String>) -> Request {
    Request::new(document).data(client(name)).data(super::schema::Right(true))
}

pub fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The codes of a response's errors; an error without a code is its message.
pub fn codes(response: &Response) -> Vec<String> {
    let code = |error: &async_graphql::ServerError| match error.extensions.as_ref().and_then(|e| e.get("code")) {
        Some(Value::String(code)) => code.strip_prefix("IDEMPOTENCY_").unwrap_or(code).to_owned(),
        _ => error.message.clone(),
    };
    response.errors.iter().map(code).collect()
}

/// The code of the only error, without its prefix; empty when there is none.
pub fn code(response: &Response) -> String {
    let codes = codes(response);
    assert!(codes.len() <= 1, "several errors: {:?}", response.errors);
    codes.into_iter().next().unwrap_or_default()
}

/// What a client sees, apart from the extensions and the errors' places in its document.
pub fn answered(response: &Response) -> String {
    let errors: Vec<_> =
        response.errors.iter().map(|e| (e.message.clone(), e.path.clone(), e.extensions.clone())).collect();
    format!("{} {}", serde_json::to_string(&response.data).unwrap(), serde_json::to_string(&errors).unwrap())
}

/// Whether the response marks the field at a path as replayed.
pub fn replayed(response: &Response, path: &str) -> bool {
    let Some(Value::Object(marks)) = response.extensions.get("idempotency") else {
        return false;
    };
    match marks.get(path) {
        Some(Value::Object(mark)) => mark.get("replayed") == Some(&Value::Boolean(true)),
        _ => false,
    }
}
