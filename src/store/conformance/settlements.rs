//! What becomes of a record, from which state.

use super::law::*;

laws! {
    /// Each settlement: what it changes, and what it leaves.
    a_settlement_changes_what_it_says(law) {
        let response = || Some(b"said".to_vec());
        let settlements = [
            Settlement::Complete { outcome: Outcome::Succeeded, response: response(), retention: LONG, reason: None },
            Settlement::Complete { outcome: Outcome::Failed, response: response(), retention: LONG, reason: Some("why".into()) },
            Settlement::Complete { outcome: Outcome::Succeeded, response: None, retention: LONG, reason: None },
            Settlement::Settling { outcome: Outcome::Succeeded, response: response(), lease: LONG },
            Settlement::Settling { outcome: Outcome::Failed, response: None, lease: LONG },
            Settlement::Release { stays: Some(LONG), reason: Some("back".into()) },
            Settlement::Release { stays: Some(LONG), reason: None },
            hold(),
        ];
        for settlement in &settlements {
            let request = law.request();
            let owner = law.owner(&request).await?;
            let step = point(&owner, "step", StepKind::Local, Some("1"));
            law.told(law.store.checkpoint(&owner, &step, LONG, None).await)?;
            let before = law.record(&request).await?;
            ensure!(law, law.settle(&owner, settlement).await?, "{settlement:?} was refused");
            let Reading { record, now } = law.reading(&request).await?;
            let (said, reason) = match settlement {
                Settlement::Complete { response, reason, .. } => (response.clone(), reason.clone()),
                Settlement::Settling { response, .. } => (response.clone(), None),
                Settlement::Release { reason, .. } => (None, reason.clone()),
                Settlement::Hold { reason } => (None, Some(reason.clone())),
            };
            let is_held = matches!(settlement, Settlement::Hold { .. });
            let expected = Record {
                state: settlement.state().unwrap_or(State::InProgress),
                response: said,
                request: before.request.clone().filter(|_| is_held),
                reason,
                due_at: record.due_at,
                ended_at: record.ended_at,
                ..before
            };
            ensure!(law, *record == expected, "{settlement:?} came to {record:?} and not {expected:?}");
            ensure!(law, record.ended_at.is_some_and(|ended| is_now(ended, now)), "at {now:?} {record:?}");
            let is_due = if is_held { is_now(record.due_at, now) } else { is_ahead(record.due_at, now, LONG) };
            ensure!(law, is_due, "{settlement:?} at {now:?}: {record:?}");
            let steps = law.steps(&request).await?;
            ensure!(law, steps == [step], "{settlement:?} left {steps:?}");
        }
    }

    /// Law 5: a finished record is replayed, and never changes again.
    a_finished_record_never_changes_again(law) {
        for outcome in [Outcome::Succeeded, Outcome::Failed] {
            let request = law.request();
            let owner = law.owner(&request).await?;
            let response = Some(b"first".to_vec());
            law.settle(&owner, &Settlement::Complete { outcome, response, retention: LONG, reason: None }).await?;
            let unchanged = law.is_unchanged(&request, async {
                let step = point(&owner, "step", StepKind::Remote, None);
                let mut wrote = law.told(law.store.renew(&owner, LONG).await)?
                    || law.told(law.store.checkpoint(&owner, &step, LONG, None).await)?;
                let from = From::Transaction(None, &request);
                wrote |= law.told(law.store.settle(&request.first_owner(), from, &finish(b"second")).await)?;
                for settlement in [finish(b"second"), settling(b"second", LONG), release(None), release(Some(LONG)), hold()] {
                    wrote |= law.settle(&owner, &settlement).await?;
                    for state in [State::InProgress, State::NeedsRecovery, State::Released] {
                        wrote |= law.settle_from(&owner, state, &settlement).await?;
                    }
                }
                ensure!(law, !wrote, "{outcome:?}: it was written to");
                ensure!(law, law.verdict(&request).await? == Verdict::Replay, "{outcome:?}: it is not replayed");
                Ok(())
            });
            ensure!(law, unchanged.await?, "{outcome:?}: it changed");
        }
    }

    /// What was made safe is settled for good by its owner, and by nobody else.
    what_was_made_safe_is_settled_at_the_end(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &settling(b"safe", LONG)).await?;
        let taken = law.claim(&ClaimRequest { on_crash: OnCrash::Release, ..request.clone() }).await?;
        ensure!(law, matches!(taken, Claimed::Found(_)), "what is settling was taken: {taken:?}");
        ensure!(law, law.settle(&owner, &finish(b"whole")).await?, "the owner was refused");
        let Reading { record, now } = law.reading(&request).await?;
        ensure!(law, record.state == State::Succeeded && record.response.as_deref() == Some(b"whole"), "{record:?}");
        ensure!(law, is_ahead(record.due_at, now, LONG), "it is not kept from now on: at {now:?} {record:?}");
    }

    /// The retention of a record that lapsed while it was settling runs from the lapse, however late it is settled.
    what_lapsed_while_settling_is_kept_from_the_lapse_on(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &settling(b"safe", SHORT)).await?;
        let lapse = law.record(&request).await?.due_at;
        law.rest().await;
        let from = State::Settling(Outcome::Succeeded);
        ensure!(law, law.settle_from(&owner, from, &finish(b"safe")).await?, "it was refused");
        let record = law.record(&request).await?;
        ensure!(law, record.state == State::Succeeded && record.due_at == lapse.after(LONG), "{lapse:?}, {record:?}");
    }

    /// Others settle a key only from the state that they have seen, and only the attempt that they have seen.
    others_settle_from_the_state_that_they_have_seen(law) {
        for (settlement, state) in [(None, State::InProgress), (Some(hold()), State::NeedsRecovery), (Some(release(Some(LONG))), State::Released)] {
            for seen in [State::InProgress, State::NeedsRecovery, State::Released, State::Settling(Outcome::Succeeded)] {
                let request = law.request();
                let owner = law.owner(&request).await?;
                if let Some(settlement) = &settlement {
                    law.settle(&owner, settlement).await?;
                }
                let strangers = [
                    Owner { attempt: owner.attempt + 1, ..owner.clone() },
                    Owner { request_id: Uuid::new_v4(), ..owner.clone() },
                ];
                let unchanged = law.is_unchanged(&request, async {
                    for stranger in &strangers {
                        for settlement in [finish(b"x"), release(None), hold()] {
                            let settled = law.settle_from(stranger, seen, &settlement).await?;
                            ensure!(law, !settled, "{state} was settled as {seen} of {stranger:?}");
                        }
                    }
                    Ok(())
                });
                ensure!(law, unchanged.await?, "{state} was refused as {seen} of another attempt, and changed");
                let before = law.record(&request).await?;
                let settled = law.settle_from(&owner, seen, &finish(b"x")).await?;
                let after = law.record(&request).await?;
                ensure!(law, settled == (seen == state), "{state} was settled as {seen}: {settled}");
                ensure!(law, settled || before == after, "{state} was refused as {seen}, and became {after:?}");
                ensure!(law, !settled || after.state == State::Succeeded, "{after:?}");
            }
        }
    }

    /// Each settlement by others: what it changes, and what it leaves.
    a_settlement_by_others_changes_what_it_says(law) {
        let (response, because) = (Some(b"said".to_vec()), Some("because".to_owned()));
        let given = response.clone();
        let finish = |reason| Settlement::Complete { outcome: Outcome::Failed, response: given.clone(), retention: LONG, reason };
        let give_back = |reason| Settlement::Release { stays: Some(LONG), reason };
        for (settlement, said, reason) in [
            (finish(because.clone()), &response, &because),
            (finish(None), &response, &None),
            (give_back(because.clone()), &None, &because),
            (give_back(None), &None, &None),
        ] {
            for state in [State::InProgress, State::NeedsRecovery] {
                let request = law.request();
                let owner = law.owner(&request).await?;
                let step = point(&owner, "step", StepKind::Remote, None);
                law.told(law.store.checkpoint(&owner, &step, LONG, None).await)?;
                if state == State::NeedsRecovery {
                    law.settle(&owner, &hold()).await?;
                }
                let before = law.record(&request).await?;
                ensure!(law, law.settle_from(&owner, state, &settlement).await?, "{state}: {settlement:?} was refused");
                let Reading { record, now } = law.reading(&request).await?;
                let expected = Record {
                    state: settlement.state().unwrap_or(State::InProgress),
                    response: said.clone(),
                    request: None,
                    reason: reason.clone(),
                    due_at: record.due_at,
                    ended_at: record.ended_at,
                    ..before
                };
                ensure!(law, *record == expected, "{settlement:?} came to {record:?} and not {expected:?}");
                let is_ended = record.ended_at.is_some_and(|ended| is_now(ended, now));
                ensure!(law, is_ended && is_ahead(record.due_at, now, LONG), "at {now:?} {record:?}");
                let steps = law.steps(&request).await?;
                ensure!(law, steps == [step], "{settlement:?} left {steps:?}");
            }
        }
    }

    /// When someone other than its owner puts a key on hold, the attempt's number is raised: it can't come back.
    a_key_that_is_taken_from_an_attempt_is_not_its_own_any_more(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        ensure!(law, law.settle_from(&owner, State::InProgress, &hold()).await?, "it could not be taken");
        let record = law.record(&request).await?;
        ensure!(law, record.state == State::NeedsRecovery && record.attempt == owner.attempt + 1, "{record:?}");
        ensure!(law, record.request_id == owner.request_id && record.request == request.request, "{record:?}");
        let unchanged = law.is_unchanged(&request, async {
            let wrote = law.told(law.store.renew(&owner, LONG).await)? || law.settle(&owner, &finish(b"late")).await?;
            ensure!(law, !wrote, "the attempt came back");
            Ok(())
        });
        ensure!(law, unchanged.await?, "the attempt changed something");
        ensure!(law, law.settle_from(&record.owner(), State::NeedsRecovery, &finish(b"x")).await?, "it can't be settled");
    }

    /// An owner that was believed lost, and that nobody followed, settles its own key.
    an_owner_that_was_believed_lost_settles_its_key(law) {
        let (_turn, sweep) = law.turn().await;
        for settlement in [finish(b"x"), release(None), hold()] {
            let request = ClaimRequest { lease: SHORT, ..law.request() };
            let owner = law.owner(&request).await?;
            law.rest().await;
            law.sweep(&request, sweep).await?;
            ensure!(law, law.record(&request).await?.state == State::NeedsRecovery, "its lease has not lapsed");
            ensure!(law, law.settle(&owner, &settlement).await?, "{settlement:?} was refused");
            let state = law.find(&request).await?.map(|found| found.record.state);
            ensure!(law, state == settlement.state(), "{settlement:?} came to {state:?}");
        }
    }
}
