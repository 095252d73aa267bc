//! What a running mutation holds: its transaction, or its lease and its steps.

use std::{
    collections::HashSet,
    future::Future,
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex as StdMutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};
use uuid::Uuid;

use crate::{
    claim::ClaimRequest,
    finish::Finish,
    record::{Owner, RecoveryPoint, StepKind},
    store::{Store, StoreError},
};

/// One owner's execution of a claimed key, as its resolvers see it.
pub struct Attempt<S: Store> {
    pub(crate) store: S,
    pub(crate) request: Arc<ClaimRequest>,
    pub(crate) hold: Hold<S>,
    over: AtomicBool,
}

/// What ties an attempt to its key.
pub(crate) enum Hold<S: Store> {
    /// An open transaction; none once it has ended.
    Transaction(Arc<Mutex<Option<S::Transaction>>>),
    /// A lease, and the steps.
    Lease { owner: Owner, steps: StdMutex<Steps> },
}

/// The steps of a leased attempt.
#[derive(Default)]
pub(crate) struct Steps {
    /// What earlier attempts left, in order.
    stored: Vec<RecoveryPoint>,
    /// The names that this attempt has come by.
    visited: HashSet<String>,
    /// A remote step of this attempt that has not finished.
    begun: usize,
    /// Why this attempt can't tell how it ended.
    broken: Option<String>,
}

impl<S: Store> Attempt<S> {
    pub(crate) fn transactional(store: S, request: Arc<ClaimRequest>, transaction: S::Transaction) -> Self {
        let hold = Hold::Transaction(Arc::new(Mutex::new(Some(transaction))));
        Self { store, request, hold, over: AtomicBool::new(false) }
    }

    pub(crate) fn leased(store: S, request: Arc<ClaimRequest>, owner: Owner, stored: Vec<RecoveryPoint>) -> Self {
        let steps = StdMutex::new(Steps { stored, ..Steps::default() });
        Self { store, request, hold: Hold::Lease { owner, steps }, over: AtomicBool::new(false) }
    }

