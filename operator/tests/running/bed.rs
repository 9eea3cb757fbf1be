//! Operators as processes, in a cluster of their own.

use std::{
    fs::File,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use k8s_openapi::api::{coordination::v1::Lease, events::v1::Event};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use nix::{
    sys::signal::{self, Signal},
    unistd::Pid,
};
use operator::{
    crd::ProxyClass,
    status::{ConditionType, holds},
};
use proxy_testbed::{ApiServer, DEADLINE, kubernetes::Account};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::{Child, Command},
};

use crate::rights::{allow, wait_for_rights};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_sluice-operator");

/// Where the operators are.
pub(crate) const NAMESPACE: &str = "tailscale";

const PAUSE: Duration = Duration::from_millis(50);

/// Whoever waits for a Lease waits longer than for anything else here.
const PATIENCE: Duration = Duration::from_secs(40);

/// A cluster for operators, who may do in it what the chart allows them.
pub(crate) struct Bed<'a> {
    pub(crate) server: &'a ApiServer,
    pub(crate) account: Account,
    pub(crate) client: Client,
    directory: TempDir,
}

/// Runs a test in a new cluster.
pub(crate) fn in_cluster(test: impl AsyncFnOnce(&Bed<'_>) + Send) {
    let server = ApiServer::start().unwrap();
    let account = server.account(NAMESPACE, "operator").unwrap();
    for definition in operator::crd::definitions() {
        server.apply(&serde_json::to_value(definition).unwrap()).unwrap();
    }
    allow(&server);
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &str| {
        std::fs::write(directory.path().join(name), content).unwrap();
    };
    write("id", "id");
    write("secret", "s3cr3t");
    let running = server.admin(async |client| {
        wait_for_rights(&server.client(account.token())?).await;
        let bed = Bed { client, directory, account, server: &server };
        bed.write_config("config", &bed.account);
        test(&bed).await;
        Ok(())
    });
    running.unwrap();
}

impl Bed<'_> {
    /// A file of the test's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a kubeconfig for an account.
    pub(crate) fn write_config(&self, name: &str, account: &Account) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": {
                "server": format!("https://{}", proxy_testbed::kubernetes::ADDRESS),
                "certificate-authority": self.server.authority() } }],
            "users": [{ "name": "c", "user": { "token": account.token() } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        });
        std::fs::write(self.file(name), config.to_string()).unwrap();
    }

    /// Starts an operator that listens at this port of the loopback.
    pub(crate) fn start(&self, name: &str, port: u16) -> Replica {
        self.start_at(name, SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// Starts an operator that listens here.
    pub(crate) fn start_at(&self, name: &str, address: SocketAddr) -> Replica {
        let own = |file: &str| self.file(file);
        let log = own(&format!("{name}.log"));
        let child = Command::new(PROGRAM)
            .env_clear()
            .env("KUBECONFIG", own("config"))
            .env("OPERATOR_NAMESPACE", NAMESPACE)
            .env("POD_NAME", name)
            .env("CLIENT_ID_FILE", own("id"))
            .env("CLIENT_SECRET_FILE", own("secret"))
            .env("OPERATOR_LISTEN", address.to_string())
            .env("OPERATOR_LOGGING", "debug")
            .stderr(Stdio::from(File::create(&log).unwrap()))
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Replica { child, address, log }
    }

    /// Makes a ProxyClass, which whoever reconciles finds good.
    pub(crate) async fn make_class(&self, name: &str) {
        let class = json!({ "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyClass",
            "metadata": { "name": name }, "spec": {} });
        let api: Api<ProxyClass> = Api::all(self.client.clone());
        api.patch(name, &PatchParams::apply("user"), &Patch::Apply(class)).await.unwrap();
    }

    /// Whether somebody found a ProxyClass good.
    pub(crate) async fn is_good(&self, name: &str) -> bool {
        let api: Api<ProxyClass> = Api::all(self.client.clone());
        let class = api.get(name).await.unwrap();
        let conditions = class.status.map_or_else(Vec::new, |status| status.conditions);
        holds(&conditions, ConditionType::ProxyClassReady, class.metadata.generation)
    }

    /// Who holds the Lease, if anybody does, and how many have held it.
    pub(crate) async fn holder(&self) -> (Option<String>, Option<i32>) {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let spec = api.get("sluice-operator").await.unwrap().spec.unwrap();
        (spec.holder_identity, spec.lease_transitions)
    }

    /// The notes of all Events of a reason.
    pub(crate) async fn events(&self, reason: &str) -> Vec<String> {
        let api: Api<Event> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        let found = all.filter(|event| event.reason.as_deref() == Some(reason));
        found.filter_map(|event| event.note).collect()
    }
}

/// Waits until something is so; returns how long that took.
pub(crate) async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "not seen: {what}");
    start.elapsed()
}

/// An operator.
pub(crate) struct Replica {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Replica {
    /// The whole answer; empty without one.
    pub(crate) async fn asks(&self, path: &str) -> String {
        let mut answer = String::new();
        let ask = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            stream.read_to_string(&mut answer).await
        };
        // One that was stopped takes connections and answers none.
        let _ = tokio::time::timeout(Duration::from_secs(1), ask).await;
        answer
    }

    /// Waits until it says that it is ready.
    pub(crate) async fn wait_ready(&self) {
        wait_until("it is ready", async || self.asks("/readyz").await.starts_with("HTTP/1.1 200"))
            .await;
    }

    /// Whether it says that it reconciles.
    pub(crate) async fn leads(&self) -> bool {
        self.asks("/metrics").await.contains("\nsluice_operator_leader 1\n")
    }

    /// How many ProxyClasses it says it has reconciled.
    pub(crate) async fn reconciled(&self) -> u64 {
        let text = self.asks("/metrics").await;
        let own = text.lines().filter(|line| line.contains("{controller=\"proxyclass\""));
        own.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.child.id().unwrap().try_into().unwrap());
        signal::kill(process, signal).unwrap();
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for its end; whether it was a good one.
    pub(crate) async fn wait_end(&mut self) -> bool {
        tokio::time::timeout(DEADLINE, self.child.wait()).await.expect("it ends").unwrap().success()
    }
}
