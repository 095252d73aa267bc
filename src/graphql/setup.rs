//! How an application sets the crate up.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_graphql::{Error, extensions::ExtensionContext};
use futures_util::future::BoxFuture;

use super::{
    Idempotency, Inner,
    recovery::{Ask, Found},
};
use crate::{
    key::ClientId,
    policy::{LONGEST, Policy, PolicyError},
    protocol::Protocol,
    record::Record,
    store::Store,
    sweeper::Policies,
};

/// What an application decided, apart from its store.
pub(crate) struct Setup {
    policies: BTreeMap<String, Arc<Policy>>,
    default_policy: Arc<Policy>,
    pub(crate) exempt: BTreeSet<String>,
    pub(crate) authorise: Option<Arc<dyn Authorise>>,
    pub(crate) keep: Option<Arc<Keep>>,
    pub(crate) seal: Option<Arc<dyn Seal>>,
    pub(crate) reconcilers: BTreeMap<String, Arc<Ask>>,
    pub(crate) tombstone: Duration,
    pub(crate) max_fields: usize,
    pub(crate) max_request: usize,
}

/// What an application keeps of a request, for a resumption without its client.
pub(crate) type Keep = dyn Fn(&ExtensionContext<'_>) -> serde_json::Value + Send + Sync;

impl Setup {
    /// The policy of a mutation, by its field name with the names of its namespaces.
    pub(crate) fn policy(&self, mutation: &str) -> &Arc<Policy> {
        self.policies.get(mutation).unwrap_or(&self.default_policy)
    }

    /// The mutations that something was set up for.
    pub(crate) fn set_up(&self) -> BTreeSet<String> {
        self.policies.keys().chain(self.reconcilers.keys()).cloned().collect()
    }

    fn all(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values().chain([&self.default_policy]).map(|policy| &**policy)
    }

    pub(crate) fn sealed(&self, plain: Vec<u8>) -> Vec<u8> {
        match &self.seal {
            Some(seal) => seal.seal(plain),
            None => plain,
        }
    }

    pub(crate) fn opened(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        match &self.seal {
            Some(seal) => seal.open(sealed),
            None => Some(sealed.to_vec()),
        }
    }
}

impl<S: Store> Policies for Inner<S> {
    fn of(&self, mutation: &str) -> Arc<Policy> {
        Arc::clone(self.setup.policy(mutation))
    }

    fn shortest_lease(&self) -> Duration {
        self.setup.all().map(|policy| policy.lease).min().unwrap_or_default()
    }

    fn shortest_retention(&self) -> Duration {
        self.setup.all().map(|policy| policy.retention).min().unwrap_or_default()
    }
}

/// Decides whether a client may use a mutation at all, before its key is claimed and before anything is
/// replayed. Closures with the same arguments implement it.
pub trait Authorise: Send + Sync {
    /// Whether `client` may use `mutation` now. `Err`: it may not, and gets this error.
    fn authorise<'a>(
        &'a self,
        ctx: &'a ExtensionContext<'_>,
        client: &'a ClientId,
        mutation: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>>;
}

impl<F> Authorise for F
where
    F: for<'a> Fn(&'a ExtensionContext<'_>, &'a ClientId, &'a str) -> BoxFuture<'a, Result<(), Error>> + Send + Sync,
{
    fn authorise<'a>(
        &'a self,
        ctx: &'a ExtensionContext<'_>,
        client: &'a ClientId,
        mutation: &'a str,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self(ctx, client, mutation)
    }
}

/// Encrypts what is stored of responses and requests. The results of steps are not sealed.
pub trait Seal: Send + Sync {
    /// Encrypts.
    fn seal(&self, plain: Vec<u8>) -> Vec<u8>;

    /// Decrypts what was sealed; none when that fails.
    fn open(&self, sealed: &[u8]) -> Option<Vec<u8>>;
}

/// Sets the crate up for a schema. Mutations are named by their field names as GraphQL has them, with the names
/// of their namespaces: `charge`, `billing.charge`.
pub struct IdempotencyBuilder<S: Store> {
    store: S,
    policies: BTreeMap<String, Policy>,
    default_policy: Policy,
    exempt: BTreeSet<String>,
    authorise: Option<Arc<dyn Authorise>>,
    keep: Option<Arc<Keep>>,
    seal: Option<Arc<dyn Seal>>,
    reconcilers: BTreeMap<String, Arc<Ask>>,
    tombstone: Duration,
    store_timeout: Duration,
    max_fields: usize,
    max_request: usize,
}

