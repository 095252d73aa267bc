//! One execution of a field that a document selects more than once under one response key, whatever the engine does.

use async_graphql::{
    Name, Positioned, Variables,
    parser::types::{DocumentOperations, ExecutableDocument, Field, Selection},
    registry::Registry,
};

use super::{Operation, Plan, named};

/// Makes one execution of a protected field that is selected more than once under its response key: a field with
/// all the selections goes before the first of them. It alone runs; the others give null, which the engine's merging of
/// the values ignores.
pub(crate) fn merge_repeated(
    document: &mut ExecutableDocument,
    operation_name: Option<&str>,
    plan: &Plan,
    registry: &Registry,
    variables: &Variables,
) {
    for field in plan.fields.iter().filter(|field| field.is_repeated) {
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
