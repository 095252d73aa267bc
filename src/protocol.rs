//! Claim, wait, replay or refuse: over any store. What follows a claim is a [`Run`].

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};

use crate::{
    attempt::{Attempt, Hold},
    claim::{ClaimRequest, Verdict, decide},
    error::{Error, ErrorCode},
    finish::Finish,
    flight::{Flights, Leader, Part, Progress},
    lease::give_back,
    pause::Pause,
    policy::{Effects, Policy},
    record::{Record, Timestamp},
    renewal::Renewals,
    run::Run,
    store::{Begun, Claimed, Store, StoreError},
};

/// The protocol over one store.
#[derive(Clone)]
pub struct Protocol<S: Store> {
    store: S,
    flights: Flights,
    renewals: Renewals<S>,
    store_timeout: Duration,
}

/// What a request with a key comes to.
pub enum Entry<S: Store> {
    /// It has the key: run the mutation, and end the run.
    Run(Run<S>),
    /// It was done before: replay this record's response.
    Replay(Arc<Record>),
    /// Say this.
    Refuse(Error),
}

impl<S: Store> Protocol<S> {
    /// The protocol over a store that has `store_timeout` to answer a claim.
    pub fn new(store: S, store_timeout: Duration) -> Self {
        Self { renewals: Renewals::new(store.clone()), store, flights: Flights::default(), store_timeout }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Takes the key, waits for whoever has it, or tells what its record means.
    pub async fn enter(&self, request: Arc<ClaimRequest>, policy: &Arc<Policy>) -> Entry<S> {
        let deadline = Instant::now() + policy.wait;
        loop {
            let entry = match self.flights.join(&request.client, &request.key) {
                Part::Lead(leader) => Some(self.lead(&request, policy, leader, deadline).await),
                Part::Follow(progress) => follow(&request, progress, deadline).await,
            };
            if let Some(entry) = entry {
                return entry;
            }
        }
    }

    async fn lead(
        &self,
        request: &Arc<ClaimRequest>,
        policy: &Arc<Policy>,
        leader: Leader,
        deadline: Instant,
    ) -> Entry<S> {
        let mut pause = Pause::new();
        loop {
            let seen = if leader.follows_landed() { self.look(request).await } else { Ok(None) };
            let taken = match (seen, policy.effects) {
                (Ok(Some(found)), _) => Ok(found),
                (Err(error), _) => Err(error),
                (Ok(None), Effects::Leased) => self.claim(request, policy).await,
                (Ok(None), Effects::Transactional) => self.begin(request, policy).await,
            };
            let (left, record) = match taken {
                Ok(Taken::Key(key, created_at)) => {
                    leader.tell(Progress::Running(request.fingerprint));
                    let run = Run::new(key.into_attempt(), created_at, Arc::clone(policy), leader, &self.renewals);
                    return Entry::Run(run);
                }
                Ok(Taken::Found(record, verdict, now)) => match verdict {
                    Verdict::InProgress(left) => {
                        leader.tell(Progress::Found(Arc::clone(&record), now));
                        (left, Some(record))
                    }
                    verdict => {
                        leader.land(Progress::Found(Arc::clone(&record), now));
                        return answer(record, verdict);
                    }
                },
                Ok(Taken::Held { reused: true }) => {
                    return Entry::Refuse(Error::new(ErrorCode::KeyReused).mutation(&*request.mutation));
                }
                Ok(Taken::Held { reused: false }) => (request.lease, None),
                Err(error) => {
                    tracing::error!(mutation = %request.mutation, error = &error as &dyn std::error::Error, "the idempotency key could not be claimed");
                    let refusal = unavailable(&error, request);
                    leader.land(Progress::Unavailable);
                    return Entry::Refuse(refusal);
                }
            };
            if Instant::now() >= deadline {
                return Entry::Refuse(in_progress(request, left, record.as_deref()));
            }
            sleep_until(pause.end().min(deadline)).await;
        }
    }

    async fn claim(&self, request: &Arc<ClaimRequest>, policy: &Policy) -> Result<Taken<S>, StoreError> {
        let (store, asked, retention) = (self.store.clone(), Arc::clone(request), policy.retention);
        self.ask(async move {
            match store.claim(&asked).await {
                Ok(Claimed::Taken { owner, created_at }) => {
                    // Recovery points are looked for only where there can be any.
                    let (points, error) = match owner.attempt {
                        1 => (Vec::new(), None),
                        _ => match store.points(&owner.client, &owner.key).await {
                            Ok(points) => (points, None),
                            Err(error) => (Vec::new(), Some(error)),
                        },
                    };
                    let key = TakenKey::new(Attempt::leased(store, asked, owner, points), retention);
                    error.map_or(Ok(Taken::Key(key, created_at)), Err)
                }
                Ok(Claimed::Found { record, verdict, now }) => Ok(Taken::Found(Arc::from(record), verdict, now)),
                Ok(Claimed::Contended) => Ok(Taken::Held { reused: false }),
                Err(error) => {
                    // It may have been taken all the same; then it is given back, since nothing ran.
                    let owner = asked.owner(asked.request_id, 1);
                    drop(TakenKey::new(Attempt::leased(store, asked, owner, Vec::new()), retention));
                    Err(error)
                }
            }
        })
        .await
    }

    async fn begin(&self, request: &Arc<ClaimRequest>, policy: &Policy) -> Result<Taken<S>, StoreError> {
        let (store, asked, retention) = (self.store.clone(), Arc::clone(request), policy.retention);
        self.ask(async move {
            Ok(match store.begin(&asked).await? {
                Begun::Taken { transaction, created_at } => {
                    let key = TakenKey::new(Attempt::transactional(store, asked, transaction), retention);
                    Taken::Key(key, created_at)
                }
                // What a leased attempt left, before the policy was changed, is for it or an operator to settle.
                Begun::Found { record, verdict: Verdict::TakeOver, now } => {
                    let refusal = Error::new(ErrorCode::OutcomeUnknown).record(&record);
                    Taken::Found(Arc::from(record), Verdict::Refuse(refusal), now)
                }
                Begun::Found { record, verdict, now } => Taken::Found(Arc::from(record), verdict, now),
                Begun::Busy { reused } => Taken::Held { reused },
            })
        })
        .await
    }

    /// The record, if there is one and it is not the caller's to take.
    async fn look(&self, request: &Arc<ClaimRequest>) -> Result<Option<Taken<S>>, StoreError> {
        let (store, asked) = (self.store.clone(), Arc::clone(request));
        self.ask(async move {
            let Some((record, now)) = store.find(&asked.client, &asked.key).await? else { return Ok(None) };
            let verdict = decide(Some(&record), &asked, now);
            Ok((verdict != Verdict::TakeOver).then(|| Taken::Found(Arc::new(record), verdict, now)))
        })
        .await
    }

    /// Asks the store to the end: a request that is dropped meanwhile leaves nothing half begun.
    async fn ask<T: Send>(
        &self,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match timeout(self.store_timeout, Finish::new(work)).await {
            Ok(taken) => taken,
            Err(elapsed) => Err(StoreError::Unavailable(elapsed.into())),
        }
    }
}

enum Taken<S: Store> {
    Key(TakenKey<S>, Timestamp),
    Found(Arc<Record>, Verdict, Timestamp),
    /// Somebody has it, and their record can't be seen.
    Held {
        reused: bool,
    },
}

/// A key that was taken and whose run has not begun. Dropped, it is given back: nobody waits for it any more.
struct TakenKey<S: Store> {
    attempt: Arc<Attempt<S>>,
    retention: Duration,
    begun: bool,
}

impl<S: Store> TakenKey<S> {
    fn new(attempt: Attempt<S>, retention: Duration) -> Self {
        Self { attempt: Arc::new(attempt), retention, begun: false }
    }

