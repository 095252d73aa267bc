//! The value that someone settles a key with becomes the response that the first request would have got: checked
//! against the schema's types, with the selection and the aliases of that request.

use std::collections::{HashMap, HashSet};

use async_graphql::{
    Executor, Name, Value,
    indexmap::IndexMap,
    registry::{MetaType, MetaTypeName, Registry},
};

use super::{
    question::ask,
    schema::named,
    selection::{self, Node},
};

/// What a mutation's answer looks like.
pub(crate) struct Shape {
    ty: String,
    nodes: Vec<Node>,
    types: Types,
}

/// What is needed of the schema's types.
#[derive(Default)]
struct Types {
    /// The types of fields, by the name of their object or interface and their own.
    fields: HashMap<(String, String), String>,
    /// The objects that an interface or a union stands for.
    members: HashMap<String, Vec<String>>,
    /// The values of an enum.
    values: HashMap<String, HashSet<String>>,
}

impl Shape {
    /// The shape of a mutation's answer under a stored selection. `Err`: why it can't be known.
    pub(crate) async fn of(schema: &impl Executor, mutation: &str, selection: &str) -> Result<Self, String> {
        let nodes = selection::parse(selection).ok_or("the stored selection can't be read")?;
        let path: Vec<_> = mutation.split('.').map(str::to_owned).collect();
        let mut named = Vec::new();
        conditions(&nodes, &mut named);
        let found = ask(schema, move |registry| Types::below(registry, &path, named)).await?;
        let (ty, types) = found.ok_or_else(|| format!("the schema has no mutation {mutation}"))?;
        Ok(Self { ty, nodes, types })
    }

    /// A value under the selection. `Err`: where it does not fit.
    pub(crate) fn fit(&self, value: serde_json::Value) -> Result<Value, String> {
        let value = Value::from_json(value).map_err(|error| error.to_string())?;
        self.types.fit(value, &self.ty, &self.nodes, "the answer")
    }
}

/// The types that a selection names.
fn conditions(nodes: &[Node], into: &mut Vec<String>) {
    for node in nodes {
        into.extend(node.conditions().iter().cloned());
        conditions(node.below(), into);
    }
}

impl Types {
    /// The type of a mutation, and all types below it; and those that are named.
    fn below(registry: &Registry, path: &[String], named_too: Vec<String>) -> Option<(String, Self)> {
        let root = registry.mutation_type.as_deref();
        let ty = path
            .iter()
            .try_fold(root?, |ty, name| Some(registry.types.get(named(ty))?.field_by_name(name)?.ty.as_str()))?;
        let (mut types, mut open, mut seen) = (Self::default(), named_too, HashSet::new());
        open.push(named(ty).to_owned());
        while let Some(name) = open.pop() {
            let Some(found) = registry.types.get(&name).filter(|_| seen.insert(name.clone())) else { continue };
            if let MetaType::Enum { enum_values, .. } = found {
                types.values.insert(name.clone(), enum_values.keys().cloned().collect());
            }
            if let (Some(members), false) = (found.possible_types(), matches!(found, MetaType::Object { .. })) {
                types.members.insert(name.clone(), members.iter().cloned().collect());
                open.extend(members.iter().cloned());
            }
            for field in found.fields().into_iter().flat_map(IndexMap::values) {
                types.fields.insert((name.clone(), field.name.clone()), field.ty.clone());
                open.push(named(&field.ty).to_owned());
            }
        }
        Some((ty.to_owned(), types))
    }

    fn fit(&self, value: Value, ty: &str, nodes: &[Node], place: &str) -> Result<Value, String> {
        let wrong = |what: &str| Err(format!("{place} is {what}, and its type is {ty}"));
        match (MetaTypeName::create(ty), value) {
            (MetaTypeName::NonNull(_), Value::Null) => wrong("null"),
            (MetaTypeName::NonNull(ty), value) => self.fit(value, ty, nodes, place),
            (_, Value::Null) => Ok(Value::Null),
            (MetaTypeName::List(ty), Value::List(items)) => {
                let items = items.into_iter().enumerate();
                let fitted = items.map(|(at, item)| self.fit(item, ty, nodes, &format!("{place}[{at}]")));
                fitted.collect::<Result<_, _>>().map(Value::List)
            }
            (MetaTypeName::List(_), _) => wrong("no list"),
            (MetaTypeName::Named(name), Value::Object(object)) if !nodes.is_empty() => {
                self.fit_object(&object, name, nodes, place)
            }
            (MetaTypeName::Named(name), value) if self.is_leaf(&value, name, nodes) => Ok(value),
            (MetaTypeName::Named(_), value) => wrong(&value.to_string()),
        }
    }

    fn fit_object(
        &self,
        object: &IndexMap<Name, Value>,
        ty: &str,
        nodes: &[Node],
        place: &str,
    ) -> Result<Value, String> {
        let concrete = match (self.members.get(ty), object.get("__typename")) {
            (None, _) => ty,
            (Some(members), Some(Value::String(told))) if members.contains(told) => told,
            (Some(members), _) => {
                return Err(format!("{place} does not tell its __typename, one of {}", members.join(", ")));
            }
        };
        let mut fitted = IndexMap::new();
        let stands = |node: &&Node| node.conditions().iter().all(|condition| self.is_a(concrete, condition));
        for node in nodes.iter().filter(stands) {
            if node.name() == "__typename" {
                fitted.insert(node.key().clone(), Value::from(concrete));
                continue;
            }
            let place = format!("{place}.{}", node.name());
            let Some(ty) = self.fields.get(&(concrete.to_owned(), node.name().to_owned())) else {
                return Err(format!("{place} is no field of {concrete} any more"));
            };
            let value = object.get(node.name()).or_else(|| object.get(node.key())).cloned().unwrap_or_default();
            fitted.insert(node.key().clone(), self.fit(value, ty, node.below(), &place)?);
        }
        Ok(Value::Object(fitted))
    }

    fn is_a(&self, concrete: &str, condition: &str) -> bool {
        concrete == condition
            || self.members.get(condition).is_some_and(|members| members.iter().any(|m| m == concrete))
    }

    /// Whether a value fits a scalar or an enum.
    fn is_leaf(&self, value: &Value, ty: &str, nodes: &[Node]) -> bool {
        match (self.values.get(ty), ty, value) {
            _ if !nodes.is_empty() => false,
            (Some(values), _, value) => matches!(value, Value::String(word) if values.contains(word)),
            (None, "Int", value) => matches!(value, Value::Number(number) if number.is_i64() || number.is_u64()),
            (None, "Float", value) => matches!(value, Value::Number(_)),
            (None, "Boolean", value) => matches!(value, Value::Boolean(_)),
            (None, "String", value) => matches!(value, Value::String(_)),
            (None, "ID", value) => matches!(value, Value::String(_) | Value::Number(_)),
            (None, _, _) => true,
        }
    }
}
