//! A mutation document before it runs: its protected fields, their keys, and what is wrong with them.

use std::{collections::HashMap, sync::Arc};

use async_graphql::{
    Name, Pos, Positioned, QueryPathNode, QueryPathSegment, ServerError, Value, Variables,
    indexmap::IndexSet,
    parser::types::{DocumentOperations, ExecutableDocument, Field, Selection},
    registry::Registry,
};

use super::{
    arguments::{Ignored, write_arguments},
    error::server_error,
    operation::{Operation, TooLarge, named},
    schema::KeyPath,
    selection::{self, Node},
    setup::Setup,
};
use crate::{
    error::{Error, ErrorCode},
    fingerprint::{Canonical, Fingerprint},
    key::IdempotencyKey,
};

mod survey;

use survey::{Sighting, Survey};

/// What is known of a mutation document before it runs.
pub(crate) struct Plan {
    /// The protected fields that the engine will run, in order.
    pub(crate) fields: Vec<ProtectedField>,
    /// The response keys of the root fields, in order.
    pub(crate) roots: IndexSet<Name>,
    /// Why nothing of the document may run.
    pub(crate) faults: Vec<ServerError>,
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
    pub(crate) repeated: bool,
    /// Whether no other field of the document runs after it.
    pub(crate) last: bool,
    /// Whether another field of the document has the same key.
    pub(crate) shares_key: bool,
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
        let roots: IndexSet<_> =
            roots.into_iter().map(|selected| selected.field.node.response_key().node.clone()).collect();
        let Survey { sightings, mut faults, .. } = survey;
        let mut fields: Vec<ProtectedField> = Vec::new();
        for sightings in group(sightings) {
            match protect(&operation, setup, &sightings) {
                Ok(field) => fields.push(field),
                Err(fault) => faults.push(fault),
            }
        }
        if let Some(field) = fields.last_mut() {
            field.last = field.path.first() == roots.last();
        }
        let mut uses: HashMap<IdempotencyKey, usize> = HashMap::new();
        for field in &fields {
            *uses.entry(field.key.clone()).or_default() += 1;
        }
        for field in &mut fields {
            field.shares_key = uses.get(&field.key).is_some_and(|uses| *uses > 1);
        }
        Some(Self { fields, roots, faults })
    }

    /// The protected field at a path, or above it.
    pub(crate) fn find(&self, path: &QueryPathNode<'_>) -> Option<(usize, Standing)> {
        let depth = path.parents().count() + 1;
        self.fields.iter().enumerate().find_map(|(index, field)| {
            let above = depth.checked_sub(field.path.len())?;
            let node = std::iter::once(path).chain(path.parents()).nth(above)?;
            leads_to(node, &field.path).then_some((index, if above == 0 { Standing::At } else { Standing::Below }))
        })
    }
}

/// Where a path stands with respect to a protected field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    At,
    Below,
}

/// Whether a path is that of these response keys, and of nothing below them.
fn leads_to(path: &QueryPathNode<'_>, keys: &[Name]) -> bool {
    let mut keys = keys.iter().rev();
    let mut nodes = std::iter::once(path).chain(path.parents());
    loop {
        match (nodes.next(), keys.next()) {
            (None, None) => return true,
            (Some(node), Some(key)) => match node.segment {
                QueryPathSegment::Name(name) if name == key.as_str() => {}
                _ => return false,
            },
            _ => return false,
        }
    }
}

/// Brings the sightings of one path together, in the order of the first of them.
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
    ServerError::new("The document selects too many fields.", pos)
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
        repeated: sightings.len() > 1,
        last: false,
        shares_key: false,
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

/// Over the field and the fields that it stands below, each with its arguments: a namespace's choose the
/// thing that the mutation works on.
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

/// Makes one execution of a protected field that is selected more than once under its response key: a field with
/// all the selections goes before the first of them, and the others get its value. The engine merges the values.
pub(crate) fn merge_repeated(
    document: &mut ExecutableDocument,
    operation_name: Option<&str>,
    plan: &Plan,
    registry: &Registry,
    variables: &Variables,
) {
    for field in plan.fields.iter().filter(|field| field.repeated) {
        let Some(operation) = Operation::mutation(registry, document, operation_name, variables, &[]) else {
            return;
        };
        let Some(root) = registry.mutation_type.as_deref() else {
            return;
        };
        let items = &operation.definition.selection_set.node.items[..];
        let first = (0..items.len()).find(|&at| merged(&operation, root, &[&items[at..=at]], &field.path).is_some());
        let (Some(first), Some(merged)) = (first, merged(&operation, root, &[items], &field.path)) else {
            return;
        };
        let definition = match (&mut document.operations, operation_name) {
            (DocumentOperations::Single(operation), _) => Some(operation),
            (DocumentOperations::Multiple(operations), Some(name)) => operations.get_mut(name),
            (DocumentOperations::Multiple(operations), None) => operations.values_mut().next(),
        };
        if let Some(definition) = definition {
            let merged = Positioned::new(Selection::Field(merged), field.pos);
            definition.node.selection_set.node.items.insert(first, merged);
        }
    }
}

/// The chain of fields that leads along the path, with everything that the selections have at its end.
fn merged<'a>(
    operation: &Operation<'a>,
    parent: &str,
    selections: &[&'a [Positioned<Selection>]],
    path: &[Name],
) -> Option<Positioned<Field>> {
    let (key, below) = path.split_first()?;
    let mut fields = Vec::new();
    for selections in selections {
        fields.extend(operation.fields(parent, selections).ok()?);
    }
    fields.retain(|selected| selected.field.node.response_key().node == *key);
    let first = fields.first()?.field;
    let items: Vec<_> = fields.iter().map(|selected| &selected.field.node.selection_set.node.items[..]).collect();
    let mut node = Field { directives: Vec::new(), ..first.node.clone() };
    node.selection_set.node.items = if below.is_empty() {
        items.concat()
    } else {
        let ty = named(&operation.definition_of(parent, &first.node)?.ty);
        vec![Positioned::new(Selection::Field(merged(operation, ty, &items, below)?), first.pos)]
    };
    Some(Positioned::new(node, first.pos))
}
