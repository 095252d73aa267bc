//! What a running mutation holds: its transaction, or its lease and its steps.

use std::{
    future::Future,
    marker::PhantomData,
    sync::{
        Arc, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use crate::{
    claim::ClaimRequest,
    ending::Mark,
    protocol::ask,
    record::{Owner, RecoveryPoint, StepKind},
    store::{Store, StoreError},
};

mod failure;
pub(crate) mod steps;
mod transaction;

pub use failure::AttemptError;
pub use transaction::TransactionGuard;

use steps::{Says, Steps, Visit};
use transaction::Slot;

/// One owner's execution of a claimed key, as its resolvers see it. It borrows from the resolver's context, so that
/// nothing of it outlives the resolver.
///
/// ```compile_fail
/// # use async_graphql_idempotency::{Attempt, SqliteStore};
/// async fn outlives(attempt: Attempt<'_, SqliteStore>) {
///     tokio::spawn(async move { attempt.transaction().await.is_ok() });
/// }
/// ```
pub struct Attempt<'resolver, S: Store> {
    held: Arc<Held<S>>,
    /// Which resolver this is: a hash of its path in the response.
    resolver: u64,
    borrows: PhantomData<&'resolver ()>,
}

/// What an attempt holds, for as long as it runs.
pub(crate) struct Held<S: Store> {
    pub(crate) store: S,
    pub(crate) request: Arc<ClaimRequest>,
    pub(crate) owner: Owner,
    /// The transaction of a transactional attempt.
    pub(crate) transaction: Option<Slot<S>>,
    steps: StdMutex<Steps>,
    /// How long a resolver waits for the store, or for another resolver that has the transaction.
    patience: Duration,
    over: AtomicBool,
}

impl<S: Store> Held<S> {
    pub(crate) fn new(
        store: S,
        request: Arc<ClaimRequest>,
        owner: Owner,
        transaction: Option<S::Transaction>,
        steps: Steps,
        patience: Duration,
    ) -> Self {
        let transaction = transaction.map(Slot::new);
        Self { store, request, owner, transaction, steps: StdMutex::new(steps), patience, over: AtomicBool::new(false) }
    }

    pub(crate) fn steps(&self) -> StdMutexGuard<'_, Steps> {
        lock(&self.steps)
    }

    /// Nothing of the attempt can be used any more.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Notes an error that a resolver gets, in case the error that it returns no longer shows it.
    pub(crate) fn failed(&self, error: AttemptError) -> AttemptError {
        let failure = error.failure();
        if failure.says == Says::Misuse {
            tracing::error!(mutation = %self.request.mutation, "the resolver can't work as it is written: {error}");
        }
        self.steps().failed(failure);
        error
    }
}

