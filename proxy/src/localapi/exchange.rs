//! One HTTP request to tailscaled over its Unix socket. Each has a connection of its own: they cost microseconds, and none
//! outlives the tailscaled that it was made to.

use std::path::Path;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Method,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{HOST, RETRY_AFTER},
};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

use super::Error;

/// The name that tailscaled wants to be called by.
const NAME: &str = "local-tailscaled.sock";

/// How much of an error's text is read.
const MAX_ERROR: usize = 16 << 10;

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Request {
    method: Method,
    /// Path and query below `/localapi/v0/`.
    route: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Request {
    pub(super) fn new(method: Method, route: impl Into<String>) -> Self {
        Self { method, route: route.into(), headers: HeaderMap::new(), body: Bytes::new() }
    }

    pub(super) fn get(route: impl Into<String>) -> Self {
        Self::new(Method::GET, route)
    }

    pub(super) fn post(route: impl Into<String>) -> Self {
        Self::new(Method::POST, route)
    }

    pub(super) fn body(self, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..self }
    }

    pub(super) fn header(
        mut self,
        name: hyper::header::HeaderName,
        value: hyper::header::HeaderValue,
    ) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// What errors call it: without the query, which names addresses.
    pub(super) fn call(&self) -> String {
        let route = self.route.split('?').next().unwrap_or_default();
        format!("{} {route}", self.method)
    }
}

/// An answer whose code means success; its body is still to come. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Answer {
    call: String,
    pub(super) headers: HeaderMap,
    body: Incoming,
    _sender: SendRequest<Full<Bytes>>,
    _connection: AbortOnDropHandle<hyper::Result<()>>,
}

/// Asks, and waits for the head of the answer.
pub(super) async fn ask(socket: &Path, request: Request) -> Result<Answer, Error> {
    let call = request.call();
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|source| Error::of_connect(call.clone(), socket.to_owned(), source))?;
    let broken = |source: hyper::Error| Error::Broken { call: call.clone(), source: source.into() };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Its error, if any, is also the request's.
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut http = hyper::Request::new(Full::new(request.body));
    *http.uri_mut() = format!("/localapi/v0/{}", request.route)
        .parse()
        .map_err(|error| Error::Broken { call: call.clone(), source: Box::new(error) })?;
    *http.method_mut() = request.method;
    *http.headers_mut() = request.headers;
    http.headers_mut().insert(HOST, hyper::header::HeaderValue::from_static(NAME));
    let response = sender.send_request(http).await.map_err(broken)?;
    let (head, body) = response.into_parts();
    let mut answer =
        Answer { call, headers: head.headers, body, _sender: sender, _connection: connection };
    if head.status.is_success() {
        return Ok(answer);
    }
    let mut text = BytesMut::new();
    // What has come of a text that breaks off is better than nothing.
    while text.len() < MAX_ERROR
        && let Some(Ok(piece)) = answer.piece().await
    {
        text.extend_from_slice(&piece);
    }
    text.truncate(MAX_ERROR);
    let retry = answer.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    Err(Error::of_status(answer.call, head.status, retry, &text))
}

impl Answer {
    /// The next piece of the body; `None` at its end. Nothing is lost if the future is dropped.
    pub(super) async fn piece(&mut self) -> Option<hyper::Result<Bytes>> {
        loop {
            match self.body.frame().await? {
                // Trailers say nothing.
                Ok(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Some(Ok(data));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The whole body, of at most `limit` bytes.
    pub(super) async fn whole(mut self, limit: usize) -> Result<(HeaderMap, Bytes), Error> {
        let mut whole = BytesMut::new();
        while let Some(piece) = self.piece().await {
            match piece {
                Ok(piece) if whole.len() + piece.len() <= limit => whole.extend_from_slice(&piece),
                Ok(_) => return Err(Error::TooLong { call: self.call, limit }),
                Err(source) => {
                    return Err(Error::Broken { call: self.call, source: source.into() });
                }
            }
        }
        Ok((self.headers, whole.freeze()))
    }
}
