//! Leases: renewed by their owner, and by nobody else.

use super::law::*;

laws! {
    /// A lease runs from its claim, by the store's clock and to the millisecond.
    a_lease_runs_from_its_claim(law) {
        for _ in 0..3 {
            let (before, request) = (law.request(), law.request());
            law.owner(&before).await?;
            let begun = law.reading(&before).await?.now;
            law.owner(&request).await?;
            let Reading { record, now } = law.reading(&request).await?;
            let until = begun.after(LONG)..=now.after(LONG);
            ensure!(law, until.contains(&record.due_at), "until {:?} and not {until:?}", record.due_at);
        }
    }

    /// A lease is extended from the moment of its renewal, and never shortened.
    a_renewal_extends_the_lease_from_now(law) {
        let request = ClaimRequest { lease: SHORT, ..law.request() };
        let owner = law.owner(&request).await?;
        let before = law.record(&request).await?;
        ensure!(law, law.told(law.store.renew(&owner, LONG).await)?, "the owner was refused");
        let Reading { record, now } = law.reading(&request).await?;
        let expected = Record { due_at: record.due_at, ..before };
        ensure!(law, *record == expected && is_ahead(record.due_at, now, LONG), "at {now:?} {record:?}");
        ensure!(law, law.told(law.store.renew(&owner, SHORT).await)?, "the owner was refused");
        let due = law.record(&request).await?.due_at;
        ensure!(law, due >= record.due_at, "a renewal shortened the lease from {:?} to {due:?}", record.due_at);
        law.rest().await;
        let verdict = law.verdict(&request).await?;
        ensure!(law, matches!(verdict, Verdict::InProgress(left) if left <= LONG), "{verdict:?}");
    }

    /// The record of an owner that was believed lost and comes back is in progress again.
    a_renewal_returns_what_was_believed_lost(law) {
        let (_turn, sweep) = law.turn().await;
        let request = ClaimRequest { lease: SHORT, ..law.request() };
        let owner = law.owner(&request).await?;
        law.rest().await;
        law.sweep(&request, sweep).await?;
        let lost = law.record(&request).await?;
        ensure!(law, lost.state == State::NeedsRecovery && lost.reason.is_some(), "{lost:?}");
        // The lease is shorter than what it rests.
        let renewed = law.told(law.store.renew(&owner, LONG / 2).await)?;
        ensure!(law, renewed, "nobody took the key over, and its owner was refused");
        let Reading { record, now } = law.reading(&request).await?;
        let expected = Record { state: State::InProgress, reason: None, due_at: record.due_at, ..lost };
        ensure!(law, *record == expected, "{record:?} and not {expected:?}");
        ensure!(law, is_ahead(record.due_at, now, LONG / 2), "at {now:?} {record:?}");
    }

    /// A lease that has lapsed is its owner's still, while nobody has taken the key over.
    an_owner_whose_lease_has_lapsed_goes_on(law) {
        let lapsed = || ClaimRequest { lease: SHORT, ..law.request() };
        let (renewed, written, settled) = (lapsed(), lapsed(), lapsed());
        let owners = [law.owner(&renewed).await?, law.owner(&written).await?, law.owner(&settled).await?];
        law.rest().await;
        ensure!(law, law.told(law.store.renew(&owners[0], LONG).await)?, "it could not renew its lease");
        let step = point(&owners[1], "step", StepKind::Remote, None);
        let checkpoint = law.store.checkpoint(&owners[1], &step, LONG, None).await;
        ensure!(law, law.told(checkpoint)?, "it could not write a point");
        for request in [&renewed, &written] {
            let Reading { record, now } = law.reading(request).await?;
            let is_running = record.state == State::InProgress && is_ahead(record.due_at, now, LONG);
            ensure!(law, is_running, "at {now:?} {record:?}");
        }
        ensure!(law, law.settle(&owners[2], &finish(b"x")).await?, "it could not settle its key");
        ensure!(law, law.verdict(&settled).await? == Verdict::Replay, "it is not replayed");
    }

    /// Keys of one client, and clients of one key, have nothing in common.
    a_write_is_of_its_own_key(law) {
        let mine = law.request();
        let neighbours = [
            ClaimRequest { client: mine.client.clone(), ..law.request() },
            ClaimRequest { key: mine.key.clone(), ..law.request() },
        ];
        for request in &neighbours {
            let owner = law.owner(request).await?;
            let step = point(&owner, "step", StepKind::Remote, Some("1"));
            law.told(law.store.checkpoint(&owner, &step, LONG, None).await)?;
        }
        let writes = async {
            for settlement in [finish(b"x"), settling(b"x", LONG), hold(), release(Some(LONG)), release(None)] {
                let request = match &settlement {
                    Settlement::Release { stays: None, .. } => mine.clone(),
                    _ => ClaimRequest { client: mine.client.clone(), ..law.request() },
                };
                let owner = law.owner(&request).await?;
                let step = point(&owner, "step", StepKind::Remote, None);
                let wrote = law.told(law.store.renew(&owner, LONG * 2).await)?
                    && law.told(law.store.checkpoint(&owner, &step, LONG * 2, None).await)?
                    && law.settle(&owner, &settlement).await?;
                ensure!(law, wrote, "{settlement:?}: the owner was refused");
            }
            Ok(())
        };
        let unchanged = law.is_unchanged(&neighbours[0], async {
            let other = law.is_unchanged(&neighbours[1], writes).await?;
            ensure!(law, other, "a write changed the key of another client");
            Ok(())
        });
        ensure!(law, unchanged.await?, "a write changed another key of its client");
    }

    /// A renewal does not end a hold of the owner's own; what is settling goes on settling.
    a_renewal_changes_no_ending(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &hold()).await?;
        let step = point(&owner, "step", StepKind::Remote, None);
        let unchanged = law.is_unchanged(&request, async {
            ensure!(law, !law.told(law.store.renew(&owner, LONG).await)?, "what was held was renewed");
            let written = law.told(law.store.checkpoint(&owner, &step, LONG, None).await)?;
            ensure!(law, !written, "a point was written to what was held");
            Ok(())
        });
        ensure!(law, unchanged.await?, "a renewal changed what was held");
        let safe = law.request();
        let owner = law.owner(&safe).await?;
        law.settle(&owner, &settling(b"x", SHORT)).await?;
        let before = law.record(&safe).await?;
        ensure!(law, law.told(law.store.renew(&owner, LONG).await)?, "what is settling was not renewed");
        for lease in [LONG, LONG * 2] {
            let Reading { record, now } = law.reading(&safe).await?;
            let expected = Record { due_at: record.due_at, ..before.clone() };
            ensure!(law, *record == expected && is_ahead(record.due_at, now, lease), "at {now:?} {record:?}");
            let written = law.told(law.store.checkpoint(&owner, &step, LONG * 2, None).await)?;
            ensure!(law, written, "a point of what is settling was refused");
        }
    }

    /// Law 3: an attempt that is not the latest, or has ended, writes nothing.
    who_does_not_own_the_key_writes_nothing(law) {
        let request = ClaimRequest { lease: SHORT, on_crash: OnCrash::Resume, ..law.request() };
        let old = law.owner(&request).await?;
        law.rest().await;
        let latest = law.owner(&ClaimRequest { lease: LONG, ..request.clone() }).await?;
        let other_request = law.request();
        law.take(&other_request).await?;
        let strangers = [
            old,
            Owner { attempt: latest.attempt + 1, ..latest.clone() },
            Owner { request_id: Uuid::new_v4(), ..latest.clone() },
            Owner { client: other_request.client.clone(), ..latest.clone() },
            Owner { key: other_request.key.clone(), ..latest.clone() },
        ];
        for stranger in &strangers {
            refused(law, &request, stranger).await?;
            let other = law.record(&other_request).await?;
            ensure!(law, other.state == State::InProgress, "{stranger:?} wrote to another key: {other:?}");
        }
        ensure!(law, law.settle(&latest, &finish(b"x")).await?, "the latest attempt was refused");
        refused(law, &request, &latest).await?;
        let released = law.request();
        let owner = law.owner(&released).await?;
        law.settle(&owner, &release(Some(LONG))).await?;
        refused(law, &released, &owner).await?;
    }

    /// Attempts count from 1 again once a key was given back without a trace; its old owner owns nothing.
    the_owner_of_a_deleted_record_is_nobody(law) {
        let request = law.request();
        let old = law.owner(&request).await?;
        law.told(law.store.checkpoint(&old, &point(&old, "step", StepKind::Remote, None), LONG, None).await)?;
        ensure!(law, law.settle(&old, &release(None)).await?, "the owner could not give the key back");
        let gone = law.find(&request).await?.is_none() && law.steps(&request).await?.is_empty();
        ensure!(law, gone, "something of it stays");
        let next = ClaimRequest { request_id: Uuid::new_v4(), ..request.clone() };
        let new = law.owner(&next).await?;
        ensure!(law, new.attempt == 1 && new.request_id == next.request_id, "{new:?}");
        refused(law, &request, &old).await?;
    }
}

