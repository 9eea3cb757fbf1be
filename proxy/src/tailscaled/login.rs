//! `tailscale up` and `tailscale set`. The program is run, since users give it arguments of their own. Secrets do not stand on
//! its command line, which every process can read: it reads them from a file in memory that only it has open.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsRawFd as _, OwnedFd},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::process::Command;

use super::{Netfilter, Shared, log::Source, plan, said::Said};
use crate::pod::settings::{Auth, ConfigFileError, Settings, capability};

/// Arguments for logging in and for changing what may change afterwards.
#[derive(Clone, Debug)]
pub struct Login {
    up: Vec<Word>,
    set: Vec<Word>,
}

/// One argument.
#[derive(Clone, Debug)]
enum Word {
    Plain(String),
    /// `--flag=`, and what stands behind it.
    Secret(&'static str, SecretString),
}

/// Flags whose value may also be `file:` and a path.
const SECRET_FLAGS: [(&str, &str); 4] = [
    ("auth-key", "--auth-key="),
    ("authkey", "--auth-key="),
    ("client-secret", "--client-secret="),
    ("id-token", "--id-token="),
];

/// Values that name a place where a secret is.
const PLACES: [&str; 2] = ["file:", "arn:"];

impl Login {
    pub(super) fn new(settings: &Settings, netfilter: Netfilter) -> Self {
        let dns = Word::Plain(format!("--accept-dns={}", settings.accept_dns));
        let netfilter =
            (netfilter == Netfilter::Off).then(|| Word::Plain("--netfilter-mode=off".to_owned()));
        let routes = settings.routes.as_ref().map(|routes| {
            let list: Vec<_> = routes.iter().map(ToString::to_string).collect();
            Word::Plain(format!("--advertise-routes={}", list.join(",")))
        });
        let hostname =
            settings.hostname.as_ref().map(|name| Word::Plain(format!("--hostname={name}")));
        let kept: Vec<_> = netfilter.into_iter().chain(routes).chain(hostname).collect();
        let mut up = vec![dns.clone()];
        match &settings.auth {
            Auth::None => {}
            Auth::Key(key) => up.push(secret("--auth-key=", key)),
            Auth::Client(client) => {
                let plain = |flag: &str, value: &String| Word::Plain(format!("{flag}={value}"));
                up.extend(client.id.as_ref().map(|id| plain("--client-id", id)));
                up.extend(client.secret.as_ref().map(|value| secret("--client-secret=", value)));
                up.extend(client.id_token.as_ref().map(|value| secret("--id-token=", value)));
                up.extend(client.audience.as_ref().map(|value| plain("--audience", value)));
            }
        }
        up.extend(kept.iter().cloned());
        up.extend(words(settings.extra_args.words()));
        let set = std::iter::once(dns).chain(kept).collect();
        Self { up, set }
    }

    pub(super) fn secrets(&self) -> impl Iterator<Item = &SecretString> {
        self.up.iter().filter_map(|word| match word {
            Word::Secret(_, value) => Some(value),
            Word::Plain(_) => None,
        })
    }
}

/// A value that says where the secret is, is none itself.
fn secret(flag: &'static str, value: &SecretString) -> Word {
    let text = value.expose_secret();
    if PLACES.iter().any(|place| text.starts_with(place)) {
        Word::Plain(format!("{flag}{text}"))
    } else {
        Word::Secret(flag, value.clone())
    }
}

/// A user's arguments, with secrets told from the rest.
fn words(given: &[String]) -> Vec<Word> {
    let mut words = Vec::new();
    let mut given = given.iter();
    while let Some(word) = given.next() {
        let bare = word.strip_prefix("--").or_else(|| word.strip_prefix('-'));
        let (name, value) = match bare.map(|bare| bare.split_once('=').ok_or(bare)) {
            Some(Ok((name, value))) => (name, Some(value.to_owned())),
            Some(Err(name)) => (name, None),
            None => ("", None),
        };
        let flag = SECRET_FLAGS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag);
        words.push(match flag {
            None => Word::Plain(word.clone()),
            Some(flag) => match value.or_else(|| given.next().cloned()) {
                Some(value) => secret(flag, &SecretString::from(value)),
                None => Word::Plain(word.clone()),
            },
        });
    }
    words
}

/// Runs the `tailscale` program. Dropping a running call kills the program.
#[derive(Clone, Debug)]
pub struct Cli {
    shared: Arc<Shared>,
}

/// The program did not do it.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// It does not run.
    #[error("running {}: put it into the image, or into PATH", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It failed.
    #[error("tailscale {verb}: {status}{}", printed(said))]
    Failed {
        /// What it should do.
        verb: &'static str,
        /// How it ended.
        status: ExitStatus,
        /// What it printed, without secrets.
        said: Said,
    },
    /// It tells no version.
    #[error(transparent)]
    Version(#[from] ConfigFileError),
}

fn printed(said: &Said) -> String {
    if said.is_empty() { ", without a word".to_owned() } else { format!(":\n{said}") }
}

