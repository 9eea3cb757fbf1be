//! Processes that do not outlive us, nor leave anything behind.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::mpsc,
};

use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::oneshot,
};

/// Starts processes from one thread that lives as long as this value: the kernel takes the end of the thread that started a
/// process for the parent's end.
#[derive(Clone, Debug)]
pub(super) struct Spawner(mpsc::Sender<Job>);

#[derive(Debug)]
struct Job {
    command: Command,
    handle: Handle,
    answer: oneshot::Sender<io::Result<Child>>,
}

impl Spawner {
    pub(super) fn new() -> io::Result<Self> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let work = move || {
            for Job { mut command, handle, answer } in jobs {
                let _context = handle.enter();
                // If nobody waits any more, the child is killed by being dropped.
                let _ = answer.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("tailscaled-spawn".to_owned()).spawn(work)?;
        Ok(Self(sender))
    }

    /// Starts a process in a group of its own. It gets SIGTERM when we end, however we do, so that it can clean up; `inherited`
    /// stay open in it.
    pub(super) async fn spawn(
        &self,
        mut command: Command,
        inherited: Vec<OwnedFd>,
    ) -> io::Result<Group> {
        let parent = std::process::id() as libc::pid_t;
        let descriptors: Vec<RawFd> = inherited.iter().map(AsRawFd::as_raw_fd).collect();
        // SAFETY: only async-signal-safe calls, and nothing is allocated or freed.
        unsafe { command.pre_exec(move || prepare(parent, &descriptors)) };
        command.process_group(0).kill_on_drop(true);
        let (answer, wait) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes has ended");
        self.0.send(Job { command, handle: Handle::current(), answer }).map_err(|_| gone())?;
        let child = wait.await.map_err(|_| gone())??;
        drop(inherited);
        let leader = child.id().map(|id| Pid::from_raw(id as i32));
        Ok(Group { child, leader })
    }
}

/// Between fork and exec.
fn prepare(parent: libc::pid_t, inherited: &[RawFd]) -> io::Result<()> {
    // SAFETY: plain system call without pointers.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain system call.
    if unsafe { libc::getppid() } != parent {
        // The parent ended before the kernel knew that we want to hear of it.
        return Err(Errno::ESRCH.into());
    }
    for descriptor in inherited {
        // SAFETY: the parent keeps the descriptors open until the process runs.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*descriptor) };
        let flags = nix::fcntl::FdFlag::empty();
        nix::fcntl::fcntl(descriptor, nix::fcntl::FcntlArg::F_SETFD(flags))?;
    }
    Ok(())
}

/// A process and the group that it leads. When dropped, the whole group is killed.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) child: Child,
    leader: Option<Pid>,
}

impl Group {
    /// The leader's process id.
    pub(super) fn id(&self) -> Option<u32> {
        self.leader.map(|leader| leader.as_raw() as u32)
    }

    /// Sends a signal to the leader alone, as long as it is there.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(id) = self.child.id() {
            let _ = nix::sys::signal::kill(Pid::from_raw(id as i32), signal);
        }
    }

    /// Kills whatever is left of the group.
    pub(super) fn sweep(&mut self) {
        if let Some(leader) = self.leader.take() {
            // Its number cannot be another's: the leader's end was heard of just now, or the group still has members.
            let _ = killpg(leader, Signal::SIGKILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.sweep();
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt as _, process::Stdio, time::Duration};

    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    fn sleep() -> Command {
        let mut command = Command::new("sleep");
        command.arg("1000").stdin(Stdio::null());
        command
    }

    /// What happens when we are killed: the thread that starts processes is no more, and nothing of ours is run.
    #[tokio::test]
    async fn a_process_does_not_outlive_the_thread_that_started_it() {
        let spawner = Spawner::new().unwrap();
        let mut group = spawner.spawn(sleep(), Vec::new()).await.unwrap();
        drop(spawner);
        let status = timeout(DEADLINE, group.child.wait()).await.unwrap().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGTERM));
    }

    #[tokio::test]
    async fn a_group_ends_with_its_value() {
        let spawner = Spawner::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo; wait"]).stdout(Stdio::piped());
        let mut group = spawner.spawn(command, Vec::new()).await.unwrap();
        let mut out = group.child.stdout.take().unwrap();
        let mut printed = [0];
        tokio::io::AsyncReadExt::read_exact(&mut out, &mut printed).await.unwrap();
        drop(group);
        // The pipe ends when its last writer has ended.
        let rest = tokio::io::AsyncReadExt::read(&mut out, &mut printed);
        assert_eq!(timeout(DEADLINE, rest).await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_an_error() {
        let spawner = Spawner::new().unwrap();
        let error = spawner.spawn(Command::new("/nonexistent"), Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
