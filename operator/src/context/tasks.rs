//! What goes on beside reconciliations: one task a key, and none longer than the context.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Mutex, PoisonError},
};

use tokio::task::JoinHandle;

/// Tasks by key.
#[derive(Debug, Default)]
pub struct Tasks(Mutex<HashMap<String, JoinHandle<()>>>);

impl Tasks {
    /// Starts a task, unless the one of that key still runs.
    pub fn start(&self, key: &str, task: impl FnOnce() -> BoxedTask) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, task| !task.is_finished());
        if !all.contains_key(key) {
            all.insert(key.to_owned(), tokio::spawn(task()));
        }
    }
}

/// What a task does.
pub type BoxedTask = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            task.abort();
        }
    }
}
