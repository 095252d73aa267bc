//! Real servers as processes of their own: races between them, kill -9, stopped owners, lost databases, poolers.
//!
//! The servers are the `payments` example; its gateway is a process too, outlives them, and is the judge.

mod clients;
mod clocks;
#[path = "../shared/database.rs"]
mod database;
mod kills;
mod lost_database;
mod pooler;
mod process;
#[allow(dead_code, reason = "each kind of test uses a part")]
#[path = "../shared/proxy.rs"]
mod proxy;
mod races;
mod stopped;
mod sweepers;
