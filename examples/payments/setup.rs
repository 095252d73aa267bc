//! The crate, set up for this schema: the policies, the reconciler, the extension.

use std::time::Duration;

use async_graphql::{EmptySubscription, Schema, SchemaBuilder};
use async_graphql_idempotency::{Idempotency, Policy, SqliteStore, graphql::SetupError};

use crate::{
    cli::PolicyOptions,
    gateway_client::GatewayClient,
    ledger::{Ledger, SqlLedger},
    mutation::Mutation,
    payout,
    query::Query,
    report::Report,
};

/// The policies and the reconciler.
pub(crate) fn idempotency<L: Ledger>(
    ledger: &L,
    gateway: &GatewayClient,
    options: &PolicyOptions,
) -> Result<Idempotency<L::Store>, SetupError> {
    let (payouts, asked) = (ledger.clone(), gateway.clone());
    Idempotency::builder(ledger.store().clone())
        .policy("openAccount", timed(Policy::transactional(), options))
        .policy("transfer", timed(Policy::transactional(), options))
        // Its every effect is a step, so a later attempt can go on where a lost one ended.
        .policy("charge", timed(Policy::leased(), options).on_crash(options.on_crash.into()))
        // Its effects are not steps: it is held after a crash, until the gateway has said what became of it.
        .policy("payout", timed(Policy::leased(), options))
        .reconcile("payout", move |record| payout::reconcile(payouts.clone(), asked.clone(), record))
        .build()
}

/// Clients of this server are told to retry for a day, or for as long as answers are kept if that is less.
const CLIENTS_RETRY: Duration = Duration::from_hours(24);

fn timed(policy: Policy, options: &PolicyOptions) -> Policy {
    policy
        .lease(*options.lease)
        .wait(*options.wait)
        .retention(*options.retention)
        .max_client_retry(CLIENTS_RETRY.min(*options.retention))
}

/// The schema, without the extension.
pub(crate) fn schema<L: Ledger>(
    ledger: L,
    gateway: GatewayClient,
) -> SchemaBuilder<Query<L>, Mutation<L>, EmptySubscription> {
    let query = Query { ledger: ledger.clone() };
    Schema::build(query, Mutation { ledger, gateway }, EmptySubscription)
}

/// The schema as text: `schema/payments.graphql`.
pub(crate) async fn sdl() -> Result<String, Report> {
    let ledger = SqlLedger::new(SqliteStore::in_memory().await?, true);
    Ok(schema(ledger, GatewayClient::new("http://127.0.0.1")?).finish().sdl())
}