    /// The request id: the same for all attempts at this key, and what a gateway gets as its own idempotency
    /// key when the mutation makes one call to it. A mutation that makes several names them with
    /// [`Attempt::remote`].
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        match &self.hold {
            Hold::Lease { owner, .. } => owner.request_id,
            Hold::Transaction(_) => self.request.request_id,
        }
    }

    /// The attempt's number, from 1.
    #[must_use]
    pub fn number(&self) -> i32 {
        match &self.hold {
            Hold::Lease { owner, .. } => owner.attempt,
            Hold::Transaction(_) => 1,
        }
    }

    /// The transaction of a transactional mutation. Whatever a resolver does here is committed with the response,
    /// or not at all. Resolvers below the field read through it too, or they would not see what isn't committed
    /// yet; give it back (drop the guard) before they run.
    ///
    /// # Errors
    /// [`AttemptError::NotTransactional`] under a leased policy, [`AttemptError::Over`] once the mutation has
    /// ended.
    pub async fn transaction(&self) -> Result<TransactionGuard<S>, AttemptError> {
        let Hold::Transaction(transaction) = &self.hold else {
            return Err(AttemptError::NotTransactional);
        };
        let guard = Arc::clone(transaction).lock_owned().await;
        if guard.is_none() {
            return Err(AttemptError::Over);
        }
        OwnedMutexGuard::try_map(guard, Option::as_mut).map(TransactionGuard).map_err(|_| AttemptError::Over)
    }

    /// A step with effects in the team's own database. They are committed together with the step's result, and a
    /// later attempt gets that result without doing them again.
    ///
    /// # Errors
    /// Those of `effects`, whose work is undone then; and every [`AttemptError`].
    pub async fn local<T, E>(
        &self,
        name: &str,
        effects: impl AsyncFnOnce(&mut S::Connection) -> Result<T, E>,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<AttemptError>,
    {
        if let Some(result) = self.visit(name, StepKind::Local)?.and_then(|point| point.result) {
            return Ok(decode(name, &result)?);
        }
        // A BEGIN that is dropped half-way could leave a transaction open.
        let store = self.store.clone();
        let begun = Finish::new(async move { store.transaction().await }).await;
        let mut transaction = self.known(begun)?;
        let value = effects(&mut transaction).await?;
        let point = self.point(name, StepKind::Local, Some(encode(name, &value)?))?;
        let (store, owner, lease) = (self.store.clone(), self.owner()?.clone(), self.request.lease);
        let written = Finish::new(async move { store.checkpoint_with(transaction, &owner, &point, lease).await }).await;
        self.own(written)?;
        Ok(value)
    }

    /// A call to another system. The intent is committed before it and the result after it; `call` gets a request
    /// id that is the same on every attempt, for the other system to tell a repetition by.
    ///
    /// An error of `call` leaves the step unfinished, and so the outcome unknown, unless it is marked: mark
    /// what the other system certainly refused.
    ///
    /// # Errors
    /// Those of `call`, and every [`AttemptError`].
    pub async fn remote<T, E, F>(&self, name: &str, call: impl FnOnce(Uuid) -> F) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<AttemptError>,
        F: Future<Output = Result<T, E>>,
    {
        self.remote_with_lookup(name, async |_| Ok(None), call).await
    }

    /// [`Attempt::remote`], but a later attempt that finds the step begun and unfinished first asks the other
    /// system with `lookup`, and calls only if that knows of nothing.
    ///
    /// # Errors
    /// Those of `lookup` and `call`, and every [`AttemptError`].
    pub async fn remote_with_lookup<T, E, L, F>(
        &self,
        name: &str,
        lookup: impl FnOnce(Uuid) -> L,
        call: impl FnOnce(Uuid) -> F,
    ) -> Result<T, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<AttemptError>,
        L: Future<Output = Result<Option<T>, E>>,
        F: Future<Output = Result<T, E>>,
    {
        let stored = self.visit(name, StepKind::Remote)?;
        if let Some(result) = stored.as_ref().and_then(|point| point.result.as_ref()) {
            return Ok(decode(name, result)?);
        }
        let request_id = Uuid::new_v5(&self.request_id(), name.as_bytes());
        self.checkpoint(self.point(name, StepKind::Remote, None)?).await?;
        self.steps(|steps| steps.begun += 1)?;
        let known = if stored.is_some() { lookup(request_id).await? } else { None };
        let value = match known {
            Some(value) => value,
            None => call(request_id).await?,
        };
        self.checkpoint(self.point(name, StepKind::Remote, Some(encode(name, &value)?))?).await?;
        self.steps(|steps| steps.begun -= 1)?;
        Ok(value)
    }

    /// Whether the attempt's own record says that it can't tell how it ended: a remote step is unfinished, a
    /// step could not be stored, or the steps are not those of an earlier attempt.
    pub(crate) fn unknown(&self) -> Option<String> {
        let Hold::Lease { steps, .. } = &self.hold else {
            return None;
        };
        let steps = lock(steps);
        if steps.begun > 0 {
            return Some("a remote step was begun and has not finished".to_owned());
        }
        steps.broken.clone()
    }

    /// Whether a resolver that returned has passed by every step that earlier attempts left.
    pub(crate) fn missed_steps(&self) -> Option<String> {
        let Hold::Lease { steps, .. } = &self.hold else {
            return None;
        };
        let steps = lock(steps);
        let missed = steps.stored.iter().find(|point| !steps.visited.contains(&point.name))?;
        Some(AttemptError::StepsChanged(missed.name.clone()).to_string())
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Comes by a step: its stored point, or none when it is new.
    fn visit(&self, name: &str, kind: StepKind) -> Result<Option<RecoveryPoint>, AttemptError> {
        if self.over.load(Ordering::Acquire) {
            return Err(AttemptError::Over);
        }
        self.steps(|steps| {
            if !steps.visited.insert(name.to_owned()) {
                return Err(AttemptError::StepRepeated(name.to_owned()));
            }
            let changed = match steps.stored.iter().find(|point| point.name == name) {
                Some(point) if point.kind == kind => return Ok(Some(point.clone())),
                Some(_) => Some(name.to_owned()),
                // A new step comes after all that earlier attempts left, or the code is another.
                None => steps
                    .stored
                    .iter()
                    .find(|point| !steps.visited.contains(&point.name))
                    .map(|point| point.name.clone()),
            };
            match changed {
                None => Ok(None),
                Some(changed) => {
                    let error = AttemptError::StepsChanged(changed);
                    steps.broken = Some(error.to_string());
                    Err(error)
                }
            }
        })?
    }

    async fn checkpoint(&self, point: RecoveryPoint) -> Result<(), AttemptError> {
        let (store, owner, lease) = (self.store.clone(), self.owner()?.clone(), self.request.lease);
        let written = Finish::new(async move { store.checkpoint(&owner, &point, lease).await }).await;
        self.own(written)
    }

    fn point(&self, name: &str, kind: StepKind, result: Option<String>) -> Result<RecoveryPoint, AttemptError> {
        Ok(RecoveryPoint { name: name.to_owned(), kind, attempt: self.owner()?.attempt, result })
    }

    fn owner(&self) -> Result<&Owner, AttemptError> {
        match &self.hold {
            Hold::Lease { owner, .. } => Ok(owner),
            Hold::Transaction(_) => Err(AttemptError::NotLeased),
        }
    }

    fn steps<T>(&self, with: impl FnOnce(&mut Steps) -> T) -> Result<T, AttemptError> {
        match &self.hold {
            Hold::Lease { steps, .. } => Ok(with(&mut lock(steps))),
            Hold::Transaction(_) => Err(AttemptError::NotLeased),
        }
    }

    /// The store's answer; an error leaves the attempt unable to tell how it ended.
    fn known<T>(&self, answer: Result<T, StoreError>) -> Result<T, AttemptError> {
        answer.or_else(|error| {
            self.steps(|steps| steps.broken = Some(format!("a step could not be stored: {error}")))?;
            Err(error.into())
        })
    }

    /// The same for a write that is refused when the attempt no longer owns the key.
    fn own(&self, answer: Result<bool, StoreError>) -> Result<(), AttemptError> {
        if self.known(answer)? {
            return Ok(());
        }
        self.steps(|steps| steps.broken = Some(AttemptError::Superseded.to_string()))?;
        Err(AttemptError::Superseded)
    }
}

fn lock(steps: &StdMutex<Steps>) -> MutexGuard<'_, Steps> {
    steps.lock().unwrap_or_else(PoisonError::into_inner)
}

