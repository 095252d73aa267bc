//! A mutation document while it runs: each protected field is claimed, run and settled, or replayed.

use std::{
    any::Any,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use async_graphql::{
    QueryEnv, QueryPathNode, ServerError, ServerResult, Value,
    extensions::{ExtensionContext, NextResolve, ResolveInfo},
};
use futures_util::{FutureExt, future::BoxFuture};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::{
    Inner,
    context::Executing,
    document::{Plan, ProtectedField, Standing},
    error::{code_of, segments, server_error, take_mark},
    outcome::{self, StoredError},
    place,
    resumption::StoredRequest,
};
use crate::{
    attempt::AttemptError,
    claim::ClaimRequest,
    error::{Error, ErrorCode},
    key::ClientId,
    policy::{Effects, Ending, OnCrash, Policy},
    protocol::Entry,
    record::Record,
    run::{Ended, Run},
    store::Store,
};

mod completion;
mod replay;

/// A mutation document while it runs.
pub(crate) struct Document<S: Store> {
    pub(crate) inner: Arc<Inner<S>>,
    pub(crate) plan: Plan,
    pub(crate) client: Option<ClientId>,
    /// What is stored of the request, for policies that resume.
    pub(crate) request: Option<StoredRequest>,
    /// The only field to run, when this is a resumption.
    pub(crate) resumed: Option<Vec<String>>,
    states: Vec<FieldState<S>>,
}

struct FieldState<S: Store> {
    progress: Mutex<Progress<S>>,
    observed: Mutex<Observed>,
    /// Where the engine keeps the request's errors and headers, known once the field's resolver has asked for its
    /// attempt. The engine owns this document, so it is kept only while the field runs: see [`Forget`].
    engine: Mutex<Option<QueryEnv>>,
    /// The value for further selections of the same field.
    once: OnceCell<ServerResult<Option<Value>>>,
}

/// How far a protected field is.
enum Progress<S: Store> {
    /// Its key was not claimed.
    Unclaimed,
    Running(Run<S>),
    /// Has run, and is settled once the document's errors are all known.
    Ran(Run<S>, Option<ServerError>),
    /// Was done before.
    Done(Arc<Record>),
    /// Was refused.
    Refused(Error),
    Replayed(Replayed),
    Over,
}

/// What a replay adds to the response besides its value.
struct Replayed {
    errors: Vec<ServerError>,
    headers: Vec<(String, String)>,
}

/// Forgets the engine when the field has run, or when its future is dropped: a circle would never be freed.
struct Forget<'a>(&'a Mutex<Option<QueryEnv>>);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        lock(self.0).take();
    }
}

/// What was seen below a field while it ran.
#[derive(Default)]
struct Observed {
    errors: Vec<ServerError>,
    /// Whether errors may have been swallowed, or be told otherwise in the end. Every null may hide one.
    uncertain: bool,
}

impl<S: Store> Document<S> {
    pub(crate) fn new(
        inner: Arc<Inner<S>>,
        plan: Plan,
        client: Option<ClientId>,
        request: Option<StoredRequest>,
        resumed: Option<Vec<String>>,
    ) -> Self {
        let states = plan
            .fields
            .iter()
            .map(|_| FieldState {
                progress: Mutex::new(Progress::Unclaimed),
                observed: Mutex::default(),
                engine: Mutex::default(),
                once: OnceCell::new(),
            })
            .collect();
        Self { inner, plan, client, request, resumed, states }
    }

    /// Why nothing of the document may run.
    pub(crate) fn faults(&self) -> Vec<ServerError> {
        let unknown = match (&self.client, self.plan.fields.first()) {
            (None, Some(field)) => {
                let error = Error::new(ErrorCode::ClientUnknown).mutation(&field.mutation);
                Some(server_error(&error, Some(field.pos), &field.path))
            }
            _ => None,
        };
        unknown.into_iter().chain(self.plan.faults.iter().cloned()).collect()
    }

    /// Resolves a field of the document.
    pub(crate) async fn resolve(
        &self,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        if self.resumed.as_ref().is_some_and(|resumed| !is_on_way(info.path_node, resumed)) {
            return Ok(None);
        }
        match self.plan.find(info.path_node) {
            // Boxed, so that the fields below, each a future in the one above, don't make room for it.
            Some((index, Standing::At)) => Box::pin(self.protect_once(index, ctx, info, next)).await,
            Some((index, Standing::Below)) => {
                let result = next.run(ctx, info).await;
                lock(&self.states[index].observed).see(&result);
                result
            }
            None => next.run(ctx, info).await,
        }
    }

