//! The supervisor with the real `tailscaled`, in namespaces.
#![cfg(test)]

use std::{
    collections::BTreeMap,
    ffi::OsString,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{errno::Errno, sys::signal::Signal, unistd::Pid};
use proxy::{
    pod::settings::Settings,
    tailscaled::{Options, Phase, Plan, Programs, State, Tailscaled},
};
use proxy_testbed::{DEADLINE, Namespace, poll_until};

#[path = "tailscaled/first_process.rs"]
mod first_process;
#[path = "tailscaled/life.rs"]
mod life;
#[path = "tailscaled/login.rs"]
mod login;
#[path = "tailscaled/tun.rs"]
mod tun;

/// A busy machine takes its time to load a program of 30 MB.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this machine's tests are told to do without the kernel.
fn skipped() -> bool {
    let skip = std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1");
    if skip {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
    }
    skip
}

/// A place for one `tailscaled`: files and a network of its own.
struct Place {
    directory: tempfile::TempDir,
    namespace: Namespace,
    programs: Programs,
}

impl Place {
    fn new() -> Self {
        let built = proxy_testbed_programs::TAILNET.find().unwrap();
        let programs =
            Programs { tailscaled: built.join("tailscaled"), tailscale: built.join("tailscale") };
        Self {
            directory: tempfile::tempdir().unwrap(),
            namespace: Namespace::new().unwrap(),
            programs,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Settings from these variables and those that every test needs.
    fn settings(&self, variables: &[(&str, &str)]) -> Settings {
        let mut all: BTreeMap<&str, OsString> = BTreeMap::from([
            ("TS_SOCKET", self.path("run/tailscaled.sock").into()),
            ("TS_STATE_DIR", self.path("state").into()),
            ("TS_TAILSCALED_EXTRA_ARGS", "--no-logs-no-support".into()),
        ]);
        all.extend(variables.iter().map(|(name, value)| (*name, OsString::from(value))));
        let lookup = |name: &str| all.get(name).cloned();
        Settings::from_env(&lookup, self.directory.path()).unwrap()
    }

    fn plan(&self, variables: &[(&str, &str)]) -> Plan {
        let programs = self.programs.clone();
        Plan::new(&self.settings(variables), Options { programs, ..Options::default() })
    }

    /// Runs a test in the namespace.
    fn run<T: Send>(&self, test: impl AsyncFnOnce() -> T + Send) -> T {
        self.namespace.enter(|| {
            // Of two threads, so that a test may wait without holding up what it waits for.
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            runtime.worker_threads(1).enable_all().build().unwrap().block_on(test())
        })
    }

    /// A program of a few lines.
    fn script(&self, name: &str, lines: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// Waits until the supervisor's state is so.
async fn wait_for(tailscaled: &Tailscaled, what: &str, done: impl FnMut(&State) -> bool) -> State {
    let mut state = tailscaled.state();
    let waited = tokio::time::timeout(PATIENCE, state.wait_for(done)).await;
    waited.unwrap_or_else(|_| panic!("{what}: {:?}", tailscaled.state().borrow())).unwrap().clone()
}

async fn wait_up(tailscaled: &Tailscaled, restarts: u64) -> State {
    let what = format!("up after {restarts} restarts");
    wait_for(tailscaled, &what, |state| state.phase == Phase::Up && state.restarts == restarts)
        .await
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32)
}

/// Whether a process, or a zombie, has the number.
fn exists(process: Pid) -> bool {
    nix::sys::signal::kill(process, None) != Err(Errno::ESRCH)
}

fn wait_gone(process: Pid) {
    poll_until(DEADLINE, "the process is gone", || !exists(process)).unwrap();
}

/// What a file says once it is written.
fn wait_number(path: &Path) -> Pid {
    let read = || std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.parse().ok();
    poll_until(DEADLINE, "the file is written", || read().is_some()).unwrap();
    Pid::from_raw(read().unwrap())
}

fn kill(process: Pid) {
    nix::sys::signal::kill(process, Signal::SIGKILL).unwrap();
}
