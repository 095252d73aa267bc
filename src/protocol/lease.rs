//! Keeping the leases of attempts that live.
//!
//! One task of each runtime keeps them all: most attempts end long before their first renewal, and should not pay
//! for a task that never has anything to do (`benches/overhead` shows the price).

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    runtime::{self, Handle},
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep_until},
};

use super::{
    ask,
    flight::{Flight, Progress},
};
use crate::{record::Owner, store::Store};

/// How soon a failed renewal is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// The leases that this process renews.
#[derive(Clone)]
pub(crate) struct Leases<S: Store> {
    store: S,
    store_timeout: Duration,
    /// By runtime: an attempt's lease is renewed for as long as its own runtime runs, and no longer.
    runtimes: Arc<Mutex<HashMap<runtime::Id, Runtime>>>,
}

#[derive(Default)]
struct Runtime {
    made: u64,
    leases: HashMap<u64, Lease>,
    /// When which lease is to be renewed.
    due: BTreeSet<(Instant, u64)>,
    keeper: Option<Keeper>,
}

#[derive(Clone)]
struct Lease {
    owner: Owner,
    /// How long it runs without being renewed.
    runs: Duration,
    every: Duration,
    due: Instant,
    /// Ended once the lease is lost: what the key comes to is no longer in this process's hand.
    flight: Option<Flight>,
}

/// The task, and when it looks again.
struct Keeper {
    task: AbortHandle,
    sooner: Arc<Notify>,
    wakes_at: Instant,
}

/// Renews a lease until it is lost, or this is dropped.
pub(crate) struct Renewal<S: Store> {
    leases: Leases<S>,
    runtime: runtime::Id,
    id: u64,
}

impl<S: Store> Leases<S> {
    pub(crate) fn new(store: S, store_timeout: Duration) -> Self {
        Self { store, store_timeout, runtimes: Arc::default() }
    }

    /// Renews a lease every so often, from now on.
    pub(crate) fn keep(&self, owner: Owner, runs: Duration, every: Duration, flight: Option<Flight>) -> Renewal<S> {
        let handle = Handle::current();
        let runtime = handle.id();
        let mut runtimes = self.lock();
        let of = runtimes.entry(runtime).or_default();
        of.made += 1;
        let (id, due) = (of.made, Instant::now() + every);
        of.leases.insert(id, Lease { owner, runs, every, due, flight });
        of.due.insert((due, id));
        self.wake_by(of, due, &handle);
        Renewal { leases: self.clone(), runtime, id }
    }

    /// Sees to it that the keeper looks at this time. It is left asleep where it would have looked earlier.
    fn wake_by(&self, of: &mut Runtime, at: Instant, handle: &Handle) {
        match &mut of.keeper {
            Some(keeper) if !keeper.task.is_finished() => {
                if at < keeper.wakes_at {
                    keeper.wakes_at = at;
                    keeper.sooner.notify_one();
                }
            }
            _ => {
                let sooner = Arc::new(Notify::new());
                let task = handle.spawn(self.clone().watch(handle.id(), Arc::clone(&sooner), at)).abort_handle();
                of.keeper = Some(Keeper { task, sooner, wakes_at: at });
            }
        }
    }

    /// The keeper: renews what is due, until nothing is kept any more.
    async fn watch(self, runtime: runtime::Id, sooner: Arc<Notify>, mut wakes_at: Instant) {
        loop {
            tokio::select! {
                () = sleep_until(wakes_at) => {}
                () = sooner.notified() => {}
            }
            let mut runtimes = self.lock();
            let Some(of) = runtimes.get_mut(&runtime) else { return };
            let later = of.due.split_off(&(Instant::now(), u64::MAX));
            for (_, id) in std::mem::replace(&mut of.due, later) {
                tokio::spawn(self.clone().renew(runtime, id));
            }
            let (Some((next, _)), Some(keeper)) = (of.due.first(), &mut of.keeper) else {
                // Whoever keeps a lease from now on starts another.
                of.keeper = None;
                return;
            };
            wakes_at = *next;
            keeper.wakes_at = wakes_at;
        }
    }

    async fn renew(self, runtime: runtime::Id, id: u64) {
        let Some(Lease { owner, runs, every, flight, .. }) =
            self.lock().get(&runtime).and_then(|of| of.leases.get(&id).cloned())
        else {
            return;
        };
        let (store, renewed) = (self.store.clone(), owner.clone());
        // A connection that hangs is left alone, and the next try gets another: as many as a lease has room for.
        let patience = (runs / 4).min(self.store_timeout);
        let pause = match ask(patience, async move { store.renew(&renewed, runs).await }).await {
            Ok(true) => every,
            Ok(false) => {
                tracing::warn!(request_id = %owner.request_id, attempt = owner.attempt, "an attempt lost its lease");
                if let Some(flight) = flight {
                    flight.end(Progress::Gone);
                }
                return;
            }
            Err(error) => {
                tracing::warn!(request_id = %owner.request_id, error = &error as &dyn std::error::Error, "a lease could not be renewed");
                RETRY.min(every)
            }
        };
        let mut runtimes = self.lock();
        let Some(of) = runtimes.get_mut(&runtime) else { return };
        // It may have ended meanwhile.
        let Some(lease) = of.leases.get_mut(&id) else { return };
        lease.due = Instant::now() + pause;
        let due = lease.due;
        of.due.insert((due, id));
        self.wake_by(of, due, &Handle::current());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<runtime::Id, Runtime>> {
        self.runtimes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Drop for Renewal<S> {
    fn drop(&mut self) {
        let mut runtimes = self.leases.lock();
        let Some(of) = runtimes.get_mut(&self.runtime) else { return };
        if let Some(lease) = of.leases.remove(&self.id) {
            of.due.remove(&(lease.due, self.id));
        }
        // Of a runtime that is gone, or as good as.
        if of.leases.is_empty() && of.keeper.as_ref().is_none_or(|keeper| keeper.task.is_finished()) {
            runtimes.remove(&self.runtime);
        }
    }
}
