//! Which versions of objects have been looked through for what nobody wants any more.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Versions, by whatever names the look.
#[derive(Debug, Default)]
pub struct Swept(Mutex<HashMap<String, String>>);

impl Swept {
    /// Whether it is to be looked through: it is not that version which was last.
    pub fn is_news(&self, object: &str, version: &str) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(object).is_none_or(|last| last != version)
    }

    /// It was looked through.
    pub fn done(&self, object: &str, version: &str) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(object.to_owned(), version.to_owned());
    }
}