    async fn protect_once(
        &self,
        index: usize,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        if self.plan.fields[index].repeated {
            self.states[index].once.get_or_init(|| self.protect(index, ctx, info, next)).await.clone()
        } else {
            self.protect(index, ctx, info, next).await
        }
    }

    async fn protect(
        &self,
        index: usize,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        let policy = self.inner.setup.policy(&field.mutation);
        let client = self.client.as_ref().ok_or_else(|| refusal(field, ErrorCode::ClientUnknown))?;
        if let (Some(authorise), None) = (&self.inner.setup.authorise, &self.resumed) {
            authorise
                .authorise(ctx, client, &field.mutation)
                .map_err(|error| error.into_server_error(field.pos).with_path(segments(&field.path)))?;
        }
        if !policy.late {
            self.enter(index, policy).await;
        }
        let _forget = Forget(&self.states[index].engine);
        if policy.late || matches!(*lock(&self.states[index].progress), Progress::Running(_)) {
            // A panic of the application is its own; what it means for the key is told before anything else.
            let result = AssertUnwindSafe(next.run(ctx, info)).catch_unwind().await;
            self.finish(index, result).await
        } else {
            self.finish(index, Ok(Ok(None))).await
        }
    }

    /// Claims the key of a field.
    async fn enter(&self, index: usize, policy: &Arc<Policy>) {
        let field = &self.plan.fields[index];
        let Some(client) = &self.client else { return };
        let request = Arc::new(ClaimRequest {
            client: client.clone(),
            key: field.key.clone(),
            mutation: field.mutation.as_str().into(),
            fingerprint: field.fingerprint,
            selection: Arc::clone(&field.printed),
            request_id: Uuid::new_v4(),
            lease: policy.lease,
            on_crash: policy.on_crash,
            request: match (policy.on_crash, &self.request) {
                (OnCrash::Resume, Some(request)) => {
                    request.of_field(&field.path).map(|request| self.inner.setup.sealed(request))
                }
                _ => None,
            },
            resumes: self.resumed.is_some(),
        });
        let progress = match self.inner.protocol.enter(request, policy).await {
            Entry::Run(run) => Progress::Running(run),
            Entry::Replay(record) => Progress::Done(record),
            Entry::Refuse(error) => Progress::Refused(error),
        };
        *lock(&self.states[index].progress) = progress;
    }

    /// Ends a field, whatever became of its claim.
    async fn finish(
        &self,
        index: usize,
        result: Result<ServerResult<Option<Value>>, Box<dyn Any + Send>>,
    ) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        let progress = std::mem::replace(&mut *lock(&self.states[index].progress), Progress::Over);
        match (progress, result) {
            (Progress::Running(run), Ok(result)) => self.ran(index, run, result).await,
            (Progress::Running(run), Err(_panic)) => {
                let code = match run.policy().effects {
                    Effects::Leased => ErrorCode::OutcomeUnknown,
                    Effects::Transactional => ErrorCode::RolledBack,
                };
                tracing::error!(mutation = %field.mutation, "a resolver panicked");
                let ended = run.end(Ending::Panicked, None).await;
                self.ended(index, ended, Err(refusal(field, code)))
            }
            (Progress::Done(record), _) => self.replay(index, &record),
            (Progress::Refused(error), _) => Err(server_error(&error, Some(field.pos), &field.path)),
            // A guard or validator, or the resolver itself, refused before the key was claimed.
            (_, Ok(Err(error))) => Err(error),
            (_, Ok(Ok(_))) => {
                tracing::error!(mutation = %field.mutation, "a mutation that claims late finished without having claimed its key");
                Err(refusal(field, ErrorCode::Misconfigured))
            }
            (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    }

    async fn ran(&self, index: usize, run: Run<S>, result: ServerResult<Option<Value>>) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        let observed = std::mem::take(&mut *lock(&self.states[index].observed));
        let engine = lock(&self.states[index].engine).take();
        if let Some(engine) = engine {
            let below = place::errors_below(&engine, &segments(&field.path));
            let headers = place::headers(&lock(&engine.http_headers), &run.policy().replayed_headers);
            return self.settle(index, run, result, below, &headers).await;
        }
        let uncertain = observed.uncertain
            || matches!(result, Ok(None | Some(Value::Null)))
            || !run.policy().replayed_headers.is_empty();
        // Otherwise the errors are known once the document has run. A field with the same key can't wait for that:
        // others would wait for it.
        if uncertain && !field.shares_key {
            if !field.last {
                run.let_go().await;
            }
            let thrown = result.as_ref().err().cloned();
            *lock(&self.states[index].progress) = Progress::Ran(run, thrown);
            return result;
        }
        self.settle(index, run, result, observed.errors, &[]).await
    }

