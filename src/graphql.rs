//! The adapter for async-graphql: its front door.

use std::{fmt, sync::Arc};

use async_graphql::{
    Executor, Request,
    extensions::{Extension, ExtensionFactory},
};

mod arguments;
mod context;
mod error;
mod execution;
mod extension;
mod operation;
mod plan;
mod question;
mod recovery;
mod response;
mod scalar;
mod schema;
mod selection;
mod setup;
mod shape;
mod upload;

pub use context::{Claim, IdempotencyContext};
pub use error::MarkError;
#[cfg(feature = "axum")]
pub(crate) use error::server_error;
pub use recovery::Found;
pub use scalar::KEY_TYPE;
pub use setup::{Authorise, IdempotencyBuilder, Seal, SetupError};

use extension::IdempotencyExtension;
use recovery::{Asked, Resumer};
use setup::Setup;

use crate::{
    key::{ClientId, IdempotencyKey},
    operator::{Operator, SettleError},
    protocol::Protocol,
    record::Record,
    store::{Store, StoreError, Upkeep},
    sweeper::{Reconciler, Sweeper},
};

/// The extension, its sweeper and its operator, over one store. Cheap to clone; all clones share everything.
pub struct Idempotency<S: Store> {
    inner: Arc<Inner<S>>,
}

pub(crate) struct Inner<S: Store> {
    pub(crate) setup: Setup,
    pub(crate) protocol: Protocol<S>,
}

impl<S: Store> Clone for Idempotency<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<S: Store> Idempotency<S> {
    /// Sets the crate up over a store.
    pub fn builder(store: S) -> IdempotencyBuilder<S> {
        IdempotencyBuilder::new(store)
    }

    pub(crate) fn new(setup: Setup, protocol: Protocol<S>) -> Self {
        Self { inner: Arc::new(Inner { setup, protocol }) }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        self.inner.protocol.store()
    }
}

impl<S: Upkeep> Idempotency<S> {
    /// Checks that every mutation of a schema takes a key, unless it is exempt; that everything that was set up is for
    /// an existing mutation; and that the store has its tables. Call it when the server starts; a mutation that breaks
    /// the rules is refused at run time too.
    ///
    /// # Errors
    /// [`SchemaError`] lists every problem, for the schema's developers.
    pub async fn verify(&self, schema: &impl Executor) -> Result<(), SchemaError> {
        let inner = Arc::clone(&self.inner);
        let rules =
            question::ask(schema, move |registry| schema::verify(registry, &inner.setup.exempt, &inner.setup.set_up()));
        let mut problems = rules.await.unwrap_or_else(|problem| vec![problem]);
        match self.store().check().await {
            Ok(()) => {}
            Err(StoreError::Misconfigured(missing)) => problems.push(format!("the store lacks {missing}")),
            Err(error) => problems.push(format!("the store can't be asked: {error}")),
        }
        if problems.is_empty() { Ok(()) } else { Err(SchemaError { problems }) }
    }

    /// The sweeper, with the policies and reconcilers that were set up. It resumes nothing; see
    /// [`Idempotency::resume_with`]. What a reconciler answers is checked against `schema`.
    #[must_use]
    #[allow(clippy::needless_pass_by_value, reason = "a schema is a handle, and is given as one")]
    pub fn sweeper(&self, schema: impl Executor) -> Sweeper<S> {
        let reconcilers = self.inner.setup.reconcilers.iter().map(|(mutation, ask)| {
            let asked = Asked { inner: Arc::clone(&self.inner), schema: schema.clone(), ask: Arc::clone(ask) };
            (mutation.clone(), Arc::new(asked) as Arc<dyn Reconciler>)
        });
        let policies = Arc::clone(&self.inner) as Arc<_>;
        Sweeper::new(self.store().clone(), policies, reconcilers.collect(), self.inner.setup.tombstone)
    }

    /// The sweeper, which also runs lost mutations with `OnCrash::Resume` again, through `schema`, so that they are
    /// completed even when their client never comes back. `rebuild` adds to the request what the application's
    /// resolvers expect there, from the record and from what was kept of the request.
    #[must_use]
    pub fn resume_with<F>(
        &self,
        schema: impl Executor,
        rebuild: impl Fn(Request, Record, serde_json::Value) -> F + Send + Sync + 'static,
    ) -> Sweeper<S>
    where
        F: Future<Output = Request> + Send + 'static,
    {
        let rebuild = Box::new(move |request, record, kept| Box::pin(rebuild(request, record, kept)) as _);
        let resumer = Resumer { inner: Arc::clone(&self.inner), schema: schema.clone(), rebuild };
        self.sweeper(schema).resume(resumer)
    }

    /// Settles a key for good whose outcome is unknown, or that was given back. `reason` is kept with it. The value is
    /// checked against `schema`.
    ///
    /// # Errors
    /// [`SettleError::NotHeld`] when an attempt has the key, or it is settled; [`SettleError::Unusable`] for
    /// [`Found::Unknown`], and for a value that the mutation can't have returned.
    pub async fn settle(
        &self,
        schema: &impl Executor,
        client: &ClientId,
        key: &IdempotencyKey,
        found: Found,
        reason: &str,
    ) -> Result<(), SettleError> {
        let record = self.store().find(client, key).await?.ok_or(SettleError::NotHeld)?.record;
        let report = self.inner.report(schema, found, &record).await.map_err(SettleError::Unusable)?;
        let (told, response) =
            report.ok_or_else(|| SettleError::Unusable("it does not say how it ended".to_owned()))?;
        let retention = self.inner.setup.policy(&record.mutation).retention;
        self.operator().settle(client, key, told, response, reason, retention).await
    }

    /// What an operator can do with the keys of the store.
    #[must_use]
    pub fn operator(&self) -> Operator<S> {
        Operator::new(self.store().clone())
    }
}

impl<S: Store> ExtensionFactory for Idempotency<S> {
    fn create(&self) -> Arc<dyn Extension> {
        Arc::new(IdempotencyExtension::new(Arc::clone(&self.inner)))
    }
}

/// A schema breaks the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    /// Each problem, in words for the schema's developers.
    pub problems: Vec<String>,
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the schema breaks the rules of idempotency: {}", self.problems.join("; "))
    }
}

impl std::error::Error for SchemaError {}
