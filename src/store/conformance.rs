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

macro_rules! laws {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Runs every law.
        ///
        /// # Errors
        /// The first law that is broken.
        pub async fn check<S: Store>(store: &S) -> Result<(), Broken> {
            $($name(store).await?;)*
            Ok(())
        }
    };
}

laws!(
    of_many_claims_one_is_taken,
    a_claim_tells_reuse_at_once_in_every_state,
    a_finished_record_is_replayed_and_never_changes,
    an_older_attempt_can_write_nothing,
    a_released_key_is_free_and_its_old_owner_is_nobody,
    a_release_keeps_finished_steps,
    a_lapsed_lease_is_honoured_without_a_sweeper,
    a_renewed_lease_does_not_lapse,
    retention_ends_in_a_tombstone_and_then_in_nothing,
    open_records_are_never_purged,
    a_transaction_is_visible_whole_or_not_at_all,
    a_transaction_holds_its_key_without_making_others_wait,
    a_key_that_was_settled_meanwhile_undoes_the_transaction,
    a_local_step_commits_with_its_point_or_not_at_all,
    steps_are_kept_in_order_and_their_results_replaced,
    two_sweepers_never_get_the_same_record,
    bytes_come_back_as_they_were,
    the_longest_names_fit,
);

macro_rules! ensure {
    ($law:ident, $condition:expr, $($seen:tt)+) => {
        if !$condition {
            return Err(Broken::Law { law: stringify!($law), what: format!($($seen)+) });
        }
    };
}

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
    Ok(store.find(&request.client, &request.key).await?.0)
}

fn is_refused(verdict: &Verdict, code: ErrorCode) -> bool {
    matches!(verdict, Verdict::Refuse(error) if error.code == code)
}

/// Law 1.
pub async fn of_many_claims_one_is_taken<S: Store>(store: &S) -> Result<(), Broken> {
    let request = request()?;
    let claims: Vec<_> = (0..16)
        .map(|_| {
            let (store, request) = (store.clone(), ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() });
            tokio::spawn(async move { store.claim(&request).await })
        })
        .collect();
    let (mut taken, mut told) = (0, 0);
    for claim in claims {
        match claim.await.map_err(|panic| StoreError::Unavailable(panic.into()))?? {
            Claimed::Taken { .. } => taken += 1,
            Claimed::Found { verdict: Verdict::InProgress(left), .. } if left <= LONG => told += 1,
            Claimed::Contended => told += 1,
            found @ Claimed::Found { .. } => ensure!(of_many_claims_one_is_taken, false, "{found:?}"),
        }
    }
    ensure!(of_many_claims_one_is_taken, (taken, told) == (1, 15), "{taken} were taken, {told} told");
    Ok(())
}

/// The fingerprint is compared before the state is looked at.
pub async fn a_claim_tells_reuse_at_once_in_every_state<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_claim_tells_reuse_at_once_in_every_state";
    let request = request()?;
    let mut other = request.clone();
    other.fingerprint.hash = [8; 32];
    let owner = take(store, &request, law).await?;
    for settlement in [None, Some(finish(b"x"))] {
        if let Some(settlement) = settlement {
            store.settle(&owner, &settlement).await?;
        }
        let told = verdict(store, &other, law).await?;
        ensure!(a_claim_tells_reuse_at_once_in_every_state, is_refused(&told, ErrorCode::KeyReused), "{told:?}");
    }
    Ok(())
}

/// Law 5.
pub async fn a_finished_record_is_replayed_and_never_changes<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_finished_record_is_replayed_and_never_changes";
    let request = request()?;
    let owner = take(store, &request, law).await?;
    let settled = store.settle(&owner, &finish(b"first")).await?;
    let before = record(store, &request).await?;
    let again = store.settle(&owner, &finish(b"second")).await?
        || store.settle(&owner, &release()).await?
        || store.renew(&owner, LONG).await?
        || store.resolve(&owner, &finish(b"third")).await?
        || store.record(&request, &finish(b"fourth")).await?;
    let told = verdict(store, &request, law).await?;
    let after = record(store, &request).await?;
    ensure!(
        a_finished_record_is_replayed_and_never_changes,
        settled && !again && told == Verdict::Replay && before == after,
        "settled {settled}, again {again}, {told:?}, {before:?} became {after:?}"
    );
    Ok(())
}

