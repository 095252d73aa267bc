//! What is committed together is visible together.

use super::{
    Begun, Broken, LONG, SHORT, StepKind, Store, StoreError, Verdict, ensure, finish, point, record, request, take,
};

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
