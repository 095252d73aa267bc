//! Another system, in this process: it knows its requests by their ids.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use uuid::Uuid;

#[derive(Clone, Default)]
pub struct Gateway {
    charges: Arc<Mutex<HashMap<Uuid, usize>>>,
}

impl Gateway {
    /// Charges; a request id that it has seen gets the first charge again, as a good gateway does.
    pub fn charge(&self, id: Uuid) -> String {
        *self.charges.lock().unwrap().entry(id).or_default() += 1;
        format!("charge-{id}")
    }

    pub fn lookup(&self, id: Uuid) -> Option<String> {
        self.charges.lock().unwrap().contains_key(&id).then(|| format!("charge-{id}"))
    }

    pub fn forget(&self) {
        self.charges.lock().unwrap().clear();
    }

    /// How many charges there are.
    pub fn charges(&self) -> usize {
        self.charges.lock().unwrap().len()
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.charges.lock().unwrap().values().sum()
    }
}
