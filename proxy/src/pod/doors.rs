//! Keeps tailscaled's serve configuration leading to the doors of the data path where there is no TUN device. What others
//! have put there stays; what leads to a door is ours, also when an earlier process has left it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time};

use super::{state::Pod, view::View};
use crate::{
    data_path::userspace::through::{DOORS, Doors, Through},
    localapi::{Error, LocalApi, ServeConfig, TcpPortHandler},
    shared::Shared,
};

/// How long until what failed is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// Nobody tells when others change the configuration.
const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// How long that may take at the end.
const WITHDRAW: Duration = Duration::from_secs(2);
/// How often others may change it while we do.
const ATTEMPTS: u32 = 10;
/// The version of the PROXY protocol.
const PROXY_PROTOCOL: i64 = 2;

/// Ports of a host, and the doors that they lead to.
type Ports = BTreeMap<u16, SocketAddr>;

/// What the serve configuration is to have of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// On the node's own addresses.
    own: Ports,
    /// On those of Services.
    services: BTreeMap<String, Ports>,
    /// Frontends that are on neither.
    homeless: BTreeSet<IpAddr>,
}

/// Keeps it so until the process ends.
pub async fn keep(
    api: LocalApi,
    pod: Arc<Pod>,
    shared: Arc<Shared>,
    through: Arc<Through>,
    mut changes: watch::Receiver<u64>,
) {
    let mut doors = through.doors();
    let mut link = pod.link.subscribe();
    let mut retry = RETRY.0;
    loop {
        changes.borrow_and_update();
        let is_ready = link.borrow_and_update().is_logged_in();
        let wanted = {
            let doors = doors.borrow_and_update();
            let view = pod.view();
            through.set_hosts(hosts(&view));
            Wanted::new(&view, &doors)
        };
        let mut pause = LOOK_AGAIN;
        // At the end it is withdrawn, which nothing must undo.
        if is_ready && !shared.is_stopping() {
            match put(&api, &wanted).await {
                Ok(refused) => {
                    retry = RETRY.0;
                    report(&pod, true, &refused);
                }
                Err(error) => {
                    report(&pod, false, &[error.to_string()]);
                    pause = retry;
                    retry = (retry * 2).min(RETRY.1);
                }
            }
        }
        let more = tokio::select! {
            changed = doors.changed() => changed.is_ok(),
            changed = changes.changed() => changed.is_ok(),
            changed = link.changed() => changed.is_ok(),
            () = time::sleep(pause) => true,
        };
        if !more {
            return;
        }
    }
}

/// Takes out of the serve configuration what is ours, if anything is. The next process finds what is left.
pub async fn withdraw(pod: &Pod, api: &LocalApi) {
    if pod.doors.borrow().is_none() {
        return;
    }
    match time::timeout(WITHDRAW, put(api, &Wanted::default())).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the serve configuration keeps what is ours"),
        Err(_) => tracing::warn!("the serve configuration keeps what is ours: no answer in time"),
    }
}

/// The addresses that a serve configuration does not tell apart.
fn hosts(view: &View) -> Vec<Vec<IpAddr>> {
    let own = view.own.iter();
    own.flat_map(|own| std::iter::once(&own.addresses).chain(own.hosted.values()))
        .cloned()
        .collect()
}

/// Changes the configuration where it is not as wanted; what could not be put there.
async fn put(api: &LocalApi, wanted: &Wanted) -> Result<Vec<String>, Error> {
    for _ in 1..ATTEMPTS {
        let (config, tag) = api.serve_config().await?;
        let (new, refused) = wanted.merge(&config);
        if new == config {
            return Ok(refused);
        }
        match api.set_serve_config(&new, Some(&tag)).await {
            Err(Error::Changed) => {}
            result => {
                result?;
                tracing::info!(
                    ports = wanted.count(),
                    "tailscaled's serve configuration is changed"
                );
                return Ok(refused);
            }
        }
    }
    Err(Error::Changed)
}

fn report(pod: &Pod, in_force: bool, said: &[String]) {
    let text = (!said.is_empty()).then(|| said.join("; "));
    let mut troubles = pod.troubles();
    if troubles.doors != text {
        if let Some(text) = &text {
            tracing::warn!("ingress through tailscaled: {text}");
        }
        troubles.doors = text;
    }
    drop(troubles);
    pod.doors.send_if_modified(|doors| doors.replace(in_force) != Some(in_force));
}

impl Wanted {
    /// Frontends of both families lead to one door, which tells them apart.
    pub fn new(view: &View, doors: &Doors) -> Self {
        let mut wanted = Self::default();
        let own = view.own.as_ref();
        for (frontend, door) in doors {
            let ip = frontend.ip();
            let is_own = own.is_some_and(|own| own.addresses.contains(&ip));
            let hosted = own.and_then(|own| own.hosted.iter().find(|(_, ips)| ips.contains(&ip)));
            let ports = match hosted {
                _ if is_own => &mut wanted.own,
                Some((service, _)) => wanted.services.entry(service.clone()).or_default(),
                None => {
                    wanted.homeless.insert(ip);
                    continue;
                }
            };
            ports.entry(frontend.port()).or_insert(*door);
        }
        wanted
    }

    fn count(&self) -> usize {
        self.own.len() + self.services.values().map(BTreeMap::len).sum::<usize>()
    }

