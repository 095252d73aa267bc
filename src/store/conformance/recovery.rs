//! Leases, steps and sweeps: what is left of an attempt, and what becomes of it.

use uuid::Uuid;

use super::{
    Broken, ClaimRequest, Duration, ErrorCode, LONG, OnCrash, Outcome, SHORT, Settlement, State, StepKind, Store,
    StoreError, Verdict, ensure, is_refused, point, record, release, request, take, verdict,
};

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

/// A call of a lost attempt may still be on its way: the next attempt must be told apart from it by nobody.
pub async fn a_lost_attempt_that_is_released_keeps_its_request_id<S: Store>(store: &S) -> Result<(), Broken> {
    let law = "a_lost_attempt_that_is_released_keeps_its_request_id";
    let request = request()?;
    let lost = take(store, &request, law).await?;
    store.settle(&lost, &Settlement::Hold { reason: "unknown".to_owned() }).await?;
    let released = store.resolve(&lost, &release()).await?;
    let next = take(store, &ClaimRequest { request_id: Uuid::new_v4(), ..request }, law).await?;
    ensure!(
        a_lost_attempt_that_is_released_keeps_its_request_id,
        released && next.request_id == lost.request_id && next.attempt == 2,
        "released {released}, {lost:?} was followed by {next:?}"
    );
    Ok(())
}
