//! A mutation document before it runs: its protected fields, their keys, and what is wrong with them.

use std::{collections::HashMap, sync::Arc};

use async_graphql::{
    Name, Pos, QueryPathNode, QueryPathSegment, ServerError, Value, Variables,
    indexmap::IndexSet,
    parser::types::{ExecutableDocument, Field},
    registry::Registry,
};

use super::{
    arguments::{Ignored, write_arguments},
    error::server_error,
    operation::{Operation, TooLarge},
    schema::{KeyPath, named},
    selection::{self, Node},
    setup::Setup,
};
use crate::{
    error::{Error, ErrorCode},
    fingerprint::{Canonical, Fingerprint},
    key::IdempotencyKey,
};

mod merging;
mod survey;

pub(crate) use merging::merge_repeated;

use survey::{Sighting, Survey};

/// What is known of a mutation document before it runs.
pub(crate) struct Plan {
    /// The protected fields that the engine will run, in order.
    pub(crate) fields: Vec<ProtectedField>,
    /// The response keys of the root fields, in order.
    pub(crate) roots: IndexSet<Name>,
    /// Whether the one protected field is all that the document runs.
    pub(crate) is_single: bool,
    /// Why nothing of the document may run.
    pub(crate) faults: Vec<ServerError>,
    /// The places in `fields`, by the response key of the root field that leads there.
    by_root: HashMap<Name, Vec<usize>>,
}

/// A field that takes a key.
pub(crate) struct ProtectedField {
    /// The response keys that lead to it.
    pub(crate) path: Vec<Name>,
    /// The field names that lead to it, with dots.
    pub(crate) mutation: String,
    pub(crate) pos: Pos,
    pub(crate) key: IdempotencyKey,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) selection: Vec<Node>,
    /// The canonical form of `selection`.
    pub(crate) printed: Arc<str>,
    /// Whether the document selects it more than once under its response key.
    pub(crate) is_repeated: bool,
}

impl Plan {
    /// Looks through the operation. None when it is no mutation.
    pub(crate) fn of(
        registry: &Registry,
        setup: &Setup,
        document: &ExecutableDocument,
        operation_name: Option<&str>,
        variables: &Variables,
        uploads: &[[u8; 32]],
    ) -> Option<Self> {
        let operation = Operation::mutation(registry, document, operation_name, variables, uploads)?;
        let root = registry.mutation_type.as_deref()?;
        let items = &operation.definition.selection_set.node.items;
        let mut survey = Survey::new(&operation, setup);
        let roots = survey.visit(root, items).and_then(|()| operation.fields(root, items)).unwrap_or_else(|TooLarge| {
            survey.faults.push(too_large(None));
            Vec::new()
        });
        let Survey { sightings, others, mut faults, .. } = survey;
        let groups = group(sightings);
        if groups.len() > setup.max_fields {
            faults.push(too_large(groups.first().and_then(|group| group.first()).map(|sighting| sighting.field.pos)));
        }
        let mut fields: Vec<ProtectedField> = Vec::new();
        if faults.is_empty() || groups.len() <= setup.max_fields {
            for sightings in &groups {
                match protect(&operation, setup, sightings) {
                    Ok(field) => fields.push(field),
                    Err(fault) => faults.push(fault),
                }
            }
        }
        let mut by_root: HashMap<Name, Vec<usize>> = HashMap::new();
        for (index, field) in fields.iter().enumerate() {
            by_root.entry(field.path[0].clone()).or_default().push(index);
        }
        Some(Self {
            is_single: others == 0 && fields.len() == 1 && !fields[0].is_repeated,
            roots: roots.into_iter().map(|selected| selected.field.node.response_key().node.clone()).collect(),
            fields,
            faults,
            by_root,
        })
    }

