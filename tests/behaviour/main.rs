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

mod by_hand;
mod concurrency;
mod conformance;
mod documents;
mod errors;
mod fate;
mod faults;
mod fingerprint;
mod ground;
mod hung;
mod keys;
mod late;
mod linear;
mod misuse;
mod payloads;
#[allow(dead_code, reason = "each kind of test uses a part")]
#[path = "../shared/proxy.rs"]
mod proxy;
mod recovery;
mod replay;
mod shapes;
mod siblings;
mod steps;
mod tables;
mod time;
mod trips;
