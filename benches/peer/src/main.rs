//! The crate beside a layer that caches responses: what each adds to an INSERT, and what each keeps.
//!
//! `cargo run --release --manifest-path benches/peer/Cargo.toml -- --bench`

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_graphql::{Context, EmptySubscription, Object, Result, Schema};
use async_graphql_idempotency::{
    GraphQLIdempotency, Idempotency, IdempotencyContext, IdempotencyKey, Policy, PostgresStore, identity,
};
use axum::{
    Router,
    body::{Body, to_bytes},
    extract::State,
    http::{Request, Response, header},
    routing::post,
};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::{
    CookieOptions, Session, SessionLayer,
    store::postgres::{PostgresStore as Sessions, PostgresStoreBuilder},
};
use sqlx::{ConnectOptions, PgPool};
use tokio::sync::Notify;
use tower::ServiceExt;
use tower_cookies::CookieManagerLayer;
use uuid::Uuid;

#[path = "../../support/mod.rs"]
mod support;

use support::{
    load::{Lane, by_turns},
    server::{self, Server},
    table::{Table, Target},
};

const EFFECT: &str = "INSERT INTO effects (label, amount) VALUES ($1, 4900)";
const CONNECTIONS: u32 = 20;
const CLIENTS: usize = 200;

/// What every handler does, and where the effects go.
#[derive(Clone)]
struct Shop {
    pool: PgPool,
    /// Whether a handler hangs once it has had its effect, as one does that is about to be killed.
    hangs: Arc<AtomicBool>,
    had_effect: Arc<Notify>,
}

impl Shop {
    async fn effect(&self, connection: &mut sqlx::PgConnection, key: &str) -> Result<String, sqlx::Error> {
        sqlx::query(EFFECT).bind(key).execute(connection).await?;
        if self.hangs.load(Ordering::Relaxed) {
            self.had_effect.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(format!("Thank you for {key}. {}", "The amount is taken from your card. ".repeat(4)))
    }

    async fn pay(&self, key: &str) -> Result<String, sqlx::Error> {
        self.effect(&mut *self.pool.acquire().await?, key).await
    }
}

struct Query;

#[Object]
impl Query {
    async fn nothing(&self) -> bool {
        true
    }
}

struct Mutation;

#[Object]
impl Mutation {
    async fn unprotected(&self, ctx: &Context<'_>, key: String) -> Result<String> {
        Ok(ctx.data::<Shop>()?.pay(&key).await?)
    }

    async fn transactional(&self, ctx: &Context<'_>, key: IdempotencyKey) -> Result<String> {
        let attempt = ctx.attempt::<PostgresStore>()?;
        let mut transaction = attempt.transaction().await?;
        Ok(ctx.data::<Shop>()?.effect(&mut transaction, key.as_str()).await?)
    }

    async fn leased(&self, ctx: &Context<'_>, key: IdempotencyKey) -> Result<String> {
        Ok(ctx.data::<Shop>()?.pay(key.as_str()).await?)
    }
}

/// The ways to the same effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Route,
    Layer,
    Field,
    Transactional,
    Leased,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Route => "a route",
            Self::Layer => "axum-idempotent over ruts' PostgresStore",
            Self::Field => "a field",
            Self::Transactional => "this crate, transactional",
            Self::Leased => "this crate, leased",
        }
    }

    fn request(self, client: &Client, key: &str) -> Request<Body> {
        let field = match self {
            Self::Route | Self::Layer => {
                let path = if self == Self::Route { "/route" } else { "/layer" };
                let request = Request::post(path).header("Idempotency-Key", key).header(header::COOKIE, &client.cookie);
                return request.body(Body::from(key.to_owned())).unwrap();
            }
            Self::Field => "unprotected",
            Self::Transactional => "transactional",
            Self::Leased => "leased",
        };
        let document = serde_json::json!({ "query": format!("mutation {{ {field}(key: \"{key}\") }}") });
        let request = Request::post("/graphql").header(header::CONTENT_TYPE, "application/json");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {}", client.token));
        request.body(Body::from(document.to_string())).unwrap()
    }
}

struct Client {
    token: String,
    /// Of its session.
    cookie: String,
}

/// A server process: pools, stores and routes of its own.
async fn serving(database: &sqlx::postgres::PgConnectOptions, shop: &Shop) -> Router {
    let pool = server::pool(database.clone(), CONNECTIONS).await;
    let shop = Shop { pool: pool.clone(), ..shop.clone() };
    let options =
        sqlx_of_ruts::postgres::PgPoolOptions::new().min_connections(CONNECTIONS).max_connections(CONNECTIONS);
    let sessions =
        PostgresStoreBuilder::new(options.connect(database.to_url_lossy().as_str()).await.unwrap()).create_table(true);
    let sessions = Arc::new(sessions.build().await.unwrap());
    let options = IdempotentOptions::default().use_idempotency_key_header(Some("Idempotency-Key"), true);
    let options = options.expire_after(24 * 60 * 60);
    let pay = async |State(shop): State<Shop>, key: String| shop.pay(&key).await.unwrap();
    let layered = Router::new()
        .route("/layer", post(pay))
        .layer(IdempotentLayer::<Sessions>::new(options))
        .route(
            "/login",
            post(async |session: Session<Sessions>| {
                let day = ruts::store::Ttl::new(24 * 60 * 60).unwrap();
                session.set("user", &"somebody", day, None).await.unwrap();
            }),
        )
        .layer(SessionLayer::new(sessions).with_cookie_options(CookieOptions::build().name("session").path("/")))
        .layer(CookieManagerLayer::new());

    let store = PostgresStore::new(pool);
    store.migrate().await.unwrap();
    let idempotency = Idempotency::builder(store)
        .exempt("unprotected")
        .policy("transactional", Policy::transactional())
        .policy("leased", Policy::leased().lease(Duration::from_secs(1)))
        .build()
        .unwrap();
    let schema = Schema::build(Query, Mutation, EmptySubscription).extension(idempotency).data(shop.clone()).finish();
    let graphql = GraphQLIdempotency::new(schema, identity::bearer);
    Router::new().route("/route", post(pay)).merge(layered).with_state(shop).route_service("/graphql", graphql)
}