impl<S: Store> IdempotencyBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            policies: BTreeMap::new(),
            default_policy: Policy::leased(),
            exempt: BTreeSet::new(),
            authorise: None,
            keep: None,
            seal: None,
            reconcilers: BTreeMap::new(),
            // A retry from a mailbox, a queue or a phone that was off over a holiday is still recognised.
            tombstone: Duration::from_hours(30 * 24),
            store_timeout: Duration::from_secs(10),
            // More than a person writes, and few enough to hold at once.
            max_fields: 50,
            max_request: 1 << 20,
        }
    }

    /// The policy of one mutation.
    #[must_use]
    pub fn policy(mut self, mutation: impl Into<String>, policy: Policy) -> Self {
        self.policies.insert(mutation.into(), policy);
        self
    }

    /// The policy of every mutation that has none of its own. Default [`Policy::leased`].
    #[must_use]
    pub fn default_policy(mut self, policy: Policy) -> Self {
        self.default_policy = policy;
        self
    }

    /// Lets a mutation run without a key. The application is responsible for what a repetition does.
    #[must_use]
    pub fn exempt(mut self, mutation: impl Into<String>) -> Self {
        self.exempt.insert(mutation.into());
        self
    }

    /// Asks the application before a key is claimed and before a response is replayed:
    /// `|ctx, client, mutation| Box::pin(async move { … })`.
    #[must_use]
    pub fn authorise(
        mut self,
        authorise: impl for<'a> Fn(&'a ExtensionContext<'_>, &'a ClientId, &'a str) -> BoxFuture<'a, Result<(), Error>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.authorise = Some(Arc::new(authorise));
        self
    }

    /// Keeps something of each request that may be resumed without its client, such as the caller's rights, for
    /// the hook of [`Idempotency::resume_with`](super::Idempotency::resume_with).
    #[must_use]
    pub fn keep(mut self, keep: impl Fn(&ExtensionContext<'_>) -> serde_json::Value + Send + Sync + 'static) -> Self {
        self.keep = Some(Arc::new(keep));
        self
    }

    /// Encrypts what is stored of responses and requests.
    #[must_use]
    pub fn seal(mut self, seal: impl Seal + 'static) -> Self {
        self.seal = Some(Arc::new(seal));
        self
    }

    /// Settles attempts of a mutation whose outcome is unknown. `ask` finds it out, from a gateway for example.
    #[must_use]
    pub fn reconcile<A>(
        mut self,
        mutation: impl Into<String>,
        ask: impl Fn(Record) -> A + Send + Sync + 'static,
    ) -> Self
    where
        A: Future<Output = Found> + Send + 'static,
    {
        self.reconcilers.insert(mutation.into(), Arc::new(move |record| Box::pin(ask(record))));
        self
    }

    /// How long a key is refused as expired once its retention is over. Default 30 days.
    #[must_use]
    pub fn tombstone(mut self, tombstone: Duration) -> Self {
        self.tombstone = tombstone;
        self
    }

    /// How long a request waits for the store to answer its claim before it gets
    /// `IDEMPOTENCY_STORE_UNAVAILABLE`; time in the pool's queue counts. Default 10 s.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// The most fields with a key in one document; more are `IDEMPOTENCY_DOCUMENT_TOO_LARGE`, before anything runs.
    /// Default 50.
    #[must_use]
    pub fn max_fields(mut self, fields: usize) -> Self {
        self.max_fields = fields;
        self
    }

    /// The largest request, in bytes of JSON, of which a policy with `OnCrash::Resume` keeps a copy while it runs; a
    /// larger one is `IDEMPOTENCY_DOCUMENT_TOO_LARGE`, before anything runs. Default 1 MiB.
    #[must_use]
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    /// Checks the policies.
    ///
    /// # Errors
    /// [`SetupError`] names the mutation whose policy makes no sense, or the time that is too long.
    pub fn build(self) -> Result<Idempotency<S>, SetupError> {
        let too_long = |what: &str, name| SetupError { of: what.to_owned(), source: PolicyError::TooLong(name) };
        if self.tombstone > LONGEST {
            return Err(too_long("tombstones", "tombstone"));
        }
        if self.store_timeout > LONGEST {
            return Err(too_long("the store", "store_timeout"));
        }
        let defaults = [("every other mutation", &self.default_policy)];
        for (mutation, policy) in self.policies.iter().map(|(name, policy)| (name.as_str(), policy)).chain(defaults) {
            policy.check().map_err(|source| SetupError { of: mutation.to_owned(), source })?;
        }
        let setup = Setup {
            policies: self.policies.into_iter().map(|(name, policy)| (name, Arc::new(policy))).collect(),
            default_policy: Arc::new(self.default_policy),
            exempt: self.exempt,
            authorise: self.authorise,
            keep: self.keep,
            seal: self.seal,
            reconcilers: self.reconcilers,
            tombstone: self.tombstone,
            max_fields: self.max_fields,
            max_request: self.max_request,
        };
        Ok(Idempotency::new(setup, Protocol::new(self.store, self.store_timeout)))
    }
}

/// A policy, or a time, that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy of {of} makes no sense: {source}")]
pub struct SetupError {
    /// The mutation, or what else was set.
    pub of: String,
    /// Why.
    pub source: PolicyError,
}
