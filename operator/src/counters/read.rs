//! What a proxy tells at `/v1/status`, as much of it as is used here; and how it is asked.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{Request, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};

/// Who does not answer for so long is left out. Proxies are read while others are.
const PATIENCE: Duration = Duration::from_secs(2);

/// More bytes than a proxy with thousands of ports tells.
const LIMIT: usize = 8 << 20;

/// A proxy's status. Proxies add fields; none is demanded.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) ready: bool,
    pub(super) generation: Option<String>,
    pub(super) data_path: DataPath,
    pub(super) ports: Vec<PortStatus>,
    pub(super) drops: BTreeMap<String, u64>,
    pub(super) targets: Vec<TargetStatus>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct DataPath {
    pub(super) kind: Option<String>,
    pub(super) refusals: Vec<Refusal>,
    pub(super) error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    pub(super) kind: String,
    pub(super) message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct PortStatus {
    pub(super) rule: String,
    pub(super) from: String,
    pub(super) protocol: String,
    pub(super) port: String,
    pub(super) original_packets: u64,
    pub(super) original_bytes: u64,
    pub(super) reply_packets: u64,
    pub(super) reply_bytes: u64,
    pub(super) flows: u64,
    pub(super) dropped: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct TargetStatus {
    pub(super) target: String,
    pub(super) installed: bool,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
}

/// Why something was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("no answer from {address} within {} seconds", PATIENCE.as_secs())]
    Late { address: SocketAddr },
    #[error("connect to {address}: {source}")]
    Connect { address: SocketAddr, source: std::io::Error },
    #[error("ask {address}: {source}")]
    Ask { address: SocketAddr, source: hyper::Error },
    #[error("read the answer of {address}: {source}")]
    Body { address: SocketAddr, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{address} answers with {code}")]
    Refused { address: SocketAddr, code: hyper::StatusCode },
}

/// Reads one proxy.
pub(super) async fn status(address: SocketAddr) -> Result<Status, ReadError> {
    json(address, "/v1/status").await
}

/// A document in JSON.
pub(crate) async fn json<T: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
) -> Result<T, ReadError> {
    timeout(PATIENCE, ask(address, path)).await.unwrap_or(Err(ReadError::Late { address }))
}

async fn ask<T: DeserializeOwned>(address: SocketAddr, path: &str) -> Result<T, ReadError> {
    let stream = TcpStream::connect(address)
        .await
        .map_err(|source| ReadError::Connect { address, source })?;
    let asking = |source| ReadError::Ask { address, source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(asking)?;
    let request = Request::get(path).header(HOST, address.to_string());
    let body = |source| ReadError::Body { address, source };
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| body(Box::new(error)))?;
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(asking)?;
        if !answer.status().is_success() {
            return Err(ReadError::Refused { address, code: answer.status() });
        }
        let bytes =
            Limited::new(answer.into_body(), LIMIT).collect().await.map_err(body)?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|error| body(Box::new(error)))
    };
    // The connection ends with the answer, or with whoever waits for it.
    tokio::select! {
        outcome = exchange => outcome,
        Err(source) = connection => Err(asking(source)),
    }
}
