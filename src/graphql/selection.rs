//! What a field was asked to return: its canonical form, and the projection of one selection out of another.

use std::{collections::HashMap, fmt::Write as _};

use async_graphql::{
    Name, PathSegment, Pos, Positioned, Value,
    indexmap::IndexMap,
    parser::{parse_query, types::Selection as Item},
};

use super::{
    arguments::{Ignored, write_arguments},
    operation::{Operation, TooLarge},
    schema::named,
};
use crate::fingerprint::Canonical;

/// A field of a selection, fragments spread out and fields of one response key merged.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The response key.
    key: Name,
    name: Name,
    /// The arguments in canonical form; empty where there are none that count.
    arguments: String,
    /// The type conditions that it stands under.
    conditions: Vec<String>,
    below: Vec<Node>,
    /// The value of a `__typename` whose object's type is known from the schema, so that nothing has to be stored.
    typename: Option<String>,
    pos: Pos,
}

impl Node {
    pub(crate) fn key(&self) -> &Name {
        &self.key
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn below(&self) -> &[Node] {
        &self.below
    }

    /// The type conditions that it stands under, all of which an object has to meet.
    pub(crate) fn conditions(&self) -> &[String] {
        &self.conditions
    }

    /// Whether two nodes ask for the same thing, under whatever response key.
    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.arguments == other.arguments && self.conditions == other.conditions
    }
}

/// The selection below a field of type `parent`: the field's own `selections`, and those of its duplicates.
pub(crate) fn select<'a>(
    operation: &Operation<'a>,
    parent: &str,
    selections: impl IntoIterator<Item = &'a [Positioned<Item>]>,
) -> Result<Vec<Node>, TooLarge> {
    let mut nodes = Nodes::default();
    for selections in selections {
        for selected in operation.fields(parent, selections)? {
            let field = &selected.field.node;
            // A condition narrows the type, so the definition is that of the narrowest.
            let owner = selected.conditions.last().copied().unwrap_or(parent);
            let definition = operation.definition_of(owner, field);
            let mut arguments = String::new();
            if let (Some(definition), false) = (definition, field.arguments.is_empty()) {
                let mut canonical = Canonical::new();
                write_arguments(&mut canonical, operation, definition, field, &Ignored::default());
                canonical.as_str().clone_into(&mut arguments);
            }
            let below = match definition {
                Some(definition) => select(operation, named(&definition.ty), [&field.selection_set.node.items[..]])?,
                None => Vec::new(),
            };
            let node = Node {
                key: field.response_key().node.clone(),
                name: field.name.node.clone(),
                arguments: if arguments == "{}" { String::new() } else { arguments },
                conditions: selected.conditions.iter().map(|&condition| condition.to_owned()).collect(),
                below,
                typename: (field.name.node == "__typename" && operation.is_object(parent)).then(|| parent.to_owned()),
                pos: selected.field.pos,
            };
            nodes.add(node);
        }
    }
    Ok(nodes.nodes)
}

/// The fields of one selection, each once.
#[derive(Default)]
struct Nodes {
    nodes: Vec<Node>,
    /// Where the fields of a response key are.
    by_key: HashMap<Name, Vec<usize>>,
}

impl Nodes {
    fn of(nodes: Vec<Node>) -> Self {
        let mut merged = Self::default();
        for node in nodes {
            merged.add(node);
        }
        merged
    }

    fn add(&mut self, node: Node) {
        let places = self.by_key.entry(node.key.clone()).or_default();
        let Some(&at) = places.iter().find(|&&at| self.nodes[at].is_same(&node)) else {
            places.push(self.nodes.len());
            self.nodes.push(node);
            return;
        };
        let mut below = Self::of(std::mem::take(&mut self.nodes[at].below));
        for node in node.below {
            below.add(node);
        }
        self.nodes[at].below = below.nodes;
    }
}

/// The canonical form: a selection set of GraphQL on one line, arguments as one string in canonical JSON.
pub(crate) fn print(nodes: &[Node]) -> String {
    let mut text = String::new();
    print_into(&mut text, nodes);
    text
}

fn print_into(text: &mut String, nodes: &[Node]) {
    for node in nodes {
        if !text.is_empty() && !text.ends_with('{') {
            text.push(' ');
        }
        for condition in &node.conditions {
            // Writing to a string can't fail.
            let _ = write!(text, "...on {condition}{{");
        }
        if node.key != node.name {
            let _ = write!(text, "{}:", node.key);
        }
        text.push_str(&node.name);
        if !node.arguments.is_empty() {
            let _ = write!(text, "(_:{})", Value::String(node.arguments.clone()));
        }
        if !node.below.is_empty() {
            text.push('{');
            print_into(text, &node.below);
            text.push('}');
        }
        node.conditions.iter().for_each(|_| text.push('}'));
    }
}

