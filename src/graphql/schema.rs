//! Which fields of a schema are protected: the rule, asked at the start and for every document.

use std::collections::{BTreeSet, HashSet};

use async_graphql::registry::{MetaField, MetaInputValue, MetaType, MetaTypeName, Registry};

use super::scalar::KEY_TYPE;

/// Where a field's key is: the name of an argument, and of the input object fields below it.
pub(crate) type KeyPath = Vec<String>;

/// What a field of a mutation operation is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It takes a key: it is executed once for each.
    Protected(KeyPath),
    /// It has no effects of its own: a grouping object with protected fields below it.
    Namespace,
    /// The application answers for it.
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
        None if is_namespace(registry, field, NESTING) => Role::Namespace,
        None => Role::Faulty(Fault::NoKey),
    }
}

/// The role of a field that takes a key; none when it takes none.
pub(crate) fn role_by_key(registry: &Registry, field: &MetaField) -> Option<Role> {
    let mut keys = Vec::new();
    let listed = find_keys(registry, field.args.values(), &mut Vec::new(), &mut keys);
    match (keys.pop(), keys.is_empty(), listed) {
        (_, _, true) => Some(Role::Faulty(Fault::ListOfKeys)),
        (Some(_), false, false) => Some(Role::Faulty(Fault::SeveralKeys)),
        (Some(key), true, false) => Some(Role::Protected(key)),
        (None, _, false) => None,
    }
}

/// How deep namespaces and input objects are looked into.
const NESTING: usize = 8;

/// Collects the paths of all keys among arguments or input fields; whether one of them is in a list.
fn find_keys<'a>(
    registry: &'a Registry,
    inputs: impl Iterator<Item = &'a MetaInputValue>,
    path: &mut Vec<&'a str>,
    keys: &mut Vec<KeyPath>,
) -> bool {
    let mut listed = false;
    for input in inputs {
        let name = MetaTypeName::concrete_typename(&input.ty);
        let in_list = MetaTypeName::create(&input.ty).is_list();
        path.push(&input.name);
        if name == KEY_TYPE {
            listed |= in_list;
            keys.push(path.iter().map(|name| (*name).to_owned()).collect());
        } else if let (Some(MetaType::InputObject { input_fields, .. }), false, true) =
            (registry.types.get(name), in_list, path.len() < NESTING)
        {
            listed |= find_keys(registry, input_fields.values(), path, keys);
        }
        path.pop();
    }
    listed
}

/// A namespace takes no arguments and returns an object, not a list, with a protected field somewhere below.
fn is_namespace(registry: &Registry, field: &MetaField, depth: usize) -> bool {
    if depth == 0 || !field.args.is_empty() || MetaTypeName::create(&field.ty).is_list() {
        return false;
    }
    object_fields(registry, &field.ty).is_some_and(|mut fields| {
        fields.any(|below| {
            let mut keys = Vec::new();
            find_keys(registry, below.args.values(), &mut Vec::new(), &mut keys);
            !keys.is_empty() || is_namespace(registry, below, depth - 1)
        })
    })
}

fn object_fields<'a>(registry: &'a Registry, ty: &str) -> Option<impl Iterator<Item = &'a MetaField>> {
    match registry.types.get(MetaTypeName::concrete_typename(ty))? {
        MetaType::Object { fields, .. } => Some(fields.values()),
        _ => None,
    }
}

/// Everything that breaks the rules in a schema, in words for its developers. `named` are the mutations that a
/// policy, an exemption or a reconciler was given for.
pub(crate) fn verify(registry: &Registry, exempt: &BTreeSet<String>, named: &BTreeSet<String>) -> Vec<String> {
    let mut found = Found::default();
    if let Some(mutation) = &registry.mutation_type {
        visit(registry, mutation, "", exempt, &mut found);
    }
    for name in named.iter().chain(exempt).filter(|name| !found.mutations.contains(*name)) {
        found.problems.push(format!("the mutation {name} is set up but does not exist"));
    }
    found.problems
}

#[derive(Default)]
struct Found {
    mutations: HashSet<String>,
    types: HashSet<String>,
    problems: Vec<String>,
}

fn visit(registry: &Registry, ty: &str, prefix: &str, exempt: &BTreeSet<String>, found: &mut Found) {
    if !found.types.insert(format!("{prefix}{ty}")) || found.types.len() > 1_000 {
        return;
    }
    for field in object_fields(registry, ty).into_iter().flatten() {
        let mutation = format!("{prefix}{}", field.name);
        found.mutations.insert(mutation.clone());
        match role(registry, field, &mutation, exempt) {
            Role::Protected(key) if is_optional(registry, field, &key) => {
                found.problems.push(format!("the mutation {mutation} takes its IdempotencyKey as an optional value"));
            }
            Role::Protected(_) | Role::Exempt => {}
            Role::Namespace => visit(registry, &field.ty, &format!("{mutation}."), exempt, found),
            Role::Faulty(fault) => found.problems.push(format!("the mutation {mutation} {}", fault.as_str())),
        }
    }
}

fn is_optional(registry: &Registry, field: &MetaField, key: &[String]) -> bool {
    let mut inputs = &field.args;
    for name in key {
        let Some(input) = inputs.get(name) else {
            return false;
        };
        if !input.ty.ends_with('!') {
            return true;
        }
        match registry.types.get(MetaTypeName::concrete_typename(&input.ty)) {
            Some(MetaType::InputObject { input_fields, .. }) => inputs = input_fields,
            _ => return false,
        }
    }
    false
}
