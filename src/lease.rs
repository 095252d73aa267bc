//! Ending a lease, however often the store has to be asked.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use crate::{
    claim::ClaimRequest,
    pause::Pause,
    policy::OnCrash,
    record::{Owner, Settlement},
    store::Store,
};

/// Gives back a key that was taken, and for which nothing ran, for as long as its lease could run.
pub(crate) async fn give_back<S: Store>(store: S, owner: Owner, request: Arc<ClaimRequest>, retention: Duration) {
    let reason = "the key was taken, and nothing ran".to_owned();
    let settlement = match (owner.attempt, request.on_crash) {
        // Under `Hold` an attempt only follows one that released the key.
        (1, _) | (_, OnCrash::Hold) => Settlement::Release { retention, reason: Some(reason) },
        // It was taken over from one whose outcome is as unknown as before.
        (_, OnCrash::Resume | OnCrash::Release) => Settlement::Hold { reason },
    };
    persist(&store, &owner, &settlement, request.lease).await;
}

/// Settles within a time, however often it takes. `None`: the store could not be reached in it.
pub(crate) async fn persist<S: Store>(
    store: &S,
    owner: &Owner,
    settlement: &Settlement,
    within: Duration,
) -> Option<bool> {
    let deadline = Instant::now() + within;
    let mut pause = Pause::new();
    loop {
        match store.settle(owner, settlement).await {
            Ok(settled) => return Some(settled),
            Err(error) if Instant::now() >= deadline => {
                tracing::error!(request_id = %owner.request_id, error = &error as &dyn std::error::Error, "an outcome could not be stored");
                return None;
            }
            Err(_) => sleep_until(pause.end()).await,
        }
    }
}
