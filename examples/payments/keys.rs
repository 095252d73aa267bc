//! An operator's hand on the keys: list, show, settle, count.

use async_graphql::{Error, ErrorExtensions};
use async_graphql_idempotency::{ClientId, Found, IdempotencyKey, Operator, ending::Told, store::Filter};
use serde_json::Value;

use crate::{
    cli::{KeyOptions, KeysCommand, KeysOptions, ListOptions, PolicyOptions, PoolOptions, SettleOptions},
    database::{Database, Missing, with_ledger},
    gateway_client::GatewayClient,
    ledger::Ledger,
    listen::announce,
    report::Report,
    setup,
};

mod table;

/// Runs one `keys` command.
pub(crate) async fn run(options: KeysOptions) -> Result<(), Report> {
    let pool = PoolOptions { pool: 1, pgbouncer: options.pgbouncer };
    let database = Database::open(&options.database_url, &pool, Missing::Refuse).await?;
    with_ledger!(database, ledger => command(ledger, options.command).await)
}

async fn command<L: Ledger>(ledger: L, command: KeysCommand) -> Result<(), Report> {
    let operator = Operator::new(ledger.store().clone());
    match command {
        KeysCommand::List(options) => announce(&table::records(&operator.list(&filter(options)?).await?)),
        KeysCommand::Stats => announce(&table::counts(&operator.count().await?)),
        KeysCommand::Show(KeyOptions { words, token }) => {
            let (client, [key]) = named(words, token)?;
            match operator.inspect(&client, &IdempotencyKey::new(key)?).await? {
                Some(inspection) => announce(&table::inspection(&inspection)),
                None => return Err(Report::new("this client has no such key")),
            }
        }
        KeysCommand::Settle(options) => settle(ledger, &operator, options).await?,
    }
    Ok(())
}

fn filter(options: ListOptions) -> Result<Filter, Report> {
    let client = match (options.client, options.token) {
        (_, Some(token)) => Some(ClientId::hashed(token)),
        (Some(client), None) => Some(ClientId::new(client)?),
        (None, None) => None,
    };
    Ok(Filter {
        state: options.state,
        mutation: options.mutation,
        client,
        older_than: options.older_than.map(Into::into),
        limit: options.limit,
    })
}

/// The client, by its id or its token, and the words that follow it.
fn named<const N: usize>(mut words: Vec<String>, token: Option<String>) -> Result<(ClientId, [String; N]), Report> {
    let client = match token {
        Some(token) => ClientId::hashed(token),
        None => ClientId::new(words.remove(0))?,
    };
    let words = words.try_into().map_err(|_| Report::new("give the CLIENT, or its --token, and what follows it"))?;
    Ok((client, words))
}

async fn settle<L: Ledger>(ledger: L, operator: &Operator<L::Store>, options: SettleOptions) -> Result<(), Report> {
    let (client, [key, outcome]) = named(options.words, options.token)?;
    let key = IdempotencyKey::new(key)?;
    let found = match (outcome.as_str(), options.response) {
        ("succeeded", Some(response)) => Found::Succeeded(response),
        ("succeeded", None) => {
            operator.settle(&client, &key, Told::Succeeded, None, &options.reason, *options.retention).await?;
            announce("settled");
            return Ok(());
        }
        ("failed", response) => Found::Failed(failure(response.as_ref())),
        ("released", _) => Found::NotStarted,
        _ => return Err(Report::new("the outcome is one of succeeded, failed, released")),
    };
    // Through the server's own setup, which knows how a response is stored and what it may be. Settling asks no gateway.
    let gateway = GatewayClient::new("http://127.0.0.1")?;
    let policies = PolicyOptions { retention: options.retention, ..PolicyOptions::default() };
    let idempotency = setup::idempotency(&ledger, &gateway, &policies)?;
    let schema = setup::schema(ledger, gateway).extension(idempotency.clone()).finish();
    idempotency.settle(&schema, &client, &key, found, &options.reason).await?;
    announce("settled");
    Ok(())
}

/// The error that retries are to get.
fn failure(response: Option<&Value>) -> Error {
    let told = |field: &str| response.and_then(|response| response.get(field)?.as_str());
    let message = told("message").unwrap_or("This request has failed.").to_owned();
    let code = told("code").unwrap_or("SETTLED_AS_FAILED").to_owned();
    Error::new(message).extend_with(|_, extensions| extensions.set("code", code.as_str()))
}
