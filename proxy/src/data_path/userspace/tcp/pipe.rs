//! Pipes: how bytes pass from socket to socket without being copied.

use std::{
    cell::RefCell,
    io,
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use nix::{
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    unistd::pipe2,
};
use tokio::{io::Interest, net::TcpStream};

/// What a pipe is asked to hold. Without privileges the kernel grants a process about sixty of this size and then
/// refuses; those stay at 64 KiB.
const SIZE: i32 = 1 << 20;

/// Idle pipes that a worker thread keeps.
const KEPT: usize = 4;

/// All pipes of the process, and how many there may be: descriptors are first of all for connections.
static OPEN: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(64);

/// Whether the kernel has refused to splice.
static REFUSED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static IDLE: RefCell<Vec<Ends>> = const { RefCell::new(Vec::new()) };
}

/// Sets how many pipes there may be.
pub(in crate::data_path::userspace) fn limit(most: u32) {
    MOST.store(most as usize, Relaxed);
}

/// Whether this is the answer of a kernel or a sandbox that does not splice, rather than a socket's.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    let refusals = [libc::EINVAL, libc::ENOSYS, libc::EPERM];
    error.raw_os_error().is_some_and(|code| refusals.contains(&code))
}

/// Gives no pipes any more; true the first time.
pub(super) fn refuse() -> bool {
    !REFUSED.swap(true, Relaxed)
}

/// A pipe with what was read and not taken yet. Empty ones are used again.
#[derive(Debug)]
pub(super) struct Pipe {
    ends: Option<Ends>,
    held: usize,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Ends {
    fn new() -> Option<Self> {
        OPEN.fetch_update(Relaxed, Relaxed, |open| (open < MOST.load(Relaxed)).then_some(open + 1))
            .ok()?;
        let Ok((read, write)) = pipe2(OFlag::O_NONBLOCK | OFlag::O_CLOEXEC) else {
            OPEN.fetch_sub(1, Relaxed);
            return None;
        };
        // A smaller pipe works as well.
        let _granted = fcntl(&write, FcntlArg::F_SETPIPE_SZ(SIZE));
        Some(Self { read, write })
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

impl Pipe {
    /// An empty pipe, if the process may have another and the kernel splices.
    pub(super) fn take() -> Option<Self> {
        if REFUSED.load(Relaxed) {
            return None;
        }
        let ends = IDLE.with_borrow_mut(Vec::pop).or_else(Ends::new)?;
        Some(Self { ends: Some(ends), held: 0 })
    }

    /// Bytes that were read and not taken.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Takes what has arrived; 0 at the end of the stream. Only for an empty pipe: a full one looks like a socket
    /// without data.
    pub(super) fn fill(&mut self, from: &TcpStream) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        self.held = from.try_io(Interest::READABLE, || {
            Ok(splice(from, None, &ends.write, None, SIZE as usize, flags)?)
        })?;
        Ok(self.held)
    }

    /// Gives what the socket takes.
    pub(super) fn drain(&mut self, to: &TcpStream) -> io::Result<()> {
        let Some(ends) = &self.ends else { return Ok(()) };
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        while self.held > 0 {
            let given = to.try_io(Interest::WRITABLE, || {
                Ok(splice(&ends.read, None, to, None, self.held, flags)?)
            });
            match given {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(given) => self.held -= given,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take().filter(|_| self.held == 0) else { return };
        // At the end of a thread there is no list any more.
        let _kept = IDLE.try_with(|idle| {
            let mut idle = idle.borrow_mut();
            if idle.len() < KEPT {
                idle.push(ends);
            }
        });
    }
}
