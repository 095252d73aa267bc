//! What time brings about.

use super::law::*;

laws! {
    /// A lapsed attempt needs recovery, and is handed out; others are left alone.
    a_lapsed_attempt_is_handed_out(law) {
        let (_turn, sweep) = law.turn().await;
        let request = ClaimRequest { lease: SHORT, ..law.request() };
        let owner = law.owner(&request).await?;
        let step = point(&owner, "step", StepKind::Remote, None);
        law.told(law.store.checkpoint(&owner, &step, SHORT, None).await)?;
        let live = ClaimRequest { client: request.client.clone(), ..law.request() };
        law.take(&live).await?;
        let finished = ClaimRequest { client: request.client.clone(), ..law.request() };
        let owner = law.owner(&finished).await?;
        law.settle(&owner, &finish(b"x")).await?;
        let others = [law.record(&live).await?, law.record(&finished).await?];
        let before = law.record(&request).await?;
        law.rest().await;
        let handed = law.sweep(&request, sweep).await?;
        let Reading { record, now } = law.reading(&request).await?;
        ensure!(law, handed.len() == 1 && handed[0] == *record, "{handed:?} was handed out of {record:?}");
        let (reason, due_at) = (record.reason.clone(), record.due_at);
        let expected = Record { state: State::NeedsRecovery, recoveries: 1, reason, due_at, ..before };
        ensure!(law, *record == expected, "{record:?} and not {expected:?}");
        ensure!(law, record.reason.as_ref().is_some_and(|reason| reason.contains("attempt 1")), "{record:?}");
        ensure!(law, is_ahead(record.due_at, now, LONG), "it does not rest: {record:?}");
        ensure!(law, law.steps(&request).await? == [step], "its steps are not there");
        let after = [law.record(&live).await?, law.record(&finished).await?];
        ensure!(law, others == after, "{others:?} became {after:?}");
        ensure!(law, law.sweep(&request, sweep).await?.is_empty(), "it was handed out while it rests");
    }

    /// A record that nobody could recover is left alone for twice as long after each try.
    what_could_not_be_recovered_rests_ever_longer(law) {
        let (_turn, sweep) = law.turn().await;
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &hold()).await?;
        let held = law.record(&request).await?;
        let short = law.short();
        let sweep = Sweep { backoff: short, ..sweep };
        for tries in 1..=3 {
            let begun = law.reading(&request).await?.now;
            let handed = law.sweep(&request, sweep).await?;
            ensure!(law, handed.len() == 1 && handed[0].recoveries == tries, "try {tries}: {handed:?}");
            let Reading { record, now } = law.reading(&request).await?;
            let rests = short * 2_u32.pow(tries.cast_unsigned() - 1);
            let until = begun.after(rests)..=now.after(rests);
            ensure!(law, until.contains(&record.due_at), "try {tries}: until {:?} and not {until:?}", record.due_at);
            let expected = Record { recoveries: tries, due_at: record.due_at, ..held.clone() };
            ensure!(law, *record == expected, "try {tries}: {record:?} and not {expected:?}");
            let swept = law.sweep(&request, sweep).await?;
            law.in_time(&request, record.due_at).await?;
            ensure!(law, swept.is_empty(), "try {tries}: it does not rest");
            tokio::time::sleep(rests + short / 2).await;
        }
        let long = law.request();
        let owner = law.owner(&long).await?;
        law.settle(&owner, &hold()).await?;
        law.sweep(&long, Sweep { backoff: LONG * 10_000, ..sweep }).await?;
        let Reading { record, now } = law.reading(&long).await?;
        let rests = now.until(record.due_at);
        ensure!(law, rests <= Duration::from_hours(24), "it rests for {rests:?}");
    }

    /// What was made safe, and has lapsed, is handed out to be settled.
    what_lapsed_while_settling_is_handed_out(law) {
        let (_turn, sweep) = law.turn().await;
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &settling(b"safe", SHORT)).await?;
        let lapse = law.record(&request).await?.due_at;
        law.rest().await;
        let handed = law.sweep(&request, sweep).await?;
        let expected = State::Settling(Outcome::Succeeded);
        ensure!(law, handed.len() == 1 && handed[0].state == expected && handed[0].due_at == lapse, "{handed:?}");
        ensure!(law, handed[0].response.as_deref() == Some(b"safe"), "{handed:?}");
        ensure!(law, law.sweep(&request, sweep).await?.is_empty(), "it was handed out while it rests");
    }

    /// The count of recoveries outlives what follows.
    recoveries_are_counted_over_all_attempts(law) {
        let (_turn, sweep) = law.turn().await;
        let request = ClaimRequest { on_crash: OnCrash::Resume, ..law.request() };
        let owner = law.owner(&request).await?;
        law.settle(&owner, &hold()).await?;
        law.sweep(&request, sweep).await?;
        let next = law.owner(&request).await?;
        let recoveries = law.record(&request).await?.recoveries;
        ensure!(law, recoveries == 1, "{recoveries} after a take-over");
        law.settle(&next, &release(Some(LONG))).await?;
        let recoveries = law.record(&request).await?.recoveries;
        ensure!(law, recoveries == 1, "{recoveries} after it was given back");
        let taken = law.begin(&request).await?;
        let from = From::Transaction(Some(taken.transaction), &request);
        law.told(law.store.settle(&taken.owner, from, &finish(b"x")).await)?;
        let record = law.record(&request).await?;
        ensure!(law, record.recoveries == 1 && record.attempt == 3, "after it was finished: {record:?}");
    }

    /// Law 7: two sweeps never hand out the same record.
    two_sweeps_never_hand_out_the_same_record(law) {
        let (_turn, sweep) = law.turn().await;
        let client = law.request().client;
        for _ in 0..10 {
            let request = ClaimRequest { client: client.clone(), ..law.request() };
            let owner = law.owner(&request).await?;
            law.settle(&owner, &hold()).await?;
        }
        let sweepers = (0..3).map(|_| {
            let (store, sweep) = (law.store.clone(), Sweep { batch: 2, every: LONG, ..sweep });
            tokio::spawn(async move {
                let mut mine = Vec::new();
                loop {
                    let done = store.sweep(&sweep).await?;
                    mine.extend(done.recoverable);
                    if !done.more {
                        return Ok::<_, StoreError>(mine);
                    }
                }
            })
        });
        let mut keys = Vec::new();
        for handed in join(sweepers.collect()).await? {
            let own = law.told(handed)?.into_iter().filter(|record| record.client == client);
            keys.extend(own.map(|record| record.key));
        }
        let handings = keys.len();
        keys.sort();
        keys.dedup();
        ensure!(law, (handings, keys.len()) == (10, 10), "{handings} handings of {} keys", keys.len());
    }

    /// A record whose retention is over becomes a tombstone, and then nothing.
    retention_ends_in_a_tombstone_and_then_in_nothing(law) {
        let (_turn, sweep) = law.turn().await;
        let short = law.short();
        let brief = |outcome| Settlement::Complete { outcome, response: Some(b"secret".to_vec()), retention: short, reason: Some("why".into()) };
        for (settlement, ended) in [
            (brief(Outcome::Succeeded), Ended::Succeeded),
            (brief(Outcome::Failed), Ended::Failed),
            (release(Some(short)), Ended::Released),
        ] {
            let request = law.request();
            let owner = law.owner(&request).await?;
            law.told(law.store.checkpoint(&owner, &point(&owner, "step", StepKind::Local, Some("1")), LONG, None).await)?;
            law.settle(&owner, &settlement).await?;
            let before = law.record(&request).await?;
            law.sweep(&request, sweep).await?;
            let kept = law.record(&request).await?;
            law.in_time(&request, before.due_at).await?;
            ensure!(law, kept == before, "{settlement:?}: swept too early, {kept:?}");
            law.rest().await;
            let tombstone = Duration::from_secs(3);
            law.sweep(&request, Sweep { tombstone, ..sweep }).await?;
            let record = law.record(&request).await?;
            let expected = Record {
                state: State::Tombstone(ended),
                selection: String::new(),
                response: None,
                reason: None,
                due_at: before.due_at.after(tombstone),
                ..before
            };
            ensure!(law, record == expected, "{settlement:?}: {record:?} and not {expected:?}");
            let (state, client) = (Some(record.state), Some(record.client.clone()));
            let listed = law.told(law.store.list(&Filter { state, client, ..Filter::default() }).await)?;
            ensure!(law, listed == [record], "{settlement:?}: listed as {listed:?}");
            ensure!(law, law.steps(&request).await?.is_empty(), "{settlement:?}: its steps are there");
            ensure!(law, law.code(&request).await? == Some(ErrorCode::KeyExpired), "{settlement:?}: not expired");
            // Not before its time.
            law.sweep(&request, sweep).await?;
            ensure!(law, law.find(&request).await?.is_some(), "{settlement:?}: purged too early");
        }
        let request = law.request();
        let owner = law.owner(&request).await?;
        law.settle(&owner, &brief(Outcome::Succeeded)).await?;
        law.rest().await;
        law.sweep(&request, Sweep { tombstone: SHORT / 3, ..sweep }).await?;
        law.rest().await;
        law.sweep(&request, sweep).await?;
        let left = law.find(&request).await?;
        ensure!(law, left.is_none(), "a tombstone that is over stays: {left:?}");
        ensure!(law, law.owner(&request).await?.attempt == 1, "the key is not free");
    }

    /// Law 6: what is open is never purged, and keeps what is stored of its request.
    what_is_open_is_never_purged(law) {
        let (_turn, sweep) = law.turn().await;
        let running = ClaimRequest { lease: SHORT, ..law.request() };
        law.take(&running).await?;
        let held = law.request();
        let owner = law.owner(&held).await?;
        law.settle(&owner, &hold()).await?;
        let safe = law.request();
        let owner = law.owner(&safe).await?;
        law.settle(&owner, &settling(b"x", SHORT)).await?;
        for _ in 0..3 {
            law.rest().await;
            law.sweep(&running, Sweep { tombstone: Duration::ZERO, backoff: Duration::from_millis(1), ..sweep }).await?;
        }
        for request in [&running, &held] {
            let record = law.record(request).await?;
            ensure!(law, record.state == State::NeedsRecovery && record.request == request.request, "{record:?}");
        }
        let record = law.record(&safe).await?;
        ensure!(law, record.state == State::Settling(Outcome::Succeeded) && record.response.is_some(), "{record:?}");
    }

    /// A sweep changes no more records than its batch, says what it did, and whether there is more.
    a_sweep_is_bounded_and_tells_what_it_did(law) {
        let (_turn, sweep) = law.turn().await;
        law.sweep(&law.request(), sweep).await?;
        let (mut over, mut lapsed) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let request = law.request();
            let owner = law.owner(&request).await?;
            let response = Some(b"x".to_vec());
            law.settle(&owner, &Settlement::Complete { outcome: Outcome::Succeeded, response, retention: SHORT, reason: None }).await?;
            over.push(request);
            let request = ClaimRequest { lease: SHORT, ..law.request() };
            law.take(&request).await?;
            lapsed.push(request);
            let held = law.request();
            law.settle(&law.owner(&held).await?, &hold()).await?;
        }
        law.rest().await;
        let sweep = Sweep { batch: 2, tombstone: Duration::from_millis(1), ..sweep };
        let mut totals = (0, 0, 0, 0);
        loop {
            let done = law.told(law.store.sweep(&sweep).await)?;
            let handed = done.recoverable.len() as u64;
            ensure!(law, done.expired + done.purged + handed <= 2, "a batch of 2 did {done:?}");
            let lost = done.recoverable.iter().filter(|record| record.state == State::NeedsRecovery && record.ended_at.is_none());
            let newly = lost.clone().filter(|record| record.recoveries == 1).count() as u64;
            ensure!(law, (newly..=lost.count() as u64).contains(&done.lapsed), "lapses are counted otherwise: {done:?}");
            totals = (totals.0 + done.lapsed, totals.1 + handed, totals.2 + done.expired, totals.3 + done.purged);
            if !done.more {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // Others may be swept here too.
        let enough = totals.0 >= 5 && totals.1 >= totals.0 && totals.2 >= 5 && totals.3 >= 5;
        ensure!(law, enough, "lapsed, handed out, expired, purged: {totals:?}");
        for request in &over {
            ensure!(law, law.find(request).await?.is_none(), "something that is over was left");
        }
        for request in &lapsed {
            ensure!(law, law.record(request).await?.state == State::NeedsRecovery, "something that has lapsed was left");
        }
    }

    /// A record that was looked at before is found again when its time has come.
    a_record_is_looked_at_again_in_time(law) {
        let (_turn, sweep) = law.turn().await;
        let short = law.short();
        let request = ClaimRequest { lease: short * 3, ..law.request() };
        let owner = law.owner(&request).await?;
        let due = law.record(&request).await?.due_at;
        law.rest().await;
        // It is old enough to have lapsed, and has not.
        law.sweep(&request, sweep).await?;
        law.in_time(&request, due).await?;
        law.told(law.store.renew(&owner, short * 4).await)?;
        let due = law.record(&request).await?.due_at;
        tokio::time::sleep(short * 3).await;
        let swept = law.sweep(&request, sweep).await?;
        law.in_time(&request, due).await?;
        ensure!(law, swept.is_empty(), "a renewed lease was swept");
        tokio::time::sleep(short * 3).await;
        ensure!(law, law.sweep(&request, sweep).await?.len() == 1, "a lapsed lease was missed");
    }
}
