//! A field's place in a response: its value, its errors, the headers that came with it.

use std::{collections::BTreeSet, sync::PoisonError};

use async_graphql::{Name, PathSegment, QueryEnv, Response, ServerError, Value};
use http::{HeaderMap, HeaderName, HeaderValue};

/// Takes the value at a path of response keys; null stays behind.
pub(crate) fn take(data: &mut Value, path: &[Name]) -> Option<Value> {
    let place = path.iter().try_fold(data, |value, key| match value {
        Value::Object(object) => object.get_mut(key),
        _ => None,
    });
    place.map(std::mem::take)
}

/// Puts a value at a path that exists, or whose last key is missing.
pub(crate) fn put(data: &mut Value, path: &[Name], value: Value) {
    let Some((key, above)) = path.split_last() else {
        return;
    };
    if above.is_empty() && *data == Value::Null {
        *data = Value::Object(async_graphql::indexmap::IndexMap::new());
    }
    if let Some(Value::Object(object)) = parent(data, above) {
        object.insert(key.clone(), value);
    }
}

/// Removes the key at a path, as the engine leaves out a field that failed.
pub(crate) fn remove(data: &mut Value, path: &[Name]) {
    let Some((key, above)) = path.split_last() else {
        return;
    };
    let Some(place) = parent(data, above) else {
        return;
    };
    if let Value::Object(object) = place {
        object.shift_remove(key);
        if object.is_empty() {
            *place = Value::Null;
        }
    }
}

fn parent<'a>(data: &'a mut Value, above: &[Name]) -> Option<&'a mut Value> {
    above.iter().try_fold(data, |value, key| match value {
        Value::Object(object) => object.get_mut(key),
        _ => None,
    })
}

/// Leaves one of each error below a path: a field that is selected twice is executed once, but the engine lists its
/// error for each.
pub(crate) fn dedupe(errors: &mut Vec<ServerError>, path: &[PathSegment]) {
    let mut seen: Vec<ServerError> = Vec::new();
    errors.retain(|error| {
        let again = error.path.starts_with(path) && seen.contains(error);
        if !again {
            seen.push(error.clone());
        }
        !again
    });
}

/// The errors below a path that the engine has listed so far.
pub(crate) fn errors_below(engine: &QueryEnv, path: &[PathSegment]) -> Vec<ServerError> {
    let errors = engine.errors.lock().unwrap_or_else(PoisonError::into_inner);
    errors.iter().filter(|error| error.path.starts_with(path)).cloned().collect()
}

/// The headers of these names.
pub(crate) fn headers(headers: &HeaderMap, names: &BTreeSet<String>) -> Vec<(String, String)> {
    let headers =
        names.iter().flat_map(|name| headers.get_all(name.as_str()).into_iter().map(move |value| (name, value)));
    headers.filter_map(|(name, value)| Some((name.clone(), value.to_str().ok()?.to_owned()))).collect()
}

/// Adds headers to a response that does not have them yet: fields of one document may have kept the same.
pub(crate) fn add_headers(response: &mut Response, headers: impl Iterator<Item = (String, String)>) {
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value))
            && !response.http_headers.get_all(&name).iter().any(|known| *known == value)
        {
            response.http_headers.append(name, value);
        }
    }
}
