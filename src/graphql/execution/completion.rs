//! The end of a field's run: made safe while its document goes on, and settled once every error is known.

use std::sync::PoisonError;

use async_graphql::{Name, PathSegment, Response, ServerError, Value, indexmap::IndexMap};
use http::{HeaderName, HeaderValue};

use super::{Document, Once, Progress, Ran, lock};
use crate::{
    attempt::{
        AttemptError,
        steps::{Failure, Says},
    },
    ending::{Ending, Fate, Mark},
    error::Error,
    graphql::{
        error::{add_code, code_of, mark_of, segments, set_code, unmarked},
        response::{StoredError, path},
    },
    protocol::{Answer, Moment},
    store::Store,
};

/// What a field came to, by those of its errors that are known so far.
struct Outcome {
    /// The mark and the code of its own error, if it has one.
    own: Option<(Option<Mark>, Option<String>)>,
    /// What a failure of the crate says that is among the errors below the value.
    below: Option<Failure>,
    /// What a retry is to get.
    response: Option<Vec<u8>>,
}

impl Outcome {
    fn ending(&self) -> Ending<'_> {
        match &self.own {
            None => match self.below {
                None => Ending::Value { mark: None },
                Some(Failure { says: Says::Mark(mark), .. }) => Ending::Value { mark: Some(mark) },
                Some(Failure { says: Says::Misuse, .. }) => Ending::Misuse,
            },
            Some((mark, code)) => Ending::Error { mark: *mark, code: code.as_deref() },
        }
    }
}

impl<S: Store> Document<S> {
    /// Makes a field that has run safe, before others of its document run. Returns what its client gets instead, if
    /// anything.
    pub(super) async fn make_safe(&self, index: usize, ran: &mut Ran<S>) -> Option<Answer> {
        if !ran.is_sure {
            // A resolver that did not ask for its attempt did nothing in its transaction.
            ran.run.roll_back().await;
            return None;
        }
        let listed = ran.listed.clone();
        self.settle(index, ran, listed, Moment::Meanwhile).await
    }

    /// The errors at and below a field's path that the engine has listed so far; none if its resolver did not ask for its
    /// attempt.
    pub(super) fn listed(&self, index: usize) -> Option<Vec<ServerError>> {
        let engine = lock(&self.fields[index].engine).take()?;
        let errors = engine.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.is_empty() {
            return Some(Vec::new());
        }
        let prefix = segments(&self.plan.fields[index].path);
        Some(errors.iter().filter(|error| error.path.starts_with(&prefix)).cloned().collect())
    }

    /// The one way to settle a field.
    async fn settle(&self, index: usize, ran: &mut Ran<S>, listed: Vec<ServerError>, moment: Moment) -> Option<Answer> {
        let outcome = self.outcome(index, ran, listed);
        let settled = ran.run.settle(&outcome.ending(), outcome.response.clone(), moment).await;
        ran.code = settled.code;
        // A value that was not kept is not given: in its place the client gets the failure that stands below it.
        let below = outcome.below.filter(|_| outcome.own.is_none() && !matches!(settled.fate, Fate::Complete(_)));
        settled.answer.or_else(|| {
            let error = Error::new(below?.code).mutation(&self.plan.fields[index].mutation);
            Some(Answer::refuse(error.retry_soon()))
        })
    }

    /// What a field came to, with the errors that the engine has listed for it.
    fn outcome(&self, index: usize, ran: &Ran<S>, mut listed: Vec<ServerError>) -> Outcome {
        let depth = self.plan.fields[index].path.len();
        if let Some(thrown) = &ran.thrown
            && let Some(at) = listed.iter().position(|error| error.path == thrown.path)
        {
            // The engine has listed the thrown error too, maybe changed by other extensions; it must not count twice.
            listed.remove(at);
        }
        // The field's own: not one of a list item, and not one below.
        let own = match &ran.thrown {
            Some(thrown) => Some(thrown).filter(|thrown| thrown.path.len() <= depth),
            None if ran.is_null => listed.iter().find(|error| error.path.len() == depth),
            None => None,
        };
        let own = own.map(|error| (mark_of(error), code_of(error).map(str::to_owned)));
        // The client may see one of these as retryable; then the key has to be free.
        let below = listed.iter().filter_map(|error| Some(error.source::<AttemptError>()?.failure()));
        let below = worst(below);
        let errors: Vec<_> = listed.iter().chain(&ran.thrown).map(|error| StoredError::of(error, depth)).collect();
        let limit = ran.run.policy().max_response;
        let response = ran.draft.complete(&errors, &lock(&self.fields[index].headers), limit);
        Outcome { own, below, response: response.map(|response| self.inner.setup.sealed(response)) }
    }

    /// Once the whole document has run: settles the fields that have run, since all their errors are known now, and
    /// adds the errors and headers of replays.
    pub(crate) async fn complete(&self, response: &mut Response) {
        for (field, state) in self.plan.fields.iter().zip(&self.fields) {
            if state.once.get() == Some(&Once::Failed) {
                // The engine leaves out a field that failed, but the field's other selections have put a null there.
                path::remove(&mut response.data, &field.path);
            }
            if let Some(is_error) = state.instead.get() {
                forget_run(&segments(&field.path), *is_error, response);
            }
        }
        for index in 0..self.fields.len() {
            let progress = std::mem::replace(&mut *lock(&self.fields[index].progress), Progress::Over);
            match progress {
                Progress::Ran(ran) => self.complete_field(index, ran, response).await,
                other => *lock(&self.fields[index].progress) = other,
            }
        }
        for index in 0..self.fields.len() {
            if matches!(*lock(&self.fields[index].progress), Progress::Same) {
                self.complete_same(index, response).await;
            }
        }
        self.add_replays(response);
        for error in &mut response.errors {
            error.extensions = unmarked(error.extensions.take());
            add_code(error);
        }
    }