/// Law 3.
pub async fn an_older_attempt_can_write_nothing<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "an_older_attempt_can_write_nothing";
    let request = ClaimRequest { lease: SHORT, on_crash: OnCrash::Resume, ..request()? };
    let old = take(store, &request, law).await?;
    tokio::time::sleep(SHORT * 2).await;
    let new = take(store, &ClaimRequest { lease: LONG, ..request.clone() }, law).await?;
    ensure!(
        an_older_attempt_can_write_nothing,
        new.attempt == old.attempt + 1 && new.request_id == old.request_id,
        "{old:?} was followed by {new:?}"
    );
    let before = record(store, &request).await?;
    let step = point(&old, "step", StepKind::Local, Some("1"));
    let wrote = store.renew(&old, LONG).await?
        || store.settle(&old, &finish(b"late")).await?
        || store.settle(&old, &release()).await?
        || store.checkpoint(&old, &step, LONG).await?
        || store.checkpoint_with(store.transaction().await?, &old, &step, LONG).await?;
    let points = store.points(&request.client, &request.key).await?;
    let after = record(store, &request).await?;
    ensure!(
        an_older_attempt_can_write_nothing,
        !wrote && points.is_empty() && before == after,
        "wrote {wrote}, {points:?}, {before:?} became {after:?}"
    );
    ensure!(
        an_older_attempt_can_write_nothing,
        store.settle(&new, &finish(b"new")).await?,
        "the latest attempt could not settle"
    );
    Ok(())
}

/// Law 3: attempts count from 1 again once a key was released, and the old owner must not pass for the new.
pub async fn a_released_key_is_free_and_its_old_owner_is_nobody<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_released_key_is_free_and_its_old_owner_is_nobody";
    let request = request()?;
    let old = take(store, &request, law).await?;
    let released = store.settle(&old, &release()).await?;
    let gone = record(store, &request).await?.is_none();
    let new = take(store, &ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() }, law).await?;
    let wrote = store.settle(&old, &finish(b"late")).await? || store.renew(&old, LONG).await?;
    ensure!(
        a_released_key_is_free_and_its_old_owner_is_nobody,
        released && gone && !wrote && new.attempt == 1,
        "released {released}, gone {gone}, wrote {wrote}, {new:?}"
    );
    Ok(())
}

/// Releasing never forgets a finished step.
pub async fn a_release_keeps_finished_steps<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_release_keeps_finished_steps";
    let request = request()?;
    let owner = take(store, &request, law).await?;
    store.checkpoint(&owner, &point(&owner, "a", StepKind::Remote, Some("1")), LONG).await?;
    store.checkpoint(&owner, &point(&owner, "b", StepKind::Remote, None), LONG).await?;
    store.settle(&owner, &release()).await?;
    let state = record(store, &request).await?.map(|record| record.state);
    let next = take(store, &request, law).await?;
    let points = store.points(&request.client, &request.key).await?;
    ensure!(
        a_release_keeps_finished_steps,
        state == Some(State::Released)
            && next.attempt == 2
            && next.request_id == owner.request_id
            && points.iter().map(|point| (&*point.name, point.result.as_deref())).eq([("a", Some("1")), ("b", None)]),
        "{state:?}, {next:?}, {points:?}"
    );
    Ok(())
}

/// Laws 2 and 3: a lapsed lease frees nothing by itself, and holds nothing either.
pub async fn a_lapsed_lease_is_honoured_without_a_sweeper<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_lapsed_lease_is_honoured_without_a_sweeper";
    let request = ClaimRequest { lease: SHORT, ..request()? };
    take(store, &request, law).await?;
    tokio::time::sleep(SHORT * 2).await;
    let held = verdict(store, &request, law).await?;
    let next = take(store, &ClaimRequest { on_crash: OnCrash::Release, ..request.clone() }, law).await?;
    ensure!(
        a_lapsed_lease_is_honoured_without_a_sweeper,
        is_refused(&held, ErrorCode::OutcomeUnknown) && next.attempt == 2,
        "{held:?}, {next:?}"
    );
    Ok(())
}

/// A lease is extended from the moment of its renewal.
pub async fn a_renewed_lease_does_not_lapse<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_renewed_lease_does_not_lapse";
    let request = ClaimRequest { lease: SHORT, ..request()? };
    let owner = take(store, &request, law).await?;
    let renewed = store.renew(&owner, LONG).await?;
    tokio::time::sleep(SHORT * 2).await;
    let told = verdict(store, &request, law).await?;
    ensure!(
        a_renewed_lease_does_not_lapse,
        renewed && matches!(told, Verdict::InProgress(left) if left <= LONG && left > LONG / 2),
        "renewed {renewed}, {told:?}"
    );
    Ok(())
}

