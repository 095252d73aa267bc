//! Keeps the lease of a live attempt.

use std::time::Duration;

use tokio::{task::AbortHandle, time::sleep};

use super::{
    ask,
    flight::{Flight, Progress},
};
use crate::{policy::Policy, record::Owner, store::Store};

/// How soon a failed renewal is tried again: at first, and after it has failed again and again.
const RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Renews a lease until it is lost, or this is dropped.
pub(super) struct Renewal(AbortHandle);

impl Renewal {
    /// Renews a lease as often as its policy says. `flight` ends when the lease is lost: others may then decide what
    /// becomes of the key, so its followers have to ask the store.
    pub(super) fn of<S: Store>(
        store: S,
        store_timeout: Duration,
        owner: Owner,
        policy: &Policy,
        flight: Option<Flight>,
    ) -> Self {
        let Policy { lease, renew_every: every, .. } = *policy;
        // A try on a connection that hangs is given up in time for more tries, on others, before the lease lapses.
        let patience = (lease / 4).min(store_timeout);
        let renewing = async move {
            let (mut pause, mut retry) = (every, RETRY);
            loop {
                sleep(pause).await;
                let (asked, owner) = (store.clone(), owner.clone());
                let (request_id, attempt) = (owner.request_id, owner.attempt);
                pause = match ask(patience, async move { asked.renew(&owner, lease).await }).await {
                    Ok(true) => {
                        retry = RETRY;
                        every
                    }
                    Ok(false) => {
                        tracing::warn!(%request_id, attempt, "an attempt lost its lease");
                        if let Some(flight) = flight {
                            flight.end(Progress::Gone);
                        }
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%request_id, error = &error as &dyn std::error::Error, "a lease could not be renewed");
                        let soon = retry.min(every);
                        retry = (retry * 2).min(LONGEST_RETRY);
                        soon
                    }
                };
            }
        };
        Self(tokio::spawn(renewing).abort_handle())
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}
