//! The storm: many copies of one charge at once, without the crate and with it, counted at the gateway.

use async_graphql::{EmptySubscription, Response, Schema};
use comfy_table::{CellAlignment, Table, presets::UTF8_FULL_CONDENSED};

use crate::{
    cli::{PolicyOptions, StormOptions},
    database::{Database, Missing, with_ledger},
    gateway_client::GatewayClient,
    ledger::Ledger,
    listen,
    query::Query,
    report::Report,
    setup,
};

mod gateway;
mod outcome;
mod unprotected;
mod workers;

use gateway::StormGateway;
use outcome::{Outcome, code};
use unprotected::Unprotected;
use workers::Workers;

/// $49.00.
const AMOUNT: i64 = 4_900;

/// Runs the storm twice and compares.
pub(crate) async fn run(options: &StormOptions) -> Result<(), Report> {
    let directory = tempfile::tempdir()?;
    let database_url = match &options.database_url {
        Some(url) => url.clone(),
        None => format!("sqlite:{}", directory.path().join("payments.db").display()),
    };
    let database = Database::open(&database_url, &options.pool, Missing::Create).await?;
    // Each side has a gateway of its own, so that what is counted there is its own.
    let without = StormGateway::start(&directory.path().join("without.db")).await?;
    let with = StormGateway::start(&directory.path().join("with.db")).await?;
    with_ledger!(database, ledger => compare(ledger, options.workers, without.client(), with.client()).await)
}

async fn compare<L: Ledger>(
    ledger: L,
    workers: u32,
    without: &GatewayClient,
    with: &GatewayClient,
) -> Result<(), Report> {
    ledger.create_tables().await?;
    let idempotency = setup::idempotency(&ledger, with, &PolicyOptions::default())?;
    let protected = setup::schema(ledger.clone(), with.clone()).extension(idempotency).finish();
    let unprotected = Unprotected { gateway: without.clone() };
    let unprotected = Schema::build(Query { ledger }, unprotected, EmptySubscription).finish();

    let workers = Workers::new(workers, &protected).await?;
    let without = Outcome::of(&workers.release(&unprotected, AMOUNT).await, without).await?;
    let with = Outcome::of(&workers.release(&protected, AMOUNT).await, with).await?;
    let other = workers.send(&protected, 2 * AMOUNT).await;

    listen::announce(&table(workers.count(), &without, &with));
    listen::announce(&refusal(&other));
    judge(workers.count(), &with, &other)
}

fn table(workers: usize, without: &Outcome, with: &Outcome) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        format!("{workers} copies of one charge of {} at once", dollars(AMOUNT)),
        "without the crate".to_owned(),
        "with it".to_owned(),
    ]);
    let row = |what: &str, of: fn(&Outcome) -> String| [what.to_owned(), of(without), of(with)];
    table.add_row(row("requests answered", |side| side.answered.to_string()));
    table.add_row(row("of these, replays", |side| side.replayed.to_string()));
    table.add_row(row("different answers", |side| side.different.to_string()));
    table.add_row(row("charges at the gateway", |side| side.charges.to_string()));
    table.add_row(row("money taken", |side| dollars(side.taken)));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn refusal(other: &Response) -> String {
    let answer = match other.errors.first() {
        Some(error) => format!("refused with {}: {}", code(error).unwrap_or("no code"), error.message),
        None => "not refused".to_owned(),
    };
    format!("The same key with {}: {answer}", dollars(2 * AMOUNT))
}

/// Whether the crate has kept its promise.
fn judge(workers: usize, with: &Outcome, other: &Response) -> Result<(), Report> {
    if with.charges != 1 || with.taken != AMOUNT {
        return Err(Report::new(format!("{} charges at the gateway, and not one", with.charges)));
    }
    if with.answered != workers || with.replayed != workers - 1 || with.different != 1 {
        return Err(Report::new("not every copy got the answer of the one charge"));
    }
    match other.errors.first().and_then(code) {
        Some("IDEMPOTENCY_KEY_REUSED") => Ok(()),
        _ => Err(Report::new("the key was taken for another charge")),
    }
}

/// Cents as dollars.
fn dollars(cents: i64) -> String {
    format!("${}.{:02}", cents / 100, cents % 100)
}