    fn into_attempt(mut self) -> Arc<Attempt<S>> {
        self.begun = true;
        Arc::clone(&self.attempt)
    }
}

impl<S: Store> Drop for TakenKey<S> {
    fn drop(&mut self) {
        // A transaction undoes itself.
        if let (false, Hold::Lease { owner, .. }, Ok(runtime)) =
            (self.begun, &self.attempt.hold, tokio::runtime::Handle::try_current())
        {
            let (store, request) = (self.attempt.store.clone(), Arc::clone(&self.attempt.request));
            runtime.spawn(give_back(store, owner.clone(), request, self.retention));
        }
    }
}

async fn follow<S: Store>(
    request: &ClaimRequest,
    mut progress: watch::Receiver<Progress>,
    deadline: Instant,
) -> Option<Entry<S>> {
    loop {
        let current = progress.borrow_and_update().clone();
        let (left, record) = match current {
            Progress::Asking => (request.lease, None),
            Progress::Running(fingerprint) if fingerprint == request.fingerprint => (request.lease, None),
            Progress::Running(_) => {
                return Some(Entry::Refuse(Error::new(ErrorCode::KeyReused).mutation(&*request.mutation)));
            }
            Progress::Found(record, now) => match decide(Some(&record), request, now) {
                Verdict::InProgress(left) => (left, Some(record)),
                // For the leader to do.
                Verdict::Take | Verdict::TakeOver => (request.lease, Some(record)),
                verdict => return Some(answer(record, verdict)),
            },
            Progress::Unavailable => {
                return Some(Entry::Refuse(
                    Error::new(ErrorCode::StoreUnavailable).mutation(&*request.mutation).retry_after(request.lease),
                ));
            }
            Progress::Gone => return None,
        };
        match timeout_at(deadline, progress.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return None,
            Err(_) => return Some(Entry::Refuse(in_progress(request, left, record.as_deref()))),
        }
    }
}

fn answer<S: Store>(record: Arc<Record>, verdict: Verdict) -> Entry<S> {
    match verdict {
        Verdict::Replay => Entry::Replay(record),
        Verdict::Refuse(error) => Entry::Refuse(error),
        // A store takes the key where the verdict says so; telling it as found is its fault.
        Verdict::Take | Verdict::TakeOver | Verdict::InProgress(_) => {
            Entry::Refuse(Error::new(ErrorCode::RecordCorrupt).record(&record))
        }
    }
}

fn in_progress(request: &ClaimRequest, left: Duration, record: Option<&Record>) -> Error {
    let error = Error::in_progress(&request.mutation, left);
    match record {
        Some(record) => error.record(record),
        None => error,
    }
}

fn unavailable(error: &StoreError, request: &ClaimRequest) -> Error {
    match error {
        StoreError::Corrupt(_) => Error::new(ErrorCode::RecordCorrupt).mutation(&*request.mutation),
        StoreError::Unavailable(_) | StoreError::RolledBack(_) | StoreError::InDoubt(_) => {
            Error::new(ErrorCode::StoreUnavailable).mutation(&*request.mutation).retry_after(request.lease)
        }
    }
}
