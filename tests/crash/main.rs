//! A process that dies at every instant of a mutation, one after the other, and what its key comes to.
//!
//! The test's own binary is started again as the process that dies; the gateway stays in the test, and is the judge.

#[path = "../shared/database.rs"]
mod database;
mod gateway;
mod instants;
mod shop;
#[path = "../shared/watched.rs"]
mod watched;

/// Not a law: the process that the laws start. Without their word it has nothing to do.
#[test]
fn the_process_that_dies() {
    if let Ok(order) = std::env::var(shop::ORDER) {
        shop::die_in_the_middle(&order);
    }
}