    /// The protected field at a path, or above it.
    pub(crate) fn find(&self, path: &QueryPathNode<'_>) -> Option<(usize, Standing)> {
        let ways = std::iter::successors(Some(path), |node| node.parent);
        let QueryPathSegment::Name(root) = ways.clone().last()?.segment else { return None };
        let depth = ways.clone().count();
        self.by_root.get(root)?.iter().find_map(|&index| {
            let keys = &self.fields[index].path;
            let above = depth.checked_sub(keys.len())?;
            let leads = ways.clone().skip(above).zip(keys.iter().rev()).all(|(node, key)| match node.segment {
                QueryPathSegment::Name(name) => name == key.as_str(),
                QueryPathSegment::Index(_) => false,
            });
            leads.then_some((index, if above == 0 { Standing::At } else { Standing::Below }))
        })
    }
}

/// Where a path stands with respect to a protected field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    At,
    Below,
}

/// Groups sightings by their path, in the order of each path's first one.
fn group(sightings: Vec<Sighting<'_>>) -> Vec<Vec<Sighting<'_>>> {
    let mut groups: Vec<Vec<Sighting<'_>>> = Vec::new();
    let mut known: HashMap<Vec<Name>, usize> = HashMap::new();
    for sighting in sightings {
        let at = *known.entry(sighting.path.clone()).or_insert(groups.len());
        match groups.get_mut(at) {
            Some(group) => group.push(sighting),
            None => groups.push(vec![sighting]),
        }
    }
    groups
}

fn too_large(pos: Option<Pos>) -> ServerError {
    server_error(&Error::new(ErrorCode::DocumentTooLarge), pos, &[])
}

fn protect(
    operation: &Operation<'_>,
    setup: &Setup,
    sightings: &[Sighting<'_>],
) -> Result<ProtectedField, ServerError> {
    let [sighting, ..] = sightings else {
        return Err(too_large(None));
    };
    let Sighting { path, mutation, field, .. } = sighting;
    let refuse = |code| server_error(&Error::new(code).mutation(mutation), Some(field.pos), path);
    let key = match key_of(operation, &field.node, &sighting.key) {
        None | Some(Value::Null) => return Err(refuse(ErrorCode::KeyMissing)),
        Some(Value::String(key)) => IdempotencyKey::new(key).map_err(|_| refuse(ErrorCode::KeyInvalid))?,
        Some(_) => return Err(refuse(ErrorCode::KeyInvalid)),
    };
    let definition = operation.definition_of(sighting.parent, &field.node);
    let return_type = definition.map_or("", |definition| named(&definition.ty));
    let selections = sightings.iter().map(|sighting| &sighting.field.node.selection_set.node.items[..]);
    let selection =
        selection::select(operation, return_type, selections).map_err(|TooLarge| too_large(Some(field.pos)))?;
    Ok(ProtectedField {
        fingerprint: fingerprint(operation, setup, sighting),
        path: path.clone(),
        mutation: mutation.clone(),
        pos: field.pos,
        key,
        printed: selection::print(&selection).into(),
        selection,
        is_repeated: sightings.len() > 1,
    })
}

fn key_of(operation: &Operation<'_>, field: &Field, path: &KeyPath) -> Option<Value> {
    let (argument, below) = path.split_first()?;
    let value = operation.value(&field.get_argument(argument)?.node)?;
    below
        .iter()
        .try_fold(&*value, |value, name| match value {
            Value::Object(object) => object.get(name.as_str()),
            _ => None,
        })
        .cloned()
}

/// The fingerprint covers the field and the fields above it, each with its arguments: those of a field above may choose
/// the thing that the mutation works on.
fn fingerprint(operation: &Operation<'_>, setup: &Setup, sighting: &Sighting<'_>) -> Fingerprint {
    let policy = setup.policy(&sighting.mutation);
    let ignored = Ignored { key: Some(&sighting.key), named: Some(&policy.ignored_arguments) };
    let mut canonical = Canonical::new();
    canonical.list(|canonical| {
        for (parent, field) in &sighting.fields {
            let Some(definition) = operation.definition_of(parent, field) else {
                continue;
            };
            canonical.string(&field.name.node);
            let ignored =
                if std::ptr::eq(*field, &raw const sighting.field.node) { &ignored } else { &Ignored::default() };
            write_arguments(canonical, operation, definition, field, ignored);
        }
    });
    canonical.fingerprint()
}