    /// Settles a field that ran. `below`: the errors below it.
    async fn settle(
        &self,
        index: usize,
        run: Run<S>,
        mut result: ServerResult<Option<Value>>,
        mut below: Vec<ServerError>,
        headers: &[(String, String)],
    ) -> ServerResult<Option<Value>> {
        let depth = self.plan.fields[index].path.len();
        // An error that the field's own `Option` swallowed is the resolver's all the same.
        let own = match &mut result {
            Err(error) => Some(error),
            Ok(_) => below.iter_mut().find(|error| error.path.len() == depth),
        };
        let own = own.map(|error| (take_mark(error), code_of(error).map(str::to_owned)));
        let ending = match &own {
            None => Ending::Returned,
            Some((mark, code)) => Ending::Error { mark: *mark, unfinished: false, code: code.as_deref() },
        };
        let response = if run.policy().keep_response {
            let errors: Vec<_> =
                below.iter().chain(result.as_ref().err()).map(|error| StoredError::of(error, depth)).collect();
            let null = Value::Null;
            let data = result.as_ref().ok().map(|value| value.as_ref().unwrap_or(&null));
            outcome::encode(data, &errors, headers, run.policy().max_response)
                .map(|response| self.inner.setup.sealed(response))
        } else {
            None
        };
        let ended = run.end(ending, response).await;
        self.ended(index, ended, result)
    }

    fn ended(&self, index: usize, ended: Ended, result: ServerResult<Option<Value>>) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        match ended {
            Ended::Stands => result,
            Ended::Replay(record) => self.replay(index, &record),
            Ended::Refuse(error) => Err(server_error(&error, Some(field.pos), &field.path)),
        }
    }
}

impl Observed {
    fn see(&mut self, result: &ServerResult<Option<Value>>) {
        match result {
            Err(error) => {
                self.uncertain = true;
                // On its way up it comes by more than once.
                if !self.errors.contains(error) {
                    self.errors.push(error.clone());
                }
            }
            Ok(None | Some(Value::Null)) => self.uncertain = true,
            Ok(Some(_)) => {}
        }
    }
}

impl<S: Store> Executing for Document<S> {
    fn attempt(&self, path: &QueryPathNode<'_>, engine: &QueryEnv) -> Option<Arc<dyn Any + Send + Sync>> {
        let (index, _) = self.plan.find(path)?;
        match &*lock(&self.states[index].progress) {
            Progress::Running(run) => {
                *lock(&self.states[index].engine) = Some(engine.clone());
                Some(Arc::clone(run.attempt()) as Arc<dyn Any + Send + Sync>)
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
            *lock(&self.states[index].engine) = Some(engine.clone());
            let policy = self.inner.setup.policy(&self.plan.fields[index].mutation);
            if matches!(*lock(&self.states[index].progress), Progress::Unclaimed) {
                self.enter(index, policy).await;
            }
            match &*lock(&self.states[index].progress) {
                Progress::Running(_) => Ok(()),
                _ => Err(AttemptError::NotClaimed),
            }
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refusal(field: &ProtectedField, code: ErrorCode) -> ServerError {
    server_error(&Error::new(code).mutation(&field.mutation), Some(field.pos), &field.path)
}

/// Whether a path is on the way to a field, at it, or below it.
fn is_on_way(path: &QueryPathNode<'_>, keys: &[String]) -> bool {
    path.to_string_vec().iter().zip(keys).all(|(segment, key)| segment == key)
}