/// Law 5, and the way of a record to its end.
pub async fn retention_ends_in_a_tombstone_and_then_in_nothing<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "retention_ends_in_a_tombstone_and_then_in_nothing";
    let request = request()?;
    let owner = take(store, &request, law).await?;
    let settlement = Settlement::Finish {
        outcome: Outcome::Failed,
        response: Some(b"secret".to_vec()),
        retention: SHORT,
        reason: None,
    };
    store.settle(&owner, &settlement).await?;
    tokio::time::sleep(SHORT * 2).await;
    let unswept = verdict(store, &request, law).await?;
    while store.expire(100, Duration::ZERO).await? == 100 {}
    let swept = verdict(store, &request, law).await?;
    let tombstone = record(store, &request).await?;
    while store.purge(100).await? == 100 {}
    let purged = record(store, &request).await?;
    ensure!(
        retention_ends_in_a_tombstone_and_then_in_nothing,
        is_refused(&unswept, ErrorCode::KeyExpired)
            && is_refused(&swept, ErrorCode::KeyExpired)
            && tombstone.as_ref().is_some_and(|record| record.state == State::Tombstone && record.response.is_none())
            && purged.is_none(),
        "{unswept:?}, {swept:?}, {tombstone:?}, {purged:?}"
    );
    Ok(())
}

/// Law 6.
pub async fn open_records_are_never_purged<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "open_records_are_never_purged";
    let running = ClaimRequest { lease: Duration::from_millis(1), ..request()? };
    take(store, &running, law).await?;
    let held = request()?;
    let owner = take(store, &held, law).await?;
    store.settle(&owner, &Settlement::Hold { reason: "unknown".to_owned() }).await?;
    tokio::time::sleep(Duration::from_millis(5)).await;
    while store.expire(100, Duration::ZERO).await? == 100 {}
    while store.purge(100).await? == 100 {}
    while store.lapse(100).await? == 100 {}
    for request in [&running, &held] {
        let found = record(store, request).await?;
        ensure!(
            open_records_are_never_purged,
            found.as_ref().is_some_and(|record| record.state == State::NeedsRecovery),
            "{found:?}"
        );
    }
    Ok(())
}

/// Law 4.
pub async fn a_transaction_is_visible_whole_or_not_at_all<S: Store>(store: &S) -> Result<(), Broken> {
    let request = request()?;
    for undone in [true, false] {
        let Begun::Taken { transaction, .. } = store.begin(&request).await? else {
            return Err(Broken::Law {
                law: "a_transaction_is_visible_whole_or_not_at_all",
                what: "a free key was not taken".to_owned(),
            });
        };
        if undone {
            store.rollback(transaction).await?;
        } else {
            store.commit(transaction, &request, &finish(b"whole")).await?;
        }
        let found = record(store, &request).await?;
        ensure!(a_transaction_is_visible_whole_or_not_at_all, found.is_none() == undone, "undone {undone}, {found:?}");
    }
    let told = store.begin(&request).await?;
    ensure!(
        a_transaction_is_visible_whole_or_not_at_all,
        matches!(told, Begun::Found { verdict: Verdict::Replay, .. }),
        "a finished key was not found"
    );
    Ok(())
}

/// A transaction keeps its key from others without blocking them in the database. A backend with one writer or one
/// connection makes them wait for that instead; it is asked with a timeout, and may not answer before the transaction
/// has ended.
pub async fn a_transaction_holds_its_key_without_making_others_wait<S: Store>(store: &S) -> Result<(), Broken> {
    let request = request()?;
    let Begun::Taken { transaction, .. } = store.begin(&request).await? else {
        return Err(Broken::Law {
            law: "a_transaction_holds_its_key_without_making_others_wait",
            what: "a free key was not taken".to_owned(),
        });
    };
    if let Ok(second) = tokio::time::timeout(SHORT * 4, store.begin(&request)).await {
        ensure!(
            a_transaction_holds_its_key_without_making_others_wait,
            !matches!(second?, Begun::Taken { .. }),
            "a key was taken by two transactions"
        );
    }
    store.commit(transaction, &request, &finish(b"x")).await?;
    Ok(())
}

/// Law 1, across the two kinds of claim: what commits first stands.
pub async fn a_key_that_was_settled_meanwhile_undoes_the_transaction<S: Store>(store: &S) -> Result<(), Broken> {
    let request = request()?;
    let Begun::Taken { transaction, .. } = store.begin(&request).await? else {
        return Err(Broken::Law {
            law: "a_key_that_was_settled_meanwhile_undoes_the_transaction",
            what: "a free key was not taken".to_owned(),
        });
    };
    let settlement = finish(b"first");
    let Ok(first) = tokio::time::timeout(SHORT * 4, store.record(&request, &settlement)).await else {
        // One writer: nobody can come in between.
        return Ok(store.rollback(transaction).await?);
    };
    let first = first?;
    let second = store.commit(transaction, &request, &finish(b"second")).await;
    let kept = record(store, &request).await?.and_then(|record| record.response);
    ensure!(
        a_key_that_was_settled_meanwhile_undoes_the_transaction,
        first && matches!(second, Err(StoreError::RolledBack(_))) && kept.as_deref() == Some(b"first"),
        "first {first}, {second:?}, kept {kept:?}"
    );
    Ok(())
}

