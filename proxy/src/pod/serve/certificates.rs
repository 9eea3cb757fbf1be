//! Certificates of everything that is served over TLS: each is asked for as soon as its name is served, not when the first
//! client waits for it, and again in time for tailscaled to renew it. Where replicas share certificates, only the first one
//! issues; the others ask all the same, since asking fetches what it has issued, and tell if there is none.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    task::{AbortHandle, JoinSet},
    time,
};

use super::{
    Inputs,
    file::{host_of, port_of, uses_tls},
    is_running,
};
use crate::{
    localapi::{CertPair, Error, LocalApi, ServeConfig, TcpPortHandler, WebServerConfig},
    pod::{
        settings::CertShare,
        state::{Link, Pod},
    },
};

/// Between two looks at a certificate that is there: tailscaled renews it when asked, if it is time to.
const CHECK: Duration = Duration::from_hours(6);
/// How long one may take: tailscaled makes them one after the other, and an authority may be slow.
const PATIENCE: Duration = Duration::from_mins(30);
/// The same for a replica that does not issue.
const FETCH: Duration = Duration::from_mins(1);
/// Between two looks of such a replica for a certificate that is not there yet.
const AWAIT_ISSUE: Duration = Duration::from_secs(15);
/// Until the next attempt, after the first, the second, .. failure: what Let's Encrypt asks of its clients
/// (<https://letsencrypt.org/docs/integration-guide/#retrying-failures>).
const SCHEDULE: [Duration; 4] = [
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_mins(100),
    Duration::from_hours(24),
];

/// How a certificate stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whether there is a valid one.
    pub is_ready: bool,
    /// Why not, or why it is not renewed: a stable word.
    pub reason: Option<&'static str>,
    /// What is the matter and what happens next.
    pub message: Option<String>,
}

/// Keeps certificates for all names that are served over TLS.
pub(super) async fn keep(inputs: &Inputs) {
    let mut served = inputs.pod.served.subscribe();
    let mut tasks = JoinSet::new();
    let mut names = BTreeMap::<String, AbortHandle>::new();
    loop {
        let wanted = served.borrow_and_update().as_ref().map(self::names).unwrap_or_default();
        names.retain(|name, task| {
            let keep = wanted.contains(name);
            if !keep {
                task.abort();
            }
            keep
        });
        inputs.pod.certificates().retain(|name, _| wanted.contains(name));
        for name in wanted {
            let start = || {
                let keeper = Keeper {
                    name: name.clone(),
                    api: inputs.api.clone(),
                    share: inputs.settings.tailscaled.cert_share,
                    changes: inputs.changes.clone(),
                    link: inputs.pod.link.subscribe(),
                    pod: Arc::clone(&inputs.pod),
                    failures: 0,
                };
                tasks.spawn(keeper.run())
            };
            names.entry(name.clone()).or_insert_with(start);
        }
        if served.changed().await.is_err() {
            return;
        }
    }
}

/// Every name that TLS is served for.
fn names(config: &ServeConfig) -> BTreeSet<String> {
    let mut names = of_ports(&config.tcp, &config.web);
    for service in config.services.values() {
        names.extend(of_ports(&service.tcp, &service.web));
    }
    for session in config.foreground.values() {
        names.extend(of_ports(&session.tcp, &session.web));
    }
    names
}

