//! A mutation document while it runs: each protected field is claimed, run and settled, or replayed.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_graphql::{
    QueryEnv, QueryPathNode, ServerError, ServerResult, Value,
    extensions::{ExtensionContext, NextResolve, ResolveInfo},
};
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::{
    Inner,
    context::{AnyHeld, Executing},
    error::server_error,
    plan::{Plan, ProtectedField, Standing},
    recovery::StoredRequest,
    response::Draft,
};
use crate::{
    attempt::AttemptError,
    claim::ClaimRequest,
    error::{Error, ErrorCode},
    key::ClientId,
    policy::{OnCrash, Policy},
    protocol::{Answer, Claimant, Run},
    store::Store,
};

mod completion;
mod field;
mod replay;

/// A mutation document while it runs.
pub(crate) struct Document<S: Store> {
    inner: Arc<Inner<S>>,
    pub(crate) plan: Plan,
    client: Option<ClientId>,
    /// What is stored of the request, for policies that resume.
    request: Option<StoredRequest>,
    /// The only field to run, when this is a resumption.
    resumed: Option<Vec<String>>,
    /// The document as one claimant, so that two documents never wait for each other.
    claimant: Claimant,
    fields: Vec<FieldState<S>>,
}

struct FieldState<S: Store> {
    progress: Mutex<Progress<S>>,
    /// Where the engine keeps the request's errors, known once the field's resolver has asked for its attempt. The
    /// engine owns this document, so it is kept only while the field runs: see [`Forget`].
    engine: Mutex<Option<QueryEnv>>,
    /// The HTTP headers that go with the response.
    headers: Mutex<Vec<(String, String)>>,
    /// For a field that is selected more than once under its response key: what its one execution came to.
    once: OnceCell<Once>,
    /// Set where the field has run but its client gets something else: whether that is an error.
    instead: OnceLock<bool>,
}

/// What the one execution of a repeated field came to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Once {
    Value,
    Failed,
}

/// How far a protected field has come.
enum Progress<S: Store> {
    /// Its key was not claimed.
    Unclaimed,
    Running(Run<S>),
    /// Has run, and is settled once the document's errors are all known.
    Ran(Ran<S>),
    /// Nothing of it runs: this is what its client gets.
    Answered(Answer),
    /// Another field of the document has the key, for the same request: this one gets the same result.
    Same,
    Replayed(Replayed),
    Over,
}

/// A field that has run.
struct Ran<S: Store> {
    run: Run<S>,
    draft: Draft,
    /// What it threw.
    thrown: Option<ServerError>,
    /// Whether its value is null. Then it may have an error of its own.
    is_null: bool,
    /// Whether it is known yet if it has an error of its own.
    is_sure: bool,
    /// The errors at and below its path that the engine had listed when it had run.
    listed: Vec<ServerError>,
    /// The code that its own error is to have.
    code: Option<ErrorCode>,
}

/// What a replay adds to the response besides its value.
struct Replayed {
    errors: Vec<ServerError>,
    headers: Vec<(String, String)>,
}

/// Forgets the engine when the field has run, or when its future is dropped: else the two would keep each other alive.
struct Forget<'a>(&'a Mutex<Option<QueryEnv>>);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.0).take();
    }
}

impl<S: Store> Document<S> {
    pub(crate) fn new(
        inner: Arc<Inner<S>>,
        plan: Plan,
        client: Option<ClientId>,
        request: Option<StoredRequest>,
        resumed: Option<Vec<String>>,
    ) -> Self {
        let fields = plan
            .fields
            .iter()
            .map(|_| FieldState {
                progress: Mutex::new(Progress::Unclaimed),
                engine: Mutex::default(),
                headers: Mutex::default(),
                once: OnceCell::new(),
                instead: OnceLock::new(),
            })
            .collect();
        Self { inner, plan, client, request, resumed, claimant: Claimant::default(), fields }
    }

