//! The operation that the engine is about to run: its variables, and the fields that it really selects.

use std::{borrow::Cow, cell::Cell, collections::HashMap};

use async_graphql::{
    Name, Positioned, Value as ConstValue, Variables,
    parser::types::{
        BaseType, Directive, DocumentOperations, ExecutableDocument, Field, FragmentDefinition, OperationDefinition,
        OperationType, Selection, VariableDefinition,
    },
    registry::{MetaField, MetaType, Registry},
};

/// One operation of a document, with what it is evaluated against.
pub(crate) struct Operation<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) definition: &'a OperationDefinition,
    pub(crate) uploads: &'a [[u8; 32]],
    fragments: &'a HashMap<Name, Positioned<FragmentDefinition>>,
    variables: &'a Variables,
    /// The variables that the operation declares, by name.
    declared: HashMap<&'a str, &'a VariableDefinition>,
    budget: Cell<usize>,
}

/// A selected field, and the type conditions around it, without those that always hold.
pub(crate) struct Selected<'a> {
    pub(crate) field: &'a Positioned<Field>,
    pub(crate) conditions: Vec<&'a str>,
}

/// The document selects more (fragments spread out), or nests fragments deeper, than anybody needs: maybe an attack.
#[derive(Debug)]
pub(crate) struct TooLarge;

/// The most selections that are looked at in one document.
const BUDGET: usize = 20_000;
/// The deepest nesting of fragments in one selection set.
const FRAGMENTS: usize = 200;

impl<'a> Operation<'a> {
    /// The mutation that the engine will run: chosen as the engine chooses. None when it is no mutation, or when
    /// the engine will refuse the choice.
    pub(crate) fn mutation(
        registry: &'a Registry,
        document: &'a ExecutableDocument,
        name: Option<&str>,
        variables: &'a Variables,
        uploads: &'a [[u8; 32]],
    ) -> Option<Self> {
        let definition = match (&document.operations, name) {
            (DocumentOperations::Single(operation), None) => operation,
            (DocumentOperations::Multiple(operations), Some(name)) => operations.get(name)?,
            (DocumentOperations::Multiple(operations), None) if operations.len() == 1 => operations.values().next()?,
            // The engine refuses these.
            (DocumentOperations::Single(_), Some(_)) | (DocumentOperations::Multiple(_), None) => return None,
        };
        (definition.node.ty == OperationType::Mutation).then(|| Self {
            registry,
            definition: &definition.node,
            uploads,
            fragments: &document.fragments,
            variables,
            declared: definition
                .node
                .variable_definitions
                .iter()
                .map(|definition| (definition.node.name.node.as_str(), &definition.node))
                .collect(),
            budget: Cell::new(BUDGET),
        })
    }

    /// A variable's value: the request's, or its default, or null when it may be null.
    fn variable(&self, name: &str) -> Option<&'a ConstValue> {
        let definition = self.declared.get(name)?;
        self.variables.get(&definition.name.node).or_else(|| definition.default_value())
    }

    /// A value with its variables filled in. None when one of them has no value: the engine refuses it.
    pub(crate) fn value(&self, value: &'a async_graphql_value::Value) -> Option<Cow<'a, ConstValue>> {
        use async_graphql_value::Value;
        match value {
            Value::Variable(name) => self.variable(name).map(Cow::Borrowed),
            other => other.clone().into_const_with(|name| self.variable(&name).cloned().ok_or(())).ok().map(Cow::Owned),
        }
    }

    /// Whether `@skip` and `@include` let a selection through: evaluated as the engine does, which looks at
    /// the request's variables and not at their defaults.
    fn is_selected(&self, directives: &[Positioned<Directive>]) -> bool {
        directives.iter().all(|directive| {
            let include = match directive.node.name.node.as_str() {
                "skip" => false,
                "include" => true,
                _ => return true,
            };
            let Some(condition) = directive.node.get_argument("if") else {
                return true;
            };
            let value = condition.node.clone().into_const_with(|name| self.variables.get(&name).cloned().ok_or(()));
            matches!(value, Ok(ConstValue::Boolean(true))) == include
        })
    }

    /// The fields that selections select on a type, fragments spread out, in order.
    pub(crate) fn fields(
        &self,
        parent: &str,
        selections: &'a [Positioned<Selection>],
    ) -> Result<Vec<Selected<'a>>, TooLarge> {
        let mut fields = Vec::new();
        self.collect(parent, selections, &mut Vec::new(), 0, &mut fields)?;
        Ok(fields)
    }

    fn collect(
        &self,
        parent: &str,
        selections: &'a [Positioned<Selection>],
        conditions: &mut Vec<&'a str>,
        depth: usize,
        fields: &mut Vec<Selected<'a>>,
    ) -> Result<(), TooLarge> {
        for selection in selections.iter().filter(|selection| self.is_selected(selection.node.directives())) {
            self.budget.set(self.budget.get().checked_sub(1).ok_or(TooLarge)?);
            let (condition, below) = match &selection.node {
                Selection::Field(field) => {
                    fields.push(Selected { field, conditions: conditions.clone() });
                    continue;
                }
                Selection::InlineFragment(inline) => (inline.node.type_condition.as_ref(), &inline.node.selection_set),
                Selection::FragmentSpread(spread) => match self.fragments.get(&spread.node.fragment_name.node) {
                    Some(fragment) => (Some(&fragment.node.type_condition), &fragment.node.selection_set),
                    None => continue,
                },
            };
            let condition = condition.map(|condition| condition.node.on.node.as_str());
            let applies = condition.map_or(Applies::Always, |condition| self.applies(condition, parent));
            if applies == Applies::Never {
                continue;
            }
            if depth >= FRAGMENTS {
                return Err(TooLarge);
            }
            let conditional = condition.filter(|_| applies == Applies::Sometimes);
            conditions.extend(conditional);
            self.collect(parent, &below.node.items, conditions, depth + 1, fields)?;
            conditions.truncate(conditions.len() - usize::from(conditional.is_some()));
        }
        Ok(())
    }

    fn applies(&self, condition: &str, parent: &str) -> Applies {
        let implements = || self.registry.implements.get(parent).is_some_and(|types| types.contains(condition));
        let is_member = || {
            let types = self.registry.types.get(condition);
            types.and_then(MetaType::possible_types).is_some_and(|types| types.contains(parent))
        };
        if condition == parent || implements() || is_member() {
            return Applies::Always;
        }
        match self.registry.types.get(parent) {
            Some(MetaType::Object { .. }) => Applies::Never,
            _ => Applies::Sometimes,
        }
    }

    /// Whether a type is an object, whose `__typename` is its own name.
    pub(crate) fn is_object(&self, ty: &str) -> bool {
        matches!(self.registry.types.get(ty), Some(MetaType::Object { .. }))
    }

    /// A field's definition, by its parent type.
    pub(crate) fn definition_of(&self, parent: &str, field: &Field) -> Option<&'a MetaField> {
        self.registry.types.get(parent)?.field_by_name(field.name.node.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Applies {
    Always,
    Sometimes,
    Never,
}

/// Reads a default, which the registry keeps as GraphQL text.
pub(crate) fn parse_default(default: &str) -> Option<ConstValue> {
    let document = async_graphql::parser::parse_query(format!("query($v: T = {default}) {{ f }}")).ok()?;
    let (_, operation) = document.operations.iter().next()?;
    let variable = operation.node.variable_definitions.first()?;
    debug_assert!(matches!(variable.node.var_type.node.base, BaseType::Named(_)));
    variable.node.default_value.as_ref().map(|value| value.node.clone())
}