impl<S: Store> Attempt<'_, S> {
    pub(crate) fn new(held: Arc<Held<S>>, resolver: u64) -> Self {
        Self { held, resolver, borrows: PhantomData }
    }

    /// The request id: the same for all attempts at this key, and what a gateway gets as its own idempotency
    /// key when the mutation makes one call to it. A mutation that makes several names them with
    /// [`Attempt::remote`].
    #[must_use]
    pub fn request_id(&self) -> Uuid {
        self.held.steps().request_id_given();
        self.held.owner.request_id
    }

    /// The attempt's number, from 1.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.held.owner.attempt
    }

    /// Whether it has a transaction; else it has steps. For code that works under either kind of policy.
    #[must_use]
    pub fn is_transactional(&self) -> bool {
        self.held.transaction.is_some()
    }

    /// Says what the attempt's ending means for the key, for a resolver that returns its errors as data. A mark on an
    /// error takes precedence.
    pub fn mark(&self, mark: Mark) {
        self.held.steps().mark(mark);
    }

    /// The transaction of a transactional mutation. Whatever a resolver does here is committed with the response,
    /// or not at all. Resolvers below the field read through it too, or they would not see what isn't committed
    /// yet; drop the guard before they run. Code that begins and commits by itself gets a savepoint:
    /// `transaction.begin().await?`, from sqlx's `Connection`.
    ///
    /// A resolver that asks while another one has it waits for it, up to the store timeout.
    ///
    /// # Errors
    /// [`AttemptError::NotTransactional`] under a leased policy, [`AttemptError::Over`] once the mutation has
    /// ended, [`AttemptError::TransactionHeld`] for a resolver that has it already, [`AttemptError::TransactionBusy`]
    /// when another one keeps it for too long.
    pub async fn transaction(&self) -> Result<TransactionGuard<'_, S>, AttemptError> {
        let Some(slot) = &self.held.transaction else {
            return Err(self.held.failed(AttemptError::NotTransactional));
        };
        slot.hold(self.resolver, self.held.patience).await.map_err(|error| self.held.failed(error))
    }

    /// A step with effects in the team's own database. They are committed together with the step's result, and a
    /// later attempt gets that result without doing them again. What is returned is what was stored and read back.
    ///
    /// A mutation that has steps has all its effects in steps: a step that certainly was not done gives the key back, and
    /// the next attempt does again whatever stands beside the steps.
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
        if let Visit::Finished(result) = self.visit(name, StepKind::Local)? {
            return Ok(self.read_back(name, &result)?);
        }
        let (store, owner) = (self.held.store.clone(), self.held.owner.clone());
        let begun = ask(self.held.patience, async move { store.transaction(&owner).await }).await;
        let mut transaction = begun.map_err(|error| self.held.failed(AttemptError::NotDone(error)))?;
        let value = effects(&mut transaction).await?;
        let result = self.write_down(name, &value)?;
        // A value that can't be read back has to be refused before the step counts as done.
        let value = self.try_read(name, &result)?;
        self.checkpoint(name, StepKind::Local, Some(result), Some(transaction)).await?;
        self.held.steps().finished(name);
        Ok(value)
    }

    /// A call to another system. The intent is committed before it and the result after it; `call` gets a request
    /// id that is the same on every attempt, by which the other system can recognise a repetition.
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
    /// system with `lookup`, and calls only if that finds nothing.
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
        let visit = self.visit(name, StepKind::Remote)?;
        if let Visit::Finished(result) = visit {
            return Ok(self.read_back(name, &result)?);
        }
        let request_id = Uuid::new_v5(&self.held.owner.request_id, name.as_bytes());
        self.checkpoint(name, StepKind::Remote, None, None).await?;
        self.held.steps().begun(name);
        let known = if visit == Visit::Unfinished { lookup(request_id).await? } else { None };
        let value = match known {
            Some(value) => value,
            None => call(request_id).await?,
        };
        // The other system has done it: if the result can't be stored, the outcome is in doubt.
        let stored = async {
            let result = self.write_down(name, &value)?;
            let value = self.try_read(name, &result)?;
            self.checkpoint(name, StepKind::Remote, Some(result), None).await?;
            Ok(value)
        };
        let value = stored.await.inspect_err(|error: &AttemptError| {
            self.held
                .steps()
                .broken(format!("the remote step {name} was done, and its result could not be stored: {error}"));
        })?;
        self.held.steps().finished(name);
        Ok(value)
    }

    fn visit(&self, name: &str, kind: StepKind) -> Result<Visit, AttemptError> {
        if self.held.transaction.is_some() {
            return Err(self.held.failed(AttemptError::NotLeased));
        }
        if self.held.is_over() {
            return Err(AttemptError::Over);
        }
        let visit = self.held.steps().visit(name, kind);
        visit.map_err(|error| self.held.failed(error))
    }

    /// Stores a step: its intent, or its result.
    async fn checkpoint(
        &self,
        name: &str,
        kind: StepKind,
        result: Option<String>,
        transaction: Option<S::Transaction>,
    ) -> Result<(), AttemptError> {
        let Held { store, owner, request, .. } = &*self.held;
        let is_intent = result.is_none();
        let point = RecoveryPoint { name: name.to_owned(), kind, attempt: owner.attempt, result };
        let (store, owner, lease) = (store.clone(), owner.clone(), request.lease);
        if !is_intent {
            self.held.steps().is_being_stored(name);
        }
        let written = async move { store.checkpoint(&owner, &point, lease, transaction).await };
        let written = ask(self.held.patience, written).await;
        if !matches!(written, Err(StoreError::InDoubt(_))) {
            self.held.steps().is_certain(name);
        }
        let error = match written {
            Ok(true) => return Ok(()),
            Ok(false) => AttemptError::Superseded,
            // Whether or not an intent was stored, what it announces was not done.
            Err(error) if is_intent || !matches!(error, StoreError::InDoubt(_)) => AttemptError::NotDone(error),
            Err(error) => AttemptError::InDoubt(error),
        };
        Err(self.held.failed(error))
    }

    fn write_down<T: Serialize>(&self, step: &str, value: &T) -> Result<String, AttemptError> {
        serde_json::to_string(value)
            .map_err(|source| self.held.failed(AttemptError::Unreadable { step: step.to_owned(), source }))
    }

    /// The value that a later attempt would get.
    fn try_read<T: DeserializeOwned>(&self, step: &str, result: &str) -> Result<T, AttemptError> {
        serde_json::from_str(result)
            .map_err(|source| self.held.failed(AttemptError::Unreadable { step: step.to_owned(), source }))
    }

    /// The value of a step that an earlier attempt finished. If it can't be read, nobody knows how to go on: the step
    /// must not be done again.
    fn read_back<T: DeserializeOwned>(&self, step: &str, result: &str) -> Result<T, AttemptError> {
        self.try_read(step, result).inspect_err(|error| {
            self.held.steps().broken(error.to_string());
        })
    }
}

fn lock<T>(mutex: &StdMutex<T>) -> StdMutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