    /// Why nothing of the document may run.
    pub(crate) fn faults(&self) -> Vec<ServerError> {
        let unknown = match (&self.client, self.plan.fields.first()) {
            (None, Some(field)) => Some(refusal(field, ErrorCode::ClientUnknown)),
            _ => None,
        };
        unknown.into_iter().chain(self.plan.faults.iter().cloned()).collect()
    }

    /// Whether a path leads to the field that is resumed, is that field, or is below it. Without a resumption, all are.
    pub(crate) fn is_on_way(&self, path: &QueryPathNode<'_>) -> bool {
        let Some(resumed) = &self.resumed else { return true };
        path.to_string_vec().iter().zip(resumed).all(|(segment, key)| segment == key)
    }

    /// Resolves a protected field of the document, or one below it.
    pub(crate) async fn resolve(
        &self,
        (index, standing): (usize, Standing),
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        match standing {
            Standing::Below => next.run(ctx, info).await,
            Standing::At if !self.is_on_way(info.path_node) => Ok(None),
            Standing::At => self.protect_once(index, ctx, info, next).await,
        }
    }

    /// Claims the key of a field.
    async fn claim(&self, index: usize, policy: &Arc<Policy>) -> Progress<S> {
        let field = &self.plan.fields[index];
        let Some(client) = &self.client else { return Progress::Unclaimed };
        let request = Arc::new(ClaimRequest {
            client: client.clone(),
            key: field.key.clone(),
            mutation: field.mutation.as_str().into(),
            fingerprint: field.fingerprint,
            selection: Arc::clone(&field.printed),
            request_id: Uuid::new_v4(),
            lease: policy.lease,
            retention: policy.retention,
            on_crash: policy.on_crash,
            request: match (policy.on_crash, &self.request) {
                (OnCrash::Resume, Some(request)) => {
                    request.of_field(&field.path).map(|request| self.inner.setup.sealed(request))
                }
                _ => None,
            },
            resumes: self.resumed.is_some(),
        });
        match self.inner.protocol.enter(request, policy, &self.claimant).await {
            Ok(run) => Progress::Running(run),
            Err(Answer::Own) => Progress::Same,
            Err(answer) => Progress::Answered(answer),
        }
    }
}

impl<S: Store> Executing for Document<S> {
    fn attempt(&self, path: &QueryPathNode<'_>, engine: &QueryEnv) -> Option<Arc<dyn AnyHeld>> {
        let (index, _) = self.plan.find(path)?;
        match &*lock(&self.fields[index].progress) {
            Progress::Running(run) => {
                *lock(&self.fields[index].engine) = Some(engine.clone());
                Some(Arc::clone(run.held()?) as Arc<dyn AnyHeld>)
            }
            _ => None,
        }
    }

    fn claim<'a>(
        &'a self,
        path: &'a QueryPathNode<'a>,
        engine: &'a QueryEnv,
    ) -> BoxFuture<'a, Result<(), AttemptError>> {
        Box::pin(async move {
            let (index, _) = self.plan.find(path).ok_or(AttemptError::NotClaimed)?;
            *lock(&self.fields[index].engine) = Some(engine.clone());
            if matches!(*lock(&self.fields[index].progress), Progress::Unclaimed) {
                let policy = self.inner.setup.policy(&self.plan.fields[index].mutation);
                let progress = self.claim(index, policy).await;
                *lock(&self.fields[index].progress) = progress;
            }
            match &*lock(&self.fields[index].progress) {
                Progress::Running(_) => Ok(()),
                _ => Err(AttemptError::NotClaimed),
            }
        })
    }

    fn keep_header(&self, path: &QueryPathNode<'_>, name: &str, value: &str) -> bool {
        let Some((index, _)) = self.plan.find(path) else { return false };
        if !matches!(*lock(&self.fields[index].progress), Progress::Running(_)) {
            return false;
        }
        lock(&self.fields[index].headers).push((name.to_owned(), value.to_owned()));
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(field: &ProtectedField, code: ErrorCode) -> ServerError {
    server_error(&Error::new(code).mutation(&field.mutation), Some(field.pos), &field.path)
}
