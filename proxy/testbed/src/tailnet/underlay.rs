//! Where a node is: a namespace with an address on the underlay, and files of its own.

use std::{
    ffi::{CString, OsStr},
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{Tailnet, write};
use crate::{Daemon, Namespace, daemon::PID_NAMESPACE};

/// A place for a node: network, environment, directories. What runs in it sees its own `/etc`, and of the machine's
/// others only those that were not replaced.
pub struct Underlay {
    /// Its network: `underlay`, and what the test adds.
    pub namespace: Namespace,
    /// Its name, the host name for nodes.
    pub name: String,
    /// Its addresses on the underlay.
    pub addresses: (Ipv4Addr, Ipv6Addr),
    environment: Vec<(String, String)>,
    /// What is shown instead of a directory of the machine's: (ours, theirs).
    mounts: Vec<(PathBuf, PathBuf)>,
    directory: TempDir,
}

impl Underlay {
    pub(super) fn attach(tailnet: &Tailnet, name: &str, number: u16) -> Result<Self> {
        let namespace = Namespace::new()?;
        let [high, low] = number.to_be_bytes();
        let addresses = (
            Ipv4Addr::new(198, 18, high + 1, low),
            Ipv6Addr::new(0x2001, 0xdb8, 0x18, 0, 0, 0, 1, number),
        );
        let device = format!("node{number}");
        tailnet.internet.link(&device, &namespace, "underlay", 1500)?;
        tailnet.internet.ip([format!("link set {device} master bridge").as_str()])?;
        namespace.ip([
            format!("address add {}/16 dev underlay", addresses.0).as_str(),
            &format!("address add {}/64 dev underlay nodad", addresses.1),
        ])?;
        let directory = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir()?;
        let home = directory.path().join("home");
        std::fs::create_dir(&home)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let environment = [
            ("PATH", format!("{}:{path}:/usr/sbin:/sbin", tailnet.programs.display())),
            ("HOME", home.display().to_string()),
            ("SSL_CERT_FILE", tailnet.authority().display().to_string()),
            // Without this tailscaled sends its log to a public host.
            ("TS_NO_LOGS_NO_SUPPORT", "true".to_owned()),
            // Where Tailnet::start_acme serves.
            ("TS_DEBUG_ACME_DIRECTORY_URL", super::acme::directory()),
        ];
        let mut this = Self {
            namespace,
            name: name.to_owned(),
            addresses,
            environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
            mounts: Vec::new(),
            directory,
        };
        this.furnish()?;
        Ok(this)
    }

    /// Its `/etc`: what name look-ups and network programs read. tailscaled rewrites `resolv.conf`.
    fn furnish(&mut self) -> Result<()> {
        let etc = self.private("/etc")?;
        write(&etc.join("hostname"), &self.name)?;
        write(&etc.join("hosts"), "127.0.0.1 localhost\n::1 localhost\n")?;
        write(&etc.join("resolv.conf"), "# the test tailnet's: nobody answers\n")?;
        write(&etc.join("nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
        for name in ["passwd", "group", "protocols", "services", "ld.so.cache"] {
            let machine = Path::new("/etc").join(name);
            if machine.is_file() {
                std::fs::copy(&machine, etc.join(name))
                    .with_context(|| format!("copy {}", machine.display()))?;
            }
        }
        // The tables of names are optional for `ip`, the alternatives' links are not for iptables.
        std::os::unix::fs::symlink("/usr/share/iproute2", etc.join("iproute2"))?;
        if Path::new("/etc/alternatives").is_dir() {
            crate::tailnet::finish(
                Command::new("cp").args(["-a", "/etc/alternatives"]).arg(etc.join("alternatives")),
            )?;
        }
        Ok(())
    }

    /// Shows a directory of the node's own, at first empty, instead of the machine's (`/run`, `/tmp`); returns where it is
    /// really.
    pub fn private(&mut self, path: &str) -> Result<PathBuf> {
        let own = self.directory.path().join("root").join(path.trim_start_matches('/'));
        std::fs::create_dir_all(&own)?;
        let mount = (own.clone(), PathBuf::from(path));
        if !self.mounts.contains(&mount) {
            self.mounts.push(mount);
        }
        Ok(own)
    }

    /// Adds to the environment of what is started from now on.
    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Its directory: logs, and whatever else.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A program in it, with its environment alone.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let mut command = self.namespace.command(program);
        command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.directory.path());
        let mounts = self
            .mounts
            .iter()
            .map(|(own, theirs)| Ok((c_string(own)?, c_string(theirs)?)))
            .collect::<Result<Vec<_>>>()?;
        // SAFETY: only system calls, on strings that were made before.
        unsafe { command.pre_exec(move || enter_mounts(&mounts)) };
        Ok(command)
    }

    /// A program as the first process of a pod: in a PID namespace of its own; for [`Self::start_pod`].
    pub fn pod_command(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let [holder, arguments @ ..] = PID_NAMESPACE;
        let mut command = self.command(holder)?;
        command.args(arguments).arg(program);
        Ok(command)
    }

    /// Starts a command of [`Self::pod_command`]. What it starts is killed with it.
    pub fn start_pod(&self, command: Command, name: &str) -> Result<Daemon> {
        Daemon::start_first(command, name, self.directory.path())
    }

    /// Starts a command of [`Self::command`]; its output is in `NAME.log`.
    pub fn start(&self, command: Command, name: &str) -> Result<Daemon> {
        Daemon::start(command, name, self.directory.path())
    }
}

impl fmt::Debug for Underlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the environment, which may hold a key.
        f.debug_struct("Underlay")
            .field("name", &self.name)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

fn c_string(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// A mount namespace with the replacements, of which the machine sees nothing.
fn enter_mounts(mounts: &[(CString, CString)]) -> io::Result<()> {
    let check = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let none = std::ptr::null();
    // SAFETY: plain system calls on strings that live until they return.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        check(libc::mount(
            none,
            c"/".as_ptr(),
            none,
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        ))?;
        for (own, theirs) in mounts {
            check(libc::mount(
                own.as_ptr(),
                theirs.as_ptr(),
                none,
                libc::MS_BIND | libc::MS_REC,
                std::ptr::null(),
            ))?;
        }
    }
    Ok(())
}
