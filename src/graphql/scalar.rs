//! The scalar `IdempotencyKey`.

use async_graphql::{InputValueError, InputValueResult, Scalar, ScalarType, Value};

use crate::key::IdempotencyKey;

/// The scalar's name in a schema: protected fields are found by it.
pub const KEY_TYPE: &str = "IdempotencyKey";

/// A string of 1 to 255 visible ASCII characters (0x21 to 0x7E) that names one request of one client. Send a
/// new one (a UUID, say) with every new request, and the same one with every retry of it: a retried mutation
/// changes the world once and gets the first answer again.
#[Scalar(name = "IdempotencyKey")]
impl ScalarType for IdempotencyKey {
    fn parse(value: Value) -> InputValueResult<Self> {
        match value {
            Value::String(key) => Self::new(key).map_err(InputValueError::custom),
            other => Err(InputValueError::expected_type(other)),
        }
    }

    fn is_valid(value: &Value) -> bool {
        matches!(value, Value::String(_))
    }

    fn to_value(&self) -> Value {
        Value::String(self.as_str().to_owned())
    }
}
