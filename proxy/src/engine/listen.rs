//! A thread that waits for the kernel's notices of devices, routes and neighbours, so that the data path learns of them in
//! milliseconds and not with its next regular work.

use std::{
    sync::{Arc, Weak, mpsc},
    thread,
    time::Duration,
};

use super::Command;
use crate::data_path::ebpf::neigh::Notices;

/// How soon the thread sees that nobody uses the data path any more.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two looks at least: notices come in bursts.
const GAP: Duration = Duration::from_millis(20);

/// Starts the thread, in the network namespace of the caller. It ends soon after `alive` is gone: it holds a sender, without
/// which the data path's own thread would end.
pub(super) fn start(commands: mpsc::Sender<Command>, alive: &Arc<()>) {
    let alive = Arc::downgrade(alive);
    let started = Notices::open_waiting(PATIENCE).and_then(|notices| {
        let body = move || listen(notices, &commands, &alive);
        thread::Builder::new().name("notices".into()).spawn(body)
    });
    if let Err(error) = started {
        tracing::warn!(%error, "changes of neighbours and routes are seen once a second only");
    }
}

#[expect(clippy::disallowed_methods, reason = "a limit on how often, not a wait for something")]
fn listen(mut notices: Notices, commands: &mpsc::Sender<Command>, alive: &Weak<()>) {
    while alive.strong_count() > 0 {
        match notices.wait() {
            Ok(false) => {}
            Ok(true) if commands.send(Command::Look).is_ok() => thread::sleep(GAP),
            Ok(true) => return,
            Err(error) => {
                tracing::warn!(%error, "notices of the kernel are seen once a second only");
                return;
            }
        }
    }
}