async fn login(app: &Router, client: usize) -> Client {
    let response = app.clone().oneshot(Request::post("/login").body(Body::empty()).unwrap()).await.unwrap();
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
    Client { token: format!("token-{client}"), cookie: cookie.split(';').next().unwrap().to_owned() }
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(to_bytes(response.into_body(), 1 << 20).await.unwrap().to_vec()).unwrap()
}

/// What a team sees that tries it: effects of eight copies, and of a process that dies between effect and answer.
async fn kept(
    app: &Router,
    database: &sqlx::postgres::PgConnectOptions,
    shop: &Shop,
    client: &Client,
    way: Way,
) -> String {
    let effects = async |key: &str| -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM effects WHERE label = $1");
        count.bind(key).fetch_one(&shop.pool).await.unwrap()
    };
    let key = Uuid::new_v4().to_string();
    let copies: Vec<_> = (0..8).map(|_| tokio::spawn(app.clone().oneshot(way.request(client, &key)))).collect();
    for copy in copies {
        copy.await.unwrap().unwrap();
    }
    let at_once = effects(&key).await;

    let key = Uuid::new_v4().to_string();
    let (request, database, dying) = (way.request(client, &key), database.clone(), shop.clone());
    dying.hangs.store(true, Ordering::Relaxed);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let app = serving(&database, &dying).await;
            tokio::spawn(app.oneshot(request));
            dying.had_effect.notified().await;
        });
        // Nothing of it runs again: no answer is stored, no lease renewed, no transaction committed.
        runtime.shutdown_background();
    })
    .join()
    .unwrap();
    shop.hangs.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    let answer = text(app.clone().oneshot(way.request(client, &key)).await.unwrap()).await;
    let code = answer.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("its answer");
    format!("8 copies at once: {at_once}; killed after the effect, and retried: {}, told {code}", effects(&key).await)
}

fn lane(app: &Router, clients: &Arc<Vec<Client>>, way: Way) -> Lane {
    let (app, clients, count) = (app.clone(), Arc::clone(clients), AtomicUsize::new(0));
    Lane::new(way.name(), move || {
        let client = &clients[count.fetch_add(1, Ordering::Relaxed) % clients.len()];
        let request = way.request(client, &Uuid::new_v4().to_string());
        let app = app.clone();
        async move {
            let response = app.oneshot(request).await.unwrap();
            let (status, text) = (response.status(), text(response).await);
            assert!(status.is_success() && text.contains("Thank you"), "{}: {status} {text}", way.name());
        }
    })
}

fn main() {
    support::run(async {
        let server = Server::start().await;
        let database = server.database().await;
        let pool = server::pool(database.clone(), 4).await;
        let tables =
            "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, label text, amount integer)";
        sqlx::query(tables).execute(&pool).await.unwrap();
        let shop = Shop { pool, hangs: Arc::default(), had_effect: Arc::default() };
        let app = serving(&database, &shop).await;
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            clients.push(login(&app, client).await);
        }
        let mut keeps = BTreeMap::new();
        for way in [Way::Layer, Way::Transactional, Way::Leased] {
            keeps.insert(way.name(), kept(&app, &database, &shop, &clients[0], way).await);
        }
        let clients = Arc::new(clients);
        let ways = [Way::Route, Way::Layer, Way::Field, Way::Transactional, Way::Leased];
        let lanes = ways.map(|way| lane(&app, &clients, way));
        let rounds = support::setting("BENCH_ROUNDS", 9);
        let rates = by_turns(&lanes, 8, rounds, support::seconds("BENCH_TURN", 0.5)).await;
        let mut table = Table::default();
        let added = |candidate, baseline| 1e6 / rates.of(candidate) - 1e6 / rates.of(baseline);
        for (way, candidate, baseline, target) in [
            (Way::Layer, 1, 0, Target::None),
            (Way::Transactional, 3, 2, Target::AtMost(110.0)),
            (Way::Leased, 4, 2, Target::AtMost(190.0)),
        ] {
            let measure = format!("{}: added to an INSERT, us", way.name());
            let detail =
                format!("{:.0} a second beside {:.0}; {}", rates.of(candidate), rates.of(baseline), keeps[way.name()]);
            table.figure(measure, added(candidate, baseline), target, detail);
        }
        server.done().await;
        table.print("8 in flight, one INSERT as effect; through the router, without a network");
    });
}
