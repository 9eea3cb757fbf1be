//! A program that runs in the background and ends with the value that holds it.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        OnceLock,
        mpsc::{self, Sender},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{DEADLINE, poll_until};

/// A running program. Killed when dropped, and by the kernel when this process ends in whatever way.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    /// The first process of its own PID namespace, if it has one: `child` only holds that.
    first: Option<u32>,
    name: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts the command; what it prints is added to `NAME.log` in the directory.
    pub fn start(mut command: Command, name: &str, directory: &Path) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let program = command.get_program().to_owned();
        let child = spawn(command).with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, first: None, name: name.to_owned(), log })
    }

    /// The same for a command behind [`PID_NAMESPACE`]: what it starts ends with it.
    pub fn start_first(command: Command, name: &str, directory: &Path) -> Result<Self> {
        let mut daemon = Self::start(command, name, directory)?;
        let holder = daemon.child.id();
        let mut first = None;
        daemon.wait_for(DEADLINE, "its first process is there", || {
            first = children(holder).first().copied();
            first.is_some()
        })?;
        daemon.first = first;
        Ok(daemon)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.first.unwrap_or_else(|| self.child.id())
    }

    /// The process id of a program that it has started, or one of these.
    pub fn descendant(&self, program: &str) -> Option<u32> {
        let mut others = self.processes().into_iter().skip(1);
        others.find(|(_, name)| name == program).map(|(id, _)| id)
    }

    /// It, and all that it has started and these have: process ids and the programs' names, which the kernel cuts at 15 bytes.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let (mut all, mut unseen) = (Vec::new(), vec![self.id()]);
        while let Some(id) = unseen.pop() {
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            all.push((id, name.trim_end().to_owned()));
            unseen.extend(children(id));
        }
        all
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Everything it has printed, also before it was last started.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits for what it will bring about; its end or the deadline are errors with its log.
    pub fn wait_for(
        &mut self,
        deadline: Duration,
        what: &str,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut seen = false;
        let waited = poll_until(deadline, what, || {
            seen = done();
            seen || self.ended()
        });
        if seen {
            return Ok(());
        }
        let reason = match waited {
            Err(error) => error.to_string(),
            Ok(()) => format!("{} ended before {what}", self.name),
        };
        bail!("{reason}; its log:\n{}", self.log());
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(Pid::from_raw(self.id() as i32), signal)
            .with_context(|| format!("send {signal} to {}", self.name))
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("{} ends", self.name);
        if let Err(error) = poll_until(deadline, &what, || self.ended()) {
            bail!("{error}; its log:\n{}", self.log());
        }
        Ok(self.child.wait()?)
    }

    /// Kills it as the kernel would: nothing is cleaned up.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        self.wait(DEADLINE).map(drop)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that has ended is not waited for yet, so its number is still its own; the first process of a namespace is
        // the holder's to wait for.
        if !self.ended() {
            let _ = self.signal(Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// What stands before a program to give it a PID namespace in which it is the first process, as in a pod.
pub const PID_NAMESPACE: [&str; 6] =
    ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"];

/// The processes that this one has started and not outlived.
fn children(id: u32) -> Vec<u32> {
    // Each thread has its own.
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|line| line.split_whitespace().map(str::parse).collect::<Vec<_>>())
        .flatten()
        .collect()
}

/// Starts a command that is killed when this process ends. The kernel ties that to the thread that starts it, and a
/// test's thread may end before: so all are started by one thread that stays.
fn spawn(mut command: Command) -> Result<Child> {
    type Order = (Command, Sender<std::io::Result<Child>>);
    static STARTER: OnceLock<Sender<Order>> = OnceLock::new();
    let parent = std::process::id();
    // SAFETY: only system calls that are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // Gone already: nobody would send the signal.
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
    let starter = STARTER.get_or_init(|| {
        let (orders, waiting) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in waiting {
                let _ = answer.send(command.spawn());
            }
        });
        orders
    });
    let (answer, started) = mpsc::channel();
    starter.send((command, answer)).context("the starting thread is gone")?;
    Ok(started.recv().context("the starting thread is gone")??)
}
