//! Tasks whose end can be waited for without being in an async context.
//!
//! The trait is synchronous and may be called from inside another runtime, where blocking on ours would panic; waiting
//! for a channel to close does not.

use std::{convert::Infallible, future::Future, sync::mpsc, time::Duration};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// How long tasks that were told to end may take; they only close sockets.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts tasks of a group.
#[derive(Clone, Debug)]
pub(super) struct Spawner {
    runtime: Handle,
    alive: mpsc::Sender<Infallible>,
    stop: CancellationToken,
}

impl Spawner {
    /// Where tasks run.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Starts a task, giving it the token that tells it to end. The group lives until the task has ended and dropped
    /// everything it owns.
    pub(super) fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        task: impl FnOnce(CancellationToken) -> F,
    ) {
        let alive = self.alive.clone();
        let task = task(self.stop.clone());
        self.runtime.spawn(async move {
            let _alive = alive;
            task.await;
        });
    }
}

/// A group of tasks.
#[derive(Debug)]
pub(super) struct Tasks {
    spawner: Spawner,
    over: mpsc::Receiver<Infallible>,
}

impl Tasks {
    /// An empty group.
    pub(super) fn new(runtime: Handle) -> Self {
        let (alive, over) = mpsc::channel();
        Self { spawner: Spawner { runtime, alive, stop: CancellationToken::new() }, over }
    }

    /// To start tasks with. Must not outlive the group other than in its tasks.
    pub(super) fn spawner(&self) -> &Spawner {
        &self.spawner
    }

    /// Tells all tasks to end, and waits until they have; false if some have not within five seconds.
    pub(super) fn end(self) -> bool {
        let Self { spawner, over } = self;
        spawner.stop.cancel();
        drop(spawner);
        matches!(over.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected))
    }
}