/// Law 4, for steps.
pub async fn a_local_step_commits_with_its_point_or_not_at_all<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_local_step_commits_with_its_point_or_not_at_all";
    let request = request()?;
    let owner = take(store, &request, law).await?;
    drop(store.transaction().await?);
    let none = store.points(&request.client, &request.key).await?;
    let step = point(&owner, "step", StepKind::Local, Some("{\"a\":1}"));
    let written = store.checkpoint_with(store.transaction().await?, &owner, &step, LONG).await?;
    let points = store.points(&request.client, &request.key).await?;
    ensure!(
        a_local_step_commits_with_its_point_or_not_at_all,
        none.is_empty() && written && points == [step.clone()],
        "{none:?}, written {written}, {points:?}"
    );
    Ok(())
}

/// A step that was begun keeps its place when it finishes.
pub async fn steps_are_kept_in_order_and_their_results_replaced<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "steps_are_kept_in_order_and_their_results_replaced";
    let request = request()?;
    let owner = take(store, &request, law).await?;
    let steps = [
        point(&owner, "z", StepKind::Remote, None),
        point(&owner, "a", StepKind::Local, Some("1")),
        point(&owner, "z", StepKind::Remote, Some("2")),
    ];
    for step in &steps {
        store.checkpoint(&owner, step, LONG).await?;
    }
    let points = store.points(&request.client, &request.key).await?;
    ensure!(
        steps_are_kept_in_order_and_their_results_replaced,
        points == [steps[2].clone(), steps[1].clone()],
        "{points:?}"
    );
    Ok(())
}

/// Law 7.
pub async fn two_sweepers_never_get_the_same_record<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "two_sweepers_never_get_the_same_record";
    let mut keys = Vec::new();
    for _ in 0..10 {
        let request = request()?;
        let owner = take(store, &request, law).await?;
        store.settle(&owner, &Settlement::Hold { reason: "unknown".to_owned() }).await?;
        keys.push(request.key);
    }
    let sweepers: Vec<_> = (0..3)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let records = store.recoverable(2, LONG).await?;
                    if records.is_empty() {
                        return Ok::<_, StoreError>(mine);
                    }
                    mine.extend(records.into_iter().map(|record| record.key));
                }
            })
        })
        .collect();
    let mut handed = Vec::new();
    for sweeper in sweepers {
        handed.extend(sweeper.await.map_err(|panic| StoreError::Unavailable(panic.into()))??);
    }
    // Records of others may be handed out here too; the law's own are handed out once each.
    handed.retain(|key| keys.contains(key));
    handed.sort();
    let handings = handed.len();
    handed.dedup();
    ensure!(
        two_sweepers_never_get_the_same_record,
        handings == handed.len() && handings <= keys.len(),
        "{handings} handings of {} keys",
        handed.len()
    );
    Ok(())
}

/// A response is opaque: whatever bytes, they come back.
pub async fn bytes_come_back_as_they_were<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "bytes_come_back_as_they_were";
    for response in [&b""[..], &[0, 255, 128, 10], "\u{0}é\u{10ffff}".as_bytes(), &vec![b'x'; 1 << 20]] {
        let request = ClaimRequest { request: Some(response.to_vec()), ..request()? };
        let owner = take(store, &request, law).await?;
        let open = record(store, &request).await?;
        store.settle(&owner, &finish(response)).await?;
        let finished = record(store, &request).await?;
        ensure!(
            bytes_come_back_as_they_were,
            open.is_some_and(|record| record.request.as_deref() == Some(response))
                && finished
                    .is_some_and(|record| record.response.as_deref() == Some(response) && record.request.is_none()),
            "{} bytes did not",
            response.len()
        );
    }
    Ok(())
}

/// The longest key with the longest client.
pub async fn the_longest_names_fit<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "the_longest_names_fit";
    let key: String = ('!'..='~').cycle().take(IdempotencyKey::MAX_LENGTH).collect();
    let request = ClaimRequest {
        client: ClientId::new(format!("{}{}", Uuid::new_v4(), "é".repeat(109))).map_err(|_| Broken::Suite)?,
        key: IdempotencyKey::new(key).map_err(|_| Broken::Suite)?,
        ..request()?
    };
    let owner = take(store, &request, law).await?;
    store.settle(&owner, &finish(b"x")).await?;
    let told = verdict(store, &request, law).await?;
    ensure!(the_longest_names_fit, told == Verdict::Replay, "{told:?}");
    Ok(())
}
