//! Talks to tailscaled over its Unix socket: the LocalAPI, as tailscaled 1.102 speaks it. Fields that are not known are
//! passed over, those that are missing are empty, so that older and newer ones are understood.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bytes::Bytes;
use hyper::{
    HeaderMap, Method,
    header::{CONTENT_TYPE, ETAG, HeaderValue, IF_MATCH},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

mod bus;
mod cert;
mod error;
mod exchange;
pub mod lines;
mod node;
mod notify;
mod nullable;
pub mod parse;
mod prefs;
mod serve;
mod status;
mod whois;

pub use bus::{Bus, Watch};
pub use cert::CertPair;
pub use error::Error;
use exchange::Request;
pub use node::{CapMap, Node, NodeId};
pub use notify::{Health, Notify, State, Warning};
use parse::ParseError;
pub use prefs::{AppConnector, NetfilterMode, Prefs, PrefsChange};
pub use serve::{ETag, HttpHandler, ServeConfig, ServiceConfig, TcpPortHandler, WebServerConfig};
pub use status::{DnsConfig, DnsRecord, PeerStatus, Status};
pub use whois::{UserProfile, WhoIs};

/// How long an answer may take, but for the bus and certificates. Changes of preferences wait for tailscaled's own work.
const PATIENCE: Duration = Duration::from_secs(15);

/// The longest answer and line of the bus, in bytes: a status with 10 000 bare peers has 10 MB.
const LIMIT: usize = 64 << 20;

/// What is escaped in a path or a query: all but the unreserved characters (RFC 3986, 2.3).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A client of one tailscaled. Holds no connection: it stays good when tailscaled is started anew.
#[derive(Clone, Debug)]
pub struct LocalApi {
    socket: PathBuf,
    limit: usize,
    patience: Duration,
}

impl LocalApi {
    /// For the tailscaled with this `--socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), limit: LIMIT, patience: PATIENCE }
    }

    /// The same with another limit of the length of answers and of lines of the bus, in bytes.
    pub fn with_limit(self, limit: usize) -> Self {
        Self { limit, ..self }
    }

    /// The same with another time that answers may take.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Begins to watch the bus. Nothing that happens from then on is missed.
    pub async fn watch(&self, mask: Watch) -> Result<Bus, Error> {
        let request = Request::get(format!("watch-ipn-bus?mask={}", mask.bits()));
        let call = request.call();
        let answer = self.bounded(call, exchange::ask(&self.socket, request)).await?;
        Ok(Bus::new(answer, self.limit))
    }

    /// The state of the node, with or without its peers: thousands of them take their time.
    pub async fn status(&self, peers: bool) -> Result<Status, Error> {
        self.read(Request::get(format!("status?peers={peers}")), parse::status).await
    }

    /// The preferences in force.
    pub async fn prefs(&self) -> Result<Prefs, Error> {
        self.read(Request::get("prefs"), parse::prefs).await
    }

    /// Changes preferences; returns all that are in force then.
    pub async fn edit_prefs(&self, change: &PrefsChange) -> Result<Prefs, Error> {
        let body = serde_json::Value::Object(change.masked()).to_string();
        self.read(json(Request::new(Method::PATCH, "prefs"), body), parse::prefs).await
    }

    /// What tailscaled serves itself, and the tag to set another one with.
    pub async fn serve_config(&self) -> Result<(ServeConfig, ETag), Error> {
        let request = Request::get("serve-config");
        let call = request.call();
        let (headers, body) = self.whole(request).await?;
        let config =
            parse::serve_config(&body).map_err(|problem| Error::Parse { call, problem })?;
        let tag = headers.get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default();
        Ok((config, ETag(tag.to_owned())))
    }

    /// Replaces what tailscaled serves; with a tag, only if that is still the one in force (`Error::Changed`). It refuses
    /// with `Error::Status` as long as it has no netmap.
    pub async fn set_serve_config(
        &self,
        config: &ServeConfig,
        expect: Option<&ETag>,
    ) -> Result<(), Error> {
        // Maps with names and numbers as keys: there is nothing that serde could refuse.
        let body = serde_json::to_vec(config).unwrap_or_default();
        let mut request = json(Request::post("serve-config"), body);
        if let Some(tag) = expect {
            // A tag that is no header's value was never handed out.
            let tag = HeaderValue::from_str(&tag.0).map_err(|_| Error::Changed)?;
            request = request.header(IF_MATCH, tag);
        }
        self.whole(request).await.map(drop)
    }

    /// What the control server says of DNS. `Error::Status` with 503 as long as there is no netmap.
    pub async fn dns_config(&self) -> Result<DnsConfig, Error> {
        self.read(Request::get("dns-config"), parse::dns_config).await
    }

    /// The names that certificates can be had for, in order; none without a netmap.
    pub async fn cert_domains(&self) -> Result<Vec<String>, Error> {
        self.read(Request::get("cert-domains"), parse::cert_domains).await
    }

    /// A certificate that is valid for this long at least; tailscaled gets one where it has none, which takes its time.
    pub async fn cert_pair(
        &self,
        domain: &str,
        min_validity: Duration,
        timeout: Duration,
    ) -> Result<CertPair, Error> {
        let domain = utf8_percent_encode(domain, ESCAPED);
        let validity = min_validity.as_secs();
        let request = Request::get(format!("cert/{domain}?type=pair&min_validity={validity}s"));
        let patient = self.clone().with_patience(timeout);
        patient.read(request, parse::cert_pair).await
    }

    /// Has tailscaled read its configuration file again; whether it has one.
    pub async fn reload_config(&self) -> Result<bool, Error> {
        let request = Request::post("reload-config");
        let call = request.call();
        let answer = self.read(request, parse::reload).await?;
        match answer.error {
            text if text.is_empty() => Ok(answer.reloaded),
            text => Err(Error::Refused { call, text }),
        }
    }

    /// Has tailscaled leave the control server: peers move to other nodes, connections last.
    pub async fn disconnect_control(&self) -> Result<(), Error> {
        self.whole(Request::post("disconnect-control")).await.map(drop)
    }

    /// Has tailscaled turn on the receive offload of forwarded UDP at the default route's device.
    pub async fn set_udp_gro_forwarding(&self) -> Result<(), Error> {
        let request = Request::get("set-udp-gro-forwarding");
        let call = request.call();
        match self.read(request, parse::warning).await? {
            text if text.is_empty() => Ok(()),
            text => Err(Error::Refused { call, text }),
        }
    }

    /// tailscaled's metrics for users, in the text format of Prometheus.
    pub async fn user_metrics(&self) -> Result<String, Error> {
        let (_, body) = self.whole(Request::get("usermetrics")).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Who is behind an address of the tailnet, or behind a connection that tailscaled made for somebody; `None` if nobody.
    pub async fn whois(&self, addr: SocketAddr) -> Result<Option<WhoIs>, Error> {
        let addr = addr.to_string();
        let addr = utf8_percent_encode(&addr, ESCAPED);
        match self.read(Request::get(format!("whois?addr={addr}")), parse::whois).await {
            Err(Error::Status { code: 404, .. }) => Ok(None),
            result => result.map(Some),
        }
    }

    /// Logs the node out: its key is given up.
    pub async fn logout(&self) -> Result<(), Error> {
        self.whole(Request::post("logout")).await.map(drop)
    }

    /// An answer as `parse` reads it.
    async fn read<T>(
        &self,
        request: Request,
        parse: impl Fn(&[u8]) -> Result<T, ParseError>,
    ) -> Result<T, Error> {
        let call = request.call();
        let (_, body) = self.whole(request).await?;
        parse(&body).map_err(|problem| Error::Parse { call, problem })
    }

    async fn whole(&self, request: Request) -> Result<(HeaderMap, Bytes), Error> {
        let work =
            async { exchange::ask(&self.socket, request.clone()).await?.whole(self.limit).await };
        self.bounded(request.call(), work).await
    }

    async fn bounded<T>(
        &self,
        call: String,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let after = self.patience;
        tokio::time::timeout(after, work).await.unwrap_or(Err(Error::Timeout { call, after }))
    }
}

fn json(request: Request, body: impl Into<Bytes>) -> Request {
    request.body(body).header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
}

#[cfg(test)]
mod tests;