fn encode<T: Serialize>(name: &str, value: &T) -> Result<String, AttemptError> {
    serde_json::to_string(value).map_err(|source| AttemptError::Result { step: name.to_owned(), source })
}

fn decode<T: DeserializeOwned>(name: &str, result: &str) -> Result<T, AttemptError> {
    serde_json::from_str(result).map_err(|source| AttemptError::Result { step: name.to_owned(), source })
}

/// The transaction of a transactional mutation, for as long as it is held.
pub struct TransactionGuard<S: Store>(OwnedMappedMutexGuard<Option<S::Transaction>, S::Transaction>);

impl<S: Store> Deref for TransactionGuard<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.0
    }
}

impl<S: Store> DerefMut for TransactionGuard<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        &mut self.0
    }
}

/// Why an attempt can't do what a resolver asks of it.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// No attempt is under way for this field.
    #[error("no attempt is under way here: the field takes no idempotency key, or has not claimed it yet")]
    NotClaimed,
    /// The attempt belongs to another kind of store.
    #[error("the attempt belongs to another kind of store")]
    OtherStore,
    /// Only a transactional mutation has a transaction.
    #[error("a leased mutation has no transaction of its own: use a local step")]
    NotTransactional,
    /// Only a leased mutation has steps.
    #[error("a transactional mutation has no steps: work on its transaction")]
    NotLeased,
    /// The attempt has ended.
    #[error("the attempt has ended")]
    Over,
    /// The attempt's lease lapsed and another attempt owns the key: nothing of this step was kept.
    #[error("another attempt has taken the key over")]
    Superseded,
    /// Step names are unique within a mutation.
    #[error("the step {0} was used twice in one attempt")]
    StepRepeated(String),
    /// An earlier attempt left a step that this code does not come by, or comes by as another kind.
    #[error("an earlier attempt left the step {0}, which the code no longer has in this place")]
    StepsChanged(String),
    /// A step's result could not be turned into JSON or back.
    #[error("the result of the step {step} can't be stored or read")]
    Result {
        /// The step.
        step: String,
        /// Why.
        source: serde_json::Error,
    },
    /// The store could not be asked; whether the step was kept is unknown.
    #[error(transparent)]
    Store(#[from] StoreError),
}