/// Reads a canonical form back. None when it isn't one.
pub(crate) fn parse(text: &str) -> Option<Vec<Node>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let document = parse_query(format!("{{{text}}}")).ok()?;
    let (_, operation) = document.operations.iter().next()?;
    let mut nodes = Vec::new();
    read(&operation.node.selection_set.node.items, &mut Vec::new(), &mut nodes)?;
    Some(nodes)
}

fn read(selections: &[Positioned<Item>], conditions: &mut Vec<String>, nodes: &mut Vec<Node>) -> Option<()> {
    for item in selections {
        match &item.node {
            Item::Field(field) => {
                let arguments = match field.node.arguments.first() {
                    None => String::new(),
                    Some((_, value)) => match value.node.clone().into_const()? {
                        Value::String(arguments) => arguments,
                        _ => return None,
                    },
                };
                let mut below = Vec::new();
                read(&field.node.selection_set.node.items, &mut Vec::new(), &mut below)?;
                nodes.push(Node {
                    key: field.node.response_key().node.clone(),
                    name: field.node.name.node.clone(),
                    arguments,
                    conditions: conditions.clone(),
                    below,
                    typename: None,
                    pos: field.pos,
                });
            }
            Item::InlineFragment(inline) => {
                conditions.push(inline.node.type_condition.as_ref()?.node.on.node.to_string());
                read(&inline.node.selection_set.node.items, conditions, nodes)?;
                conditions.pop();
            }
            Item::FragmentSpread(_) => return None,
        }
    }
    Some(())
}

/// The fields of `wanted` that `stored` does not have, by their dotted names.
pub(crate) fn missing(stored: &[Node], wanted: &[Node]) -> Vec<String> {
    let mut fields = Vec::new();
    find_missing(stored, wanted, "", &mut fields);
    fields
}

fn find_missing(stored: &[Node], wanted: &[Node], prefix: &str, fields: &mut Vec<String>) {
    let stored = by_name(stored);
    for want in wanted {
        let name = format!("{prefix}{}", want.name);
        match same(&stored, want) {
            Some(node) => find_missing(&node.below, &want.below, &format!("{name}."), fields),
            None if want.typename.is_some() => {}
            None => fields.push(name),
        }
    }
}

/// Fields by their names.
fn by_name(nodes: &[Node]) -> HashMap<&str, Vec<&Node>> {
    let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
    for node in nodes {
        by_name.entry(node.name.as_str()).or_default().push(node);
    }
    by_name
}

/// The field that asks for the same as another.
fn same<'a>(nodes: &HashMap<&str, Vec<&'a Node>>, other: &Node) -> Option<&'a Node> {
    nodes.get(other.name.as_str())?.iter().find(|node| node.is_same(other)).copied()
}

/// Projects a value of `stored` onto `wanted`. `stored` has all fields of `wanted`.
pub(crate) fn project(value: Value, stored: &[Node], wanted: &[Node]) -> Value {
    match value {
        Value::List(items) => Value::List(items.into_iter().map(|item| project(item, stored, wanted)).collect()),
        Value::Object(object) if !wanted.is_empty() => {
            let (mut projected, stored) = (IndexMap::new(), by_name(stored));
            for want in wanted {
                let value = match (&want.typename, same(&stored, want)) {
                    (Some(typename), _) => Some(Value::from(typename.as_str())),
                    (None, Some(node)) => {
                        object.get(&node.key).map(|value| project(value.clone(), &node.below, &want.below))
                    }
                    (None, None) => None,
                };
                if let Some(value) = value {
                    projected.insert(want.key.clone(), value);
                }
            }
            Value::Object(projected)
        }
        // A leaf. The objects and lists of a custom scalar belong to the leaf.
        other => other,
    }
}

/// Where a path below the field leads under `wanted`: the path under its response keys, and the place in
/// its document. None when `wanted` does not go there.
pub(crate) fn project_path(
    path: &[PathSegment],
    stored: &[Node],
    wanted: &[Node],
) -> Option<(Vec<PathSegment>, Option<Pos>)> {
    let (mut stored, mut wanted) = (stored, wanted);
    let mut projected = Vec::with_capacity(path.len());
    let mut place = None;
    for segment in path {
        match segment {
            PathSegment::Index(index) => projected.push(PathSegment::Index(*index)),
            PathSegment::Field(key) => {
                let node = stored.iter().find(|node| node.key.as_str() == key)?;
                let want = wanted.iter().find(|want| node.is_same(want))?;
                projected.push(PathSegment::Field(want.key.to_string()));
                place = Some(want.pos);
                (stored, wanted) = (&node.below, &want.below);
            }
        }
    }
    Some((projected, place))
}
