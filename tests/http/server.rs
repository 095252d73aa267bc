//! A small server on a socket of its own, with a table of effects.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use async_graphql::{Context, EmptySubscription, Error, ErrorExtensions, InputObject, Object, Result, Schema, Upload};
use async_graphql_idempotency::{
    GraphQLIdempotency, Idempotency, IdempotencyContext, IdempotencyKey, Policy, SqliteStore, identity,
};
use axum::Router;
use serde_json::{Value, json};

pub(crate) struct Query;

#[Object]
impl Query {
    async fn effects(&self, ctx: &Context<'_>) -> Result<i64> {
        Ok(count(ctx.data::<SqliteStore>()?).await)
    }
}

#[derive(InputObject)]
pub(crate) struct PayInput {
    idempotency_key: IdempotencyKey,
    amount: i32,
}

pub(crate) struct Mutation;

#[Object]
impl Mutation {
    /// Leaves an effect at once, then takes `millis` to answer.
    async fn pay(
        &self,
        ctx: &Context<'_>,
        idempotency_key: IdempotencyKey,
        amount: i32,
        #[graphql(default)] millis: u64,
    ) -> Result<String> {
        effect(ctx, idempotency_key.as_str()).await?;
        tokio::time::sleep(Duration::from_millis(millis)).await;
        ctx.replayed_header("x-order-id", &amount.to_string())?;
        ctx.append_http_header("set-cookie", "session=1");
        Ok(format!("paid {amount}"))
    }

    async fn pay_input(&self, ctx: &Context<'_>, input: PayInput) -> Result<i32> {
        effect(ctx, input.idempotency_key.as_str()).await?;
        Ok(input.amount)
    }

    /// In the attempt's own transaction.
    async fn book(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<bool> {
        let attempt = ctx.attempt::<SqliteStore>()?;
        let mut tx = attempt.transaction().await?;
        sqlx::query("INSERT INTO effects (name) VALUES ($1)").bind(idempotency_key.as_str()).execute(&mut *tx).await?;
        Ok(true)
    }

    async fn fail(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey) -> Result<bool> {
        effect(ctx, idempotency_key.as_str()).await?;
        Err(Error::new("no funds").extend_with(|_, extensions| extensions.set("code", "NO_FUNDS")))
    }

    async fn store_file(&self, ctx: &Context<'_>, idempotency_key: IdempotencyKey, file: Upload) -> Result<u64> {
        effect(ctx, idempotency_key.as_str()).await?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut file.value(ctx)?.into_read(), &mut text)?;
        Ok(text.len() as u64)
    }
}

async fn effect(ctx: &Context<'_>, name: &str) -> Result<()> {
    let store = ctx.data::<SqliteStore>()?;
    sqlx::query("INSERT INTO effects (name) VALUES ($1)").bind(name).execute(store.pool()).await?;
    Ok(())
}

pub(crate) async fn count(store: &SqliteStore) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM effects").fetch_one(store.pool()).await.unwrap()
}

pub(crate) type TestSchema = Schema<Query, Mutation, EmptySubscription>;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) store: SqliteStore,
    pub(crate) service: GraphQLIdempotency<TestSchema>,
    pub(crate) http: reqwest::Client,
}

pub(crate) fn policy() -> Policy {
    Policy::leased().wait(Duration::from_secs(3))
}

/// `layer` wraps the route.
pub(crate) async fn start_with(policy: Policy, layer: impl FnOnce(Router) -> Router) -> Server {
    let store = SqliteStore::in_memory().await.unwrap();
    sqlx::query("CREATE TABLE effects (name TEXT NOT NULL)").execute(store.pool()).await.unwrap();
    let idempotency = Idempotency::builder(store.clone())
        .default_policy(policy)
        .policy("book", Policy::transactional())
        .build()
        .unwrap();
    let schema =
        Schema::build(Query, Mutation, EmptySubscription).extension(idempotency.clone()).data(store.clone()).finish();
    idempotency.verify(&schema).await.unwrap();
    let service = GraphQLIdempotency::new(schema, identity::bearer).connection_init(|payload| {
        payload.get("token").and_then(Value::as_str).map(async_graphql_idempotency::ClientId::hashed)
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = layer(Router::new().route_service("/graphql", service.clone()));
    tokio::spawn(async move { axum::serve(listener, app).await });
    Server { address, store, service, http: reqwest::Client::new() }
}

pub(crate) async fn start() -> Server {
    start_with(policy(), |router| router).await
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) async fn of(response: reqwest::Response) -> Self {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Self { status, headers, text: response.text().await.unwrap() }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn code(&self) -> Option<String> {
        self.json()["errors"][0]["extensions"]["code"].as_str().map(str::to_owned)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Server {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/graphql", self.address)
    }

    pub(crate) fn post(&self, body: &Value) -> reqwest::RequestBuilder {
        self.http.post(self.url()).bearer_auth("one").json(body)
    }

    pub(crate) async fn send(&self, query: &str) -> Answer {
        Answer::of(self.post(&json!({ "query": query })).send().await.unwrap()).await
    }

    pub(crate) async fn effects(&self) -> i64 {
        count(&self.store).await
    }

    /// Until there are as many effects, for a bounded time.
    pub(crate) async fn wait_for_effects(&self, effects: i64) {
        for _ in 0..200 {
            if self.effects().await >= effects {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no {effects} effects in time");
    }
}

pub(crate) fn shared(server: Server) -> Arc<Server> {
    Arc::new(server)
}
