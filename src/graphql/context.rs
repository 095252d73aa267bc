//! What a resolver sees: its attempt, its mark, its headers, and the late claim.

use std::{
    any::Any,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use async_graphql::{Context, Error, Guard, QueryEnv, QueryPathNode, QueryPathSegment, Result};
use futures_util::future::BoxFuture;

use crate::{
    attempt::{Attempt, AttemptError, Held},
    ending::Mark,
    store::Store,
};

/// A running document, as its resolvers use it.
pub(crate) trait Executing: Send + Sync {
    /// The attempt of the protected field at or above a path. `engine` has the errors that the request has so far.
    fn attempt(&self, path: &QueryPathNode<'_>, engine: &QueryEnv) -> Option<Arc<dyn AnyHeld>>;

    /// Takes the key of the protected field at or above a path. `Err`: the resolver must not go on; the document has
    /// what the client gets instead.
    fn claim<'a>(
        &'a self,
        path: &'a QueryPathNode<'a>,
        engine: &'a QueryEnv,
    ) -> BoxFuture<'a, Result<(), AttemptError>>;

    /// Keeps a header with the response of the protected field at or above a path. `false` where none is running.
    fn keep_header(&self, path: &QueryPathNode<'_>, name: &str, value: &str) -> bool;
}

/// [`Held`], whatever its store.
pub(crate) trait AnyHeld: Any + Send + Sync {
    /// For a downcast to [`Held`] of one store.
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync>;
    fn mark(&self, mark: Mark);
    fn failed(&self, error: AttemptError) -> AttemptError;
}

impl<S: Store> AnyHeld for Held<S> {
    fn as_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }

    fn mark(&self, mark: Mark) {
        self.steps().mark(mark);
    }

    fn failed(&self, error: AttemptError) -> AttemptError {
        Held::failed(self, error)
    }
}

/// The running document, in the data of its request.
pub(crate) struct Execution(pub(crate) Arc<dyn Executing>);

/// What the crate adds to a resolver's context.
pub trait IdempotencyContext {
    /// The attempt under way for this field, or for the protected field above it.
    ///
    /// # Errors
    /// [`AttemptError::NotClaimed`] where there is none, [`AttemptError::OtherStore`] for another `S` than the
    /// extension's.
    fn attempt<S: Store>(&self) -> Result<Attempt<'_, S>, AttemptError>;

    /// Says what the ending of the mutation means for its key, for a resolver that returns its errors as data: with
    /// `Mark::Release` beside a payload of `userErrors` the client gets the payload, nothing that a transaction wrote
    /// is kept, and the key is free. A mark on an error takes precedence.
    ///
    /// # Errors
    /// [`AttemptError::NotClaimed`] where no attempt is under way.
    fn mark(&self, mark: Mark) -> Result<(), AttemptError>;

    /// Sets an HTTP header of the response, now and at every replay. Never `Set-Cookie`: a cookie is for whoever got
    /// the first response.
    ///
    /// # Errors
    /// When no attempt is under way, or the header is not a valid one.
    fn replayed_header(&self, name: &str, value: &str) -> Result<()>;

    /// Takes the key of a field whose policy claims late. The resolver must not have any effect before it, and must
    /// return its error as it is (`ctx.claim().await?`), so that the extension can replay.
    fn claim(&self) -> impl Future<Output = Result<()>> + Send;
}

impl IdempotencyContext for Context<'_> {
    fn attempt<S: Store>(&self) -> Result<Attempt<'_, S>, AttemptError> {
        let (held, path) = held(self)?;
        match Arc::clone(&held).as_any().downcast::<Held<S>>() {
            Ok(of_store) => Ok(Attempt::new(of_store, resolver(path))),
            Err(_) => Err(held.failed(AttemptError::OtherStore)),
        }
    }

    fn mark(&self, mark: Mark) -> Result<(), AttemptError> {
        held(self)?.0.mark(mark);
        Ok(())
    }

    fn replayed_header(&self, name: &str, value: &str) -> Result<()> {
        let (execution, path) = execution(self)?;
        if name.eq_ignore_ascii_case("set-cookie") {
            return Err(Error::new("a cookie is for whoever got the first response, and is never replayed"));
        }
        let (name, value) = (http::HeaderName::try_from(name)?, http::HeaderValue::try_from(value)?);
        if !execution.0.keep_header(path, name.as_str(), value.to_str()?) {
            return Err(not_claimed(self).into());
        }
        self.append_http_header(name, value);
        Ok(())
    }

    async fn claim(&self) -> Result<()> {
        let (execution, path) = execution(self)?;
        execution.0.claim(path, self.query_env).await.map_err(Error::from)
    }
}

fn execution<'a>(context: &'a Context<'_>) -> Result<(&'a Execution, &'a QueryPathNode<'a>), AttemptError> {
    let (Some(execution), Some(path)) = (context.data_opt::<Execution>(), &context.path_node) else {
        return Err(not_claimed(context));
    };
    Ok((execution, path))
}

/// Logs the failure here, since there is no attempt to note it.
fn not_claimed(context: &Context<'_>) -> AttemptError {
    let error = AttemptError::NotClaimed;
    tracing::error!(field = context.item.node.name.node.as_str(), "the resolver can't work as it is written: {error}");
    error
}

fn held<'a>(context: &'a Context<'_>) -> Result<(Arc<dyn AnyHeld>, &'a QueryPathNode<'a>), AttemptError> {
    let (execution, path) = execution(context)?;
    let held = execution.0.attempt(path, context.query_env).ok_or_else(|| not_claimed(context))?;
    Ok((held, path))
}

/// Identifies the resolver that asks, by its path in the response.
fn resolver(path: &QueryPathNode<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in std::iter::successors(Some(path), |node| node.parent) {
        match node.segment {
            QueryPathSegment::Name(name) => name.hash(&mut hasher),
            QueryPathSegment::Index(index) => index.hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// The guard that takes the key of a field whose policy claims late, behind the application's own:
/// `#[graphql(guard = "IsTeller.and(Claim)")]`.
pub struct Claim;

impl Guard for Claim {
    async fn check(&self, ctx: &Context<'_>) -> Result<()> {
        ctx.claim().await
    }
}
