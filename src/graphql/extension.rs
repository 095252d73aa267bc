//! The extension's hooks: a request's way through the engine.

use std::{
    any::TypeId,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_graphql::{
    Data, Request, Response, ServerError, ServerResult, ValidationResult, Value, Variables,
    extensions::{
        Extension, ExtensionContext, NextExecute, NextParseQuery, NextPrepareRequest, NextResolve, NextValidation,
        ResolveInfo,
    },
    parser::types::{DocumentOperations, ExecutableDocument, OperationType},
};
use async_trait::async_trait;

use super::{
    Inner,
    context::Execution,
    error::{add_code, server_error},
    execution::Document,
    plan::{Plan, merge_repeated},
    question::Question,
    recovery::{Resumption, StoredRequest},
    schema::role_by_key,
    upload::hash_uploads,
};
use crate::{
    error::{Error, ErrorCode},
    key::ClientId,
    policy::OnCrash,
    store::Store,
};

/// One request's extension.
pub(crate) struct IdempotencyExtension<S: Store> {
    inner: Arc<Inner<S>>,
    prepared: OnceLock<Prepared>,
    /// What is known of the document; not set for one that was parsed elsewhere.
    known: OnceLock<Known<S>>,
    /// Whether the engine runs something else than the operation that `known` is about.
    strayed: AtomicBool,
}

enum Known<S: Store> {
    /// It has no mutation.
    Harmless,
    /// It has a mutation, maybe among others. `mutation` is the planned operation, if the one that the engine will run
    /// is a mutation.
    Operation { chosen: Choice, mutation: Option<Arc<Document<S>>> },
}

/// Which operation of a document the engine runs.
#[derive(PartialEq, Eq)]
enum Choice {
    /// The one with this name, or the only one, which has none.
    Named(Option<String>),
    /// None: the engine will refuse the request.
    Refused,
}

/// What is known of a request before its document is parsed.
#[derive(Default)]
struct Prepared {
    operation_name: Option<String>,
    uploads: Vec<[u8; 32]>,
    /// Whether the extension is registered twice, and this is the inner instance.
    is_second: bool,
}

/// In the data of a request that an instance of the extension has seen.
struct Seen;

impl<S: Store> IdempotencyExtension<S> {
    pub(crate) fn new(inner: Arc<Inner<S>>) -> Self {
        Self { inner, prepared: OnceLock::new(), known: OnceLock::new(), strayed: AtomicBool::new(false) }
    }

    fn plan(
        &self,
        ctx: &ExtensionContext<'_>,
        query: &str,
        variables: &Variables,
        document: &mut ExecutableDocument,
    ) -> Option<Document<S>> {
        let prepared = self.prepared.get()?;
        let (registry, setup) = (&ctx.schema_env.registry, &self.inner.setup);
        let name = prepared.operation_name.as_deref();
        let mut plan = Plan::of(registry, setup, document, name, variables, &prepared.uploads)?;
        if prepared.is_second {
            tracing::error!("the extension stands twice on this schema, so no mutation is executed");
            plan.faults.insert(0, server_error(&Error::new(ErrorCode::Misconfigured), None, &[]));
        }
        merge_repeated(document, name, &plan, registry, variables);
        let resumes = |mutation: &str| setup.policy(mutation).on_crash == OnCrash::Resume;
        let stored = (plan.fields.iter().any(|field| resumes(&field.mutation)) && prepared.uploads.is_empty()
            // A persisted query comes parsed, without its text: only its client can resume it.
            && !query.is_empty())
        .then(|| {
            let kept = setup.keep.as_ref().map(|keep| keep(ctx)).unwrap_or_default();
            StoredRequest::new(query, name, variables, kept)
        });
        if stored.as_ref().is_some_and(|stored| stored.size() > setup.max_request) {
            plan.faults.push(server_error(&Error::new(ErrorCode::DocumentTooLarge), None, &[]));
        }
        let client = ctx.data_opt::<ClientId>().cloned();
        let target = ctx.data_opt::<Resumption>().map(|resumption| resumption.0.clone());
        Some(Document::new(Arc::clone(&self.inner), plan, client, stored, target))
    }

    fn document(&self) -> Option<&Arc<Document<S>>> {
        match self.known.get() {
            Some(Known::Operation { mutation, .. }) if !self.strayed.load(Ordering::Relaxed) => mutation.as_ref(),
            _ => None,
        }
    }

    /// Whether what the engine runs is known to be no mutation.
    fn is_harmless(&self) -> bool {
        matches!(self.known.get(), Some(Known::Harmless | Known::Operation { mutation: None, .. }))
            && !self.strayed.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl<S: Store> Extension for IdempotencyExtension<S> {
    async fn prepare_request(
        &self,
        ctx: &ExtensionContext<'_>,
        mut request: Request,
        next: NextPrepareRequest<'_>,
    ) -> ServerResult<Request> {
        let is_second = request.data.contains_key(&TypeId::of::<Seen>());
        request.data.insert(Seen);
        let question = request.data.get(&TypeId::of::<Question>()).and_then(|data| data.downcast_ref::<Question>());
        if let Some(question) = question {
            question.hear(&ctx.schema_env.registry);
        }
        let request = next.run(ctx, request).await?;
        let uploads = hash_uploads(&request.uploads)
            .await
            .map_err(|error| ServerError::new(format!("An upload could not be read: {error}"), None))?;
        let operation_name = request.operation_name.clone();
        let _ = self.prepared.set(Prepared { operation_name, uploads, is_second });
        Ok(request)
    }

    async fn parse_query(
        &self,
        ctx: &ExtensionContext<'_>,
        query: &str,
        variables: &Variables,
        next: NextParseQuery<'_>,
    ) -> ServerResult<ExecutableDocument> {
        let mut document = next.run(ctx, query, variables).await?;
        let known = if has_mutation(&document.operations) {
            let mutation = self.plan(ctx, query, variables, &mut document).map(Arc::new);
            let name = self.prepared.get().and_then(|prepared| prepared.operation_name.as_deref());
            Known::Operation { chosen: Choice::of(&document.operations, name), mutation }
        } else {
            Known::Harmless
        };
        // It can't be set already: a request is parsed once.
        let _ = self.known.set(known);
        Ok(document)
    }

    async fn validation(
        &self,
        ctx: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<ValidationResult, Vec<ServerError>> {
        match self.document().map(|document| document.faults()) {
            Some(faults) if !faults.is_empty() => Err(faults),
            _ => next.run(ctx).await,
        }
    }

    async fn execute(
        &self,
        ctx: &ExtensionContext<'_>,
        operation_name: Option<&str>,
        next: NextExecute<'_>,
    ) -> Response {
        if let Some(Known::Operation { chosen, .. }) = self.known.get()
            && *chosen != Choice::Named(operation_name.map(str::to_owned))
        {
            self.strayed.store(true, Ordering::Relaxed);
        }
        let Some(document) = self.document() else {
            let mut response = next.run(ctx, operation_name).await;
            response.errors.iter_mut().for_each(add_code);
            return response;
        };
        let mut data = Data::default();
        data.insert(Execution(Arc::clone(document) as Arc<_>));
        let mut response = next.run_with_data(ctx, operation_name, data).await;
        document.complete(&mut response).await;
        response
    }

    async fn resolve(
        &self,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        let registry = &ctx.schema_env.registry;
        if info.is_for_introspection {
            return next.run(ctx, info).await;
        }
        if self.is_harmless() {
            if info.path_node.parent.is_some() || registry.mutation_type.as_deref() != Some(info.parent_type) {
                return next.run(ctx, info).await;
            }
            // It is a mutation after all.
            self.strayed.store(true, Ordering::Relaxed);
        }
        let document = self.document();
        if let Some(document) = document
            && let Some(found) = document.plan.find(info.path_node)
        {
            return document.resolve(found, ctx, info, next).await;
        }
        // A field that takes a key but is not in the plan is not run.
        let keyed = !info.field.arguments.is_empty()
            && registry
                .types
                .get(info.parent_type)
                .and_then(|parent| parent.field_by_name(info.name))
                .is_some_and(|definition| role_by_key(registry, definition).is_some());
        if keyed {
            tracing::error!(
                mutation = info.name,
                "a field that takes a key is not in the document's plan, and was refused"
            );
            let error = Error::new(ErrorCode::Misconfigured).mutation(info.name);
            let refusal = server_error(&error, None, &[]);
            return Err(ServerError { path: path_of(info.path_node), ..refusal });
        }
        match document {
            Some(document) if !document.is_on_way(info.path_node) => Ok(None),
            _ => next.run(ctx, info).await,
        }
    }
}

fn path_of(node: &async_graphql::QueryPathNode<'_>) -> Vec<async_graphql::PathSegment> {
    use async_graphql::{PathSegment, QueryPathSegment};
    let mut path: Vec<_> = std::iter::successors(Some(node), |node| node.parent)
        .map(|node| match node.segment {
            QueryPathSegment::Name(name) => PathSegment::Field((*name).to_owned()),
            QueryPathSegment::Index(index) => PathSegment::Index(index),
        })
        .collect();
    path.reverse();
    path
}

impl Choice {
    /// The choice that the engine will make.
    fn of(operations: &DocumentOperations, name: Option<&str>) -> Self {
        match (operations, name) {
            (DocumentOperations::Single(_), None) => Self::Named(None),
            (DocumentOperations::Multiple(named), Some(name)) if named.contains_key(name) => {
                Self::Named(Some(name.to_owned()))
            }
            (DocumentOperations::Multiple(named), None) if named.len() == 1 => {
                Self::Named(named.keys().next().map(ToString::to_string))
            }
            _ => Self::Refused,
        }
    }
}

fn has_mutation(operations: &DocumentOperations) -> bool {
    operations.iter().any(|(_, operation)| operation.node.ty == OperationType::Mutation)
}
