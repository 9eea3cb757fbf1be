//! The text of a serve configuration, as the operator or a user writes it, into one that tailscaled takes. Pure.

use std::collections::BTreeMap;

use crate::{
    localapi::{
        HttpHandler, ServeConfig, TcpPortHandler, WebServerConfig,
        parse::{self, ParseError},
    },
    pod::view::View,
};

/// What stands for the node's name in the text.
const CERT_DOMAIN: &str = "${TS_CERT_DOMAIN}";
/// What the state Secret says where there are no certificates.
pub const NO_HTTPS: &str = "no-https";

/// What the tailnet gives this node to serve HTTPS with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Https {
    /// Not told yet.
    Unknown,
    /// No certificates; the node's name all the same.
    No(String),
    /// Certificates, for this name.
    Yes(String),
}

impl Https {
    /// As control has told last.
    pub(super) fn of(view: &View) -> Self {
        let Some(own) = view.own.as_ref().filter(|_| view.has_dns) else { return Self::Unknown };
        let name = own.name.trim_end_matches('.').to_owned();
        // The names of Services are among them.
        match view.cert_domains.first() {
            None => Self::No(name),
            Some(_) if view.cert_domains.contains(&name) => Self::Yes(name),
            Some(first) => Self::Yes(first.clone()),
        }
    }

    /// As the state Secret has it.
    pub(super) fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Unknown => None,
            Self::No(_) => Some(NO_HTTPS),
            Self::Yes(name) => Some(name),
        }
    }
}

/// Why a text is no serve configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FileError {
    #[error(
        "{0}: it must be an `ipn.ServeConfig` in JSON, as `tailscale serve status --json` prints"
    )]
    Syntax(ParseError),
    #[error("{path}: {problem}")]
    Content { path: String, problem: &'static str },
}

/// A configuration that can be applied, and the ports of HTTPS that were left out, since there are no certificates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Compiled {
    pub(super) config: ServeConfig,
    pub(super) left_out: Vec<String>,
}

/// Reads a text; `None` before it is known whether there are certificates.
pub(super) fn compile(text: &str, https: &Https) -> Result<Option<Compiled>, FileError> {
    let (name, has_https) = match https {
        // What is wrong is said at once all the same.
        Https::Unknown => ("unknown", true),
        Https::No(name) => (name.as_str(), false),
        Https::Yes(name) => (name.as_str(), true),
    };
    let text = text.replace(CERT_DOMAIN, name);
    let config = parse::serve_config(text.as_bytes()).map_err(FileError::Syntax)?;
    check(&config)?;
    let mut compiled = Compiled { config, left_out: Vec::new() };
    if !has_https {
        compiled.leave_https_out();
    }
    Ok((*https != Https::Unknown).then_some(compiled))
}

impl Compiled {
    fn leave_https_out(&mut self) {
        let Self { config, left_out } = self;
        let mut without = |owner: &str, tcp: &mut BTreeMap<u16, _>| {
            tcp.retain(|port, handler| {
                let plain = !uses_tls(handler);
                if !plain {
                    left_out.push(format!("{owner}{port}"));
                }
                plain
            });
        };
        without("", &mut config.tcp);
        for (name, service) in &mut config.services {
            without(&format!("{name}:"), &mut service.tcp);
            let ports = &service.tcp;
            service.web.retain(|at, _| port_of(at).is_none_or(|port| ports.contains_key(&port)));
        }
        let ports = &config.tcp;
        let serves = |at: &str| port_of(at).is_none_or(|port| ports.contains_key(&port));
        config.web.retain(|at, _| serves(at));
        config.allow_funnel.retain(|at, _| serves(at));
    }
}

/// Whether connections to the port begin with TLS that ends at tailscaled.
pub(super) fn uses_tls(handler: &TcpPortHandler) -> bool {
    handler.https || !handler.terminate_tls.is_empty()
}

/// The host of a `name:port`.
pub(super) fn host_of(at: &str) -> Option<&str> {
    at.rsplit_once(':').map(|(host, _)| host).filter(|host| !host.is_empty())
}

/// The port of a `name:port`.
pub(super) fn port_of(at: &str) -> Option<u16> {
    at.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).filter(|port| *port != 0)
}

/// What can never serve anybody is a mistake. The rest is for tailscaled to judge.
fn check(config: &ServeConfig) -> Result<(), FileError> {
    let error = |path: String, problem| Err(FileError::Content { path, problem });
    check_ports("", &config.tcp)?;
    check_web("", &config.web)?;
    for (name, service) in &config.services {
        let path = format!("Services.{name}.");
        if name.strip_prefix("svc:").is_none_or(str::is_empty) {
            return error(format!("Services.{name}"), "a Service's name begins with `svc:`");
        }
        check_ports(&path, &service.tcp)?;
        check_web(&path, &service.web)?;
    }
    Ok(())
}

fn check_ports(path: &str, tcp: &BTreeMap<u16, TcpPortHandler>) -> Result<(), FileError> {
    for (port, handler) in tcp {
        let kinds = [handler.https, handler.http, !handler.tcp_forward.is_empty()];
        let problem = if *port == 0 {
            "there is no port 0"
        } else if kinds.iter().filter(|is| **is).count() != 1 {
            "exactly one of HTTPS, HTTP and TCPForward must be given"
        } else if !(0..=2).contains(&handler.proxy_protocol) {
            "ProxyProtocol is 1 or 2, or left out"
        } else {
            continue;
        };
        return Err(FileError::Content { path: format!("{path}TCP.{port}"), problem });
    }
    Ok(())
}

