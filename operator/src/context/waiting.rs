//! Objects that want a name which another has: they are looked at again whenever who wants what may have changed.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

/// Objects that wait, by kind, namespace and name.
#[derive(Debug, Default)]
pub struct Waiting(Mutex<HashSet<(&'static str, String, String)>>);

impl Waiting {
    /// An object waits, or no longer does.
    pub fn set(&self, kind: &'static str, namespace: &str, name: &str, waits: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let object = (kind, namespace.to_owned(), name.to_owned());
        if waits {
            all.insert(object)
        } else {
            all.remove(&object)
        };
    }

    /// Namespaces and names of those of a kind.
    pub fn of(&self, kind: &str) -> Vec<(String, String)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.iter().filter(|(other, ..)| *other == kind);
        own.map(|(_, namespace, name)| (namespace.clone(), name.clone())).collect()
    }
}
