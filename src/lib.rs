//! stub
pub mod attempt;
pub mod claim;
pub mod error;
pub mod fingerprint;
mod flight;
pub mod key;
pub mod policy;
mod protocol;
pub mod record;
pub mod state;
pub mod store;
