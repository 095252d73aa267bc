//! Who gets a key, and what everybody else finds.

use super::law::*;

laws! {
    /// Law 1.
    of_many_claims_one_is_taken(law) {
        let request = law.request();
        let claims = (0..16).map(|_| {
            let (store, request) = (law.store.clone(), ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() });
            tokio::spawn(async move { store.claim(&request).await })
        });
        let (mut taken, mut told) = (0, 0);
        for claim in join(claims.collect()).await? {
            match law.told(claim)? {
                Claimed::Taken(_) => taken += 1,
                Claimed::Busy { reused: false } => told += 1,
                Claimed::Found(found) if found.record.state == State::InProgress => told += 1,
                other => ensure!(law, false, "{other:?}"),
            }
        }
        ensure!(law, (taken, told) == (1, 15), "{taken} were taken, {told} told");
    }

    /// What the record of a fresh claim has in it.
    a_claim_makes_a_record_of_its_request(law) {
        let request = law.request();
        let taken = law.take(&request).await?;
        let Reading { record, now } = law.reading(&request).await?;
        let expected = Record {
            client: request.client.clone(),
            key: request.key.clone(),
            mutation: request.mutation.to_string(),
            fingerprint: request.fingerprint,
            selection: request.selection.to_string(),
            state: State::InProgress,
            request_id: request.request_id,
            attempt: 1,
            due_at: record.due_at,
            response: None,
            request: request.request.clone(),
            reason: None,
            recoveries: 0,
            created_at: taken.created_at,
            ended_at: None,
        };
        ensure!(law, *record == expected, "{record:?} and not {expected:?}");
        ensure!(law, taken.owner == request.first_owner() && taken.from.is_none() && taken.steps.is_empty(), "{taken:?}");
        ensure!(law, is_now(record.created_at, now) && is_ahead(record.due_at, now, LONG), "at {now:?} {record:?}");
        let without = ClaimRequest { request: None, ..law.request() };
        law.take(&without).await?;
        let kept = law.record(&without).await?.request;
        ensure!(law, kept.is_none(), "{kept:?} was kept of a request that has nothing to keep");
    }

    /// A resumption never makes a record.
    a_resumption_makes_no_record(law) {
        let request = ClaimRequest { resumes: true, ..law.request() };
        let told = law.claim(&request).await?;
        let found = law.find(&request).await?;
        ensure!(law, matches!(told, Claimed::Busy { reused: false }) && found.is_none(), "{told:?}, {found:?}");
        // It takes over what is there.
        let lost = ClaimRequest { lease: SHORT, on_crash: OnCrash::Resume, ..law.request() };
        law.take(&lost).await?;
        law.rest().await;
        let resumed = law.take(&ClaimRequest { resumes: true, ..lost }).await?;
        ensure!(law, resumed.owner.attempt == 2, "{resumed:?}");
    }

    /// The fingerprint is compared before the state is looked at.
    another_payload_is_told_as_reuse_in_every_state(law) {
        for settlement in [None, Some(finish(b"x")), Some(settling(b"x", LONG)), Some(release(Some(LONG))), Some(hold())] {
            let request = law.request();
            let owner = law.owner(&request).await?;
            if let Some(settlement) = &settlement {
                law.settle(&owner, settlement).await?;
            }
            let mut other = ClaimRequest { on_crash: OnCrash::Release, ..request.clone() };
            other.fingerprint.hash = [8; 32];
            let unchanged = law.is_unchanged(&request, async {
                let code = law.code(&other).await?;
                ensure!(law, code == Some(ErrorCode::KeyReused), "{settlement:?}: {code:?}");
                Ok(())
            });
            ensure!(law, unchanged.await?, "{settlement:?}: a claim with another payload changed something");
        }
    }

    /// Keys and clients are compared byte for byte, and never run together.
    keys_and_clients_are_compared_byte_for_byte(law) {
        let base = law.request();
        let named = |client: String, key: String| -> Result<ClaimRequest, Broken> {
            Ok(ClaimRequest {
                client: ClientId::new(client).map_err(|error| Broken::Suite(error.into()))?,
                key: IdempotencyKey::new(key).map_err(|error| Broken::Suite(error.into()))?,
                request_id: Uuid::new_v4(),
                ..base.clone()
            })
        };
        let (client, key) = (base.client.as_str(), base.key.as_str());
        let composed = ("\u{e9}", "e\u{301}");
        for request in [
            named(client.to_owned(), key.to_owned())?,
            named(client.to_uppercase(), key.to_owned())?,
            named(client.to_owned(), format!("{key}A"))?,
            named(client.to_owned(), format!("{key}a"))?,
            named(format!("{client} "), key.to_owned())?,
            named(format!("{client}:{key}"), key.to_owned())?,
            named(client.to_owned(), format!("{key}:{key}"))?,
            named(format!("{client}{}", composed.0), key.to_owned())?,
            named(format!("{client}{}", composed.1), key.to_owned())?,
            named(format!("{client}\u{ea}"), key.to_owned())?,
        ] {
            let owner = law.owner(&request).await?;
            ensure!(law, owner.attempt == 1 && owner.request_id == request.request_id, "{owner:?}");
            let record = law.record(&request).await?;
            ensure!(law, (&record.client, &record.key) == (&request.client, &request.key), "{record:?}");
        }
    }

    /// The longest key with the longest client, none of them cut, and texts of any length.
    the_longest_names_fit(law) {
        let client = format!("{}{}", Uuid::new_v4(), "é".repeat(109));
        let key: String = ('!'..='~').cycle().take(IdempotencyKey::MAX_LENGTH - 1).collect();
        let named = |client_end, key_end| -> Result<ClaimRequest, Broken> {
            Ok(ClaimRequest {
                client: ClientId::new(format!("{client}{client_end}")).map_err(|error| Broken::Suite(error.into()))?,
                key: IdempotencyKey::new(format!("{key}{key_end}")).map_err(|error| Broken::Suite(error.into()))?,
                mutation: "namespace.".repeat(500).into(),
                selection: "field ".repeat(10_000).into(),
                ..law.request()
            })
        };
        for other in [named('a', 'b')?, named('b', 'a')?] {
            law.take(&other).await?;
        }
        let request = named('a', 'a')?;
        let owner = law.owner(&request).await?;
        law.told(law.store.checkpoint(&owner, &point(&owner, &"step ".repeat(200), StepKind::Remote, None), LONG, None).await)?;
        let (response, reason) = (Some(b"x".to_vec()), Some("why ".repeat(1_000)));
        let long = Settlement::Complete { outcome: Outcome::Succeeded, response, retention: LONG, reason: reason.clone() };
        law.settle(&owner, &long).await?;
        let record = law.record(&request).await?;
        ensure!(law, record.client == request.client && record.key == request.key, "{:?}", record.client);
        ensure!(law, record.reason == reason, "the reason was cut");
        ensure!(law, *record.mutation == *request.mutation && *record.selection == *request.selection, "texts were cut");
        let steps = law.steps(&request).await?;
        ensure!(law, steps.len() == 1 && steps[0].name.len() == 1_000, "{steps:?}");
        ensure!(law, law.verdict(&request).await? == Verdict::Replay, "it is not replayed");
    }

    /// A response and a kept request are opaque: whatever bytes, they come back.
    bytes_come_back_as_they_were(law) {
        for bytes in [&b""[..], &[0, 255, 128, 10], "\u{0}é\u{10ffff}".as_bytes(), &vec![b'x'; 1 << 20]] {
            let request = ClaimRequest { request: Some(bytes.to_vec()), ..law.request() };
            let owner = law.owner(&request).await?;
            let open = law.record(&request).await?.request;
            law.settle(&owner, &finish(bytes)).await?;
            let finished = law.record(&request).await?.response;
            ensure!(
                law,
                open.as_deref() == Some(bytes) && finished.as_deref() == Some(bytes),
                "{} bytes did not come back",
                bytes.len()
            );
        }
    }

    /// Law 2: lapsed leases and expiry count from the very instant, without a sweeper.
    what_is_over_is_over_without_a_sweeper(law) {
        let lapsed = ClaimRequest { lease: SHORT, ..law.request() };
        law.take(&lapsed).await?;
        let expired = law.request();
        let owner = law.owner(&expired).await?;
        let response = Some(b"x".to_vec());
        let brief = Settlement::Complete { outcome: Outcome::Failed, response, retention: SHORT, reason: None };
        law.settle(&owner, &brief).await?;
        let released = law.request();
        let owner = law.owner(&released).await?;
        law.settle(&owner, &release(Some(SHORT))).await?;
        let safe = law.request();
        let owner = law.owner(&safe).await?;
        law.settle(&owner, &settling(b"x", SHORT)).await?;
        let requests = [&lapsed, &expired, &released, &safe];
        let mut before = Vec::new();
        for request in requests {
            before.push(law.record(request).await?);
        }
        law.rest().await;
        for (request, before) in requests.into_iter().zip(before) {
            let after = law.record(request).await?;
            ensure!(law, after == before, "without a sweep, {before:?} became {after:?}");
        }
        let state = law.record(&lapsed).await?.state;
        ensure!(law, state == State::InProgress, "without a sweep, what has lapsed is {state}");
        let codes = [law.code(&lapsed).await?, law.code(&expired).await?, law.code(&released).await?];
        let expected = [ErrorCode::OutcomeUnknown, ErrorCode::KeyExpired, ErrorCode::KeyExpired].map(Some);
        ensure!(law, codes == expected, "{codes:?}");
        for on_crash in [OnCrash::Hold, OnCrash::Resume, OnCrash::Release] {
            let verdict = law.verdict(&ClaimRequest { on_crash, ..safe.clone() }).await?;
            ensure!(law, verdict == Verdict::Replay, "{on_crash:?}: what was made safe comes to {verdict:?}");
        }
        let next = ClaimRequest { on_crash: OnCrash::Release, ..lapsed };
        ensure!(law, law.owner(&next).await?.attempt == 2, "a lapsed lease holds still");
    }

    /// A take-over: what it changes, and what it leaves.
    a_take_over_goes_on_as_the_next_attempt(law) {
        for (settlement, from) in [
            (None, State::InProgress),
            (Some(hold()), State::NeedsRecovery),
            (Some(release(Some(LONG))), State::Released),
        ] {
            for on_crash in [OnCrash::Resume, OnCrash::Release] {
                let request = ClaimRequest { lease: SHORT, ..law.request() };
                let first = law.take(&request).await?;
                let step = point(&first.owner, "step", StepKind::Local, Some("1"));
                law.told(law.store.checkpoint(&first.owner, &step, SHORT, None).await)?;
                match &settlement {
                    Some(settlement) => _ = law.settle(&first.owner, settlement).await?,
                    None => law.rest().await,
                }
                let before = law.record(&request).await?;
                let next = ClaimRequest {
                    selection: "other".into(),
                    request_id: Uuid::new_v4(),
                    lease: LONG,
                    on_crash,
                    request: None,
                    ..request.clone()
                };
                let taken = law.take(&next).await?;
                let Reading { record, now } = law.reading(&request).await?;
                let expected = Record {
                    selection: "other".to_owned(),
                    state: State::InProgress,
                    attempt: 2,
                    due_at: record.due_at,
                    reason: None,
                    ended_at: None,
                    ..before.clone()
                };
                ensure!(law, *record == expected, "{before:?} became {record:?}");
                ensure!(law, is_ahead(record.due_at, now, LONG), "the lease is not the claim's: {record:?}");
                ensure!(law, taken.owner == before.next_owner() && taken.from == Some(from), "{taken:?}");
                ensure!(law, taken.created_at == before.created_at && taken.steps == [step], "{taken:?}");
            }
        }
    }

    /// The kept request of a take-over is its own, if it brings one, and else the one that is there.
    a_take_over_keeps_the_request(law) {
        for own in [None, Some(b"newer".to_vec())] {
            let request = law.request();
            let owner = law.owner(&request).await?;
            law.settle(&owner, &hold()).await?;
            let next = ClaimRequest { on_crash: OnCrash::Resume, request: own.clone(), ..request.clone() };
            law.take(&next).await?;
            let kept = law.record(&request).await?.request;
            ensure!(law, kept == own.or(request.request), "{kept:?} was kept");
        }
    }

    /// Of many claims that take a key over at once, one succeeds.
    of_many_take_overs_one_is_taken(law) {
        let request = ClaimRequest { on_crash: OnCrash::Resume, ..law.request() };
        let owner = law.owner(&request).await?;
        law.settle(&owner, &hold()).await?;
        let claims = (0..8).map(|_| {
            let (store, request) = (law.store.clone(), request.clone());
            tokio::spawn(async move { store.claim(&request).await })
        });
        let mut taken = 0;
        for claim in join(claims.collect()).await? {
            taken += i32::from(matches!(law.told(claim)?, Claimed::Taken(_)));
        }
        let attempt = law.record(&request).await?.attempt;
        ensure!(law, (taken, attempt) == (1, 2), "{taken} took it over, as of attempt {attempt}");
    }

    /// A claim that does not take the key changes nothing, and returns the record as it is.
    a_claim_that_does_not_take_changes_nothing(law) {
        for settlement in [None, Some(finish(b"x")), Some(settling(b"x", LONG)), Some(hold())] {
            let request = law.request();
            let owner = law.owner(&request).await?;
            law.told(law.store.checkpoint(&owner, &point(&owner, "step", StepKind::Local, Some("1")), LONG, None).await)?;
            if let Some(settlement) = &settlement {
                law.settle(&owner, settlement).await?;
            }
            let found = law.record(&request).await?;
            let unchanged = law.is_unchanged(&request, async {
                let Claimed::Found(told) = law.claim(&request).await? else {
                    return Err(law.broken(format!("{settlement:?}: it was not found")));
                };
                ensure!(law, *told.record == found, "{settlement:?}: told as {told:?}");
                let Claimed::Found(told) = law.told(law.store.begin(&request).await)? else {
                    return Err(law.broken(format!("{settlement:?}: it was not found by a transaction")));
                };
                ensure!(law, *told.record == found, "{settlement:?}: told a transaction as {told:?}");
                Ok(())
            });
            ensure!(law, unchanged.await?, "{settlement:?}: a claim changed the record");
        }
    }
}
