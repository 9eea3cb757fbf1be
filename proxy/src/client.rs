//! Asks a running proxy over its Unix socket or its address.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::{Request, body::Bytes, client::conn::http1, header::HOST};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the socket is unless a flag says otherwise.
pub fn default_socket() -> PathBuf {
    let directory = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !nix::unistd::geteuid().is_root() => PathBuf::from(directory),
        _ => PathBuf::from("/run"),
    };
    directory.join("sluice/proxy.sock")
}

/// A running proxy.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    address: Option<SocketAddr>,
}

impl Client {
    /// At the address, else at the socket.
    pub fn new(socket: PathBuf, address: Option<SocketAddr>) -> Self {
        Self { socket, address }
    }

    /// Reads a JSON document. A proxy that does not answer in time is an error: probes must not hang.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        tokio::time::timeout(PATIENCE, self.ask(path))
            .await
            .with_context(|| format!("no answer within {PATIENCE:?}: is the proxy stopped?"))?
    }

    async fn ask<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        let body = if let Some(address) = self.address {
            let stream = TcpStream::connect(address)
                .await
                .with_context(|| format!("no proxy answers at {address}: use --admin"))?;
            request(stream, path).await?
        } else {
            let stream = UnixStream::connect(&self.socket).await.with_context(|| {
                format!("no proxy answers at {}: use --socket", self.socket.display())
            })?;
            request(stream, path).await?
        };
        serde_json::from_slice(&body).with_context(|| format!("reading the answer to {path}"))
    }
}

async fn request<S>(stream: S, path: &str) -> Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Its error, if any, is also the request's.
    let connection = tokio::spawn(connection);
    let request = Request::get(path).header(HOST, "localhost").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    connection.abort();
    ensure!(code.is_success(), "{path}: {code}: {}", String::from_utf8_lossy(&body).trim());
    Ok(body)
}
