//! The first process of a pod's process namespace, when that is us.
//!
//! Orphans become its children, and it must wait for them, or they stay as zombies. A process that has children of its own
//! cannot do so without taking their ends away from those who wait for them (Tokio, the standard library). So the first
//! process does nothing but this: it starts the same program again, passes signals on to it, waits for whatever ends, and
//! ends as that program does.

use std::{
    io,
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode},
};

use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// Call this before anything else: there must be no other thread. `None` says that this is not the first process and should
/// do its work; else the work is done.
pub fn run_if_first() -> Option<ExitCode> {
    if std::process::id() != 1 {
        return None;
    }
    let mut arguments = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(arguments.next().unwrap_or_default()).args(arguments);
    Some(run(command).unwrap_or_else(|error| {
        // Nothing logs yet.
        let _ = io::Write::write_fmt(
            &mut io::stderr(),
            format_args!("starting the program again as the first process's child: {error}\n"),
        );
        ExitCode::FAILURE
    }))
}

fn run(mut command: Command) -> io::Result<ExitCode> {
    // Before there is a child: none of its ends, and no signal, may be missed.
    let signals = SigSet::all();
    signals.thread_block()?;
    // SAFETY: changing the thread's signal mask is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?)) };
    let child = Pid::from_raw(command.spawn()?.id() as i32);
    loop {
        match signals.wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = reap(child)? {
                    return Ok(code(status));
                }
            }
            // It may have ended just now, which is said by the next signal.
            signal => drop(kill(child, signal)),
        }
    }
}

/// Waits for all that have ended; one signal may stand for many.
fn reap(child: Pid) -> io::Result<Option<WaitStatus>> {
    let mut end = None;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(end),
            Ok(status) if status.pid() == Some(child) => end = Some(status),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// As a shell tells it: 128 and the signal's number, if it was a signal.
fn code(status: WaitStatus) -> ExitCode {
    match status {
        WaitStatus::Exited(_, code) => ExitCode::from(code as u8),
        WaitStatus::Signaled(_, signal, _) => ExitCode::from(128 + signal as i32 as u8),
        _ => ExitCode::FAILURE,
    }
}
