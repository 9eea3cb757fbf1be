//! One exchange over HTTP, and its repetition as far as that is safe.
//!
//! hyper's pooled client over rustls: both are in every Kubernetes client already, so this adds no crate; reqwest would.

pub(super) mod failure;

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use backon::{ExponentialBuilder, Retryable as _};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Uri,
    body::Bytes,
    header::{self, HeaderName, HeaderValue},
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    Error, Failure,
    settings::{Patience, SettingsError},
};
use failure::{failure, retry_after, unavailable};

/// What the API is told who asks: upstream's name, as its operators of tailnets may filter by it.
const USER_AGENT: &str = "tailscale-k8s-operator";

/// How much of an answer is read. A device takes about a kilobyte; the largest tailnets have tens of thousands.
const LARGEST: usize = 128 << 20;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// How many requests are under way at once, each on a connection of its own. A thousand Services at a start are not to
/// be a thousand connections.
const AT_ONCE: usize = 16;

/// A control server's HTTP side.
#[derive(Debug)]
pub(super) struct Http {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    server: String,
    patience: Patience,
    gate: Semaphore,
    /// Until when the server wants to hear nothing, from anyone here.
    quiet: Mutex<Option<Instant>>,
}

/// What is asked.
pub(super) struct Ask {
    pub(super) method: Method,
    /// From the API's root, with a slash before it; variable parts percent-encoded.
    pub(super) path: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
    /// Whether a second time does the same as once.
    pub(super) repeatable: bool,
    /// Whether the server may answer 500 for what is not there, and say so in words.
    pub(super) vague: bool,
}

/// A 2xx answer. No `Debug`: it may hold a secret.
pub(super) struct Answer {
    pub(super) etag: Option<String>,
    pub(super) body: Bytes,
}

/// An exchange that failed, and whether the server may have done what was asked.
struct Lost {
    failure: Failure,
    repeat: bool,
}

impl Ask {
    pub(super) fn get(path: String) -> Self {
        Self {
            method: Method::GET,
            path,
            headers: Vec::new(),
            body: Bytes::new(),
            repeatable: true,
            vague: false,
        }
    }

    pub(super) fn delete(path: String) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    /// Replaces what is at the path.
    pub(super) fn put(path: String, body: &serde_json::Value) -> Self {
        Self { method: Method::PUT, ..Self::post(path, body) }.safe()
    }

    /// Adds something at the path: repeated only if the server surely did nothing.
    pub(super) fn post(path: String, body: &serde_json::Value) -> Self {
        let headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let body = body.to_string().into();
        Self { method: Method::POST, headers, body, repeatable: false, ..Self::get(path) }
    }