fn check_web(path: &str, web: &BTreeMap<String, WebServerConfig>) -> Result<(), FileError> {
    for (at, server) in web {
        let path = format!("{path}Web.{at}");
        if port_of(at).is_none() || host_of(at).is_none() {
            return Err(FileError::Content { path, problem: "the key must be `name:port`" });
        }
        for (mount, handler) in &server.handlers {
            let HttpHandler { path: file, proxy, text, redirect, .. } = handler;
            let problem = if [file, proxy, text, redirect].iter().all(|kind| kind.is_empty()) {
                "one of Proxy, Path, Text and Redirect must be given"
            } else if !mount.starts_with('/') {
                "the path that a handler is mounted at begins with `/`"
            } else {
                continue;
            };
            return Err(FileError::Content { path: format!("{path}.Handlers.{mount}"), problem });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What upstream's operator writes for an Ingress, with redirection and Funnel on.
    const INGRESS: &str = r#"{"TCP":{"443":{"HTTPS":true},"80":{"HTTP":true}},
        "Web":{"${TS_CERT_DOMAIN}:443":{"Handlers":{"/":{"Proxy":"http://10.0.0.7:8080/"}}},
               "${TS_CERT_DOMAIN}:80":{"Handlers":{"/":{"Redirect":"301:https://${HOST}${REQUEST_URI}"}}}},
        "AllowFunnel":{"${TS_CERT_DOMAIN}:443":true,"${TS_CERT_DOMAIN}:80":true},
        "Services":{"svc:a":{"TCP":{"443":{"HTTPS":true},"5432":{"TCPForward":"h:1","TerminateTLS":"a.b"},
                                    "81":{"TCPForward":"h:1"}},
                             "Web":{"a.tailnet.ts.net:443":{"Handlers":{"/":{"Text":"x"}}}}}}}"#;

    fn no() -> Https {
        Https::No("node.tailnet.ts.net".to_owned())
    }

    #[test]
    fn the_nodes_name_takes_the_place_of_its_stand_in() {
        let yes = Https::Yes("node.tailnet.ts.net".to_owned());
        let compiled = compile(INGRESS, &yes).unwrap().unwrap();
        assert!(compiled.left_out.is_empty());
        let at = compiled.config.web.keys().collect::<Vec<_>>();
        assert_eq!(at, ["node.tailnet.ts.net:443", "node.tailnet.ts.net:80"]);
        let redirect = &compiled.config.web["node.tailnet.ts.net:80"].handlers["/"].redirect;
        assert_eq!(redirect, "301:https://${HOST}${REQUEST_URI}", "what is no stand-in stays");
        assert_eq!(compile(INGRESS, &Https::Unknown), Ok(None));
    }

    #[test]
    fn without_certificates_what_needs_them_is_left_out_and_the_rest_served() {
        let Compiled { config, left_out } = compile(INGRESS, &no()).unwrap().unwrap();
        assert_eq!(left_out, ["443", "svc:a:443", "svc:a:5432"]);
        assert_eq!(config.tcp.keys().collect::<Vec<_>>(), [&80]);
        assert_eq!(config.web.keys().collect::<Vec<_>>(), ["node.tailnet.ts.net:80"]);
        assert_eq!(config.allow_funnel.keys().collect::<Vec<_>>(), ["node.tailnet.ts.net:80"]);
        let service = &config.services["svc:a"];
        assert!(service.tcp.keys().eq([&81]) && service.web.is_empty());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let wrong = |text: &str| compile(text, &Https::Unknown).unwrap_err().to_string();
        for (text, place) in [
            ("{", "?: EOF"),
            (r#"{"TCP":{"443":{"HTTPS":1}}}"#, "TCP"),
            (r#"{"TCP":{"0":{"HTTP":true}}}"#, "TCP.0: "),
            (r#"{"TCP":{"1":{}}}"#, "TCP.1: exactly one"),
            (r#"{"TCP":{"1":{"HTTP":true,"TCPForward":"h:1"}}}"#, "TCP.1: exactly one"),
            (r#"{"TCP":{"1":{"TCPForward":"h:1","ProxyProtocol":3}}}"#, "TCP.1: ProxyProtocol"),
            (r#"{"Services":{"a":{}}}"#, "Services.a: "),
            (r#"{"Services":{"svc:a":{"TCP":{"1":{}}}}}"#, "Services.svc:a.TCP.1: "),
            (r#"{"Web":{"a":{"Handlers":{}}}}"#, "Web.a: "),
            (r#"{"Web":{"a:1":{"Handlers":{"/":{}}}}}"#, "Web.a:1.Handlers./: one of"),
            (r#"{"Web":{"a:1":{"Handlers":{"x":{"Text":"t"}}}}}"#, "Web.a:1.Handlers.x: the path"),
        ] {
            assert!(wrong(text).starts_with(place), "{text}: {}", wrong(text));
        }
        for good in ["{}", "null", INGRESS] {
            assert!(compile(good, &no()).unwrap().is_some(), "{good}");
        }
    }

    #[test]
    fn the_nodes_own_name_is_preferred_to_those_of_services() {
        let mut view = View::default();
        assert_eq!(Https::of(&view), Https::Unknown);
        let name = "node.tailnet.ts.net.".to_owned();
        view.own = Some(crate::pod::view::Own { name, ..Default::default() });
        assert_eq!(Https::of(&view), Https::Unknown);
        view.has_dns = true;
        assert_eq!(Https::of(&view), no());
        view.cert_domains = vec!["a.tailnet.ts.net".to_owned(), "node.tailnet.ts.net".to_owned()];
        assert_eq!(Https::of(&view), Https::Yes("node.tailnet.ts.net".to_owned()));
        assert_eq!(Https::of(&view).endpoint(), Some("node.tailnet.ts.net"));
        assert_eq!(no().endpoint(), Some(NO_HTTPS));
    }
}
