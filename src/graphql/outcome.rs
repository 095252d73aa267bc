//! What a client saw of a field, as it is stored and read back: the value as JSON text, and the errors below it.

use async_graphql::{ErrorExtensionValues, PathSegment, ServerError, Value};
use serde::{Deserialize, Serialize};

/// What is stored of a field's response.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Response {
    /// The value; none when the field itself failed.
    #[serde(default, deserialize_with = "present")]
    pub(crate) data: Option<Value>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) errors: Vec<StoredError>,
    /// HTTP headers that the policy lets through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) headers: Vec<(String, String)>,
}

/// An error at or below a field. Where it is in the document is for the retry's document to say.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StoredError {
    message: String,
    /// Below the field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) path: Vec<PathSegment>,
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
    /// Of an error whose path begins with `depth` segments that lead to the field.
    pub(crate) fn of(error: &ServerError, depth: usize) -> Self {
        Self {
            message: error.message.clone(),
            path: error.path.get(depth..).unwrap_or_default().to_vec(),
            extensions: error.extensions.clone(),
        }
    }

    /// As an error of another document.
    pub(crate) fn into_server_error(self, path: Vec<PathSegment>, pos: Option<async_graphql::Pos>) -> ServerError {
        ServerError { extensions: self.extensions, ..ServerError::new(self.message, pos) }.with_path(path)
    }
}

/// The stored form, or none when it is larger than `limit` bytes or too deep to read back.
pub(crate) fn encode(
    data: Option<&Value>,
    errors: &[StoredError],
    headers: &[(String, String)],
    limit: usize,
) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        data: Option<&'a Value>,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        errors: &'a [StoredError],
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        headers: &'a [(String, String)],
    }
    let text = serde_json::to_vec(&Borrowed { data, errors, headers }).ok()?;
    (text.len() <= limit && depth(&text) <= DEPTH).then_some(text)
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
            let text = encode(Some(&value), &[], &[], 1_000).unwrap();
            let read = decode(&text).unwrap().data.unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), serde_json::to_string(&value).unwrap());
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
        let text = encode(Some(&nested(200)), &[], &[], 10_000).unwrap();
        assert_eq!(decode(&text).unwrap().data.unwrap(), nested(200));
        assert!(encode(Some(&nested(300)), &[], &[], 10_000).is_none());
    }

    #[test]
    fn garbage_is_no_response() {
        for garbage in ["", "garbage", "{}", "{\"data\":1", "{\"data\":1}x", "[]", &"[".repeat(100_000)] {
            assert!(decode(garbage.as_bytes()).is_none());
        }
    }
}
