//! A field's arguments in canonical form, coerced by the schema's types.
//!
//! What the resolver can't tell apart is written alike: a literal and a variable, `"x"` and `["x"]` for a list,
//! `4` and `"4"` for an `ID`, `1` and `1.0` for a `Float`, an enum value and its string in a variable, a default
//! written out and left out. For the last, a value that equals its default is not written at all; so an optional
//! argument that is added to the schema later changes no fingerprint.

use std::collections::BTreeSet;

use async_graphql::{
    Name, Value,
    indexmap::IndexMap,
    parser::types::Field,
    registry::{MetaField, MetaInputValue, MetaType, MetaTypeName},
};
use sha2::{Digest, Sha256};

use super::{
    operation::{Operation, parse_default},
    schema::KeyPath,
};
use crate::fingerprint::Canonical;

/// The arguments that do not count.
#[derive(Default)]
pub(crate) struct Ignored<'a> {
    /// The key itself.
    pub(crate) key: Option<&'a KeyPath>,
    /// What the policy leaves out, by its dotted path.
    pub(crate) named: Option<&'a BTreeSet<String>>,
}

impl Ignored<'_> {
    fn contains(&self, path: &[&str]) -> bool {
        self.key.is_some_and(|key| key == path)
            || self.named.is_some_and(|named| !named.is_empty() && named.contains(&path.join(".")))
    }
}

/// Writes a field's arguments as an object.
pub(crate) fn write_arguments(
    canonical: &mut Canonical,
    operation: &Operation<'_>,
    definition: &MetaField,
    field: &Field,
    ignored: &Ignored<'_>,
) {
    let given: Vec<_> = field
        .arguments
        .iter()
        .filter_map(|(name, value)| Some((definition.args.get(name.node.as_str())?, operation.value(&value.node)?)))
        .collect();
    let given = given.iter().map(|(input, value)| (*input, &**value)).collect();
    Writer { operation, ignored }.members(canonical, given, &mut Vec::new());
}

struct Writer<'a> {
    operation: &'a Operation<'a>,
    ignored: &'a Ignored<'a>,
}

impl<'a> Writer<'a> {
    /// Arguments, or the fields of an input object.
    fn members<'p>(
        &self,
        canonical: &mut Canonical,
        mut given: Vec<(&'p MetaInputValue, &Value)>,
        path: &mut Vec<&'p str>,
    ) where
        'a: 'p,
    {
        given.sort_by(|(a, _), (b, _)| Canonical::member_order(&a.name, &b.name));
        canonical.object(|canonical| {
            for (input, value) in given {
                path.push(&input.name);
                if !self.ignored.contains(path) && !self.is_default(input, value) {
                    canonical.member(&input.name);
                    self.value(canonical, value, &input.ty, path);
                }
                path.pop();
            }
        });
    }

    fn is_default(&self, input: &MetaInputValue, value: &Value) -> bool {
        let Some(default) = input.default_value.as_deref().and_then(parse_default) else {
            return false;
        };
        let write = |value: &Value| {
            let mut canonical = Canonical::new();
            self.value(&mut canonical, value, &input.ty, &mut Vec::new());
            canonical
        };
        write(&default).as_str() == write(value).as_str()
    }

    fn value<'p>(&self, canonical: &mut Canonical, value: &Value, ty: &'p str, path: &mut Vec<&'p str>)
    where
        'a: 'p,
    {
        match (MetaTypeName::create(ty), value) {
            (MetaTypeName::NonNull(ty), value) => self.value(canonical, value, ty, path),
            (_, Value::Null) => canonical.null(),
            (MetaTypeName::List(ty), Value::List(items)) => canonical.list(|canonical| {
                for item in items {
                    self.value(canonical, item, ty, path);
                }
            }),
            // One value where a list is expected is a list of one.
            (MetaTypeName::List(ty), value) => canonical.list(|canonical| self.value(canonical, value, ty, path)),
            (MetaTypeName::Named(name), value) => match (self.operation.registry.types.get(name), value) {
                (Some(MetaType::InputObject { input_fields, .. }), Value::Object(object)) => {
                    let given = object
                        .iter()
                        .filter_map(|(name, value)| Some((input_fields.get(name.as_str())?, value)))
                        .collect();
                    self.members(canonical, given, path);
                }
                (Some(MetaType::Enum { .. }), Value::String(name)) => canonical.symbol(name),
                _ => self.scalar(canonical, value, name),
            },
        }
    }

    fn scalar(&self, canonical: &mut Canonical, value: &Value, ty: &str) {
        match (ty, value) {
            ("Float", Value::Number(number)) => match number.as_f64() {
                Some(float) => canonical.float(float),
                None => canonical.integer(&number.to_string()),
            },
            ("ID", Value::Number(number)) => canonical.string(&number.to_string()),
            ("Upload", Value::String(reference)) => match self.upload(reference) {
                Some(content) => canonical.content(content),
                None => canonical.string(reference),
            },
            _ => write_any(canonical, value),
        }
    }

    fn upload(&self, reference: &str) -> Option<&[u8; 32]> {
        let index: usize = reference.strip_prefix("#__graphql_file__:")?.parse().ok()?;
        self.operation.uploads.get(index)
    }
}

/// Writes a value of which the schema says nothing more.
fn write_any(canonical: &mut Canonical, value: &Value) {
    match value {
        Value::Null => canonical.null(),
        Value::Boolean(value) => canonical.boolean(*value),
        Value::String(value) => canonical.string(value),
        Value::Enum(name) => canonical.symbol(name),
        Value::Number(number) => write_number(canonical, number),
        Value::Binary(bytes) => canonical.content(&Sha256::digest(bytes)),
        Value::List(items) => canonical.list(|canonical| {
            for item in items {
                write_any(canonical, item);
            }
        }),
        Value::Object(object) => write_object(canonical, object),
    }
}

fn write_object(canonical: &mut Canonical, object: &IndexMap<Name, Value>) {
    let mut members: Vec<_> = object.iter().collect();
    members.sort_by(|(a, _), (b, _)| Canonical::member_order(a, b));
    canonical.object(|canonical| {
        for (name, value) in members {
            canonical.member(name);
            write_any(canonical, value);
        }
    });
}

fn write_number(canonical: &mut Canonical, number: &async_graphql::Number) {
    let digits = number.to_string();
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    match number.as_f64() {
        Some(float) if !is_integer => canonical.decimal(float),
        _ => canonical.integer(&digits),
    }
}
