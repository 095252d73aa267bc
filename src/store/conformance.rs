//! The laws of [`Store`] as functions that run against any backend, for its author's tests.
//!
//! Each law takes keys of its own, so that they can run on a database in use, and in any order. [`check`] runs all.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use async_graphql_idempotency::{SqliteStore, store::conformance};
//!
//! let store = SqliteStore::in_memory().await?;
//! conformance::check(&store).await?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```

#![allow(clippy::missing_errors_doc, reason = "every law fails in the same way: see `Broken`")]

use std::time::Duration;

use uuid::Uuid;

use crate::{
    claim::{ClaimRequest, Verdict},
    error::ErrorCode,
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    policy::OnCrash,
    record::{Outcome, Owner, Record, RecoveryPoint, Settlement, StepKind},
    state::State,
    store::{Begun, Claimed, Store, StoreError},
};

mod claims;
mod recovery;
mod transactions;

pub use claims::*;
pub use recovery::*;
pub use transactions::*;

/// A law that a backend breaks.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// It answered otherwise than the law says.
    #[error("{law}: {what}")]
    Law {
        /// The law.
        law: &'static str,
        /// What was seen.
        what: String,
    },
    /// It could not be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A key or client of the suite's own was refused.
    #[error("the suite made an invalid key or client")]
    Suite,
}

/// Runs every law.
///
/// # Errors
/// The first law that is broken.
pub async fn check<S: Store>(store: &S) -> Result<(), Broken> {
    of_many_claims_one_is_taken(store).await?;
    a_claim_tells_reuse_at_once_in_every_state(store).await?;
    a_finished_record_is_replayed_and_never_changes(store).await?;
    an_older_attempt_can_write_nothing(store).await?;
    a_released_key_is_free_and_its_old_owner_is_nobody(store).await?;
    bytes_come_back_as_they_were(store).await?;
    the_longest_names_fit(store).await?;
    a_release_keeps_finished_steps(store).await?;
    a_lapsed_lease_is_honoured_without_a_sweeper(store).await?;
    a_renewed_lease_does_not_lapse(store).await?;
    retention_ends_in_a_tombstone_and_then_in_nothing(store).await?;
    open_records_are_never_purged(store).await?;
    steps_are_kept_in_order_and_their_results_replaced(store).await?;
    two_sweepers_never_get_the_same_record(store).await?;
    a_lost_attempt_that_is_released_keeps_its_request_id(store).await?;
    a_transaction_is_visible_whole_or_not_at_all(store).await?;
    a_transaction_holds_its_key_without_making_others_wait(store).await?;
    a_key_that_was_settled_meanwhile_undoes_the_transaction(store).await?;
    a_local_step_commits_with_its_point_or_not_at_all(store).await?;
    Ok(())
}

macro_rules! ensure {
    ($law:ident, $condition:expr, $($seen:tt)+) => {
        if !$condition {
            return Err(Broken::Law { law: stringify!($law), what: format!($($seen)+) });
        }
    };
}

use ensure;

/// A lease that no law outlasts, and one that a law waits for.
const LONG: Duration = Duration::from_mins(1);
const SHORT: Duration = Duration::from_millis(50);

fn request() -> Result<ClaimRequest, Broken> {
    Ok(ClaimRequest {
        client: ClientId::new(format!("conformance {}", Uuid::new_v4())).map_err(|_| Broken::Suite)?,
        key: IdempotencyKey::new(Uuid::new_v4().to_string()).map_err(|_| Broken::Suite)?,
        mutation: "law".into(),
        fingerprint: Fingerprint { version: Fingerprint::VERSION, hash: [7; 32] },
        selection: "id".into(),
        request_id: Uuid::new_v4(),
        lease: LONG,
        on_crash: OnCrash::Hold,
        request: None,
        resumes: false,
    })
}

fn finish(response: &[u8]) -> Settlement {
    Settlement::Finish { outcome: Outcome::Succeeded, response: Some(response.to_vec()), retention: LONG, reason: None }
}

fn release() -> Settlement {
    Settlement::Release { retention: LONG, reason: None }
}

fn point(owner: &Owner, name: &str, kind: StepKind, result: Option<&str>) -> RecoveryPoint {
    RecoveryPoint { name: name.to_owned(), kind, attempt: owner.attempt, result: result.map(str::to_owned) }
}

async fn take<S: Store>(store: &S, request: &ClaimRequest, law: &'static str) -> Result<Owner, Broken> {
    match store.claim(request).await? {
        Claimed::Taken { owner, .. } => Ok(owner),
        other => Err(Broken::Law { law, what: format!("a key that should be free was not: {other:?}") }),
    }
}

async fn verdict<S: Store>(store: &S, request: &ClaimRequest, law: &'static str) -> Result<Verdict, Broken> {
    match store.claim(request).await? {
        Claimed::Found { verdict, .. } => Ok(verdict),
        other => Err(Broken::Law { law, what: format!("a record that should be there was not found: {other:?}") }),
    }
}

async fn record<S: Store>(store: &S, request: &ClaimRequest) -> Result<Option<Record>, Broken> {
    Ok(store.find(&request.client, &request.key).await?.map(|(record, _)| record))
}

fn is_refused(verdict: &Verdict, code: ErrorCode) -> bool {
    matches!(verdict, Verdict::Refuse(error) if error.code == code)
}
