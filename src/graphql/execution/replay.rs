//! A stored response, given again under the retry's own selection.

use async_graphql::{ServerError, ServerResult, Value};

use super::{Document, Progress, Replayed, lock};
use crate::{
    error::{Error, ErrorCode},
    graphql::{
        error::{segments, server_error},
        response, selection,
    },
    record::Record,
    store::Store,
};

impl<S: Store> Document<S> {
    pub(super) fn replay(&self, index: usize, record: &Record) -> ServerResult<Option<Value>> {
        let field = &self.plan.fields[index];
        let refuse = |error: Error| Err(server_error(&error.record(record), Some(field.pos), &field.path));
        let stored = record.response.as_deref().and_then(|response| self.inner.setup.opened(response));
        let response = stored.as_deref().and_then(response::decode);
        let is_same = *field.printed == *record.selection;
        let selection = if is_same { Some(field.selection.clone()) } else { selection::parse(&record.selection) };
        let (Some(response), Some(selection)) = (response, selection) else {
            tracing::error!(request_id = %record.request_id, "a stored response can't be read");
            return refuse(Error::new(ErrorCode::RecordCorrupt));
        };
        if !is_same && !matches!(response.data, None | Some(Value::Null)) {
            let missing = selection::missing(&selection, &field.selection);
            if !missing.is_empty() {
                let mut error = Error::new(ErrorCode::SelectionUnavailable);
                error.fields = missing;
                return refuse(error);
            }
        }
        let mut errors: Vec<ServerError> = response
            .errors
            .into_iter()
            .filter_map(|error| {
                let Some(path) = &error.path else { return Some(error.into_server_error(Vec::new(), None)) };
                let (below, place) = selection::project_path(path, &selection, &field.selection)?;
                let path = segments(&field.path).into_iter().chain(below).collect();
                Some(error.into_server_error(path, place.or(Some(field.pos))))
            })
            .collect();
        let result = match response.data {
            Some(value) if is_same => Ok(Some(value)),
            Some(value) => Ok(Some(selection::project(value, &selection, &field.selection))),
            // The field's own error comes last, as it was thrown last.
            None => match errors.pop() {
                Some(error) => Err(error),
                None => return refuse(Error::new(ErrorCode::RecordCorrupt)),
            },
        };
        *lock(&self.fields[index].progress) = Progress::Replayed(Replayed { errors, headers: response.headers });
        result
    }
}
