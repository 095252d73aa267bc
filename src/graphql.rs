//! The adapter for async-graphql: its front door.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use async_graphql::{
    Executor, Request,
    extensions::{Extension, ExtensionFactory},
};

mod arguments;
mod context;
mod document;
mod error;
mod execution;
mod extension;
mod operation;
mod outcome;
mod place;
mod reconciliation;
mod resumption;
mod scalar;
mod schema;
mod selection;
mod setup;
mod upload;

pub use context::{Claim, IdempotencyContext};
pub use error::MarkError;
pub use reconciliation::Found;
pub use resumption::Rebuild;
pub use scalar::KEY_TYPE;
pub use setup::{Authorise, IdempotencyBuilder, Seal, SetupError};

use extension::{IdempotencyExtension, Verification};
use reconciliation::Asked;
use resumption::Resumer;
use setup::Setup;

use crate::{
    key::{ClientId, IdempotencyKey},
    operator::{Operator, Resolution, SettleError},
    protocol::Protocol,
    record::Record,
    store::Store,
    sweeper::{Reconciled, Reconciler, Sweeper},
};

/// The extension, and the way to everything that belongs to its store. Cheap to clone; every clone is the same.
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

    /// Whether every mutation of a schema takes a key, unless it is exempt, and everything that was set up is
    /// about a mutation that exists. Ask at the start of the server; what breaks the rules is refused at run time too.
    ///
    /// # Errors
    /// [`SchemaError`] lists every problem, for the schema's developers.
    pub async fn verify(&self, schema: &impl Executor) -> Result<(), SchemaError> {
        let answer = Arc::new(OnceLock::new());
        let request = Request::new("{ __typename }").data(Verification(Arc::clone(&answer)));
        schema.execute(request).await;
        let problems = match answer.get() {
            Some(problems) => problems.clone(),
            None => vec!["the schema does not have this extension".to_owned()],
        };
        if problems.is_empty() { Ok(()) } else { Err(SchemaError { problems }) }
    }

    /// The sweeper, with the policies and reconcilers that were set up. It resumes nothing; see
    /// [`Idempotency::resume_with`].
    #[must_use]
    pub fn sweeper(&self) -> Sweeper<S> {
        let reconcilers = self.inner.setup.reconcilers.iter().map(|(mutation, ask)| {
            let asked = Asked { inner: Arc::clone(&self.inner), ask: Arc::clone(ask) };
            (mutation.clone(), Arc::new(asked) as Arc<dyn Reconciler>)
        });
        let inner = Arc::clone(&self.inner);
        let policy = move |mutation: &str| Arc::clone(inner.setup.policy(mutation));
        Sweeper::new(self.store().clone(), Arc::new(policy), reconcilers.collect(), self.inner.setup.tombstone)
    }

    /// The sweeper, which also executes again, through `schema`, what a policy with `OnCrash::Resume` lets it: so
    /// that a mutation is completed even when its client never comes back. `rebuild` puts into the request what
    /// the application's resolvers expect there.
    #[must_use]
    pub fn resume_with(
        &self,
        schema: impl Executor,
        rebuild: impl Fn(Request, &Record, &serde_json::Value) -> Request + Send + Sync + 'static,
    ) -> Sweeper<S> {
        let resumer = Resumer { inner: Arc::clone(&self.inner), executor: schema, rebuild: Box::new(rebuild) };
        self.sweeper().resume(resumer)
    }

    /// Settles a key whose outcome is unknown, for good. `reason` is kept with it.
    ///
    /// # Errors
    /// [`SettleError::NotHeld`] when the key's outcome is not unknown, or no longer; [`SettleError::Unusable`] for
    /// [`Found::Unknown`].
    pub async fn settle(
        &self,
        client: &ClientId,
        key: &IdempotencyKey,
        found: Found,
        reason: &str,
    ) -> Result<(), SettleError> {
        let record = self.store().find(client, key).await?.ok_or(SettleError::NotHeld)?.0;
        let resolution = match self.inner.reconciled(found, &record) {
            Reconciled::Succeeded(response) => Resolution::Succeeded(response),
            Reconciled::Failed(response) => Resolution::Failed(response),
            Reconciled::NotStarted => Resolution::Released,
            Reconciled::Unknown => return Err(SettleError::Unusable),
        };
        let retention = self.inner.setup.policy(&record.mutation).retention;
        self.operator().settle(client, key, resolution, reason, retention).await
    }

    /// An operator's hand on the store.
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

/// What of a schema breaks the rules.
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
