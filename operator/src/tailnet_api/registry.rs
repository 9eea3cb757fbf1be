//! The tailnets that the operator works for, by name.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use super::TailnetApi;

/// Why a tailnet's API is not to be had.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RegistryError {
    /// No `Tailnet` resource of that name was accepted.
    #[error("there is no Tailnet {0:?}: create it, or correct spec.tailnet")]
    Unknown(String),
    /// Its credentials have not been found good.
    #[error("the Tailnet {0:?} is not ready: its condition TailnetReady says why")]
    NotReady(String),
}

/// Who answers for which tailnet. In memory only: after a start, `Tailnet` resources enter themselves again.
#[derive(Debug)]
pub struct Registry {
    own: Arc<dyn TailnetApi>,
    others: RwLock<HashMap<String, Option<Arc<dyn TailnetApi>>>>,
}

impl Registry {
    /// With the operator's own tailnet alone.
    pub fn new(own: Arc<dyn TailnetApi>) -> Self {
        Self { own, others: RwLock::default() }
    }

    /// The API of a tailnet; the blank name is the operator's own.
    ///
    /// # Errors
    /// Unknown and not ready are told apart: users see them in conditions.
    pub fn get(&self, tailnet: &str) -> Result<Arc<dyn TailnetApi>, RegistryError> {
        if tailnet.is_empty() {
            return Ok(Arc::clone(&self.own));
        }
        let others = self.others.read().unwrap_or_else(PoisonError::into_inner);
        match others.get(tailnet) {
            Some(Some(api)) => Ok(Arc::clone(api)),
            Some(None) => Err(RegistryError::NotReady(tailnet.to_owned())),
            None => Err(RegistryError::Unknown(tailnet.to_owned())),
        }
    }

    /// Enters a tailnet whose credentials were found good, or replaces it.
    pub fn ready(&self, tailnet: &str, api: Arc<dyn TailnetApi>) {
        self.enter(tailnet, Some(api));
    }

    /// Says that a tailnet exists and cannot be used now.
    pub fn not_ready(&self, tailnet: &str) {
        self.enter(tailnet, None);
    }

    /// Forgets a tailnet whose resource is gone.
    pub fn remove(&self, tailnet: &str) {
        self.others.write().unwrap_or_else(PoisonError::into_inner).remove(tailnet);
    }

    fn enter(&self, tailnet: &str, api: Option<Arc<dyn TailnetApi>>) {
        let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
        others.insert(tailnet.to_owned(), api);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Registry, RegistryError};
    use crate::tailnet_api::fake::FakeTailnet;

    #[test]
    fn unknown_and_not_ready_are_told_apart() {
        let registry = Registry::new(Arc::new(FakeTailnet::new("https://own.example")));
        assert_eq!(registry.get("").unwrap().login_server(), "https://own.example");
        let unknown = RegistryError::Unknown("other".into());
        assert_eq!(registry.get("other").unwrap_err(), unknown);
        registry.not_ready("other");
        assert_eq!(registry.get("other").unwrap_err(), RegistryError::NotReady("other".into()));
        registry.ready("other", Arc::new(FakeTailnet::new("https://other.example")));
        assert_eq!(registry.get("other").unwrap().login_server(), "https://other.example");
        registry.remove("other");
        assert_eq!(registry.get("other").unwrap_err(), unknown);
    }
}
