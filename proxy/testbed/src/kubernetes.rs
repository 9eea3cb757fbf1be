//! A real Kubernetes API server in a namespace: etcd and kube-apiserver, and nothing that acts on what they keep.
//!
//! ```text
//! internet (or a namespace of its own)        pods: what runs in an underlay
//! kube-apiserver 198.18.0.2:443  --bridge--   kubernetes.default.svc by /etc/hosts, a service account's token
//! etcd 127.0.0.1:2379
//! ```

use std::{
    fmt,
    net::Ipv4Addr,
    path::PathBuf,
    sync::{Mutex, MutexGuard},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow};
use kube::{Client, Config, config::AuthInfo};
use nix::sys::signal::Signal;
use proxy_testbed_programs::KUBERNETES;
use tempfile::TempDir;

use crate::{DEADLINE, Daemon, Namespace, tailnet::Tailnet};

mod account;
mod audit;
mod content;
mod kubelet;
mod pod;

pub use account::{Account, rule};
pub use audit::{Asked, OPERATOR};
pub use content::Content;
pub use k8s_openapi::api::rbac::v1::PolicyRule;
pub use kubelet::RunningPod;

/// Where it listens, in every namespace: nodes of a tailnet are told of no address near it.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);

/// The name that pods know it by.
pub const NAME: &str = "kubernetes.default.svc";

/// A fresh start takes four seconds, with four on each core twenty.
const START: Duration = Duration::from_mins(1);

/// A running API server. Killed when dropped, with all that it keeps.
pub struct ApiServer {
    // The servers end first: what they use comes after them.
    server: Mutex<Option<Daemon>>,
    _etcd: Daemon,
    namespace: Namespace,
    programs: PathBuf,
    arguments: Vec<String>,
    token: String,
    directory: TempDir,
}

impl Tailnet {
    /// Starts an API server beside the control server, where every node's underlay reaches it.
    pub fn start_api_server(&self) -> Result<ApiServer> {
        self.start_api_server_with(&[])
    }

    /// The same with further arguments of kube-apiserver.
    pub fn start_api_server_with(&self, arguments: &[&str]) -> Result<ApiServer> {
        self.internet().ip([format!("address add {ADDRESS}/16 dev bridge").as_str()])?;
        ApiServer::start_in(self.internet().again()?, arguments)
    }
}

impl ApiServer {
    /// An API server in a namespace of its own, without a tailnet.
    pub fn start() -> Result<Self> {
        let namespace = Namespace::new()?;
        namespace.ip([format!("address add {ADDRESS}/32 dev lo").as_str()])?;
        Self::start_in(namespace, &[])
    }

    fn start_in(namespace: Namespace, arguments: &[&str]) -> Result<Self> {
        let programs = KUBERNETES.find()?;
        let directory = tempfile::Builder::new().prefix("kubernetes-").tempdir()?;
        let own = directory.path();
        let mut command = namespace.command("etcd");
        // What it keeps ends with it: no wait for the disk.
        command.arg("--unsafe-no-fsync").arg("--data-dir").arg(own.join("etcd"));
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        for (name, url) in [
            ("--listen-client-urls", clients),
            ("--advertise-client-urls", clients),
            ("--listen-peer-urls", peers),
            ("--initial-advertise-peer-urls", peers),
        ] {
            command.args([name, url]);
        }
        command.args(["--initial-cluster", &format!("default={peers}")]);
        let etcd = Daemon::start(command, "etcd", own)
            .context("etcd keeps the API server's objects: `cargo xtask setup` installs it")?;
        // Nobody but this process reads it, and the server trusts nothing outside of this namespace.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let token = format!("admin-{}-{}", std::process::id(), now.as_nanos());
        std::fs::write(own.join("tokens"), format!("{token},admin,admin,system:masters\n"))?;
        std::fs::write(own.join("audit.yaml"), audit::POLICY)?;
        let server = Mutex::new(None);
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let this = Self { server, _etcd: etcd, namespace, programs, arguments, token, directory };
        this.launch()?;
        Ok(this)
    }

    /// Starts kube-apiserver again after [`Self::kill`], on what it has kept, and waits until it is ready.
    pub fn launch(&self) -> Result<()> {
        let own = self.directory.path();
        let mut command = self.namespace.command(self.programs.join("kube-apiserver"));
        for argument in [
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=443",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
            "--endpoint-reconciler-type=none",
            &format!("--service-account-issuer=https://{NAME}"),
            &format!("--bind-address={ADDRESS}"),
            &format!("--advertise-address={ADDRESS}"),
        ] {
            command.arg(argument);
        }
        command.args(&self.arguments);
        // In this directory it makes itself a certificate, and signs tokens with its key as well.
        for (option, file) in [
            ("--cert-dir", ""),
            ("--service-account-signing-key-file", "apiserver.key"),
            ("--service-account-key-file", "apiserver.key"),
            ("--token-auth-file", "tokens"),
            ("--audit-policy-file", "audit.yaml"),
            ("--audit-log-path", audit::LOG),
        ] {
            command.arg(option).arg(own.join(file));
        }
        let mut daemon = Daemon::start(command, "kube-apiserver", own)?;
        daemon.wait_for(START, "the API server is ready", || self.is_ready())?;
        *self.server()? = Some(daemon);
        Ok(())
    }

    fn is_ready(&self) -> bool {
        // Made by it before it listens.
        self.authority().is_file()
            && self
                .admin(async |client| {
                    let request = hyper::Request::get("/readyz").body(Vec::new())?;
                    Ok(client.request_text(request).await?)
                })
                .is_ok()
    }

    /// Kills kube-apiserver as the kernel would: connections are refused from then on.
    pub fn kill(&self) -> Result<()> {
        self.server()?.take().map_or(Ok(()), |mut daemon| daemon.kill())
    }

    /// Stops kube-apiserver without ending it: connections are made, and nothing is answered.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)
    }

    /// Lets it go on.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.server()?.as_ref().context("kube-apiserver does not run")?.signal(signal)
    }

    /// What kube-apiserver has printed.
    pub fn log(&self) -> String {
        self.server().ok().and_then(|held| Some(held.as_ref()?.log())).unwrap_or_default()
    }

    /// The certificates that clients trust, as PEM.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("apiserver.crt")
    }

    /// Runs something asynchronous on a runtime in the namespace of the server.
    pub fn run<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> Result<T> {
        self.namespace.enter(|| {
            // Two threads: a test that waits for one call of this type does not stop what it has started.
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build()?;
            Ok(runtime.block_on(work()))
        })
    }

    /// Runs something with a client who may do anything.
    pub fn admin<T: Send>(&self, work: impl AsyncFnOnce(Client) -> Result<T> + Send) -> Result<T> {
        self.run(async || work(self.client(&self.token)?).await)?
    }

    /// A client with a token, for the runtime of [`Self::run`].
    pub fn client(&self, token: &str) -> Result<Client> {
        let mut config = Config::new(format!("https://{ADDRESS}").parse()?);
        config.root_cert_file = Some(self.authority());
        config.connect_timeout = Some(DEADLINE);
        config.default_retry = false;
        config.auth_info = AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() };
        Ok(Client::try_from(config)?)
    }

    fn server(&self) -> Result<MutexGuard<'_, Option<Daemon>>> {
        self.server.lock().map_err(|_| anyhow!("a thread panicked while it held the server"))
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the token.
        f.debug_struct("ApiServer").field("directory", &self.directory).finish_non_exhaustive()
    }
}
