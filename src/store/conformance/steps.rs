//! Recovery points.

use super::law::*;

laws! {
    /// A step keeps its place when it finishes; its attempt and its result are the latest.
    steps_are_kept_in_order_and_their_results_replaced(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        let steps = [
            point(&owner, "z", StepKind::Remote, None),
            point(&owner, "Z", StepKind::Remote, None),
            point(&owner, "a", StepKind::Local, Some("\"é\\u0000\"")),
            point(&owner, "null", StepKind::Remote, Some("null")),
            point(&owner, "spaced", StepKind::Remote, Some(" { \"b\" : 1.0, \"a\" : 1e2 } ")),
            point(&owner, "z", StepKind::Remote, Some(&"1".repeat(100_000))),
        ];
        for step in &steps {
            ensure!(law, law.told(law.store.checkpoint(&owner, step, LONG, None).await)?, "{step:?} was refused");
        }
        let stored = law.steps(&request).await?;
        let mut expected = [5, 1, 2, 3, 4].map(|at: usize| steps[at].clone());
        ensure!(law, stored == expected, "{stored:?}");
        law.settle(&owner, &release(Some(LONG))).await?;
        let next = law.take(&request).await?;
        ensure!(law, next.steps == expected, "a take-over was told {:?}", next.steps);
        expected[1] = point(&next.owner, "Z", StepKind::Remote, Some("2"));
        expected[3] = point(&next.owner, "null", StepKind::Remote, Some("3"));
        let new = point(&next.owner, "new", StepKind::Remote, None);
        for step in [&expected[1], &expected[3], &new] {
            ensure!(law, law.told(law.store.checkpoint(&next.owner, step, LONG, None).await)?, "{step:?} was refused");
        }
        let stored = law.steps(&request).await?;
        let is_whole = stored.split_last().is_some_and(|(last, earlier)| *last == new && earlier == expected);
        ensure!(law, is_whole && new.attempt == 2, "{stored:?}");
        let none = law.told(law.store.steps(&request.client, &law.request().key).await)?;
        ensure!(law, none.is_empty(), "another key has {none:?}");
    }

    /// A checkpoint renews the lease, and puts a record that was believed lost in progress again.
    a_checkpoint_renews_the_lease(law) {
        let (_turn, sweep) = law.turn().await;
        for with_transaction in [false, true] {
            let request = ClaimRequest { lease: SHORT, ..law.request() };
            let owner = law.owner(&request).await?;
            law.rest().await;
            law.sweep(&request, sweep).await?;
            let transaction =
                if with_transaction { Some(law.told(law.store.transaction(&owner).await)?) } else { None };
            let step = point(&owner, "step", StepKind::Local, Some("1"));
            let written = law.told(law.store.checkpoint(&owner, &step, LONG, transaction).await)?;
            let Reading { record, now } = law.reading(&request).await?;
            ensure!(law, written && record.state == State::InProgress && record.reason.is_none(), "{record:?}");
            ensure!(law, is_ahead(record.due_at, now, LONG), "{record:?}");
        }
    }

    /// Law 2, for long steps: the lease runs from the moment of the checkpoint, not from when its transaction began.
    a_checkpoint_in_a_long_transaction_renews_from_now(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        let before = law.reading(&request).await?.now;
        let transaction = law.told(law.store.transaction(&owner).await)?;
        law.rest().await;
        let step = point(&owner, "step", StepKind::Local, Some("1"));
        law.told(law.store.checkpoint(&owner, &step, LONG, Some(transaction)).await)?;
        let due = law.record(&request).await?.due_at;
        ensure!(law, due >= before.after(LONG + SHORT), "the lease runs until {due:?}, from when its transaction began");
    }

    /// Law 4, for steps: effects and point together, or none of them.
    a_step_commits_with_its_effects_or_not_at_all(law) {
        let request = law.request();
        let owner = law.owner(&request).await?;
        let label = Uuid::new_v4().to_string();
        let mut dropped = law.told(law.store.transaction(&owner).await)?;
        law.write(&mut dropped, &label).await?;
        drop(dropped);
        ensure!(law, law.count_soon(&label, 0).await? == 0, "a dropped step kept its effects");
        let mut transaction = law.told(law.store.transaction(&owner).await)?;
        law.write(&mut transaction, &label).await?;
        let step = point(&owner, "step", StepKind::Local, Some("1"));
        ensure!(law, law.told(law.store.checkpoint(&owner, &step, LONG, Some(transaction)).await)?, "it was refused");
        let (effects, steps) = (law.count(&label).await?, law.steps(&request).await?);
        ensure!(law, effects == 1 && steps == [step], "{effects} effects, {steps:?}");
    }
}
