//! Network namespaces without names: they live as long as a descriptor of theirs is open, so nothing is left behind,
//! however the benchmark ends.

use std::{
    fs::File,
    io::Write,
    os::fd::AsRawFd,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace.
pub struct Netns {
    file: File,
}

impl Netns {
    /// A new, empty one: loopback up, IPv6 off.
    pub fn new() -> Result<Self> {
        let file = thread::scope(|scope| {
            let made = scope.spawn(|| -> Result<File> {
                unshare(CloneFlags::CLONE_NEWNET)
                    .context("a network namespace needs root (CAP_SYS_ADMIN)")?;
                Ok(File::open("/proc/thread-self/ns/net")?)
            });
            made.join().map_err(|_| anyhow::anyhow!("making a network namespace panicked"))?
        })?;
        let this = Self { file };
        this.ip("link set lo up")?;
        for scope in ["all", "default"] {
            this.sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1")?;
            this.sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), "0")?;
        }
        Ok(this)
    }

    /// A path that `ip` takes where it wants a namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Another handle of the same namespace.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(Self { file: self.file.try_clone()? })
    }

    /// Runs `f` in this namespace, on a thread of its own: the caller never leaves its namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            let run = scope.spawn(|| {
                self.enter()?;
                f()
            });
            run.join().map_err(|_| anyhow::anyhow!("a thread in a namespace panicked"))?
        })
    }

    /// Moves the calling thread into this namespace for good.
    pub fn enter(&self) -> Result<()> {
        setns(&self.file, CloneFlags::CLONE_NEWNET).context("entering a network namespace")
    }

    /// Runs `ip` with one command a line.
    pub fn ip(&self, commands: &str) -> Result<()> {
        self.pipe("ip", &["-batch", "-"], commands)
    }

    /// Writes a setting, by its path below `/proc/sys`.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.run(|| {
            let path = format!("/proc/sys/{name}");
            std::fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))
        })
    }

    /// Runs a program here with `input` on its standard input.
    pub fn pipe(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        self.run(|| {
            let mut child = Command::new(program)
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .with_context(|| format!("{program} does not start: run `cargo xtask setup`"))?;
            child.stdin.take().context("no pipe to the child")?.write_all(input.as_bytes())?;
            let output = child.wait_with_output()?;
            let errors = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{program} {}: {errors}", arguments.join(" "));
            Ok(())
        })
    }
}
