//! A store that fails on demand: the n-th call from now, or every call, before or after its effect.

use std::sync::{Arc, Mutex};

use async_graphql_idempotency::{Store, StoreError};

#[path = "../../shared/watched.rs"]
mod watched;

pub use watched::Moment;
use watched::{Watch, Watched};

pub type Faulty<S> = Watched<S, Faults>;

#[derive(Default)]
pub struct Faults(Mutex<Plan>);

#[derive(Default)]
struct Plan {
    calls: Vec<&'static str>,
    /// The call that fails, counted from when this was set, and how.
    at: Option<(usize, Moment)>,
    /// Every call fails from then on.
    down: bool,
    /// Every call of these verbs fails.
    verbs: Vec<(&'static str, Moment)>,
    /// Whether the fault has come.
    struck: bool,
}

impl Watch for Faults {
    async fn called(&self, verb: &'static str) -> Option<(Moment, StoreError)> {
        let mut plan = self.0.lock().unwrap();
        let n = plan.calls.len();
        plan.calls.push(verb);
        let moment = if plan.down {
            Some(Moment::Before)
        } else {
            let of_verb = plan.verbs.iter().find(|(faulty, _)| *faulty == verb).map(|(_, moment)| *moment);
            of_verb.or(plan.at.filter(|(at, _)| *at == n).map(|(_, moment)| moment))
        };
        plan.struck |= moment.is_some();
        // A store may know that it was not reached; of all else it can't tell.
        let error = if moment == Some(Moment::Before) && n.is_multiple_of(2) {
            StoreError::Undone("the store is away; secret of the database".into())
        } else {
            StoreError::InDoubt("the connection broke; secret of the database".into())
        };
        moment.map(|moment| (moment, error))
    }

    async fn answered(&self, _: &'static str) {}
}

impl<S: Store> Watched<S, Faults> {
    pub fn faulty(inner: S) -> Self {
        Self::new(inner, Arc::default())
    }

    /// Forgets the calls so far, and fails the n-th from now (from 0).
    pub fn fail(&self, n: usize, moment: Moment) {
        *self.plan() = Plan { at: Some((n, moment)), ..Plan::default() };
    }

    pub fn fail_verb(&self, verb: &'static str, moment: Moment) {
        self.plan().verbs.push((verb, moment));
    }

    /// The store can't be reached.
    pub fn down(&self) {
        self.plan().down = true;
    }

    /// Everything works again. Whether the fault had come.
    pub fn heal(&self) -> bool {
        std::mem::take(&mut *self.plan()).struck
    }

    pub fn calls(&self) -> Vec<&'static str> {
        self.plan().calls.clone()
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.watch.0.lock().unwrap()
    }
}
