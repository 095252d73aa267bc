//! What a resolver sees: its attempt, and the late claim.

use std::{any::Any, sync::Arc};

use async_graphql::{Context, Error, Guard, QueryEnv, QueryPathNode, Result};
use futures_util::future::BoxFuture;

use crate::{
    attempt::{Attempt, AttemptError},
    store::Store,
};

/// What is under way in a document, for its resolvers.
pub(crate) trait Executing: Send + Sync {
    /// The attempt of the protected field at or above a path: an `Arc<Attempt<S>>`. `engine` is where the request's
    /// errors are.
    fn attempt(&self, path: &QueryPathNode<'_>, engine: &QueryEnv) -> Option<Arc<dyn Any + Send + Sync>>;

    /// Takes the key of the protected field at or above a path. `Err`: the resolver must not go on; what the client
    /// gets instead is known.
    fn claim<'a>(
        &'a self,
        path: &'a QueryPathNode<'a>,
        engine: &'a QueryEnv,
    ) -> BoxFuture<'a, Result<(), AttemptError>>;
}

/// In the data of a request.
pub(crate) struct Execution(pub(crate) Arc<dyn Executing>);

/// What the crate adds to a resolver's context.
pub trait IdempotencyContext {
    /// The attempt under way for this field, or for the protected field above it.
    ///
    /// # Errors
    /// [`AttemptError::NotClaimed`] where there is none, [`AttemptError::OtherStore`] for another `S` than the
    /// extension's.
    fn attempt<S: Store>(&self) -> Result<Arc<Attempt<S>>, AttemptError>;

    /// Takes the key of a field whose policy claims late. Before it, the resolver must not do anything that
    /// counts; return its error as it is (`ctx.claim().await?`), so that the extension can replay.
    fn claim(&self) -> impl Future<Output = Result<()>> + Send;
}

impl IdempotencyContext for Context<'_> {
    fn attempt<S: Store>(&self) -> Result<Arc<Attempt<S>>, AttemptError> {
        let (Some(execution), Some(path)) = (self.data_opt::<Execution>(), &self.path_node) else {
            return Err(AttemptError::NotClaimed);
        };
        let attempt = execution.0.attempt(path, self.query_env).ok_or(AttemptError::NotClaimed)?;
        attempt.downcast().map_err(|_| AttemptError::OtherStore)
    }

    async fn claim(&self) -> Result<()> {
        let (Some(execution), Some(path)) = (self.data_opt::<Execution>(), &self.path_node) else {
            return Err(AttemptError::NotClaimed.into());
        };
        execution.0.claim(path, self.query_env).await.map_err(Error::from)
    }
}

/// The guard that takes the key of a field whose policy claims late, behind the application's own:
/// `#[graphql(guard = "IsTeller.and(Claim)")]`.
pub struct Claim;

impl Guard for Claim {
    async fn check(&self, ctx: &Context<'_>) -> Result<()> {
        ctx.claim().await
    }
}