/// Every write of an owner is refused, and changes nothing.
async fn refused<S: Upkeep>(law: &Law<'_, S>, request: &ClaimRequest, owner: &Owner) -> Result<(), Broken> {
    let label = Uuid::new_v4().to_string();
    let unchanged = law.is_unchanged(request, async {
        let step = point(owner, "step", StepKind::Local, Some("1"));
        let mut transaction = law.told(law.store.transaction(owner).await)?;
        law.write(&mut transaction, &label).await?;
        let mut wrote = vec![
            ("checkpoint in transaction", law.told(law.store.checkpoint(owner, &step, LONG, Some(transaction)).await)?),
            ("checkpoint", law.told(law.store.checkpoint(owner, &step, LONG, None).await)?),
            ("renew", law.told(law.store.renew(owner, LONG).await)?),
        ];
        for settlement in [finish(b"late"), settling(b"late", LONG), release(None), release(Some(LONG)), hold()] {
            wrote.push(("settle", law.settle(owner, &settlement).await?));
            wrote.push(("settle", law.settle_from(owner, State::NeedsRecovery, &settlement).await?));
        }
        let wrote: Vec<_> = wrote.into_iter().filter(|(_, wrote)| *wrote).collect();
        ensure!(law, wrote.is_empty(), "{owner:?}: {wrote:?}");
        Ok(())
    });
    ensure!(law, unchanged.await?, "{owner:?} changed something");
    ensure!(law, law.count_soon(&label, 0).await? == 0, "a refused checkpoint kept its effects");
    Ok(())
}
