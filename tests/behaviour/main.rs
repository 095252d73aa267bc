//! The crate's behaviour, against real databases. Test names are laws.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub, reason = "tests")]
#![recursion_limit = "256"]

mod support;

mod concurrency;
mod errors;
mod faults;
mod fingerprint;
mod keys;
mod late;
mod recovery;
mod replay;
mod shapes;
mod tables;
mod time;
mod trips;