fn of_ports(
    tcp: &BTreeMap<u16, TcpPortHandler>,
    web: &BTreeMap<String, WebServerConfig>,
) -> BTreeSet<String> {
    let is_https = |at: &&String| {
        let handler = port_of(at).and_then(|port| tcp.get(&port));
        handler.is_some_and(|handler| handler.https)
    };
    let of_web = web.keys().filter(is_https).filter_map(|at| host_of(at));
    let terminated = tcp.values().filter(|handler| uses_tls(handler));
    let of_tcp = terminated.map(|handler| handler.terminate_tls.as_str());
    of_web.chain(of_tcp).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Takes care of one certificate.
struct Keeper {
    name: String,
    api: LocalApi,
    share: Option<CertShare>,
    changes: watch::Receiver<u64>,
    link: watch::Receiver<Link>,
    pod: Arc<Pod>,
    /// Attempts in a row that the authority has heard of, and that failed.
    failures: usize,
}

impl Keeper {
    async fn run(mut self) {
        loop {
            if self.await_permission().await.is_err() {
                return;
            }
            let issues = self.share != Some(CertShare::ReadOnly);
            let patience = if issues { PATIENCE } else { FETCH };
            let got = self.api.cert_pair(&self.name, Duration::ZERO, patience).await;
            let step = next(&got, issues, &mut self.failures);
            self.tell(&step, got.as_ref().err());
            tokio::select! {
                () = time::sleep(step.pause) => {}
                // Nothing but tailscaled's absence was the matter.
                came = back(&mut self.link), if step.reason == Some(ABSENT) => {
                    if came.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Until control lets this node have a certificate of that name: to ask before would only fail. Names of a user's own
    /// are never named by control; tailscaled proves them by serving them to the internet.
    async fn await_permission(&mut self) -> Result<(), watch::error::RecvError> {
        loop {
            let is_permitted = {
                let view = self.pod.view();
                let own = view.own.as_ref().and_then(|own| own.name.split_once('.'));
                let is_foreign = own.is_some_and(|(_, domain)| {
                    let rest = self.name.strip_suffix(domain.trim_end_matches('.'));
                    !rest.is_some_and(|rest| rest.ends_with('.'))
                });
                is_foreign || view.cert_domains.contains(&self.name)
            };
            if is_permitted {
                return Ok(());
            }
            let message = "control does not (yet) let this node have a certificate of this name: does the name's Service exist, may the node host it, and is HTTPS on?";
            let has_one = self.pod.certificates().get(&self.name).is_some_and(|told| told.is_ready);
            self.put(Certificate {
                is_ready: has_one,
                reason: Some("not-permitted"),
                message: Some(message.to_owned()),
            });
            self.changes.changed().await?;
        }
    }

    fn tell(&self, step: &Step, error: Option<&Error>) {
        let pause = humantime::format_duration(step.pause);
        let had = self.pod.certificates().get(&self.name).is_some_and(|told| told.is_ready);
        self.put(Certificate {
            // One that cannot be renewed is served until it expires: then tailscaled has none any more and says so.
            is_ready: error.is_none() || (had && step.reason == Some(ABSENT)),
            reason: step.reason,
            message: error.map(|error| format!("{error}; tried again in {pause}")),
        });
    }

    /// Each change is logged once.
    fn put(&self, now: Certificate) {
        let mut certificates = self.pod.certificates();
        if certificates.get(&self.name) == Some(&now) {
            return;
        }
        let name = &self.name;
        match &now.message {
            None => tracing::info!(name, "the certificate is there"),
            Some(message) => tracing::warn!(name, reason = now.reason, "certificate: {message}"),
        }
        certificates.insert(name.clone(), now);
    }
}

/// tailscaled does not answer.
const ABSENT: &str = "tailscaled";

/// What follows from an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    pause: Duration,
    reason: Option<&'static str>,
}

fn next(got: &Result<CertPair, Error>, issues: bool, failures: &mut usize) -> Step {
    let (reason, asked) = match got {
        Ok(_) => {
            *failures = 0;
            return Step { pause: CHECK, reason: None };
        }
        // The authority has not been asked, so that it need not be spared.
        Err(
            Error::Absent { .. }
            | Error::Broken { .. }
            | Error::Timeout { .. }
            | Error::Status { code: 503, .. },
        ) => return Step { pause: SCHEDULE[0], reason: Some(ABSENT) },
        Err(_) if !issues => {
            return Step { pause: AWAIT_ISSUE, reason: Some("not-issued") };
        }
        Err(Error::Status { text, .. }) if is_unreachable(text) => {
            return Step { pause: SCHEDULE[0], reason: Some("unreachable") };
        }
        Err(Error::RateLimited { retry_after, .. }) => ("rate-limited", *retry_after),
        Err(_) => ("refused", None),
    };
    let turn = SCHEDULE.get(*failures).or(SCHEDULE.last()).copied().unwrap_or(CHECK);
    *failures += 1;
    Step { pause: asked.filter(|asked| !asked.is_zero()).unwrap_or(turn), reason: Some(reason) }
}

/// Whether tailscaled says that it could not talk to the authority at all: words of Go's net package.
fn is_unreachable(text: &str) -> bool {
    ["dial tcp", "no such host", "connection refused", "i/o timeout", "context deadline exceeded"]
        .iter()
        .any(|word| text.contains(word))
}

/// Until tailscaled has been away, if it is not yet, and is back.
async fn back(link: &mut watch::Receiver<Link>) -> Result<(), watch::error::RecvError> {
    link.wait_for(|link| !is_running(link)).await?;
    link.wait_for(is_running).await.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(text: &str) -> Result<CertPair, Error> {
        Err(Error::Status { call: "GET cert".to_owned(), code: 500, text: text.to_owned() })
    }

    #[test]
    fn names_of_tls_are_found_and_no_others() {
        let config: ServeConfig = serde_json::from_value(json!({
            "TCP": {"443": {"HTTPS": true}, "80": {"HTTP": true}, "5432": {"TCPForward": "h:1", "TerminateTLS": "db.x"}},
            "Web": {"node.x:443": {"Handlers": {}}, "node.x:80": {"Handlers": {}}, "gone.x:444": {"Handlers": {}}},
            "Services": {"svc:a": {"TCP": {"8443": {"HTTPS": true}}, "Web": {"a.x:8443": {"Handlers": {}}}},
                         "svc:b": {"TCP": {"80": {"HTTP": true}}, "Web": {"b.x:80": {"Handlers": {}}}}},
            "Foreground": {"s": {"TCP": {"10443": {"HTTPS": true}}, "Web": {"f.x:10443": {"Handlers": {}}}}},
        }))
        .unwrap();
        assert_eq!(
            names(&config).into_iter().collect::<Vec<_>>(),
            ["a.x", "db.x", "f.x", "node.x"]
        );
    }

    #[test]
    fn an_authority_is_asked_ever_more_rarely_and_when_it_says() {
        let mut failures = 0;
        let mut pause = |got| next(&got, true, &mut failures).pause.as_secs() / 60;
        let refused = || status("acme: urn:ietf:params:acme:error:unauthorized");
        let limited = |after| {
            let retry_after = Some(Duration::from_mins(after));
            Err(Error::RateLimited { retry_after, text: String::new() })
        };
        let pauses = [
            pause(refused()),
            pause(status("Get \"https://a/dir\": dial tcp: lookup a: no such host")),
            pause(refused()),
            pause(limited(33)),
            pause(refused()),
            pause(refused()),
            pause(limited(0)),
        ];
        // One that was not reached, or that said when to come back, is no step on the schedule of its own.
        assert_eq!(pauses, [1, 1, 10, 33, 1440, 1440, 1440]);
        let pair = CertPair { chain: String::new(), key: String::new() };
        assert_eq!([pause(Ok(pair)), pause(refused())], [360, 1], "it begins anew after a success");
    }

    #[test]
    fn a_replica_that_does_not_issue_waits_for_the_one_that_does() {
        let mut failures = 0;
        let step = next(&status("read-only mode"), false, &mut failures);
        assert_eq!((step.reason, failures), (Some("not-issued"), 0));
        assert!(step.pause < Duration::from_mins(1));
    }
}
