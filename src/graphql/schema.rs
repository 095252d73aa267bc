//! Which fields of a schema are protected: the rule, applied at the start and for every document.

use std::collections::{BTreeSet, HashMap, HashSet};

use async_graphql::registry::{MetaField, MetaInputValue, MetaType, MetaTypeName, Registry};

use super::scalar::KEY_TYPE;

/// Where a field's key is: the name of an argument, and of the input object fields below it.
pub(crate) type KeyPath = Vec<String>;

/// What a field of a mutation operation is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes a key: it is executed once for each key.
    Protected(KeyPath),
    /// It has no effects of its own: a grouping object with protected fields below it.
    Namespace,
    /// It runs without a key: the application has taken responsibility for its repetition.
    Exempt,
    /// It breaks the rules.
    Faulty(Fault),
}

/// How a field breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    NoKey,
    SeveralKeys,
    ListOfKeys,
}

impl Fault {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::NoKey => "takes no IdempotencyKey and is not exempt",
            Self::SeveralKeys => "takes more than one IdempotencyKey",
            Self::ListOfKeys => "takes a list of IdempotencyKeys",
        }
    }
}

/// The role of a field, by its type and its name (with the names of its namespaces: `billing.charge`).
pub(crate) fn role(registry: &Registry, field: &MetaField, mutation: &str, exempt: &BTreeSet<String>) -> Role {
    match role_by_key(registry, field) {
        Some(role) => role,
        None if exempt.contains(mutation) => Role::Exempt,
        None if is_namespace(registry, field) => Role::Namespace,
        None => Role::Faulty(Fault::NoKey),
    }
}

/// The role of a field that takes a key; none when it takes none.
pub(crate) fn role_by_key(registry: &Registry, field: &MetaField) -> Option<Role> {
    let mut search = Search { registry, known: HashMap::new(), keys: Vec::new(), listed: false };
    search.look(field.args.values(), &mut Vec::new());
    let Search { mut keys, listed, .. } = search;
    match (keys.pop(), keys.is_empty(), listed) {
        (_, _, true) => Some(Role::Faulty(Fault::ListOfKeys)),
        (Some(_), false, false) => Some(Role::Faulty(Fault::SeveralKeys)),
        (Some(key), true, false) => Some(Role::Protected(key)),
        (None, _, false) => None,
    }
}

/// A search for keys among arguments and the input objects below them. Each input object is looked into once.
struct Search<'a> {
    registry: &'a Registry,
    /// The input objects that were looked into, and whether a key is in them. One that contains itself counts as having
    /// none while it is looked into: any key in it is found on the outer level.
    known: HashMap<&'a str, bool>,
    /// The first keys that were found.
    keys: Vec<KeyPath>,
    /// Whether one of them is in a list.
    listed: bool,
}

impl<'a> Search<'a> {
    /// Whether there is a key among these inputs, or below them.
    fn look(&mut self, inputs: impl Iterator<Item = &'a MetaInputValue>, path: &mut Vec<&'a str>) -> bool {
        let mut any = false;
        for input in inputs {
            path.push(&input.name);
            let name = named(&input.ty);
            let found = if name == KEY_TYPE { self.found(path) } else { self.look_into(name, path) };
            self.listed |= found && MetaTypeName::create(&input.ty).is_list();
            any |= found;
            path.pop();
        }
        any
    }

    fn look_into(&mut self, name: &'a str, path: &mut Vec<&'a str>) -> bool {
        let Some(MetaType::InputObject { input_fields, .. }) = self.registry.types.get(name) else { return false };
        match self.known.get(name) {
            // The same input object in another place: that makes another key.
            Some(true) => self.found(path),
            Some(false) => false,
            None => {
                self.known.insert(name, false);
                let found = self.look(input_fields.values(), path);
                self.known.insert(name, found);
                found
            }
        }
    }

    fn found(&mut self, path: &[&str]) -> bool {
        // Two are enough to know that there is more than one.
        if self.keys.len() < 2 {
            self.keys.push(path.iter().map(|name| (*name).to_owned()).collect());
        }
        true
    }
}

/// A namespace takes no arguments and returns an object, not a list, with a protected field somewhere below.
fn is_namespace(registry: &Registry, field: &MetaField) -> bool {
    let mut seen = HashSet::new();
    let mut below = vec![field];
    while let Some(field) = below.pop() {
        if !field.args.is_empty() || MetaTypeName::create(&field.ty).is_list() || !seen.insert(named(&field.ty)) {
            continue;
        }
        for field in object_fields(registry, &field.ty).into_iter().flatten() {
            if role_by_key(registry, field).is_some() {
                return true;
            }
            below.push(field);
        }
    }
    false
}

/// The name of a type without lists and exclamation marks.
pub(crate) fn named(ty: &str) -> &str {
    MetaTypeName::concrete_typename(ty)
}

fn object_fields<'a>(registry: &'a Registry, ty: &str) -> Option<impl Iterator<Item = &'a MetaField>> {
    match registry.types.get(named(ty))? {
        MetaType::Object { fields, .. } => Some(fields.values()),
        _ => None,
    }
}

/// Everything that breaks the rules in a schema, in words for its developers. `set_up` are the mutations that a
/// policy, an exemption or a reconciler was given for.
pub(crate) fn verify(registry: &Registry, exempt: &BTreeSet<String>, set_up: &BTreeSet<String>) -> Vec<String> {
    let mut found = Found::default();
    if let Some(mutation) = &registry.mutation_type {
        visit(registry, mutation, "", exempt, &mut found);
    }
    for name in set_up.iter().chain(exempt).filter(|name| !found.mutations.contains(*name)) {
        found.problems.push(format!("the mutation {name} is set up but does not exist"));
    }
    found.problems
}

#[derive(Default)]
struct Found<'a> {
    mutations: HashSet<String>,
    /// The types on the way from the root: a namespace below itself is looked into once.
    above: Vec<&'a str>,
    problems: Vec<String>,
}

/// How many mutations are looked at: where namespaces refer to one another, there can be exponentially many.
const MOST: usize = 10_000;

fn visit<'a>(registry: &'a Registry, ty: &'a str, prefix: &str, exempt: &BTreeSet<String>, found: &mut Found<'a>) {
    if found.above.contains(&ty) || found.mutations.len() > MOST {
        return;
    }
    found.above.push(ty);
    for field in object_fields(registry, ty).into_iter().flatten() {
        let mutation = format!("{prefix}{}", field.name);
        found.mutations.insert(mutation.clone());
        match role(registry, field, &mutation, exempt) {
            Role::Protected(key) => {
                let problems = problems_of(registry, field, &key).into_iter();
                found.problems.extend(problems.map(|problem| format!("the mutation {mutation} {problem}")));
            }
            Role::Exempt => {}
            Role::Namespace => visit(registry, named(&field.ty), &format!("{mutation}."), exempt, found),
            Role::Faulty(fault) => found.problems.push(format!("the mutation {mutation} {}", fault.as_str())),
        }
    }
    found.above.pop();
}

/// What is wrong on the way to a key.
fn problems_of(registry: &Registry, field: &MetaField, key: &[String]) -> Option<&'static str> {
    let mut inputs = &field.args;
    for name in key {
        let input = inputs.get(name)?;
        if input.default_value.is_some() {
            return Some("has a default for its IdempotencyKey: every request without one would be the same");
        }
        if !input.ty.ends_with('!') {
            return Some("takes its IdempotencyKey as an optional value");
        }
        match registry.types.get(named(&input.ty)) {
            Some(MetaType::InputObject { input_fields, .. }) => inputs = input_fields,
            _ => return None,
        }
    }
    None
}
