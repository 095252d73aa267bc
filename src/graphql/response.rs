//! What a client saw of a field, as it is stored and read back: the value as JSON text, and the errors below it.

use std::io;

use async_graphql::{ErrorExtensionValues, PathSegment, Pos, ServerError, Value};
use serde::{Deserialize, Serialize};

use super::error::unmarked;

pub(crate) mod path;

/// What is stored of a field's response.
#[derive(Debug, Deserialize)]
pub(crate) struct Response {
    /// The value; none when the field itself failed.
    #[serde(default, deserialize_with = "present")]
    pub(crate) data: Option<Value>,
    /// The errors below the field and beside its value; the field's own is the last where there is no value.
    #[serde(default)]
    pub(crate) errors: Vec<StoredError>,
    /// The HTTP headers that are replayed.
    #[serde(default)]
    pub(crate) headers: Vec<(String, String)>,
}

/// An error at or below a field. Its location is not stored, since it is a place in the retry's document.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredError {
    message: String,
    /// The path below the field; none for an error that has no path at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<Vec<PathSegment>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    extensions: Option<ErrorExtensionValues>,
}

/// `null` is a value like any other; only a missing member means that there is none.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// The deepest nesting that is stored: reading it back takes stack.
const DEPTH: usize = 256;

impl StoredError {
    /// Made from an error whose path begins with `depth` segments that lead to the field.
    pub(crate) fn of(error: &ServerError, depth: usize) -> Self {
        Self {
            message: error.message.clone(),
            path: (!error.path.is_empty()).then(|| error.path.get(depth..).unwrap_or_default().to_vec()),
            extensions: unmarked(error.extensions.clone()),
        }
    }

    /// Made from an error of the field itself.
    pub(crate) fn own(error: &ServerError) -> Self {
        Self { path: Some(Vec::new()), ..Self::of(error, 0) }
    }

    /// As an error of another document.
    pub(crate) fn into_server_error(self, path: Vec<PathSegment>, pos: Option<Pos>) -> ServerError {
        ServerError { extensions: self.extensions, ..ServerError::new(self.message, pos) }.with_path(path)
    }
}

/// A field's value in its stored form, written as soon as the field has run, so that the value need not be copied.
#[derive(Debug)]
pub(crate) enum Draft {
    /// As JSON text.
    Value(Vec<u8>),
    /// The field failed.
    None,
    /// It is not kept: it is too large, too deep to read back, or the policy keeps no responses.
    Left,
}

impl Draft {
    /// Made from a value, of at most `limit` bytes.
    pub(crate) fn of(value: &Value, limit: usize) -> Self {
        let mut text = Limited { text: Vec::new(), limit };
        match serde_json::to_writer(&mut text, value) {
            Ok(()) if depth(&text.text) < DEPTH => Self::Value(text.text),
            _ => Self::Left,
        }
    }

    /// The stored form, with everything that belongs to it. None when it is not kept.
    pub(crate) fn complete(
        &self,
        errors: &[StoredError],
        headers: &[(String, String)],
        limit: usize,
    ) -> Option<Vec<u8>> {
        let mut text = match self {
            Self::Value(value) => [&b"{\"data\":"[..], value, b","].concat(),
            Self::None => b"{".to_vec(),
            Self::Left => return None,
        };
        if !errors.is_empty() {
            text.extend_from_slice(b"\"errors\":");
            serde_json::to_writer(&mut text, errors).ok()?;
            text.push(b',');
        }
        if !headers.is_empty() {
            text.extend_from_slice(b"\"headers\":");
            serde_json::to_writer(&mut text, headers).ok()?;
            text.push(b',');
        }
        if text.pop() == Some(b'{') {
            text.push(b'{');
        }
        text.push(b'}');
        (text.len() <= limit && depth(&text) <= DEPTH).then_some(text)
    }
}

/// Text up to a limit.
struct Limited {
    text: Vec<u8>,
    limit: usize,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too large"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a stored form. None when it isn't one.
pub(crate) fn decode(text: &[u8]) -> Option<Response> {
    if depth(text) > DEPTH {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let response = Response::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    (response.data.is_some() || !response.errors.is_empty()).then_some(response)
}

/// How deep brackets are nested in JSON text.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in text {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            (false, b'[' | b'{') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (false, b']' | b'}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(value: &Value, limit: usize) -> Option<Vec<u8>> {
        Draft::of(value, limit).complete(&[], &[], limit)
    }

    #[test]
    fn every_value_reads_back_to_the_same_bytes() {
        for json in [
            "null",
            "false",
            "0",
            "\"\"",
            "[]",
            "{}",
            "1.0",
            "1000.0",
            "0.1",
            "1e300",
            "-0.0",
            "5e-324",
            "9007199254740993",
            "18446744073709551615",
            "-9223372036854775808",
            r#""a\u0000\"\\é""#,
            r#"{"b":1,"a":1.0,"c":{"z":null,"y":[1,2]}}"#,
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            let read = decode(&stored(&value, 1_000).unwrap()).unwrap().data.unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&value).unwrap());
        }
    }

    #[test]
    fn errors_and_headers_come_back_with_the_value_and_without() {
        let error = ServerError::new("no", None).with_path(vec![PathSegment::Field("a".into()), PathSegment::Index(3)]);
        let errors = [StoredError::of(&error, 1), StoredError::of(&ServerError::new("bare", None), 1)];
        let headers = [("x-a".to_owned(), "1".to_owned())];
        for draft in [Draft::of(&Value::from(1), 9), Draft::None] {
            let has_value = matches!(draft, Draft::Value(_));
            let read = decode(&draft.complete(&errors, &headers, 1_000).unwrap()).unwrap();
            assert_eq!(read.data.is_some(), has_value);
            assert_eq!(read.errors[0].path, Some(vec![PathSegment::Index(3)]));
            assert_eq!((read.errors[1].path.as_ref(), read.errors[1].message.as_str()), (None, "bare"));
            assert_eq!(read.headers, headers);
        }
    }

    #[test]
    fn deep_nesting_survives_up_to_its_limit() {
        let nested = |depth: usize| {
            let mut value = Value::Null;
            for _ in 0..depth {
                value = Value::List(vec![value]);
            }
            value
        };
        let text = stored(&nested(200), 10_000).unwrap();
        assert_eq!(decode(&text).unwrap().data.unwrap(), nested(200));
        assert!(stored(&nested(300), 10_000).is_none());
    }

    #[test]
    fn what_is_larger_than_the_limit_is_not_kept() {
        let value = Value::from("x".repeat(50));
        assert!(stored(&value, 70).is_some() && stored(&value, 60).is_none() && stored(&value, 40).is_none());
    }

    #[test]
    fn garbage_is_no_response() {
        for garbage in ["", "garbage", "{}", "{\"data\":1", "{\"data\":1}x", "[]", &"[".repeat(100_000)] {
            assert!(decode(garbage.as_bytes()).is_none());
        }
        assert!(decode(&Draft::None.complete(&[], &[], 9).unwrap()).is_none());
    }
}
