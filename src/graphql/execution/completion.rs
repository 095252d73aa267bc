//! The end of a document: what only the engine's whole response tells, and what replays add to it.

use async_graphql::{Name, PathSegment, Response, ServerError, Value, indexmap::IndexMap};

use super::{Document, Progress, lock};
use crate::{
    graphql::{
        error::{segments, take_mark},
        place,
    },
    run::Run,
    store::Store,
};

impl<S: Store> Document<S> {
    /// Once the whole document has run: settles what waited for its errors, and adds what replays bring along.
    pub(crate) async fn complete(&self, response: &mut Response) {
        for (index, state) in self.states.iter().enumerate() {
            if self.plan.fields[index].repeated {
                place::dedupe(&mut response.errors, &segments(&self.plan.fields[index].path));
            }
            let waiting = {
                let mut progress = lock(&state.progress);
                match std::mem::replace(&mut *progress, Progress::Over) {
                    Progress::Ran(run, thrown) => Some((run, thrown)),
                    other => {
                        *progress = other;
                        None
                    }
                }
            };
            if let Some((run, thrown)) = waiting {
                self.settle_waiting(index, run, thrown, response).await;
            }
        }
        self.add_replays(response);
        for error in &mut response.errors {
            take_mark(error);
        }
    }

    async fn settle_waiting(&self, index: usize, run: Run<S>, thrown: Option<ServerError>, response: &mut Response) {
        let field = &self.plan.fields[index];
        let prefix = segments(&field.path);
        let headers = place::headers(&response.http_headers, &run.policy().replayed_headers);
        let is_below = |error: &ServerError| error.path.starts_with(&prefix);
        let below = response.errors.iter().filter(|error| is_below(error) && Some(*error) != thrown.as_ref());
        let below: Vec<_> = below.cloned().collect();
        let own = thrown.clone().map(|mut error| {
            take_mark(&mut error);
            error
        });
        let result = match thrown {
            Some(error) => Err(error),
            None => Ok(place::take(&mut response.data, &field.path)),
        };
        let settled = self.settle(index, run, result, below, &headers).await;
        let is_other = matches!(*lock(&self.states[index].progress), Progress::Replayed(_))
            || settled.as_ref().err() != own.as_ref();
        if is_other {
            response.errors.retain(|error| !is_below(error));
        }
        match settled {
            Ok(value) => place::put(&mut response.data, &field.path, value.unwrap_or_default()),
            Err(error) if is_other => {
                place::remove(&mut response.data, &field.path);
                response.errors.push(error);
            }
            Err(_) => {}
        }
    }

    fn add_replays(&self, response: &mut Response) {
        let mut marks = IndexMap::new();
        let mut replayed = false;
        for (field, state) in self.plan.fields.iter().zip(&self.states) {
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
                place::add_headers(response, replay.headers.drain(..));
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
