//! Who gets a key, and what the owner and everybody else may write.

use super::{
    Broken, ClaimRequest, Claimed, ClientId, ErrorCode, IdempotencyKey, LONG, OnCrash, SHORT, StepKind, Store,
    StoreError, Uuid, Verdict, ensure, finish, is_refused, point, record, release, request, take, verdict,
};

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
