//! Faults that a backend could have, and the law of the conformance suite that catches each.
//!
//! Each fault has a process of its own: the laws that sweep take turns within one. `FAULT` names the only one to try.
#![allow(missing_docs, unreachable_pub, reason = "tests")]
#![allow(clippy::too_many_lines, reason = "a list of faults is as long as it is")]
#![allow(clippy::match_bool, clippy::needless_for_each, reason = "a fault is written as what it changes")]
#![allow(clippy::format_push_string, clippy::struct_field_names, reason = "names and statements are the port's own")]
#![allow(clippy::unused_self, clippy::needless_pass_by_value, reason = "every fault has the same shape")]

use std::{
    collections::BTreeSet,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use async_graphql_idempotency::store::conformance::{self, Broken, Effects};
use sqlx::SqliteConnection;

mod attempts;
mod claims;
mod mutant;
mod names;
mod reads;
mod settlements;
mod sweeps;
mod transactions;

use mutant::{Fault, How, Mutant};

/// Faults that are tried at once.
const WORKERS: usize = 20;

const FAULT: &str = "FAULT";

fn faults() -> Vec<Fault> {
    let parts = [
        claims::faults(),
        names::faults(),
        transactions::faults(),
        attempts::faults(),
        settlements::faults(),
        reads::faults(),
        sweeps::faults(),
    ];
    parts.concat()
}

/// The first law that a store with a fault breaks.
fn broken(how: How) -> Option<Broken> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let directory = tempfile::tempdir().unwrap();
        let mutant = Mutant::open(how, &directory).await;
        let pool = mutant.inner.pool().clone();
        let effects = Effects::new(
            |connection: &mut SqliteConnection, label| {
                Box::pin(async move {
                    sqlx::query("INSERT INTO effects VALUES ($1)").bind(label).execute(connection).await?;
                    Ok(())
                })
            },
            move |label| {
                let pool = pool.clone();
                Box::pin(async move {
                    let count = sqlx::query_scalar("SELECT count(*) FROM effects WHERE label = $1");
                    Ok(count.bind(label).fetch_one(&pool).await?)
                })
            },
        );
        let checked = tokio::time::timeout(Duration::from_mins(1), conformance::check(&mutant, &effects)).await;
        checked.expect("the suite comes to an end").err()
    })
}

#[test]
fn without_a_fault_every_law_holds() {
    let broken = broken(How::Nothing);
    assert!(broken.is_none(), "{broken:?}");
}

#[test]
fn every_fault_has_a_name_of_its_own() {
    let names: BTreeSet<_> = faults().iter().map(|fault| fault.0).collect();
    assert_eq!(names.len(), faults().len());
}

/// Not a law: the process of one fault. Without a fault's name it has nothing to do.
#[test]
fn one_fault() {
    let Ok(name) = std::env::var(FAULT) else { return };
    let (_, how) = faults().into_iter().find(|fault| fault.0 == name).unwrap_or_else(|| panic!("no fault is {name}"));
    let broken = broken(how).unwrap_or_else(|| panic!("no law catches it: {name}"));
    let said: String = broken.to_string().chars().take(200).collect();
    println!("\ncaught: {said}");
}

#[test]
fn every_fault_breaks_a_law() {
    if std::env::var(FAULT).is_ok() {
        return;
    }
    let faults = faults();
    let (next, uncaught) = (AtomicUsize::new(0), std::sync::Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((name, _)) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match caught(name) {
                        Ok(law) => println!("{name}: {law}"),
                        Err(said) => uncaught.lock().unwrap().push(format!("{name}\n{said}")),
                    }
                }
            });
        }
    });
    let uncaught = uncaught.into_inner().unwrap();
    assert!(uncaught.is_empty(), "{} of {} faults:\n{}", uncaught.len(), faults.len(), uncaught.join("\n"));
}

/// The law that catches a fault, or what its process said.
fn caught(name: &str) -> Result<String, String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let ran = command.args(["--exact", "one_fault", "--nocapture"]).env(FAULT, name).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    match said.lines().find_map(|line| line.strip_prefix("caught: ")) {
        Some(law) if ran.status.success() => Ok(law.to_owned()),
        _ => Err(String::from_utf8_lossy(&ran.stderr).chars().take(400).collect()),
    }
}
