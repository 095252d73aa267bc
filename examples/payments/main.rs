//! A payments server: the model of how to use the crate.
//!
//! Start reading at [`mutation`] (the resolvers), then [`setup`] (the policies and the reconciler) and
//! [`server`] (the service and the sweeper). [`ledger`] is the application's own tables; [`gateway`] is the
//! remote system, and stands for somebody else's.

mod account;
mod charge;
mod cli;
mod database;
mod failure;
mod gateway;
mod gateway_client;
mod input;
mod keys;
mod ledger;
mod listen;
mod mutation;
mod payout;
mod query;
mod report;
mod retry;
mod server;
mod setup;
mod shutdown;
mod status;
mod storm;
mod transfer;

use std::io::{IsTerminal, stderr};

use clap::Parser;
use tracing_subscriber::EnvFilter;

use cli::{Cli, Command, GatewayOptions};
use gateway::Gateway;
use report::Report;

#[tokio::main]
async fn main() -> Result<(), Report> {
    let cli = Cli::parse();
    log();
    match cli.command {
        None => server::run(&cli.serve).await,
        Some(Command::Gateway(options)) => run_gateway(&options).await,
        Some(Command::Storm(options)) => storm::run(&options).await,
        Some(Command::Keys(options)) => keys::run(options).await,
        Some(Command::Sdl) => {
            listen::announce(setup::sdl().await?.trim_end());
            Ok(())
        }
    }
}

async fn run_gateway(options: &GatewayOptions) -> Result<(), Report> {
    let gateway = Gateway::open(&options.database_url).await?;
    let listener = listen::bind(&options.listen).await?;
    listen::announce(&format!("gateway on http://{}", listener.local_addr()?));
    Ok(gateway::serve(listener, gateway, shutdown::requested()).await?)
}

/// Logs go to the standard error, so that the standard output has only what was asked for.
fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(stderr().is_terminal()).init();
}
