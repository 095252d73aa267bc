//! The crate's behaviour, against real databases. Test names are laws.
#![allow(missing_docs, unreachable_pub, reason = "tests")]
#![allow(
    clippy::too_many_arguments,
    clippy::unused_async,
    clippy::needless_pass_by_value,
    reason = "a schema's resolvers have the shape that the engine and the case ask for"
)]
#![recursion_limit = "256"]

mod support;

mod concurrency;
mod conformance;
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
