//! Requests that run in tasks of their own.

use std::{sync::Arc, time::Duration};

use async_graphql::{
    Data, Executor, Request, Response,
    parser::types::{DocumentOperations, OperationType},
};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    error::{Error, ErrorCode},
    graphql::server_error,
};

/// Runs requests in tracked tasks, which go on when the future of the response is dropped.
pub(crate) struct Detached<E> {
    inner: E,
    tasks: TaskTracker,
    /// Drops what still runs.
    dropping: CancellationToken,
}

impl<E: Clone> Clone for Detached<E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), tasks: self.tasks.clone(), dropping: self.dropping.clone() }
    }
}

/// How long mutations that were dropped have to settle their keys in the store.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl<E: Executor> Detached<E> {
    pub(crate) fn new(inner: E) -> Self {
        Self { inner, tasks: TaskTracker::new(), dropping: CancellationToken::new() }
    }

    /// Waits for what runs, and drops it at the deadline. `true` when everything ended by itself.
    pub(crate) async fn end(&self, deadline: Duration) -> bool {
        self.tasks.close();
        if timeout(deadline, self.tasks.wait()).await.is_ok() {
            return true;
        }
        self.dropping.cancel();
        self.tasks.wait().await;
        tokio::time::sleep(LAST_WORDS).await;
        false
    }

    /// Ready once nothing runs any more, after the end has begun.
    pub(crate) fn drained(&self) -> impl Future<Output = ()> + Send + 'static {
        let tasks = self.tasks.clone();
        async move { tasks.wait().await }
    }

    async fn run(&self, work: impl Future<Output = Option<Response>> + Send + 'static) -> Response {
        let work = self.dropping.clone().run_until_cancelled_owned(work);
        let response = self.tasks.spawn(work).await.ok().flatten().flatten();
        // It was dropped, or has panicked: the client has to ask again.
        response.unwrap_or_else(|| {
            let error = Error::new(ErrorCode::OutcomeUnknown).retry_soon();
            Response::from_errors(vec![server_error(&error, None, &[])])
        })
    }
}

impl<E: Executor> Executor for Detached<E> {
    async fn execute(&self, request: Request) -> Response {
        let executor = self.inner.clone();
        self.run(async move { Some(executor.execute(request).await) }).await
    }

    fn execute_stream(&self, mut request: Request, session_data: Option<Arc<Data>>) -> BoxStream<'static, Response> {
        let mut responses = if is_mutation(&mut request) {
            self.inner.execute_stream(request, session_data)
        } else {
            return self.inner.execute_stream(request, session_data);
        };
        let detached = self.clone();
        stream::once(async move { detached.run(async move { responses.next().await }).await }).boxed()
    }
}

/// Whether the operation that a request is about is a mutation.
pub(crate) fn is_mutation(request: &mut Request) -> bool {
    let name = request.operation_name.clone();
    let Ok(document) = request.parsed_query() else {
        return false;
    };
    let operation = match (&document.operations, name) {
        (DocumentOperations::Single(operation), _) => Some(operation),
        (DocumentOperations::Multiple(operations), Some(name)) => operations.get(name.as_str()),
        (DocumentOperations::Multiple(operations), None) => operations.values().next(),
    };
    operation.is_some_and(|operation| operation.node.ty == OperationType::Mutation)
}
