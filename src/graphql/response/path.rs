//! Places in a response, by their response keys.

use async_graphql::{Name, Value, indexmap::IndexMap};

/// Puts a value at a path that exists, or whose last key is missing.
pub(crate) fn put(data: &mut Value, path: &[Name], value: Value) {
    let Some((key, above)) = path.split_last() else {
        return;
    };
    if above.is_empty() && *data == Value::Null {
        *data = Value::Object(IndexMap::new());
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
