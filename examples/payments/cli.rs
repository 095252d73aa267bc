//! The command line.

use std::time::Duration as StdDuration;

use async_graphql_idempotency::{OnCrash, State};
use clap::{Args, Parser, Subcommand, ValueEnum};
use humantime::Duration;

/// A payments server with idempotent mutations.
///
/// Without a subcommand it serves GraphQL at /graphql (HTTP and WebSocket) and GraphiQL at /. Every bearer token is a
/// client of its own. Durations are written as in `500ms`, `2s`, `5m`, `24h`; amounts of money are integers in the
/// minor unit of their currency (cents).
#[derive(Debug, Parser)]
#[command(name = "payments", version, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs the fake payment gateway alone, so that it outlives a killed server.
    Gateway(GatewayOptions),
    /// Sends one charge of $49.00 many times at once, without the crate and with it, and counts at the gateway.
    Storm(StormOptions),
    /// Lists, shows and settles idempotency keys.
    Keys(KeysOptions),
    /// Prints the schema in GraphQL's schema definition language.
    #[command(hide = true)]
    Sdl,
}

#[derive(Debug, Args)]
pub(crate) struct ServeOptions {
    /// Address to serve GraphQL on; port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub(crate) listen: String,
    #[command(flatten)]
    pub(crate) database: DatabaseOptions,
    /// URL of a gateway that runs elsewhere (`payments gateway`), such as `http://127.0.0.1:8001`. Without it the
    /// server runs one in its own process.
    #[arg(long, value_name = "URL", conflicts_with_all = ["gateway_listen", "gateway_database_url"])]
    pub(crate) gateway: Option<String>,
    /// Address for the gateway in this process; port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub(crate) gateway_listen: String,
    /// Database of the gateway in this process: a `sqlite:` or `postgres:` URL.
    #[arg(long, value_name = "URL", default_value = "sqlite:gateway.db")]
    pub(crate) gateway_database_url: String,
    #[command(flatten)]
    pub(crate) policies: PolicyOptions,
    /// Time between two rounds of the sweeper, which recovers lost attempts and purges old keys; also how long a key
    /// that could not be recovered rests before the next try (twice as long after each).
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive)]
    pub(crate) sweep_every: Duration,
}

/// What every mutation's policy has in common.
#[derive(Debug, Args)]
pub(crate) struct PolicyOptions {
    /// How long a running mutation owns its key without renewing it; it renews at a third of this.
    #[arg(long, value_name = "DURATION", default_value_t = Self::default().lease)]
    pub(crate) lease: Duration,
    /// How long a duplicate waits for the request in flight before it is told `IDEMPOTENCY_IN_PROGRESS`.
    #[arg(long, value_name = "DURATION", default_value_t = Self::default().wait)]
    pub(crate) wait: Duration,
    /// How long a response is replayed, from its completion.
    #[arg(long, value_name = "DURATION", default_value_t = Self::default().retention)]
    pub(crate) retention: Duration,
    /// What happens to a `charge` whose server died in the middle. (A `payout` is always held, and settled by asking
    /// the gateway.)
    #[arg(long, value_enum, default_value_t = Self::default().on_crash)]
    pub(crate) on_crash: AfterCrash,
}

impl Default for PolicyOptions {
    fn default() -> Self {
        Self {
            lease: StdDuration::from_secs(30).into(),
            wait: StdDuration::from_secs(5).into(),
            retention: StdDuration::from_hours(24).into(),
            on_crash: AfterCrash::Resume,
        }
    }
}

/// `OnCrash` as a word on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum AfterCrash {
    /// Its key is held until an operator settles it.
    Hold,
    /// The next retry, or the sweeper, goes on behind the last finished step.
    Resume,
    /// Its key is free again.
    Release,
}

