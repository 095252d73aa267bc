//! Refusals and resolver errors as GraphQL errors.

use async_graphql::{Error as GraphQLError, ErrorExtensionValues, Name, PathSegment, Pos, ServerError, Value};

use crate::{
    attempt::AttemptError,
    ending::Mark,
    error::{Error, ErrorCode},
};

/// The entry in an error's `extensions` that carries a mark from the resolver to the crate; no client sees it.
const MARK: &str = "idempotencyMark";

/// What a resolver says about its own error, for the fate of the key.
pub trait MarkError {
    /// What the mark is put on.
    type Marked;

    /// Puts `mark` on the error. It takes precedence over what the policy would make of the error.
    #[must_use]
    fn mark(self, mark: Mark) -> Self::Marked;
}

impl MarkError for GraphQLError {
    type Marked = Self;

    fn mark(mut self, mark: Mark) -> Self {
        self.extensions.get_or_insert_with(ErrorExtensionValues::default).set(MARK, mark.as_str());
        self
    }
}

impl<T, E: Into<GraphQLError>> MarkError for Result<T, E> {
    type Marked = Result<T, GraphQLError>;

    fn mark(self, mark: Mark) -> Result<T, GraphQLError> {
        self.map_err(|error| error.into().mark(mark))
    }
}

/// The mark on an error.
pub(crate) fn mark_of(error: &ServerError) -> Option<Mark> {
    match error.extensions.as_ref()?.get(MARK)? {
        Value::String(word) => Mark::parse(word),
        _ => None,
    }
}

/// An error's extensions without its mark.
pub(crate) fn unmarked(extensions: Option<ErrorExtensionValues>) -> Option<ErrorExtensionValues> {
    let mut extensions = extensions?;
    extensions.unset(MARK);
    (extensions != ErrorExtensionValues::default()).then_some(extensions)
}

/// The `extensions.code` of an error.
pub(crate) fn code_of(error: &ServerError) -> Option<&str> {
    match error.extensions.as_ref()?.get("code")? {
        Value::String(code) => Some(code),
        Value::Enum(code) => Some(code),
        _ => None,
    }
}

/// Gives an error of the crate's own its code, where a resolver has passed it on as it is.
pub(crate) fn add_code(error: &mut ServerError) {
    if let Some(code) = error.source::<AttemptError>().map(AttemptError::code)
        && code_of(error).is_none()
    {
        set_code(error, code);
    }
}

/// Gives an error the code of the crate's failure that it came from.
pub(crate) fn set_code(error: &mut ServerError, code: ErrorCode) {
    let extensions = error.extensions.get_or_insert_with(ErrorExtensionValues::default);
    tell(extensions, &Error::new(code).retry_soon());
}

/// A refusal at a place of a document.
pub(crate) fn server_error(error: &Error, pos: Option<Pos>, path: &[Name]) -> ServerError {
    let mut extensions = ErrorExtensionValues::default();
    tell(&mut extensions, error);
    ServerError { extensions: Some(extensions), ..ServerError::new(&error.message, pos) }.with_path(segments(path))
}

fn tell(extensions: &mut ErrorExtensionValues, error: &Error) {
    extensions.set("code", error.code.as_str());
    extensions.set("httpStatus", error.code.http_status());
    extensions.set("retryable", error.code.retryable());
    if let Some(after) = error.retry_after {
        extensions.set("retryAfterMs", u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    }
    if let Some(mutation) = &error.mutation {
        extensions.set("mutation", mutation.as_str());
    }
    if let Some(first_seen_at) = error.first_seen_at {
        extensions.set("firstSeenAt", first_seen_at.rfc3339());
    }
    if let Some(request_id) = error.request_id {
        extensions.set("requestId", request_id.to_string());
    }
    if !error.fields.is_empty() {
        extensions.set("fields", error.fields.iter().map(|field| Value::from(field.as_str())).collect::<Vec<_>>());
    }
}

/// Response keys as an error's path.
pub(crate) fn segments(path: &[Name]) -> Vec<PathSegment> {
    path.iter().map(|key| PathSegment::Field(key.to_string())).collect()
}
