//! Duplicates of one process wait for one another in memory.
//!
//! An optimisation, never the referee: of the requests with one (client, key) that are here at a time, one goes to
//! the store (it *leads*), and the others *follow*, so that a thousand duplicates cost the store no more than one.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use super::{Claimant, finished::Finished};
use crate::{
    error::ErrorCode,
    fingerprint::Fingerprint,
    key::{ClientId, IdempotencyKey},
    record::Reading,
};

/// Shared by a flight and everyone who may end it.
type Flown = Arc<(ClientId, IdempotencyKey)>;

/// The keys that this process has requests for at the moment.
#[derive(Clone, Default)]
pub(crate) struct Flights {
    flights: Arc<Mutex<HashMap<Flown, Arc<watch::Sender<Progress>>>>>,
    finished: Finished,
}

/// How far the leader has come.
#[derive(Clone)]
pub(crate) enum Progress {
    /// It asks the store.
    Asking,
    /// It has the key and runs the mutation with this fingerprint, for this claimant.
    Running { fingerprint: Fingerprint, claimant: Claimant },
    /// The key has this record; the leader waits for it to change, unless it has finished.
    Found(Reading),
    /// The store can't be asked; this is the code for it.
    Unavailable(ErrorCode),
    /// It left without a record that others could use: ask the store.
    Gone,
}

/// Whether a request leads or follows.
pub(crate) enum Part {
    Lead(Leader),
    Follow(watch::Receiver<Progress>),
}

impl Flights {
    /// Joins the requests of a key.
    pub(crate) fn join(&self, client: &ClientId, key: &IdempotencyKey) -> Part {
        match self.lock().entry(Arc::new((client.clone(), key.clone()))) {
            Entry::Occupied(entry) => Part::Follow(entry.get().subscribe()),
            Entry::Vacant(entry) => {
                let progress = Arc::new(watch::Sender::new(Progress::Asking));
                let flown = entry.key().clone();
                entry.insert(Arc::clone(&progress));
                Part::Lead(Leader(Flight { flights: self.clone(), flown, progress }))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Flown, Arc<watch::Sender<Progress>>>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request that leads, with those that follow it.
#[derive(Clone)]
pub(crate) struct Flight {
    flights: Flights,
    flown: Flown,
    progress: Arc<watch::Sender<Progress>>,
}

impl Flight {
    /// Ends the flight, unless it has ended already: `progress` is the last that the followers get.
    pub(crate) fn end(&self, progress: Progress) {
        // Removed first: whoever comes now leads, and nobody follows a flight that is over.
        let mut flights = self.flights.lock();
        if flights.get(&self.flown).is_some_and(|current| Arc::ptr_eq(current, &self.progress)) {
            flights.remove(&self.flown);
            drop(flights);
            self.progress.send_replace(progress);
        }
    }
}

/// The request that goes to the store. When it is dropped, its followers ask the store themselves.
pub(crate) struct Leader(Flight);

impl Leader {
    /// Its flight, for a task that may have to end it earlier.
    pub(crate) fn flight(&self) -> Flight {
        self.0.clone()
    }

    /// Whether this process has lately seen the key finished.
    pub(crate) fn was_finished(&self) -> bool {
        self.0.flights.finished.has(&self.0.flown)
    }

    /// Shows the followers how far it has come.
    pub(crate) fn tell(&self, progress: Progress) {
        self.0.progress.send_replace(progress);
    }

    /// Ends the flight with what it came to.
    pub(crate) fn land(self, progress: Progress) {
        if matches!(&progress, Progress::Found(reading) if reading.record.state.is_finished()) {
            self.0.flights.finished.note(&self.0.flown);
        }
        self.0.end(progress);
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.0.end(Progress::Gone);
    }
}
