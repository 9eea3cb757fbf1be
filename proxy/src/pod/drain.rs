//! The egress pre-shutdown protocol: a replica may go when no client is led to it any more. Whether one is, is found out by
//! asking each Service's health endpoint several times, as clients would be led, and looking at who answers.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future;
use http_body_util::Empty;
use hyper::{Request, Uri, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time};

use super::{settings::Pod, upstream::EgressServices};

/// The file with the number of requests.
pub const PINGS: &str = "hep-pings";
/// The file with the Services.
pub const SERVICES: &str = "egress-services";
/// Between two rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// After the last answer of this replica: nodes learn of its leaving one after the other.
const SETTLE: Duration = Duration::from_secs(10);
/// Rounds in a row without any answer after which nobody can be led anywhere: there is no replica left to wait for.
const SILENT_ROUNDS: u32 = 5;

/// Why it cannot be told whether clients are led here.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// A file of the configuration cannot be read.
    #[error("reading {path}: {source}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not say what it should.
    #[error("{path}: {problem}")]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Returns when no Service leads to this pod any more. The caller's patience is the limit.
pub async fn wait(directory: &Path, pod: &Pod) -> Result<(), DrainError> {
    let services: EgressServices = {
        let (path, text) = read(directory, SERVICES)?;
        serde_json::from_str(&text)
            .map_err(|error| DrainError::Content { path, problem: error.to_string() })?
    };
    let pings = pings(directory)?;
    let endpoints: Vec<_> = services
        .0
        .values()
        .map(|service| service.health_check_endpoint.as_str())
        .filter(|endpoint| !endpoint.is_empty())
        .collect();
    if endpoints.is_empty() || pings == 0 {
        return Ok(());
    }
    future::join_all(endpoints.into_iter().map(|endpoint| left(endpoint, pings, pod))).await;
    time::sleep(SETTLE).await;
    Ok(())
}

/// Until a round of requests meets other replicas only.
async fn left(endpoint: &str, pings: u32, pod: &Pod) {
    let mut silent = 0;
    loop {
        let (mut own, mut other) = (0, 0);
        for _ in 0..pings {
            match ask(endpoint).await {
                Ok(who) if is_own(&who, pod) => own += 1,
                Ok(_) => other += 1,
                Err(error) => tracing::debug!(endpoint, %error, "asking who answers"),
            }
        }
        silent = if own + other == 0 { silent + 1 } else { 0 };
        // No answer may mean that this replica is led to and cannot answer. Round after round it means that nobody can.
        if own == 0 && (other == pings || silent >= SILENT_ROUNDS) {
            tracing::info!(endpoint, other, "clients are no longer led here");
            return;
        }
        tracing::info!(endpoint, own, other, "clients are still led here");
        time::sleep(PAUSE).await;
    }
}

/// The addresses of the pod that answers.
type Who = [Option<String>; 2];

fn is_own(who: &Who, pod: &Pod) -> bool {
    let is = |told: &Option<String>, own: Option<std::net::IpAddr>| {
        told.is_some() && *told == own.map(|own| own.to_string())
    };
    let [v4, v6] = who;
    is(v4, pod.ipv4()) || is(v6, pod.ipv6())
}

async fn ask(endpoint: &str) -> anyhow::Result<Who> {
    time::timeout(PATIENCE, request(endpoint)).await?
}

/// A connection of its own each time: one that is kept would always lead to the same replica.
async fn request(endpoint: &str) -> anyhow::Result<Who> {
    let uri: Uri = endpoint.parse()?;
    let authority = uri.authority().ok_or_else(|| anyhow::anyhow!("no host in it"))?;
    let address = (authority.host().trim_matches(['[', ']']), authority.port_u16().unwrap_or(80));
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(TcpStream::connect(address).await?)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "close")
        .body(Empty::<bytes::Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    connection.abort();
    let header = |name: &str| {
        answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    Ok([header("pod-ipv4"), header("pod-ipv6")])
}

fn read(directory: &Path, name: &str) -> Result<(PathBuf, String), DrainError> {
    let path = directory.join(name);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(source) => Err(DrainError::Read { path, source }),
    }
}

fn pings(directory: &Path) -> Result<u32, DrainError> {
    let (path, text) = read(directory, PINGS)?;
    let problem = |error: std::num::ParseIntError| format!("`{}`: {error}", text.trim());
    text.trim().parse().map_err(|error| DrainError::Content { path, problem: problem(error) })
}
