//! Finds the protected fields that a document selects, and the fields that break the rules.

use std::collections::{BTreeSet, HashMap};

use async_graphql::{
    Name, Pos, Positioned, ServerError,
    parser::types::{Field, Selection},
    registry::{MetaField, MetaTypeName},
};

use crate::{
    error::{Error, ErrorCode},
    graphql::{
        error::server_error,
        operation::{Operation, Selected, TooLarge},
        schema::{Fault, KeyPath, Role, named, role, role_by_key},
        setup::Setup,
    },
};

/// One place in the document where a protected field is selected.
pub(super) struct Sighting<'a> {
    pub(super) path: Vec<Name>,
    pub(super) mutation: String,
    /// The fields that lead to it, itself the last, and the types that they are fields of.
    pub(super) fields: Vec<(&'a str, &'a Field)>,
    pub(super) field: &'a Positioned<Field>,
    pub(super) parent: &'a str,
    pub(super) key: KeyPath,
}

/// A field, and how it was reached.
struct Place<'a, 'p> {
    above: Option<&'p Place<'a, 'p>>,
    parent: &'a str,
    field: &'a Field,
    below: Below,
}

/// What a field stands below.
#[derive(Clone, Copy, Default)]
struct Below {
    list: bool,
    protected: bool,
    exempt: bool,
}

impl<'a> Place<'a, '_> {
    /// The fields that lead here, and the types that they are fields of.
    fn fields(&self) -> Vec<(&'a str, &'a Field)> {
        let up = std::iter::successors(Some(self), |place| place.above);
        let mut fields: Vec<_> = up.map(|place| (place.parent, place.field)).collect();
        fields.reverse();
        fields
    }

    /// The response keys that lead here.
    fn path(&self) -> Vec<Name> {
        self.fields().iter().map(|(_, field)| field.response_key().node.clone()).collect()
    }

    /// The field names that lead here, with dots.
    fn mutation(&self) -> String {
        let fields = self.fields();
        let names: Vec<_> = fields.iter().map(|(_, field)| field.name.node.as_str()).collect();
        names.join(".")
    }
}

pub(super) struct Survey<'s, 'a> {
    operation: &'s Operation<'a>,
    setup: &'s Setup,
    pub(super) sightings: Vec<Sighting<'a>>,
    /// How many exempt fields run that do not stand below a protected one.
    pub(super) others: usize,
    pub(super) faults: Vec<ServerError>,
    /// The role of each field of the schema that the document selects, looked up once: by its key alone, and in full.
    roles: HashMap<(*const MetaField, bool), Option<Role>>,
}

impl<'s, 'a> Survey<'s, 'a> {
    pub(super) fn new(operation: &'s Operation<'a>, setup: &'s Setup) -> Self {
        Self { operation, setup, sightings: Vec::new(), others: 0, faults: Vec::new(), roles: HashMap::new() }
    }

    /// Looks through what is selected on the root type.
    pub(super) fn visit(&mut self, root: &'a str, selections: &'a [Positioned<Selection>]) -> Result<(), TooLarge> {
        self.visit_below(root, selections, None, Below::default())
    }

    fn visit_below(
        &mut self,
        parent: &'a str,
        selections: &'a [Positioned<Selection>],
        above: Option<&Place<'a, '_>>,
        standing: Below,
    ) -> Result<(), TooLarge> {
        for Selected { field, conditions } in self.operation.fields(parent, selections)? {
            let parent = conditions.last().copied().unwrap_or(parent);
            // The engine's own validation refuses a field that the schema does not have.
            let Some(definition) = self.operation.definition_of(parent, &field.node) else {
                continue;
            };
            let place = Place { above, parent, field: &field.node, below: standing };
            let mut below = standing;
            match self.role(definition, &place) {
                Some(Role::Protected(_)) if standing.list => {
                    self.fault(field.pos, &place, "is protected and stands below a list");
                }
                Some(Role::Protected(_)) if standing.protected => {
                    self.fault(field.pos, &place, "is protected and stands below another protected field");
                }
                Some(Role::Protected(key)) => {
                    let (path, mutation, fields) = (place.path(), place.mutation(), place.fields());
                    self.sightings.push(Sighting { path, mutation, fields, field, parent, key });
                    below.protected = true;
                }
                _ if standing.protected || standing.exempt => {}
                None | Some(Role::Namespace) => {}
                Some(Role::Exempt) => {
                    self.others += 1;
                    below.exempt = true;
                }
                Some(Role::Faulty(fault)) => {
                    self.fault(field.pos, &place, fault.as_str());
                    continue;
                }
            }
            below.list |= MetaTypeName::create(&definition.ty).is_list();
            self.visit_below(named(&definition.ty), &field.node.selection_set.node.items, Some(&place), below)?;
        }
        Ok(())
    }

    /// The role of a field in its place. Below a protected or an exempt field nothing but keys is looked for.
    fn role(&mut self, definition: &MetaField, place: &Place<'_, '_>) -> Option<Role> {
        let (registry, exempt) = (self.operation.registry, &self.setup.exempt);
        let only_keys = place.below.protected || place.below.exempt;
        if definition.args.is_empty() && only_keys {
            return None;
        }
        let known = self.roles.entry((std::ptr::from_ref(definition), only_keys)).or_insert_with(|| {
            let by_key = role_by_key(registry, definition);
            // Exemptions depend on the place, so they are not part of what is known: see below.
            by_key.or_else(|| (!only_keys).then(|| role(registry, definition, "", &BTreeSet::new())))
        });
        match known {
            Some(Role::Protected(_) | Role::Faulty(Fault::SeveralKeys | Fault::ListOfKeys)) | None => known.clone(),
            Some(_) if exempt.contains(&place.mutation()) => Some(Role::Exempt),
            Some(role) => Some(role.clone()),
        }
    }

    fn fault(&mut self, pos: Pos, place: &Place<'_, '_>, what: &str) {
        let mutation = place.mutation();
        tracing::error!(%mutation, "a mutation {what}, and was refused");
        let error = Error::new(ErrorCode::Misconfigured).mutation(mutation);
        self.faults.push(server_error(&error, Some(pos), &place.path()));
    }
}
