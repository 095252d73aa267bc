//! Lost attempts: what became of one, as the application says; and running one again without its client.

use std::{future::Future, pin::Pin, sync::Arc};

use async_graphql::{Error, Executor, Name, Pos, Request, Variables};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{
    Inner,
    response::{Draft, StoredError},
    shape::Shape,
};
use crate::{
    ending::Told,
    record::Record,
    store::Store,
    sweeper::{Reconciler, Report, Resume},
};

/// What became of an attempt, according to someone who knows: a gateway, or an operator.
#[derive(Debug)]
pub enum Found {
    /// It succeeded, with this value of the mutation's type: an object by its field names, or by the aliases that the
    /// first request asked for. It is checked against the schema, and stored with the selection and the aliases of that
    /// request. A field that the value lacks is null, so give all that the type has. An object of an interface or a
    /// union needs its `__typename`.
    Succeeded(serde_json::Value),
    /// It failed for good.
    Failed(Error),
    /// It never happened: the key is free again.
    NotStarted,
    /// Still unknown.
    Unknown,
}

/// An application's function that finds out.
pub(crate) type Ask = dyn Fn(Record) -> BoxFuture<'static, Found> + Send + Sync;

/// [`Ask`] as the sweeper knows it.
pub(crate) struct Asked<S: Store, E> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) schema: E,
    pub(crate) ask: Arc<Ask>,
}

impl<S: Store, E: Executor> Reconciler for Asked<S, E> {
    fn reconcile(&self, record: Record) -> Pin<Box<dyn Future<Output = Option<Report>> + Send>> {
        let (inner, schema, asked) = (Arc::clone(&self.inner), self.schema.clone(), (self.ask)(record.clone()));
        Box::pin(async move {
            inner.report(&schema, asked.await, &record).await.unwrap_or_else(|problem| {
                tracing::error!(request_id = %record.request_id, mutation = %record.mutation, "a reconciler's answer can't be used: {problem}");
                None
            })
        })
    }
}

impl<S: Store> Inner<S> {
    /// What was found, as it is stored. `Err`: why it can't be an answer of the mutation.
    pub(crate) async fn report(
        &self,
        schema: &impl Executor,
        found: Found,
        record: &Record,
    ) -> Result<Option<Report>, String> {
        let policy = self.setup.policy(&record.mutation);
        let complete = |draft: Draft, errors: &[StoredError]| {
            let kept = draft.complete(errors, &[], policy.max_response).filter(|_| policy.keep_response);
            kept.map(|response| self.setup.sealed(response))
        };
        Ok(match found {
            Found::Succeeded(value) => {
                let shape = Shape::of(schema, &record.mutation, &record.selection).await?;
                let draft = Draft::of(&shape.fit(value)?, policy.max_response);
                Some((Told::Succeeded, complete(draft, &[])))
            }
            Found::Failed(error) => {
                let own = StoredError::own(&error.into_server_error(Pos::default()));
                Some((Told::Failed, complete(Draft::None, &[own])))
            }
            Found::NotStarted => Some((Told::NotStarted, None)),
            Found::Unknown => None,
        })
    }
}

/// What is stored of a request, for an execution without its client.
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
        serde_json::to_vec(&request).ok()
    }

    /// Bytes of its stored form, the path to the field apart.
    pub(crate) fn size(&self) -> usize {
        serde_json::to_vec(self).map_or(usize::MAX, |request| request.len())
    }
}

/// In the data of a request that is a resumption: the response keys that lead to the field.
pub(crate) struct Resumption(pub(crate) Vec<String>);

/// Rebuilds the data that an application's resolvers expect in a request (the caller's rights, say), from the record
/// and from what was kept of the request. The [`ClientId`](crate::key::ClientId) is there already.
pub(crate) type Rebuild = dyn Fn(Request, Record, serde_json::Value) -> BoxFuture<'static, Request> + Send + Sync;

/// Executes stored requests through a schema.
pub(crate) struct Resumer<S: Store, E> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) schema: E,
    pub(crate) rebuild: Box<Rebuild>,
}

impl<S: Store, E: Executor> Resume for Resumer<S, E> {
    fn resume(&self, record: Record) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let opened = record.request.as_deref().and_then(|request| self.inner.setup.opened(request));
        let stored: Option<StoredRequest> = opened.and_then(|request| serde_json::from_slice(&request).ok());
        let Some(stored) = stored else { return Box::pin(std::future::ready(false)) };
        let mut request = Request::new(stored.query)
            .variables(stored.variables)
            .data(record.client.clone())
            .data(Resumption(stored.path));
        request.operation_name = stored.operation_name;
        let request_id = record.request_id;
        let (schema, rebuilt) = (self.schema.clone(), (self.rebuild)(request, record, stored.kept));
        // A task of its own, as every mutation: a sweeper that stops, or waits no longer, leaves it to finish.
        let executed = tokio::spawn(async move { schema.execute(rebuilt.await).await });
        Box::pin(async move {
            executed.await.is_ok_and(|response| {
                for error in &response.errors {
                    tracing::info!(%request_id, error = %error.message, "a resumed mutation has an error");
                }
                true
            })
        })
    }
}
