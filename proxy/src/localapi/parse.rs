//! From the bytes of an answer to what it says: pure, and fed by the fuzzer. No input makes these panic, and no error holds
//! more of the input than a line.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, de::DeserializeOwned};

use super::{
    CapMap, CertPair, DnsConfig, Notify, Prefs, ServeConfig, Status, WhoIs, nullable::nullable,
};

/// How much of a foreign text goes into an error.
const MAX_TEXT: usize = 1024;

/// What cannot be read, and where it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ParseError {
    /// The way to the field, such as `PeersChanged[2].Addresses[0]`; `.` for the document itself.
    pub path: String,
    /// What is wrong there.
    pub problem: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.problem)
    }
}

impl std::error::Error for ParseError {}

/// A line of the bus.
pub fn notify(line: &[u8]) -> Result<Notify, ParseError> {
    json(line)
}

/// The answer to `status`.
pub fn status(body: &[u8]) -> Result<Status, ParseError> {
    json(body)
}

/// The answer to `prefs`.
pub fn prefs(body: &[u8]) -> Result<Prefs, ParseError> {
    json(body)
}

/// The answer to `serve-config`; `null` as long as nothing is served.
pub fn serve_config(body: &[u8]) -> Result<ServeConfig, ParseError> {
    json(body).map(Option::unwrap_or_default)
}

/// The answer to `dns-config`.
pub fn dns_config(body: &[u8]) -> Result<DnsConfig, ParseError> {
    json(body)
}

/// The answer to `cert-domains`; `null` without a netmap.
pub fn cert_domains(body: &[u8]) -> Result<Vec<String>, ParseError> {
    json(body).map(Option::unwrap_or_default)
}

/// The answer to `whois`.
pub fn whois(body: &[u8]) -> Result<WhoIs, ParseError> {
    json(body)
}

/// The answer to `reload-config`.
#[derive(Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "PascalCase")]
pub struct Reload {
    /// Whether there is a configuration file, and it was read.
    pub reloaded: bool,
    /// Why it was not.
    #[serde(rename = "Err", deserialize_with = "nullable")]
    pub error: String,
}

/// The answer to `reload-config`. When the file is wrong, tailscaled answers with success and nothing.
pub fn reload(body: &[u8]) -> Result<Reload, ParseError> {
    if body.trim_ascii().is_empty() {
        let error = "its configuration file is wrong; its log says how".to_owned();
        return Ok(Reload { reloaded: false, error });
    }
    json(body)
}

/// The warning in the answer to `set-udp-gro-forwarding`; empty if all went well.
pub fn warning(body: &[u8]) -> Result<String, ParseError> {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "PascalCase")]
    struct Warning {
        #[serde(deserialize_with = "nullable")]
        warning: String,
    }
    json::<Warning>(body).map(|answer| short(&answer.warning))
}

/// The answer to `cert/NAME?type=pair`: the key, then the certificates, PEM each.
pub fn cert_pair(body: &[u8]) -> Result<CertPair, ParseError> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    // What is wrong is said without a word of the input: it holds a key.
    let error = |problem: &str| ParseError { path: ".".to_owned(), problem: problem.to_owned() };
    let text = std::str::from_utf8(body).map_err(|_| error("not PEM: no text"))?;
    let start = text.find(BEGIN).ok_or_else(|| error("no certificate behind the key"))?;
    let (key, chain) = text.split_at(start);
    if !(key.trim_start().starts_with("-----BEGIN ") && key.contains("PRIVATE KEY-----")) {
        return Err(error("no private key before the certificate"));
    }
    if chain.contains("PRIVATE KEY-----") {
        return Err(error("a private key behind the certificate"));
    }
    Ok(CertPair { chain: chain.to_owned(), key: key.to_owned() })
}

/// The addresses of the Tailscale Services that a node may host, by name (`svc:web`): what the capability `service-host` of
/// its own node says. They are handed out whether or not the node advertises the Service.
pub fn services(capabilities: &CapMap) -> Result<BTreeMap<String, Vec<IpAddr>>, ParseError> {
    const NAME: &str = "service-host";
    type Services = BTreeMap<String, Option<Vec<IpAddr>>>;
    let mut services = BTreeMap::new();
    for (index, value) in capabilities.get(NAME).into_iter().flatten().enumerate() {
        let more: Services = serde_path_to_error::deserialize(value).map_err(|error| {
            let path = format!("CapMap.{NAME}[{index}].{}", error.path());
            problem(&path, error.inner())
        })?;
        // A later value says more of the same, and has the last word.
        services.extend(more.into_iter().map(|(name, list)| (name, list.unwrap_or_default())));
    }
    Ok(services)
}

/// What tailscaled says went wrong: a JSON document with `error`, or plain text.
pub fn error_text(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Body {
        #[serde(alias = "Error")]
        error: String,
    }
    match serde_json::from_slice(body) {
        Ok(Body { error }) => short(&error),
        Err(_) => short(&String::from_utf8_lossy(body)),
    }
}

/// How long the header `Retry-After` asks to wait: seconds, or a date (RFC 9110, 10.2.3).
pub fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// Reads a document. Only one that cannot be read is read again, with an eye on where: that costs, and a netmap is long.
fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ParseError> {
    let plain = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut reader) {
        Err(error) => Err(problem(&error.path().to_string(), error.inner())),
        // Whole so far, but with something behind it.
        Ok(_) => Err(problem(".", &plain)),
    }
}

fn problem(path: &str, error: &serde_json::Error) -> ParseError {
    ParseError { path: short(path), problem: short(&error.to_string()) }
}

/// A foreign text as one line of a bounded length.
fn short(text: &str) -> String {
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.trim().chars().take(MAX_TEXT).map(clean).collect();
    if text.trim().chars().nth(MAX_TEXT).is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests;
