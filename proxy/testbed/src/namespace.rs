//! Network namespaces: closures and processes in them, devices between them.

use std::{
    fs::File,
    io::Write as _,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::process::CommandExt as _,
    },
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// An anonymous network namespace. It lives as long as this value, a process or a socket in it.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// A new namespace with the loopback device up and without duplicate address detection, which would keep a fresh
    /// address silent for a second.
    pub fn new() -> Result<Self> {
        let made = std::thread::spawn(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("new network namespace: run as root")?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        });
        let file = made.join().map_err(|_| anyhow::anyhow!("the namespace's thread died"))??;
        let namespace = Self { file };
        namespace.sysctl("net/ipv6/conf/all/accept_dad", "0")?;
        namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        namespace.ip(["link set lo up"])?;
        Ok(namespace)
    }

    /// The same namespace once more, to be held by another value.
    pub fn again(&self) -> Result<Self> {
        Ok(Self { file: self.file.try_clone()? })
    }

    /// Runs a closure on a thread in the namespace. Sockets, threads and processes that it makes stay there.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let work = scope.spawn(|| {
                let entered = setns(&self.file, CloneFlags::CLONE_NEWNET);
                assert!(entered.is_ok(), "enter the namespace: {entered:?}");
                f()
            });
            work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A program that will run in the namespace. Only the network changes: /sys and the cgroups stay (`ip netns exec`
    /// would hide both).
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let fd = self.file.as_raw_fd();
        let mut command = Command::new(program);
        // SAFETY: `setns` is async-signal-safe; the descriptor is open in the parent until `exec`.
        unsafe { command.pre_exec(move || enter_raw(fd)) };
        command
    }

    /// Runs a program in the namespace and returns what it printed.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        finish(self.command(program).args(args), "")
    }

    /// Runs a program in the namespace with this input.
    pub fn feed(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        finish(self.command(program).args(args), input)
    }

    /// Runs `ip` commands in the namespace, one a line.
    pub fn ip<'a>(&self, lines: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let batch = lines.into_iter().fold(String::new(), |batch, line| batch + line + "\n");
        self.feed("ip", &["-batch", "-"], &batch).map(drop)
    }

    /// Writes a setting below /proc/sys as the namespace sees it.
    pub fn sysctl(&self, name: &str, value: &str) -> Result<()> {
        self.enter(|| std::fs::write(format!("/proc/sys/{name}"), value))
            .with_context(|| format!("set {name} to {value}"))
    }

    /// Reads a file as the namespace sees it, such as /proc/thread-self/net/snmp.
    pub fn read(&self, path: &str) -> Result<String> {
        self.enter(|| std::fs::read_to_string(path)).with_context(|| format!("read {path}"))
    }

    /// Connects two namespaces by a veth pair, both ends up.
    pub fn link(&self, device: &str, other: &Self, other_device: &str, mtu: u16) -> Result<()> {
        let there = other.path();
        self.ip([
            format!(
                "link add {device} mtu {mtu} type veth peer name {other_device} mtu {mtu} netns {there}"
            )
            .as_str(),
            &format!("link set {device} up"),
        ])?;
        other.ip([format!("link set {other_device} up").as_str()])
    }

    /// Moves a device into another namespace, where it has neither addresses nor routes.
    pub fn give(&self, device: &str, other: &Self) -> Result<()> {
        self.ip([format!("link set {device} netns {}", other.path()).as_str()])
    }

    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Everything in the namespace that a data path might leave behind: rules, filters, routes, XDP, kernel settings.
    pub fn traces(&self) -> Result<String> {
        let mut traces = String::new();
        let pattern = "forward|rp_filter|accept_ra|nf_conntrack_(max|tcp|udp|acct)|redirects";
        for line in [
            "nft list ruleset",
            "tc qdisc show",
            "ip -o link show",
            "ip rule show",
            "ip -6 rule show",
            "ip route show table all",
            "ip -6 route show table all",
            &format!("sysctl -a --pattern {pattern}"),
        ] {
            let (program, args) = line.split_once(' ').unwrap_or((line, ""));
            let printed = self.run(program, &args.split(' ').collect::<Vec<_>>())?;
            traces.extend(["# ", line, "\n", &printed]);
        }
        Ok(traces)
    }
}

fn enter_raw(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: plain system call on a descriptor that the parent keeps open.
    match unsafe { libc::setns(fd, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn finish(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Short input: fits the pipe, so the child need not have read it before we read its output.
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {stderr}{input}");
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
