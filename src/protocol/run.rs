//! A mutation that has its key, until its key is settled.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use tokio::{runtime::Handle, time::timeout};

use super::{Answer, Claimant, Detached, Leader, Protocol, claimant::Holding, lease::Renewal, settling::Settling};
use crate::{
    attempt::{
        Attempt, Held,
        steps::{Says, Steps},
    },
    claim::ClaimRequest,
    ending::{Ending, Fate},
    error::{Error, ErrorCode},
    policy::{Effects, Policy},
    record::{Owner, Record, Timestamp},
    store::Store,
};

/// A mutation that has its key: [`drive`] its work, then [`Run::settle`] what it came to. Dropped before, it counts
/// as [`Ending::Dropped`].
pub struct Run<S: Store> {
    /// None once it is settled for good.
    key: Option<Box<Key<S>>>,
    policy: Arc<Policy>,
}

/// A key, and everything that goes with it while it is held.
pub(super) struct Key<S: Store> {
    pub(super) held: Arc<Held<S>>,
    pub(super) created_at: Timestamp,
    pub(super) policy: Arc<Policy>,
    pub(super) protocol: Protocol<S>,
    /// Renews the lease; none while the key is held by a transaction.
    pub(super) renewal: Option<Renewal>,
    /// The duplicates that wait in this process, once the work has begun.
    pub(super) flight: Option<(Leader, Holding)>,
}

/// When a run is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Its work has ended, and its response may still change: it is made safe.
    Meanwhile,
    /// Its response is complete.
    End,
}

/// What settling came to.
#[derive(Debug)]
pub struct Settled {
    /// What became of the key.
    pub fate: Fate,
    /// What the client gets instead of the run's own result; none where that one stands.
    pub answer: Option<Answer>,
    /// The record, where one was stored for good.
    pub record: Option<Arc<Record>>,
    /// The code for the client's error where that came from a failure of the crate, even if the resolver converted it.
    pub code: Option<ErrorCode>,
}

impl<S: Store> Run<S> {
    pub(super) fn new(
        protocol: &Protocol<S>,
        request: &Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        owner: Owner,
        created_at: Timestamp,
        steps: Steps,
        transaction: Option<S::Transaction>,
    ) -> Self {
        let (store, patience) = (protocol.store.clone(), protocol.store_timeout);
        let key = Key {
            held: Arc::new(Held::new(store, Arc::clone(request), owner, transaction, steps, patience)),
            created_at,
            policy: Arc::clone(policy),
            protocol: protocol.clone(),
            renewal: None,
            flight: None,
        };
        Self { key: Some(Box::new(key)), policy: Arc::clone(policy) }
    }

    /// From now on its work runs.
    pub(super) fn begin(mut self, leader: Leader, claimant: &Claimant) -> Self {
        if let Some(key) = &mut self.key {
            key.flight = Some((leader, claimant.hold()));
            if key.held.transaction.is_none() {
                key.keep_lease();
            }
        }
        self
    }

    /// Settles a key whose work can't run, for this reason. Returns what the client gets.
    pub(super) async fn leave(mut self, reason: String) -> Answer {
        let Some(key) = &self.key else { return Answer::Own };
        tracing::error!(mutation = %key.held.request.mutation, request_id = %key.held.owner.request_id, "a key can't be taken: {reason}");
        let unknown = key.refusal(ErrorCode::OutcomeUnknown);
        key.held.steps().broken(reason);
        self.settle(&Ending::Unused, None, Moment::End).await.answer.unwrap_or(unknown)
    }

