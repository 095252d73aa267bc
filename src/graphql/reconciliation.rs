//! What became of a lost attempt, in an application's own words.

use std::{pin::Pin, sync::Arc};

use async_graphql::{Error, Pos, Value};
use futures_util::future::BoxFuture;

use super::{
    Inner,
    outcome::{self, StoredError},
    selection,
};
use crate::{
    record::Record,
    store::Store,
    sweeper::{Reconciled, Reconciler},
};

/// What became of an attempt, by someone who knows: the gateway, or an operator.
#[derive(Debug)]
pub enum Found {
    /// It succeeded, with this value of the mutation's type: an object by its field names, as it would have
    /// been returned. It is stored under the selection and the aliases of the first request; a field that the value
    /// lacks is null, so give all that the type has (and `__typename`, if your clients ask for it).
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
pub(crate) struct Asked<S: Store> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) ask: Arc<Ask>,
}

impl<S: Store> Reconciler for Asked<S> {
    fn reconcile<'a>(&'a self, record: &'a Record) -> Pin<Box<dyn Future<Output = Reconciled> + Send + 'a>> {
        Box::pin(async move { self.inner.reconciled((self.ask)(record.clone()).await, record) })
    }
}

impl<S: Store> Inner<S> {
    /// What was found, as it is stored.
    pub(crate) fn reconciled(&self, found: Found, record: &Record) -> Reconciled {
        let policy = self.setup.policy(&record.mutation);
        let encode = |data: Option<&Value>, errors: &[StoredError]| {
            let kept = outcome::encode(data, errors, &[], policy.max_response).filter(|_| policy.keep_response);
            kept.map(|response| self.setup.sealed(response))
        };
        match found {
            Found::Succeeded(value) => match (selection::parse(&record.selection), Value::from_json(value)) {
                (Some(nodes), Ok(value)) => Reconciled::Succeeded(encode(Some(&selection::shape(value, &nodes)), &[])),
                _ => Reconciled::Unknown,
            },
            Found::Failed(error) => {
                let error = StoredError::of(&error.into_server_error(Pos::default()), 0);
                Reconciled::Failed(encode(None, &[error]))
            }
            Found::NotStarted => Reconciled::NotStarted,
            Found::Unknown => Reconciled::Unknown,
        }
    }
}
