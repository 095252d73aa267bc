//! One protected field: authorised, claimed and run, or answered without running.

use async_graphql::{
    ServerResult, Value,
    extensions::{ExtensionContext, NextResolve, ResolveInfo},
};

use super::{Document, Forget, Once, Progress, Ran, lock, refusal};
use crate::{
    ending::Ending,
    error::{Error, ErrorCode},
    graphql::{
        error::{segments, server_error},
        response::Draft,
    },
    protocol::{Answer, Moment, Run, drive},
    store::Store,
};

impl<S: Store> Document<S> {
    /// A field that is selected several times under its response key is executed once. The engine resolves it each time
    /// and merges the values, so the other times give null, which adds nothing.
    pub(super) async fn protect_once(
        &self,
        index: usize,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        // Boxed: the futures of all fields below go through the caller, and would have room for it too.
        let protected = Box::pin(self.protect(index, ctx, info, next));
        if !self.plan.fields[index].is_repeated {
            return protected.await;
        }
        let mut first = None;
        let once = async {
            let result = protected.await;
            let outlook = if result.is_ok() { Once::Value } else { Once::Failed };
            first = Some(result);
            outlook
        };
        self.fields[index].once.get_or_init(|| once).await;
        first.unwrap_or(Ok(None))
    }

    async fn protect(
        &self,
        index: usize,
        ctx: &ExtensionContext<'_>,
        info: ResolveInfo<'_>,
        next: NextResolve<'_>,
    ) -> ServerResult<Option<Value>> {
        let (field, state) = (&self.plan.fields[index], &self.fields[index]);
        let policy = self.inner.setup.policy(&field.mutation);
        let client = self.client.as_ref().ok_or_else(|| refusal(field, ErrorCode::ClientUnknown))?;
        if let (Some(authorise), None) = (&self.inner.setup.authorise, &self.resumed) {
            authorise
                .authorise(ctx, client, &field.mutation)
                .await
                .map_err(|error| error.into_server_error(field.pos).with_path(segments(&field.path)))?;
        }
        let _forget = Forget(&state.engine);
        let result = if policy.late {
            // Its guard or resolver claims the key while it runs.
            drive(policy, next.run(ctx, info)).await
        } else {
            let progress = self.claim(index, policy).await;
            let runs = matches!(progress, Progress::Running(_));
            *lock(&state.progress) = progress;
            if runs { drive(policy, next.run(ctx, info)).await } else { Ok(Ok(None)) }
        };
        self.finish(index, result).await
    }

    /// Ends a field, whatever became of its claim.
    async fn finish(
        &self,
        index: usize,
        result: Result<ServerResult<Option<Value>>, Ending<'static>>,
    ) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        let progress = std::mem::replace(&mut *lock(&self.fields[index].progress), Progress::Over);
        match (progress, result) {
            (Progress::Running(run), Ok(result)) => self.ran(index, run, result).await,
            (Progress::Running(mut run), Err(ending)) => {
                tracing::error!(mutation = %field.mutation, ?ending, "a resolver did not return");
                // The engine frees a dropped resolver, with its transaction, only after this has returned.
                let answer = match ending {
                    Ending::Dropped => run.abandon(),
                    ending => run.settle(&ending, None, Moment::End).await.answer.unwrap_or(Answer::Own),
                };
                self.answer(index, answer)
            }
            (Progress::Answered(answer), _) => self.answer(index, answer),
            // A null keeps its place until the other field is settled.
            (Progress::Same, _) => {
                *lock(&self.fields[index].progress) = Progress::Same;
                Ok(None)
            }
            // A guard or validator, or the resolver itself, refused before the key was claimed.
            (_, Ok(Err(error))) => Err(error),
            (_, Ok(Ok(_))) => {
                tracing::error!(mutation = %field.mutation, "a mutation that claims late finished without having claimed its key");
                Err(refusal(field, ErrorCode::Misconfigured))
            }
            (_, Err(ending)) => {
                tracing::error!(mutation = %field.mutation, ?ending, "a resolver did not return, and had not claimed its key");
                Err(refusal(field, ErrorCode::Misconfigured))
            }
        }
    }

    /// A resolver has returned. All errors of the field are known only at the end of the document, so it is settled
    /// then. If other fields are still to run, it is made safe first.
    async fn ran(&self, index: usize, run: Run<S>, result: ServerResult<Option<Value>>) -> ServerResult<Option<Value>> {
        let policy = run.policy();
        let draft = match &result {
            _ if !policy.keep_response => Draft::Left,
            Ok(value) => Draft::of(value.as_ref().unwrap_or(&Value::Null), policy.max_response),
            Err(_) => Draft::None,
        };
        let is_null = matches!(result, Ok(None | Some(Value::Null)));
        let thrown = result.as_ref().err().cloned();
        let listed = self.listed(index);
        let is_sure = !is_null || listed.is_some();
        let mut ran = Ran { run, draft, thrown, is_null, is_sure, listed: listed.unwrap_or_default(), code: None };
        if !self.plan.is_single
            && let Some(answer) = self.make_safe(index, &mut ran).await
        {
            let instead = self.answer(index, answer);
            self.fields[index].instead.get_or_init(|| instead.is_err());
            return instead;
        }
        *lock(&self.fields[index].progress) = Progress::Ran(ran);
        result
    }

    /// Turns an answer into the result of the field.
    pub(super) fn answer(&self, index: usize, answer: Answer) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        match answer {
            Answer::Replay(record) => self.replay(index, &record),
            Answer::Refuse(error) => Err(server_error(&error, Some(field.pos), &field.path)),
            Answer::Own => {
                let error = Error::new(ErrorCode::InProgress).mutation(&field.mutation).retry_soon();
                Err(server_error(&error, Some(field.pos), &field.path))
            }
        }
    }
}