    /// The mutation's policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The attempt, for the work; none once it is settled. `resolver` identifies the part of the work that asks: a
    /// transaction is held by one part at a time, and a part that asks for it twice gets an error.
    #[must_use]
    pub fn attempt(&self, resolver: u64) -> Option<Attempt<'_, S>> {
        self.held().map(|held| Attempt::new(Arc::clone(held), resolver))
    }

    pub(crate) fn held(&self) -> Option<&Arc<Held<S>>> {
        self.key.as_ref().map(|key| &key.held)
    }

    /// Settles the key as [`fate`](crate::ending::fate) says. `response` is what a retry gets; none when it isn't kept.
    /// A run that was made safe ([`Moment::Meanwhile`]) is settled once more, at the end.
    pub async fn settle(&mut self, ending: &Ending<'_>, response: Option<Vec<u8>>, moment: Moment) -> Settled {
        let Some(key) = self.key.take() else {
            return Settled { fate: Fate::Hold, answer: Some(Answer::Own), record: None, code: None };
        };
        let (ending, failure, done) = {
            let steps = key.held.steps();
            let (ending, failure) = heard(&steps, ending);
            (ending, failure, steps.known().done)
        };
        let (settling, passes) = Settling::of(key, &ending, response, moment);
        let refusal = (!passes).then(|| settling.refusal());
        let (key, settled) = Detached::new(settling.carry_out()).await;
        if moment == Moment::Meanwhile && settled.answer.is_none() && matches!(settled.fate, Fate::Complete(_)) {
            self.key = key;
        }
        // Only a key that is free again, with no step done, keeps a code that says so; else the outcome is unknown.
        let code = failure.map(|code| match settled.fate {
            _ if code == ErrorCode::Misconfigured => code,
            Fate::Release { .. } if !done => code,
            _ => ErrorCode::OutcomeUnknown,
        });
        Settled { answer: settled.answer.or(refusal), code, ..settled }
    }

    /// For work that was dropped but may still hold its transaction: the key is settled as soon as that is free.
    /// Returns what the client gets.
    #[must_use]
    pub fn abandon(self) -> Answer {
        self.key.as_ref().map_or(Answer::Own, |key| key.nothing_to_give())
    }

    /// Whether nothing is left to settle.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.key.is_none()
    }

    /// Undoes a transaction that no resolver has used, so that it is not held open until the outcome is known. The
    /// settlement gets a transaction of its own.
    pub async fn roll_back(&mut self) {
        if let Some(key) = &self.key
            && let Some(slot) = &key.held.transaction
        {
            drop(slot.take().await);
        }
    }
}

/// The ending together with what the ledger knows: the resolver's mark, or the last failure of the crate's own, from
/// which an unmarked error is taken to come. Then that failure's code is returned, too.
fn heard<'a>(steps: &Steps, ending: &Ending<'a>) -> (Ending<'a>, Option<ErrorCode>) {
    match (*ending, steps.marked(), steps.failure()) {
        (Ending::Value { mark: None }, mark, _) => (Ending::Value { mark }, None),
        (Ending::Error { mark: None, code }, Some(mark), _) => (Ending::Error { mark: Some(mark), code }, None),
        (Ending::Error { mark: None, code }, None, Some(failure)) => match failure.says {
            Says::Mark(mark) => (Ending::Error { mark: Some(mark), code }, Some(failure.code)),
            Says::Misuse => (Ending::Misuse, Some(failure.code)),
        },
        (ending, _, _) => (ending, None),
    }
}

/// Does the work of a run, for as long as its policy lets an attempt run.
///
/// # Errors
/// How it ended, where it has no output: it panicked, or was dropped because it took too long.
pub async fn drive<T>(policy: &Policy, work: impl Future<Output = T>) -> Result<T, Ending<'static>> {
    let mut work = pin!(work);
    // Unwind safety is the application's concern: the work is not polled again after its panic.
    let caught = std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(_panic) => Poll::Ready(Err(Ending::Panicked)),
    });
    timeout(policy.max_attempt, caught).await.unwrap_or(Err(Ending::Dropped))
}

impl<S: Store> Key<S> {
    /// Renews the lease from now on.
    pub(super) fn keep_lease(&mut self) {
        let flight = self.flight.as_ref().map(|(leader, _)| leader.flight());
        let Protocol { store, store_timeout, .. } = &self.protocol;
        let owner = self.held.owner.clone();
        self.renewal = Some(Renewal::of(store.clone(), *store_timeout, owner, &self.policy, flight));
    }

    /// A refusal with what is known of the key.
    pub(super) fn refusal(&self, code: ErrorCode) -> Answer {
        let mut error = Error::new(code).mutation(&*self.held.request.mutation);
        error.request_id = Some(self.held.owner.request_id);
        error.first_seen_at = Some(self.created_at);
        Answer::refuse(if code.retryable() { error.retry_after(self.policy.lease) } else { error })
    }

    /// The answer of an attempt that has no result to give.
    pub(super) fn nothing_to_give(&self) -> Answer {
        self.refusal(match self.policy.effects {
            Effects::Leased => ErrorCode::OutcomeUnknown,
            Effects::Transactional => ErrorCode::RolledBack,
        })
    }
}

impl<S: Store> Drop for Run<S> {
    fn drop(&mut self) {
        let (Some(key), Ok(runtime)) = (self.key.take(), Handle::try_current()) else { return };
        // What was made safe already is settled when its lease lapses.
        if !key.held.is_over() {
            let ending = if key.flight.is_some() { Ending::Dropped } else { Ending::Unused };
            let (settling, _) = Settling::of(key, &ending, None, Moment::End);
            runtime.spawn(settling.carry_out());
        }
    }
}
