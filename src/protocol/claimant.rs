//! Who claims keys together: a document. Once one of its fields has its key, none of them waits for other documents.

use std::sync::Arc;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// A claimant, and how many keys it holds. Clones are the same claimant.
#[derive(Clone, Debug, Default)]
pub struct Claimant(Arc<watch::Sender<usize>>);

impl PartialEq for Claimant {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Claimant {
    /// Whether it holds a key.
    pub(super) fn holds(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Waits until `end`, or until it holds a key.
    pub(super) async fn rest_until(&self, end: Instant) {
        let mut held = self.0.subscribe();
        tokio::select! {
            _ = held.wait_for(|keys| *keys > 0) => {}
            () = sleep_until(end) => {}
        }
    }

    /// Counts one more key as held, until the result is dropped.
    pub(super) fn hold(&self) -> Holding {
        self.0.send_modify(|keys| *keys += 1);
        Holding(self.clone())
    }
}

/// A key that a claimant holds.
pub(super) struct Holding(Claimant);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.0.send_modify(|keys| *keys -= 1);
    }
}