    async fn complete_field(&self, index: usize, mut ran: Ran<S>, response: &mut Response) {
        let prefix = segments(&self.plan.fields[index].path);
        // In a document of one field, every error is the field's.
        let is_listed =
            |error: &ServerError| error.path.starts_with(&prefix) || self.plan.is_single && error.path.is_empty();
        if !ran.run.is_settled() {
            let listed = response.errors.iter().filter(|error| is_listed(error)).cloned().collect();
            if let Some(answer) = self.settle(index, &mut ran, listed, Moment::End).await {
                response.errors.retain(|error| !is_listed(error));
                self.put(index, answer, response);
                return;
            }
        }
        let own = response.errors.iter_mut().find(|error| error.path == prefix);
        if let (Some(code), Some(own)) = (ran.code, own) {
            set_code(own, code);
        }
    }

    /// A field whose key another field of the document had. That one is settled by now.
    async fn complete_same(&self, index: usize, response: &mut Response) {
        let policy = self.inner.setup.policy(&self.plan.fields[index].mutation);
        let answer = match self.claim(index, policy).await {
            Progress::Answered(answer) => answer,
            // It was given back; nothing runs at the end of a document.
            _ => Answer::Own,
        };
        self.put(index, answer, response);
    }

    /// Puts an answer where the engine has put something else.
    fn put(&self, index: usize, answer: Answer, response: &mut Response) {
        let path = &self.plan.fields[index].path;
        match self.answer(index, answer) {
            Ok(value) => path::put(&mut response.data, path, value.unwrap_or_default()),
            Err(error) => {
                path::remove(&mut response.data, path);
                response.errors.push(error);
            }
        }
    }

    fn add_replays(&self, response: &mut Response) {
        let mut marks = IndexMap::new();
        let mut replayed = false;
        for (field, state) in self.plan.fields.iter().zip(&self.fields) {
            let mut progress = lock(&state.progress);
            let path: Vec<_> = field.path.iter().map(Name::as_str).collect();
            let mark =
                IndexMap::from([(Name::new("replayed"), Value::Boolean(matches!(*progress, Progress::Replayed(_))))]);
            marks.insert(Name::new(path.join(".")), Value::Object(mark));
            if let Progress::Replayed(replay) = &mut *progress {
                replayed = true;
                let prefix = segments(&field.path);
                // The field's own error, which the engine has listed, comes last.
                let own = response.errors.iter().position(|error| error.path.starts_with(&prefix));
                let own = own.unwrap_or(response.errors.len());
                response.errors.splice(own..own, replay.errors.drain(..));
                add_headers(response, replay.headers.drain(..));
            }
        }
        if replayed {
            response.extensions.insert("idempotency".to_owned(), Value::Object(marks));
            // The engine lists errors in the order in which the root fields ran.
            response.errors.sort_by_key(|error| match error.path.first() {
                Some(PathSegment::Field(key)) => self.plan.roots.get_index_of(key.as_str()),
                _ => None,
            });
        }
    }
}

/// Fields that have run are settled even when the document does not end, because another field panicked, say.
impl<S: Store> Drop for Document<S> {
    fn drop(&mut self) {
        for index in 0..self.fields.len() {
            let progress = std::mem::replace(&mut *lock(&self.fields[index].progress), Progress::Over);
            let (Progress::Ran(mut ran), Ok(runtime)) = (progress, tokio::runtime::Handle::try_current()) else {
                continue;
            };
            if ran.is_sure && !ran.run.is_settled() {
                let listed = std::mem::take(&mut ran.listed);
                let mut outcome = self.outcome(index, &ran, listed);
                runtime.spawn(async move {
                    let response = outcome.response.take();
                    ran.run.settle(&outcome.ending(), response, Moment::End).await
                });
            }
        }
    }
}

/// Of several failures, the one that leaves most in doubt.
fn worst(all: impl Iterator<Item = Failure>) -> Option<Failure> {
    all.max_by_key(|failure| match failure.says {
        Says::Mark(Mark::Release | Mark::Final) => 0,
        Says::Misuse => 1,
        Says::Mark(Mark::Unknown) => 2,
    })
}

/// Forgets the errors of a run that does not count. What its client gets instead comes last, if it is an error.
fn forget_run(path: &[PathSegment], is_error: bool, response: &mut Response) {
    let instead = response.errors.iter().rposition(|error| is_error && error.path == path);
    let instead = instead.map(|at| response.errors.remove(at));
    response.errors.retain(|error| !error.path.starts_with(path));
    response.errors.extend(instead);
}

/// Adds the headers of a replay, except those that another field of the document has added already.
fn add_headers(response: &mut Response, headers: impl Iterator<Item = (String, String)>) {
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
            && !response.http_headers.get_all(&name).iter().any(|known| *known == value)
        {
            response.http_headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;

    #[test]
    fn of_several_failures_the_one_that_leaves_most_in_doubt_counts() {
        let failure = |says| Failure { code: ErrorCode::StoreUnavailable, says };
        let [release, misuse, unknown] =
            [Says::Mark(Mark::Release), Says::Misuse, Says::Mark(Mark::Unknown)].map(failure);
        for (all, expected) in [
            (&[][..], None),
            (&[release], Some(release)),
            (&[misuse, release], Some(misuse)),
            (&[unknown, release, misuse], Some(unknown)),
        ] {
            assert_eq!(worst(all.iter().copied()), expected);
        }
    }
}
