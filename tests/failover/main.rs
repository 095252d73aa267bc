//! A database that fails over: its primary dies under load, again and again, and its standby takes its place; or it
//! takes no writes for a while.
//!
//! PostgreSQL servers of the tests' own, the `payments` example as processes before them, and its gateway as the judge.
#![cfg(unix)]

mod buyers;
#[allow(dead_code, reason = "the servers' tests use the rest")]
#[path = "../server/clients.rs"]
mod clients;
mod durable;
#[path = "../shared/installation.rs"]
mod installation;
mod member;
#[allow(dead_code, reason = "the servers' tests use the rest")]
#[path = "../server/process.rs"]
mod process;
mod promoted;
#[allow(dead_code, reason = "each kind of test uses a part")]
#[path = "../shared/proxy.rs"]
mod proxy;
mod read_only;

/// One test at a time: each of them measures times, and loads the machine.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
