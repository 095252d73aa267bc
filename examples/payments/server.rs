//! The server: GraphQL, the sweeper, and a gateway where none is given; and the order in which they stop.

use std::{net::SocketAddr, time::Duration};

use async_graphql::http::GraphiQLSource;
use async_graphql_idempotency::{GraphQLIdempotency, identity};
use axum::{Router, response::Html, routing::get};
use tokio::{sync::oneshot, task::JoinHandle};
use uuid::Uuid;

use crate::{
    cli::ServeOptions,
    database::{Database, Missing, with_ledger},
    gateway::{self, Gateway},
    gateway_client::GatewayClient,
    ledger::Ledger,
    listen,
    report::Report,
    setup, shutdown,
};

/// How long requests have to end, once the process is asked to stop.
const DRAIN: Duration = Duration::from_secs(20);

/// Serves until the process is asked to stop.
pub(crate) async fn run(options: &ServeOptions) -> Result<(), Report> {
    let database = &options.database;
    let database = Database::open(&database.database_url, &database.pool, Missing::Create).await?;
    with_ledger!(database, ledger => serve(ledger, options).await)
}

async fn serve<L: Ledger>(ledger: L, options: &ServeOptions) -> Result<(), Report> {
    ledger.create_tables().await?;
    let listener = listen::bind(&options.listen).await?;
    let address = listener.local_addr()?;
    let own_gateway = match options.gateway {
        Some(_) => None,
        None => Some(OwnGateway::start(options).await?),
    };
    let gateway_url = own_gateway.as_ref().map(|gateway| &gateway.url).or(options.gateway.as_ref());
    let gateway = GatewayClient::new(gateway_url.map_or("", String::as_str))?;

    let idempotency = setup::idempotency(&ledger, &gateway, &options.policies)?;
    let schema = setup::schema(ledger, gateway).extension(idempotency.clone()).finish();
    idempotency.verify(&schema).await?;

    let service = GraphQLIdempotency::new(schema.clone(), identity::bearer).connection_init(identity::bearer_payload);
    let sweeper = idempotency
        // The resolvers need nothing but the client, and that is there already.
        .resume_with(schema, async |request, _, _| request)
        .every(*options.sweep_every)
        .backoff(*options.sweep_every);
    let (stop_sweeping, stopped) = oneshot::channel::<()>();
    let sweeping = tokio::spawn(sweeper.run(async {
        let _ = stopped.await;
    }));

    let router = Router::new().route("/", get(async || Html(graphiql()))).route_service("/graphql", service.clone());
    announce(address);
    axum::serve(listener, router).with_graceful_shutdown(shutdown::requested()).await?;
    // No request is taken any more. Those that run in tasks of their own are waited for, then the sweeper's round; the
    // gateway goes last, since they may need it.
    service.shutdown(DRAIN).await;
    drop(stop_sweeping);
    sweeping.await?;
    if let Some(gateway) = own_gateway {
        gateway.stop().await?;
    }
    Ok(())
}

/// The fake gateway in this process.
struct OwnGateway {
    url: String,
    stop: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl OwnGateway {
    async fn start(options: &ServeOptions) -> Result<Self, Report> {
        let gateway = Gateway::open(&options.gateway_database_url).await?;
        let listener = listen::bind(&options.gateway_listen).await?;
        let url = format!("http://{}", listener.local_addr()?);
        listen::announce(&format!("gateway on {url}"));
        let (stop, stopped) = oneshot::channel();
        let served = tokio::spawn(gateway::serve(listener, gateway, async {
            let _ = stopped.await;
        }));
        Ok(Self { url, stop, served })
    }

    async fn stop(self) -> Result<(), Report> {
        drop(self.stop);
        Ok(self.served.await??)
    }
}

fn graphiql() -> String {
    GraphiQLSource::build()
        .title("Payments")
        .endpoint("/graphql")
        .header("Authorization", "Bearer demo")
        .ws_connection_param("Authorization", "Bearer demo")
        .finish()
}

/// Says where to go, and what to try. The key is a new one for every start: yesterday's would be replayed.
fn announce(address: SocketAddr) {
    listen::announce(&format!("listening on http://{address}/graphql"));
    let key = Uuid::new_v4();
    listen::announce(&format!(
        "Try this, twice:\n  curl -i http://{address}/graphql -H 'Authorization: Bearer demo' \
         -H 'Content-Type: application/json' -d '{{\"query\":\"mutation {{ openAccount(idempotencyKey: \\\"{key}\\\", \
         input: {{owner: \\\"Ada\\\"}}) {{ id owner currency balance }} }}\"}}'"
    ));
}