impl From<AfterCrash> for OnCrash {
    fn from(after: AfterCrash) -> Self {
        match after {
            AfterCrash::Hold => Self::Hold,
            AfterCrash::Resume => Self::Resume,
            AfterCrash::Release => Self::Release,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DatabaseOptions {
    /// Database of the payments and their keys: `sqlite:FILE`, made when it is missing, or `postgres://…`.
    #[arg(long, value_name = "URL", default_value = "sqlite:payments.db")]
    pub(crate) database_url: String,
    #[command(flatten)]
    pub(crate) pool: PoolOptions,
}

#[derive(Debug, Args)]
pub(crate) struct PoolOptions {
    /// Most database connections at once.
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pool: u32,
    /// The Postgres URL leads to PgBouncer in transaction mode: use no prepared statement twice.
    #[arg(long)]
    pub(crate) pgbouncer: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GatewayOptions {
    /// Address to listen on; port 0 takes any free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8001")]
    pub(crate) listen: String,
    /// Database of the charges: `sqlite:FILE`, made when it is missing, or `postgres://…`.
    #[arg(long, value_name = "URL", default_value = "sqlite:gateway.db")]
    pub(crate) database_url: String,
}

#[derive(Debug, Args)]
pub(crate) struct StormOptions {
    /// How many copies of the request are sent at once.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) workers: u32,
    /// Database of the payments and their keys: a `sqlite:` or `postgres:` URL. Without it a temporary SQLite file.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    #[command(flatten)]
    pub(crate) pool: PoolOptions,
}

#[derive(Debug, Args)]
pub(crate) struct KeysOptions {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
    /// Database of the payments and their keys: a `sqlite:` or `postgres:` URL.
    #[arg(long, global = true, value_name = "URL", default_value = "sqlite:payments.db")]
    pub(crate) database_url: String,
    /// The Postgres URL leads to PgBouncer in transaction mode.
    #[arg(long, global = true)]
    pub(crate) pgbouncer: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KeysCommand {
    /// Lists keys, oldest first.
    List(ListOptions),
    /// Shows one key with its steps and its response.
    Show(KeyOptions),
    /// Settles a key whose outcome is unknown, for good.
    Settle(SettleOptions),
    /// Counts keys by mutation and state.
    Stats,
}

#[derive(Debug, Args)]
pub(crate) struct ListOptions {
    /// Only keys in this state.
    #[arg(long, value_parser = state)]
    pub(crate) state: Option<State>,
    /// Only keys of this mutation, such as `charge`.
    #[arg(long)]
    pub(crate) mutation: Option<String>,
    /// Only keys of this client, by its hashed id.
    #[arg(long, conflicts_with = "token")]
    pub(crate) client: Option<String>,
    /// Only keys of the client with this bearer token.
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Only keys that were first claimed at least this long ago.
    #[arg(long, value_name = "DURATION")]
    pub(crate) older_than: Option<Duration>,
    /// At most so many keys.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
}

#[derive(Debug, Args)]
pub(crate) struct SettleOptions {
    /// CLIENT KEY OUTCOME, or KEY OUTCOME with --token; the outcome is one of `succeeded`, `failed`, `released`.
    #[arg(value_name = "CLIENT KEY OUTCOME", num_args = 2..=3, required = true)]
    pub(crate) words: Vec<String>,
    /// The client's bearer token, in place of CLIENT.
    #[arg(long)]
    pub(crate) token: Option<String>,
    /// Why, for whoever looks at the key later; clients don't see it.
    #[arg(long)]
    pub(crate) reason: String,
    /// What retries are to get. For `succeeded` the mutation's value as a JSON object, by field names (without it,
    /// retries are told that the response was not kept); for `failed` `{"message": …, "code": …}`.
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub(crate) response: Option<serde_json::Value>,
    /// How long that is replayed, from now.
    #[arg(long, value_name = "DURATION", default_value_t = PolicyOptions::default().retention)]
    pub(crate) retention: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct KeyOptions {
    /// CLIENT KEY, or KEY alone with --token.
    #[arg(value_name = "CLIENT KEY", num_args = 1..=2, required = true)]
    pub(crate) words: Vec<String>,
    /// The client's bearer token, in place of CLIENT.
    #[arg(long)]
    pub(crate) token: Option<String>,
}

fn positive(text: &str) -> Result<Duration, String> {
    let duration: Duration = text.parse().map_err(|error: humantime::DurationError| error.to_string())?;
    if duration.is_zero() { Err("must be more than nothing".to_owned()) } else { Ok(duration) }
}

fn state(word: &str) -> Result<State, String> {
    State::parse(word).ok_or_else(|| format!("is one of {}", State::ALL.map(State::as_str).join(", ")))
}

fn json(text: &str) -> Result<serde_json::Value, serde_json::Error> {
    serde_json::from_str(text)
}
