//! HTTP and HTTPS: a backend that tells what it was asked, and a client that checks the certificate.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};
use proxy_testbed::{DEADLINE, Namespace};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use socket2::SockRef;

/// A server of HTTP: each answer is the request, line by line, behind the server's name.
pub(crate) struct Backend {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    pub(crate) fn new(namespace: &Namespace, address: &str, name: &'static str) -> Result<Self> {
        let listener = namespace
            .enter(|| TcpListener::bind(address))
            .with_context(|| format!("listen on {address}"))?;
        let accepting = listener.try_clone()?;
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                std::thread::spawn(move || drop(answer(&stream, name)));
            }
        });
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.listener).shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(stream: &TcpStream, name: &str) -> std::io::Result<()> {
    let mut writer = stream.try_clone()?;
    let (mut body, mut is_last) = (format!("{name}\n"), false);
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if !line.is_empty() {
            is_last |= line.eq_ignore_ascii_case("connection: close");
            body += &line;
            body.push('\n');
            continue;
        }
        let length = body.len();
        write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")?;
        if is_last {
            break;
        }
        body = format!("{name}\n");
    }
    Ok(())
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    /// In lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    /// What a header of the request was when it came to a [`Backend`].
    pub(crate) fn asked(&self, header: &str) -> Option<&str> {
        self.body.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(header).then(|| value.trim())
        })
    }

    /// The request's line as it came to a [`Backend`], behind the backend's name.
    pub(crate) fn line(&self) -> String {
        self.body.lines().take(2).collect::<Vec<_>>().join(" ")
    }
}

/// Whom a client believes: the certificate that all others lead to, as PEM.
pub(crate) fn trust(root: &str) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(root.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// One GET on a fresh connection, over TLS if there is something to believe.
pub(crate) fn get(
    from: &Namespace,
    to: SocketAddr,
    tls: Option<&Arc<ClientConfig>>,
    url: (&str, &str),
    headers: &[(&str, &str)],
) -> Result<Answer> {
    let stream = from
        .enter(|| TcpStream::connect_timeout(&to, DEADLINE))
        .with_context(|| format!("TCP to {to}"))?;
    // The first certificate may be on its way.
    stream.set_read_timeout(Some(DEADLINE * 2))?;
    let (host, path) = url;
    match tls {
        None => exchange(stream, host, path, headers),
        Some(config) => {
            let name = ServerName::try_from(host.to_owned())?;
            let session = ClientConnection::new(Arc::clone(config), name)?;
            exchange(StreamOwned::new(session, stream), host, path, headers)
        }
    }
    .with_context(|| format!("GET {path} from {host} at {to}"))
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Answer> {
    let mut asked = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n");
    for (name, value) in headers {
        asked.extend([*name, ": ", *value, "\r\n"]);
    }
    asked += "\r\n";
    stream.write_all(asked.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("an answer without a body")?;
    let code = head.split(' ').nth(1).context("no code")?.parse()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers = head.lines().skip(1).filter_map(header).collect();
    Ok(Answer { code, headers, body: body.to_owned() })
}
