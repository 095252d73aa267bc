//! What is committed together is visible together.

use super::law::*;

laws! {
    /// Law 4: nothing is seen before the settlement, and then all of it.
    a_transaction_is_visible_whole(law) {
        let said = || Some(b"whole".to_vec());
        let finish = |outcome, reason| Settlement::Complete { outcome, response: said(), retention: LONG, reason };
        for (settlement, reason) in [
            (finish(Outcome::Succeeded, None), None),
            (finish(Outcome::Failed, Some("why".to_owned())), Some("why".to_owned())),
            (Settlement::Settling { outcome: Outcome::Succeeded, response: said(), lease: LONG }, None),
            (Settlement::Settling { outcome: Outcome::Failed, response: said(), lease: LONG }, None),
        ] {
            let request = law.request();
            let label = request.key.to_string();
            let mut taken = law.begin(&request).await?;
            ensure!(law, taken.owner == request.first_owner() && taken.from.is_none() && taken.steps.is_empty(), "{:?}", taken.owner);
            law.write(&mut taken.transaction, &label).await?;
            if let Ok(beside) = tokio::time::timeout(SHORT * 4, async { Ok::<_, Broken>((law.find(&request).await?, law.count(&label).await?)) }).await {
                let (record, effects) = beside?;
                ensure!(law, record.is_none() && effects == 0, "before it is settled: {record:?}, {effects} effects");
            }
            let from = From::Transaction(Some(taken.transaction), &request);
            ensure!(law, law.told(law.store.settle(&taken.owner, from, &settlement).await)?, "it could not be settled");
            let Reading { record, now } = law.reading(&request).await?;
            let expected = Record {
                client: request.client.clone(),
                key: request.key.clone(),
                mutation: request.mutation.to_string(),
                fingerprint: request.fingerprint,
                selection: request.selection.to_string(),
                state: settlement.state().unwrap_or(State::InProgress),
                request_id: request.request_id,
                attempt: 1,
                due_at: record.due_at,
                response: said(),
                request: None,
                reason,
                recoveries: 0,
                created_at: record.created_at,
                ended_at: record.ended_at,
            };
            ensure!(law, *record == expected, "{record:?} and not {expected:?}");
            ensure!(law, is_ahead(record.due_at, now, LONG) && is_now(record.created_at, now), "at {now:?} {record:?}");
            ensure!(law, record.ended_at.is_some_and(|ended| is_now(ended, now)), "at {now:?} {record:?}");
            ensure!(law, law.count(&label).await? == 1, "its effects are not there");
        }
    }

    /// Law 4: what is given back, or dropped, was never there.
    a_transaction_that_is_undone_leaves_nothing(law) {
        for undoing in ["released", "held", "dropped"] {
            let request = law.request();
            let label = request.key.to_string();
            let mut taken = law.begin(&request).await?;
            law.write(&mut taken.transaction, &label).await?;
            let settlement = if undoing == "held" { hold() } else { release(Some(LONG)) };
            let from = From::Transaction(Some(taken.transaction), &request);
            match undoing {
                "dropped" => drop(from),
                _ => ensure!(law, law.told(law.store.settle(&taken.owner, from, &settlement).await)?, "{undoing}: refused"),
            }
            let effects = law.count_soon(&label, 0).await?;
            let record = law.find(&request).await?;
            ensure!(law, record.is_none() && effects == 0, "{undoing}: {record:?}, {effects} effects");
            // The key is free again.
            let again = law.begin(&ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() }).await?;
            drop(again);
        }
    }

    /// Law 2, for long transactions: retention and end are of the moment of the settlement.
    the_times_of_a_long_transaction_are_those_of_its_settlement(law) {
        let beside = law.request();
        law.take(&beside).await?;
        let request = law.request();
        let before = law.reading(&beside).await?.now;
        let taken = law.begin(&request).await?;
        law.rest().await;
        let from = From::Transaction(Some(taken.transaction), &request);
        ensure!(law, law.told(law.store.settle(&taken.owner, from, &finish(b"x")).await)?, "it could not be settled");
        let record = law.record(&request).await?;
        let is_late = record.due_at >= before.after(LONG + SHORT) && record.ended_at >= Some(before.after(SHORT));
        ensure!(law, is_late, "it began after {before:?}: {record:?}");
    }

    /// A settlement without its transaction gets one of its own.
    a_settlement_without_its_transaction_is_written_by_itself(law) {
        let request = law.request();
        let settle = async || law.told(law.store.settle(&request.first_owner(), From::Transaction(None, &request), &finish(b"x")).await);
        ensure!(law, settle().await?, "a free key could not be settled");
        let record = law.record(&request).await?;
        ensure!(law, record.state == State::Succeeded && record.response.as_deref() == Some(b"x"), "{record:?}");
        let unchanged = law.is_unchanged(&request, async {
            ensure!(law, !settle().await?, "a key was settled twice");
            Ok(())
        });
        ensure!(law, unchanged.await?, "a second settlement changed the first");
        let undone = law.request();
        let from = From::Transaction(None, &undone);
        ensure!(law, law.told(law.store.settle(&undone.first_owner(), from, &release(None)).await)?, "a release with nothing to undo was refused");
        ensure!(law, law.find(&undone).await?.is_none(), "an undone settlement made a record");
    }

    /// Law 8: a key that a transaction has is nobody else's, and nobody waits for it in the database. A backend with
    /// one writer makes its callers wait in turn instead, so they are called with a timeout.
    a_transaction_has_its_key_alone(law) {
        let request = law.request();
        let mut other = request.clone();
        other.fingerprint.hash = [8; 32];
        let elsewhere = law.request();
        let taken = law.begin(&request).await?;
        let one_writer = tokio::time::timeout(SHORT * 4, law.store.claim(&elsewhere)).await.is_err();
        let patience = if one_writer { SHORT } else { SHORT * 20 };
        let begun = tokio::time::timeout(patience, law.store.begin(&request)).await;
        let reused = tokio::time::timeout(patience, law.store.begin(&other)).await;
        let claimed = tokio::time::timeout(patience, law.store.claim(&request)).await;
        let found = tokio::time::timeout(patience, law.find(&request)).await;
        let answers = [begun.is_ok(), reused.is_ok(), found.is_ok()];
        ensure!(law, one_writer || answers == [true; 3], "begin, begin and find wait for a transaction: {answers:?}");
        if let Ok(begun) = begun {
            let begun = law.told(begun)?;
            ensure!(law, matches!(begun, Claimed::Busy { reused: false }), "two transactions have one key");
        }
        if let Ok(Ok(Claimed::Taken(second))) = &claimed {
            // What commits first stands: see below.
            ensure!(law, second.owner.attempt == 1, "{second:?}");
            law.settle(&second.owner, &release(None)).await?;
        }
        if let Ok(reused) = reused {
            ensure!(law, matches!(law.told(reused)?, Claimed::Busy { .. }), "a key was taken for another request");
        }
        let from = From::Transaction(Some(taken.transaction), &request);
        ensure!(law, law.told(law.store.settle(&taken.owner, from, &finish(b"x")).await)?, "the owner could not settle");
        ensure!(law, law.verdict(&request).await? == Verdict::Replay, "it is not replayed");
    }

    /// Law 1, across the two kinds of claim: what commits first stands, and the other is undone.
    of_two_settlements_the_first_stands(law) {
        let request = law.request();
        let label = request.key.to_string();
        let mut taken = law.begin(&request).await?;
        law.write(&mut taken.transaction, &label).await?;
        let elsewhere = ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() };
        let (owner, settlement) = (elsewhere.first_owner(), finish(b"first"));
        let first = law.store.settle(&owner, From::Transaction(None, &elsewhere), &settlement);
        let from = |transaction| From::Transaction(Some(transaction), &request);
        let Ok(first) = tokio::time::timeout(SHORT * 4, first).await else {
            // One writer, or a record that is made first: nobody can come in between.
            law.told(law.store.settle(&taken.owner, from(taken.transaction), &release(None)).await)?;
            return Ok(());
        };
        let second = law.store.settle(&taken.owner, from(taken.transaction), &finish(b"second")).await;
        let kept = law.record(&request).await?;
        ensure!(law, law.told(first)?, "the first was refused");
        ensure!(law, matches!(second, Ok(false) | Err(StoreError::Undone(_))), "the second came to {second:?}");
        ensure!(law, kept.response.as_deref() == Some(b"first"), "{kept:?}");
        ensure!(law, law.count_soon(&label, 0).await? == 0, "the second kept its effects");
    }

    /// A transaction takes over what was given back, with what earlier attempts left; undone, it leaves it as it was.
    a_transaction_takes_over_what_was_given_back(law) {
        let request = law.request();
        let first = law.owner(&request).await?;
        let step = point(&first, "step", StepKind::Local, Some("1"));
        law.told(law.store.checkpoint(&first, &step, LONG, None).await)?;
        law.settle(&first, &release(Some(LONG))).await?;
        let before = law.record(&request).await?;
        let next = ClaimRequest { request_id: Uuid::new_v4(), selection: "other".into(), request: None, ..request.clone() };
        let undone = law.begin(&next).await?;
        ensure!(law, undone.owner == before.next_owner(), "{:?}", undone.owner);
        ensure!(law, undone.from == Some(State::Released) && undone.steps == [step], "{:?}", undone.steps);
        ensure!(law, undone.created_at == before.created_at, "{:?}", undone.created_at);
        let from = From::Transaction(Some(undone.transaction), &next);
        law.told(law.store.settle(&undone.owner, from, &release(None)).await)?;
        ensure!(law, law.record(&request).await? == before, "an undone transaction changed the record");
        let why = Some("why".to_owned());
        for (with, reason) in [(true, None), (true, why.clone()), (false, None), (false, why)] {
            let request = law.request();
            let first = law.owner(&request).await?;
            let step = point(&first, "step", StepKind::Local, Some("1"));
            law.told(law.store.checkpoint(&first, &step, LONG, None).await)?;
            law.settle(&first, &release(Some(LONG * 2))).await?;
            let before = law.record(&request).await?;
            let selection = "other";
            let next = ClaimRequest { request_id: Uuid::new_v4(), selection: selection.into(), ..request.clone() };
            let Taken { owner, transaction, .. } = law.begin(&next).await?;
            tokio::time::sleep(Duration::from_millis(2)).await;
            let from = From::Transaction(Some(transaction).filter(|_| with), &next);
            let response = Some(b"x".to_vec());
            let settlement =
                Settlement::Complete { outcome: Outcome::Succeeded, response: response.clone(), retention: LONG, reason: reason.clone() };
            ensure!(law, law.told(law.store.settle(&owner, from, &settlement).await)?, "it could not be settled");
            let Reading { record, now } = law.reading(&request).await?;
            let expected = Record {
                selection: selection.to_owned(),
                state: State::Succeeded,
                attempt: 2,
                response,
                reason,
                due_at: record.due_at,
                ended_at: record.ended_at,
                ..before.clone()
            };
            ensure!(law, *record == expected, "{before:?} became {record:?}");
            let is_ended = record.ended_at.is_some_and(|ended| is_now(ended, now)) && record.ended_at > before.ended_at;
            ensure!(law, is_ended && is_ahead(record.due_at, now, LONG), "at {now:?} {record:?}");
            let steps = law.steps(&request).await?;
            ensure!(law, steps == [step], "its steps are {steps:?}");
            let unchanged = law.is_unchanged(&request, async {
                let from = From::Transaction(None, &next);
                let again = law.told(law.store.settle(&owner, from, &finish(b"y")).await)?;
                ensure!(law, !again, "it was settled twice");
                Ok(())
            });
            ensure!(law, unchanged.await?, "a second settlement changed the first");
        }
    }

    /// A transaction takes over nothing that was lost.
    a_transaction_takes_over_nothing_that_was_lost(law) {
        let lapsed = ClaimRequest { lease: SHORT, ..law.request() };
        law.take(&lapsed).await?;
        let held = law.request();
        let owner = law.owner(&held).await?;
        law.settle(&owner, &hold()).await?;
        law.rest().await;
        for request in [lapsed, held] {
            let unchanged = law.is_unchanged(&request, async {
                let found = law.told(law.store.begin(&request).await)?;
                ensure!(law, matches!(found, Claimed::Found(_)), "what was lost was taken");
                Ok(())
            });
            ensure!(law, unchanged.await?, "a transaction changed what was lost");
        }
    }

    /// A settlement that comes late fails, since the key was taken meanwhile.
    a_key_that_was_taken_meanwhile_is_not_settled_by_a_transaction(law) {
        let request = law.request();
        let first = law.owner(&request).await?;
        law.settle(&first, &release(Some(LONG))).await?;
        let label = request.key.to_string();
        let mut taken = law.begin(&request).await?;
        law.write(&mut taken.transaction, &label).await?;
        let Ok(second) = tokio::time::timeout(SHORT * 4, law.store.claim(&request)).await else {
            drop(taken.transaction);
            return Ok(());
        };
        let from = From::Transaction(Some(taken.transaction), &request);
        let settled = law.store.settle(&taken.owner, from, &finish(b"x")).await;
        if let Claimed::Taken(second) = law.told(second)? {
            ensure!(law, matches!(settled, Ok(false) | Err(StoreError::Undone(_))), "{settled:?}");
            let record = law.record(&request).await?;
            ensure!(law, record.owner() == second.owner && record.state == State::InProgress, "{record:?}");
            ensure!(law, law.count_soon(&label, 0).await? == 0, "its effects were kept");
        } else {
            ensure!(law, matches!(settled, Ok(true)), "{settled:?}");
        }
    }
}