    /// The configuration with what is wanted of ours, and what could not be put there.
    pub fn merge(&self, config: &ServeConfig) -> (ServeConfig, Vec<String>) {
        let mut new = config.clone();
        let mut refused: Vec<_> = self
            .homeless
            .iter()
            .map(|ip| format!("{ip} is not assigned to this node: is its Service approved?"))
            .collect();
        fill(&mut new.tcp, Some(&self.own), "this node", &mut refused);
        new.services.retain(|name, service| {
            let had = service.tcp.len();
            let ports = self.services.get(name).filter(|_| !service.tun);
            fill(&mut service.tcp, ports, name, &mut refused);
            let is_empty = service.tcp.is_empty() && service.web.is_empty();
            !(had > 0 && is_empty && !service.tun && service.rest.is_empty())
        });
        for (name, ports) in &self.services {
            match new.services.get(name) {
                None => {
                    let service = new.services.entry(name.clone()).or_default();
                    fill(&mut service.tcp, Some(ports), name, &mut refused);
                }
                Some(service) if service.tun => {
                    refused.push(format!(
                        "{name} is served by a TUN device, says its serve configuration"
                    ));
                }
                Some(_) => {}
            }
        }
        (new, refused)
    }
}

/// Replaces what leads to doors.
fn fill(
    tcp: &mut BTreeMap<u16, TcpPortHandler>,
    wanted: Option<&Ports>,
    host: &str,
    refused: &mut Vec<String>,
) {
    tcp.retain(|_, handler| !leads_to_door(handler));
    for (port, door) in wanted.into_iter().flatten() {
        if tcp.contains_key(port) {
            refused.push(format!("port {port} of {host} is taken by another serve configuration"));
            continue;
        }
        let (tcp_forward, proxy_protocol) = (door.to_string(), PROXY_PROTOCOL);
        let handler = TcpPortHandler { tcp_forward, proxy_protocol, ..TcpPortHandler::default() };
        tcp.insert(*port, handler);
    }
}

/// Whether it leads to a door, ours or an earlier process's.
pub(super) fn leads_to_door(handler: &TcpPortHandler) -> bool {
    let to = handler.tcp_forward.parse::<SocketAddr>();
    to.is_ok_and(|to| to.ip() == IpAddr::V4(DOORS))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pod::view::Own;

    fn view() -> View {
        let ips = |texts: [&str; 2]| texts.map(|text| text.parse().unwrap()).to_vec();
        let hosted = [("svc:web".to_owned(), ips(["100.99.0.1", "fd7a::99"]))].into();
        let addresses = ips(["100.64.0.1", "fd7a::1"]);
        let mut view = View::default();
        view.own = Some(Own { addresses, hosted, ..Own::default() });
        view
    }

    fn doors(of: &[(&str, u16)]) -> Doors {
        let door = |port| SocketAddr::new(DOORS.into(), port);
        of.iter().map(|(frontend, port)| (frontend.parse().unwrap(), door(*port))).collect()
    }

    fn merged(wanted: &Wanted, config: serde_json::Value) -> (serde_json::Value, Vec<String>) {
        let (new, refused) = wanted.merge(&serde_json::from_value(config).unwrap());
        (serde_json::to_value(new).unwrap(), refused)
    }

    #[test]
    fn both_families_of_a_port_share_a_door_and_services_have_their_own() {
        let doors = doors(&[
            ("100.64.0.1:80", 1000),
            ("[fd7a::1]:80", 1001),
            ("100.99.0.1:80", 1002),
            ("[fd7a::99]:80", 1003),
            ("100.99.0.2:80", 1004),
        ]);
        let wanted = Wanted::new(&view(), &doors);
        let (config, refused) = merged(&wanted, json!({}));
        let to = |port: u16| json!({"80": {"TCPForward": format!("127.83.76.1:{port}"), "ProxyProtocol": 2}});
        assert_eq!(config, json!({"TCP": to(1000), "Services": {"svc:web": {"TCP": to(1002)}}}));
        assert_eq!(refused.len(), 1);
        assert!(refused[0].contains("100.99.0.2"), "{refused:?}");
        assert_eq!(hosts(&view()).len(), 2);
    }

    #[test]
    fn what_others_have_put_there_stays_and_what_was_ours_goes() {
        let theirs = json!({
            "TCP": {"443": {"HTTPS": true}, "22": {"TCPForward": "127.0.0.1:22"}},
            "Web": {"a:443": {"Handlers": {"/": {"Text": "x"}}}},
            "Services": {"svc:web": {"TCP": {"443": {"HTTPS": true}}}, "svc:other": {"Tun": true}},
            "New": 1,
        });
        let mut before = theirs.clone();
        let stale = json!({"TCPForward": "127.83.76.1:9", "ProxyProtocol": 2});
        before["TCP"]["8080"] = stale.clone();
        before["Services"]["svc:web"]["TCP"]["80"] = stale.clone();
        before["Services"]["svc:gone"] = json!({"TCP": {"80": stale}});
        let (after, refused) = merged(&Wanted::default(), before);
        assert_eq!((after, refused), (theirs.clone(), Vec::new()));

        let doors = doors(&[("100.64.0.1:443", 1), ("100.64.0.1:80", 2), ("100.99.0.1:443", 3)]);
        let (after, refused) = merged(&Wanted::new(&view(), &doors), theirs.clone());
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert!(refused.iter().all(|text| text.contains("port 443")));
        assert_eq!(after["TCP"]["443"], theirs["TCP"]["443"]);
        assert_eq!(after["TCP"]["80"]["TCPForward"], "127.83.76.1:2");
        assert_eq!(after["Services"], theirs["Services"]);
    }
}
