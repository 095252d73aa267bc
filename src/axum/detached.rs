//! Requests that run in tasks of their own.

use std::sync::Arc;

use async_graphql::{
    Data, Executor, Request, Response, ServerError,
    parser::types::{DocumentOperations, OperationType},
};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio_util::task::TaskTracker;

/// Runs requests in tracked tasks: who drops the answer's future does not end them.
pub(crate) struct Detached<E> {
    pub(crate) inner: E,
    pub(crate) tasks: TaskTracker,
}

impl<E: Clone> Clone for Detached<E> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), tasks: self.tasks.clone() }
    }
}

impl<E: Executor> Detached<E> {
    async fn run(&self, work: impl Future<Output = Option<Response>> + Send + 'static) -> Response {
        let response = self.tasks.spawn(work).await.ok().flatten();
        response.unwrap_or_else(|| {
            Response::from_errors(vec![ServerError::new("The server failed to answer the request.", None)])
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
