//! A request that is executed again without its client, for the one field whose attempt was lost.

use std::{future::Future, pin::Pin, sync::Arc};

use async_graphql::{Executor, Name, Request, Variables};
use serde::{Deserialize, Serialize};

use super::Inner;
use crate::{record::Record, store::Store, sweeper::Resume};

/// The largest request that is stored, in bytes of JSON. A larger one can be resumed by its client only.
const LIMIT: usize = 1 << 20;

/// What is stored of a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StoredRequest {
    pub(crate) query: String,
    pub(crate) operation_name: Option<String>,
    pub(crate) variables: Variables,
    /// What the application keeps of it.
    pub(crate) kept: serde_json::Value,
    /// The response keys that lead to the field.
    #[serde(default)]
    path: Vec<String>,
}

impl StoredRequest {
    pub(crate) fn new(
        query: &str,
        operation_name: Option<&str>,
        variables: &Variables,
        kept: serde_json::Value,
    ) -> Self {
        Self {
            query: query.to_owned(),
            operation_name: operation_name.map(str::to_owned),
            variables: variables.clone(),
            kept,
            path: Vec::new(),
        }
    }

    /// The stored form for one field.
    pub(crate) fn of_field(&self, path: &[Name]) -> Option<Vec<u8>> {
        let request = Self { path: path.iter().map(Name::to_string).collect(), ..self.clone() };
        serde_json::to_vec(&request).ok().filter(|request| request.len() <= LIMIT)
    }
}

/// In the data of a request that is a resumption: the response keys that lead to the field.
pub(crate) struct Resumption(pub(crate) Vec<String>);

/// Rebuilds the data that an application's resolvers expect in a request (the caller's rights, say), from the record
/// and from what was kept of the request. The [`ClientId`](crate::key::ClientId) is there already.
pub type Rebuild = dyn Fn(Request, &Record, &serde_json::Value) -> Request + Send + Sync;

/// Executes stored requests through a schema.
pub(crate) struct Resumer<S: Store, E> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) executor: E,
    pub(crate) rebuild: Box<Rebuild>,
}

impl<S: Store, E: Executor> Resume for Resumer<S, E> {
    fn resume<'a>(&'a self, record: &'a Record) -> Pin<Box<dyn Future<Output = bool> + Send + 'a>> {
        Box::pin(async move {
            let opened = record.request.as_deref().and_then(|request| self.inner.setup.opened(request));
            let stored: Option<StoredRequest> = opened.and_then(|request| serde_json::from_slice(&request).ok());
            let Some(stored) = stored else { return false };
            let mut request = Request::new(stored.query)
                .variables(stored.variables)
                .data(record.client.clone())
                .data(Resumption(stored.path));
            request.operation_name = stored.operation_name;
            let request = (self.rebuild)(request, record, &stored.kept);
            let executor = self.executor.clone();
            // A task of its own, as every mutation: a sweeper that stops leaves it to finish.
            let response = tokio::spawn(async move { executor.execute(request).await }).await;
            response.is_ok_and(|response| {
                for error in &response.errors {
                    tracing::info!(request_id = %record.request_id, error = %error.message, "a resumed mutation has an error");
                }
                true
            })
        })
    }
}
