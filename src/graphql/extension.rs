//! The extension's hooks: a request's way through the engine.

use std::{
    any::TypeId,
    sync::{Arc, OnceLock},
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
    document::{Plan, merge_repeated},
    execution::Document,
    resumption::{Resumption, StoredRequest},
    schema::verify,
    upload::hash_uploads,
};
use crate::{key::ClientId, policy::OnCrash, store::Store};

/// One request's extension.
pub(crate) struct IdempotencyExtension<S: Store> {
    pub(crate) inner: Arc<Inner<S>>,
    prepared: OnceLock<Prepared>,
    /// Only of a mutation.
    document: OnceLock<Arc<Document<S>>>,
}

/// What is known of a request before its document is parsed.
#[derive(Default)]
struct Prepared {
    operation_name: Option<String>,
    uploads: Vec<[u8; 32]>,
}

/// In the data of a request that asks whether the schema keeps the rules.
pub(crate) struct Verification(pub(crate) Arc<OnceLock<Vec<String>>>);

impl<S: Store> IdempotencyExtension<S> {
    pub(crate) fn new(inner: Arc<Inner<S>>) -> Self {
        Self { inner, prepared: OnceLock::new(), document: OnceLock::new() }
    }

    fn plan(&self, ctx: &ExtensionContext<'_>, query: &str, variables: &Variables, document: &mut ExecutableDocument) {
        let none = Prepared::default();
        let prepared = self.prepared.get().unwrap_or(&none);
        let (registry, setup) = (&ctx.schema_env.registry, &self.inner.setup);
        let name = prepared.operation_name.as_deref();
        let Some(plan) = Plan::of(registry, setup, document, name, variables, &prepared.uploads) else {
            return;
        };
        merge_repeated(document, name, &plan, registry, variables);
        let resumes = |mutation: &str| setup.policy(mutation).on_crash == OnCrash::Resume;
        let stored = (plan.fields.iter().any(|field| resumes(&field.mutation)) && prepared.uploads.is_empty()
            // A persisted query comes parsed, without its text: only its client can resume it.
            && !query.is_empty())
        .then(|| {
            let kept = setup.keep.as_ref().map(|keep| keep(ctx)).unwrap_or_default();
            StoredRequest::new(query, name, variables, kept)
        });
        let client = ctx.data_opt::<ClientId>().cloned();
        let target = ctx.data_opt::<Resumption>().map(|resumption| resumption.0.clone());
        let document = Document::new(Arc::clone(&self.inner), plan, client, stored, target);
        // Parsed once a request.
        let _ = self.document.set(Arc::new(document));
    }
}

#[async_trait]
impl<S: Store> Extension for IdempotencyExtension<S> {
    async fn prepare_request(
        &self,
        ctx: &ExtensionContext<'_>,
        request: Request,
        next: NextPrepareRequest<'_>,
    ) -> ServerResult<Request> {
        let request = next.run(ctx, request).await?;
        let verification = request.data.get(&TypeId::of::<Verification>());
        if let Some(verification) = verification.and_then(|data| data.downcast_ref::<Verification>()) {
            let setup = &self.inner.setup;
            let _ = verification.0.set(verify(&ctx.schema_env.registry, &setup.exempt, &setup.named()));
        }
        if request.operation_name.is_some() || !request.uploads.is_empty() {
            let uploads = hash_uploads(&request.uploads)
                .await
                .map_err(|error| ServerError::new(format!("An upload could not be read: {error}"), None))?;
            let _ = self.prepared.set(Prepared { operation_name: request.operation_name.clone(), uploads });
        }
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
        if has_mutation(&document.operations) {
            self.plan(ctx, query, variables, &mut document);
        }
        Ok(document)
    }

    async fn validation(
        &self,
        ctx: &ExtensionContext<'_>,
        next: NextValidation<'_>,
    ) -> Result<ValidationResult, Vec<ServerError>> {
        match self.document.get().map(|document| document.faults()) {
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
        let Some(document) = self.document.get() else {
            return next.run(ctx, operation_name).await;
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
        match self.document.get() {
            Some(document) if !info.is_for_introspection => document.resolve(ctx, info, next).await,
            _ => next.run(ctx, info).await,
        }
    }
}

fn has_mutation(operations: &DocumentOperations) -> bool {
    operations.iter().any(|(_, operation)| operation.node.ty == OperationType::Mutation)
}