    /// May be repeated.
    pub(super) fn safe(self) -> Self {
        Self { repeatable: true, ..self }
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

impl Http {
    pub(super) fn new(
        server: &str,
        authorities: Option<&Path>,
        patience: Patience,
    ) -> Result<Self, SettingsError> {
        let bad = || SettingsError::Address(server.to_owned());
        let address: Uri = server.parse().map_err(|_| bad())?;
        let host =
            address.authority().filter(|a| !a.host().is_empty() && !a.as_str().contains('@'));
        let known = matches!(address.scheme_str(), Some("http" | "https"));
        if host.is_none() || !known || address.query().is_some() {
            return Err(bad());
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(CONNECT));
        tcp.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(authorities)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .build(connector);
        Ok(Self {
            client,
            server: server.trim_end_matches('/').to_owned(),
            patience,
            gate: Semaphore::new(AT_ONCE),
            quiet: Mutex::default(),
        })
    }

    /// The server's address, without a slash at its end.
    pub(super) fn server(&self) -> &str {
        &self.server
    }

    /// Runs a call within its time and says of a failure what was attempted.
    pub(super) async fn call<T>(
        &self,
        attempt: &str,
        work: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Error> {
        let limit = self.patience.call;
        let outcome = tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
            let problem = format!("no answer within {} s", limit.as_secs_f32()).into();
            Err(Failure::Unavailable { problem, retry_after: None })
        });
        outcome.map_err(|failure| {
            tracing::debug!(attempt, server = self.server, reason = failure.reason(), %failure, "tailnet API");
            Error { attempt: attempt.into(), server: self.server.clone().into(), failure }
        })
    }

    /// Asks, and asks again after pauses as long as the failure may pass and a repetition does no harm.
    pub(super) async fn ask(
        &self,
        ask: &Ask,
        bearer: Option<&SecretString>,
    ) -> Result<Answer, Failure> {
        let Patience { first_pause, longest_pause, repetitions, .. } = self.patience;
        let pauses = ExponentialBuilder::new()
            .with_jitter()
            .with_min_delay(first_pause)
            .with_max_delay(longest_pause)
            .with_max_times(repetitions);
        (|| self.once(ask, bearer))
            .retry(pauses)
            .when(|lost: &Lost| lost.repeat)
            // No pause ends the repetitions: a longer one is the caller's to make.
            .adjust(|lost, pause| match retry_after(&lost.failure) {
                Some(asked) if asked > longest_pause => None,
                // Added, not the longer of both: those who were sent away together do not come back together.
                Some(asked) => pause.map(|pause| asked + pause),
                None => pause,
            })
            .await
            .map_err(|lost| lost.failure)
    }

    async fn once(&self, ask: &Ask, bearer: Option<&SecretString>) -> Result<Answer, Lost> {
        let request = self
            .request(ask, bearer)
            .map_err(|problem| Lost { failure: Failure::Invalid(problem.into()), repeat: false })?;
        let _turn = self.gate.acquire().await.ok();
        if let Some(rest) = self.quiet_for() {
            let failure = Failure::RateLimited { retry_after: Some(rest) };
            return Err(Lost { failure, repeat: true });
        }
        let response = match self.client.request(request).await {
            Ok(response) => response,
            Err(error) => {
                let repeat = ask.repeatable || error.is_connect();
                return Err(Lost { failure: unavailable(&error), repeat });
            }
        };
        let (head, body) = response.into_parts();
        let body = match Limited::new(body, LARGEST).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                return Err(Lost { failure: unavailable(&*error), repeat: ask.repeatable });
            }
        };
        if head.status.is_success() {
            let etag = head.headers.get(header::ETAG).and_then(|value| value.to_str().ok());
            return Ok(Answer { etag: etag.map(str::to_owned), body });
        }
        let mut failure = failure(head.status, &head.headers, &body);
        if let Failure::Unavailable { problem, .. } = &failure
            && ask.vague
            && problem.contains("not found")
        {
            failure = Failure::NotFound;
        }
        if let Failure::RateLimited { retry_after: Some(asked) } = failure {
            self.keep_quiet(asked);
        }
        let repeat = match failure {
            // Refused before anything was done.
            Failure::RateLimited { .. } => true,
            Failure::Unavailable { .. } => ask.repeatable,
            _ => false,
        };
        Err(Lost { failure, repeat })
    }

    /// How long the server still wants to hear nothing.
    fn quiet_for(&self) -> Option<Duration> {
        let until = *self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        until?.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero())
    }

    fn keep_quiet(&self, asked: Duration) {
        let mut until = self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(Some(Instant::now() + asked));
    }

    fn request(
        &self,
        ask: &Ask,
        bearer: Option<&SecretString>,
    ) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(ask.method.clone())
            .uri(format!("{}{}", self.server, ask.path))
            .header(header::USER_AGENT, USER_AGENT);
        if let Some(token) = bearer {
            let value = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret()));
            let mut value =
                value.map_err(|_| "the token has characters that no header may have")?;
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        for (name, value) in &ask.headers {
            request = request.header(name, value);
        }
        request.body(Full::new(ask.body.clone())).map_err(|error| error.to_string())
    }
}

impl Answer {
    /// The body as what it must be; the failure names the place.
    pub(super) fn parse<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        parse(&self.body)
    }
}

/// JSON as what it must be.
pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failure> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| Failure::Malformed(failure::line(&error.to_string()).into()))
}

/// Who is trusted: the system's authorities and those of the file.
fn tls(authorities: Option<&Path>) -> Result<ClientConfig, SettingsError> {
    let mut roots = RootCertStore::empty();
    // Broken ones among the system's are no concern of ours: the handshake says what is missing.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = authorities {
        let wrong = |problem: String| SettingsError::Authorities { path: path.into(), problem };
        let text = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let extra: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| wrong(error.to_string()))?;
        if extra.is_empty() {
            return Err(wrong("no certificate in it".to_owned()));
        }
        for certificate in extra {
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::{Http, Patience, SettingsError};

    #[test]
    fn authorities_that_cannot_be_used_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        let make = || Http::new("https://a.example", Some(&path), Patience::default()).unwrap_err();
        assert!(matches!(make(), SettingsError::Authorities { path: named, .. } if named == path));
        std::fs::write(&path, "nothing").unwrap();
        assert!(make().to_string().contains("no certificate in it"));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            .unwrap();
        assert!(matches!(make(), SettingsError::Authorities { .. }));
    }
}
