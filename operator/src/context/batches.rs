//! Changes of one object by many: those that come while one is written are written together afterwards.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex as Turn, oneshot};

use crate::error::Error;

/// How long whoever writes waits for others that want to: objects that are made together come a little apart.
const LINGER: Duration = Duration::from_millis(50);

/// Changes, by the object that they change.
#[derive(Debug)]
pub struct Batches<C>(Mutex<HashMap<String, Arc<Batch<C>>>>);

#[derive(Debug)]
struct Batch<C> {
    /// Who has it writes.
    turn: Turn<()>,
    /// What is to be written next, and who wants to know.
    next: Mutex<Vec<(C, oneshot::Sender<()>)>>,
}

impl<C> Default for Batches<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Clone> Batches<C> {
    /// Makes a change, by `write`, which gets all changes that wait, in the order in which they were asked for. Comes back
    /// when this one is written. What others wanted is theirs to try again if it fails.
    pub async fn change<F>(
        &self,
        object: &str,
        change: C,
        write: impl FnOnce(Vec<C>) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let batch = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(all.entry(object.to_owned()).or_insert_with(|| {
                Arc::new(Batch { turn: Turn::default(), next: Mutex::default() })
            }))
        };
        let next = || batch.next.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (done, mut written) = oneshot::channel();
            next().push((change.clone(), done));
            let turn = batch.turn.lock().await;
            match written.try_recv() {
                Ok(()) => return Ok(()),
                // Somebody wrote it together with others, and that failed.
                Err(oneshot::error::TryRecvError::Closed) => drop(turn),
                Err(oneshot::error::TryRecvError::Empty) => {
                    tokio::time::sleep(LINGER).await;
                    let (changes, told): (Vec<_>, Vec<_>) =
                        std::mem::take(&mut *next()).into_iter().unzip();
                    write(changes).await?;
                    for done in told {
                        // Who no longer listens does not mind.
                        let _ = done.send(());
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The object is gone.
    pub fn forget(&self, object: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    };

    use super::{Batches, LINGER};
    use crate::error::Error;

    fn failure() -> Error {
        Error::ClassMissing("none".into())
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_one_waits_or_writes_is_written_together() {
        let batches = Batches::<u32>::default();
        let written = Mutex::new(Vec::new());
        let change = |number| {
            let write = |changes| async {
                tokio::time::sleep(LINGER).await;
                written.lock().unwrap().push(changes);
                Ok(())
            };
            batches.change("map", number, write)
        };
        let later = async {
            // While the first ones are written.
            tokio::time::sleep(LINGER + LINGER / 2).await;
            futures::future::join_all((5..10).map(change)).await
        };
        let (first, later) = tokio::join!(futures::future::join_all((0..5).map(change)), later);
        assert!(first.iter().chain(&later).all(Result::is_ok));
        assert_eq!(*written.lock().unwrap(), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_written_with_a_failure_tries_alone() {
        let batches = Batches::<u32>::default();
        let fail = AtomicBool::new(true);
        let write =
            |_| async { if fail.swap(false, Ordering::Relaxed) { Err(failure()) } else { Ok(()) } };
        let one = batches.change("map", 1, write);
        let other = batches.change("map", 2, write);
        let (one, other) = tokio::join!(one, other);
        assert!(one.is_err() && other.is_ok());
    }
}