impl Cli {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Logs in, and waits until the node runs; until a person has logged it in, if there is no credential. Bound it by a
    /// time-out.
    pub async fn up(&self) -> Result<(), CliError> {
        self.run("up", &self.shared.plan.login.up).await
    }

    /// Changes the settings of a node that is logged in already.
    pub async fn set(&self) -> Result<(), CliError> {
        self.run("set", &self.shared.plan.login.set).await
    }

    async fn run(&self, verb: &'static str, words: &[Word]) -> Result<(), CliError> {
        let program = &self.shared.plan.programs.tailscale;
        let failed = |source| CliError::Start { program: program.clone(), source };
        let mut command = Command::new(program);
        command.arg(format!("--socket={}", self.shared.plan.socket.display())).arg(verb);
        let mut files = Vec::new();
        for word in words {
            match word {
                Word::Plain(word) => command.arg(word),
                Word::Secret(flag, value) => {
                    let file = in_memory(value).map_err(failed)?;
                    let path = format!("{flag}file:/proc/self/fd/{}", file.as_raw_fd());
                    files.push(file);
                    command.arg(path)
                }
            };
        }
        for variable in plan::kept_variables() {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut group = self.shared.spawner.spawn(command, files).await.map_err(failed)?;
        let said = Arc::new(Mutex::new(Said::default()));
        let relay = &self.shared.relay;
        let out = group.child.stdout.take();
        let out = out.map(|out| relay.read(Source::Program, out, Arc::clone(&said)));
        let err = group.child.stderr.take();
        let err = err.map(|err| relay.read(Source::Program, err, Arc::clone(&said)));
        let status = group.child.wait().await.map_err(failed)?;
        group.sweep();
        for reader in [out, err].into_iter().flatten() {
            let _ = reader.await;
        }
        if status.success() {
            return Ok(());
        }
        let said = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(CliError::Failed { verb, status, said })
    }
}

/// The capability version of this program, and so of the `tailscaled` that comes with it.
pub async fn capability_version(tailscale: &std::path::Path) -> Result<u32, CliError> {
    let output = Command::new(tailscale)
        .args(["version", "--json"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| CliError::Start { program: tailscale.to_owned(), source })?;
    Ok(capability(&output.stdout)?)
}

/// A file without a name. Only a process that inherits the descriptor can read it.
fn in_memory(secret: &SecretString) -> io::Result<OwnedFd> {
    let descriptor = memfd_create(c"secret", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(descriptor);
    file.write_all(secret.expose_secret().as_bytes())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, path::Path};

    use super::*;

    fn login(environment: &[(&str, &str)], netfilter: Netfilter) -> Login {
        let lookup = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value))
        };
        Login::new(&Settings::from_env(&lookup, Path::new("/")).unwrap(), netfilter)
    }

    /// The words, secrets in angle brackets.
    fn shown(words: &[Word]) -> String {
        let word = |word: &Word| match word {
            Word::Plain(word) => word.clone(),
            Word::Secret(flag, value) => format!("{flag}<{}>", value.expose_secret()),
        };
        words.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn nothing_said_still_decides_about_dns() {
        let login = login(&[], Netfilter::Unchanged);
        assert_eq!(shown(&login.up), "--accept-dns=false");
        assert_eq!(shown(&login.set), "--accept-dns=false");
    }

    #[test]
    fn a_key_routes_and_a_name() {
        let environment = [
            ("TS_AUTHKEY", "tskey-1"),
            ("TS_ROUTES", "10.0.0.0/8,2001:db8::/32"),
            ("TS_HOSTNAME", "web"),
            ("TS_ACCEPT_DNS", "true"),
            ("TS_EXTRA_ARGS", "--ssh -authkey tskey-2 --id-token=file:/t --auth-key"),
        ];
        let login = login(&environment, Netfilter::Off);
        assert_eq!(
            shown(&login.up),
            "--accept-dns=true --auth-key=<tskey-1> --netfilter-mode=off \
             --advertise-routes=10.0.0.0/8,2001:db8::/32 --hostname=web --ssh --auth-key=<tskey-2> \
             --id-token=file:/t --auth-key"
        );
        assert_eq!(
            shown(&login.set),
            "--accept-dns=true --netfilter-mode=off --advertise-routes=10.0.0.0/8,2001:db8::/32 \
             --hostname=web"
        );
        assert_eq!(login.secrets().count(), 2);
        assert!(!format!("{login:?}").contains("tskey"), "{login:?}");
    }

    #[test]
    fn a_client_and_withdrawn_routes() {
        let environment =
            [("TS_CLIENT_ID", "id"), ("TS_CLIENT_SECRET", "file:/run/secret"), ("TS_ROUTES", "")];
        let login = login(&environment, Netfilter::Unchanged);
        assert_eq!(
            shown(&login.up),
            "--accept-dns=false --client-id=id --client-secret=file:/run/secret --advertise-routes="
        );
        assert_eq!(shown(&login.set), "--accept-dns=false --advertise-routes=");
    }
}
