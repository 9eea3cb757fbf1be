use proxy_rules::{Protocol, config::PortMap, validate};
use serde_json::json;

use super::*;
use crate::localapi::parse;

fn view() -> View {
    let mut view = View::default();
    let notice = json!({
        "SelfChange": {"ID": 1, "Name": "pod.ts.net.", "Addresses": ["100.64.0.1/32", "fd7a::1/128"],
                       "CapMap": {"service-host": [{"svc:web": ["100.99.0.9"]}]}},
        "PeersChanged": [
            {"ID": 2, "Name": "both.ts.net.", "Addresses": ["100.64.0.2/32", "fd7a::2/128"]},
            {"ID": 3, "Name": "six.ts.net.", "Addresses": ["fd7a::3/128"]},
        ],
        "Prefs": {"AdvertiseRoutes": ["10.0.0.0/8", "0.0.0.0/0"]},
    });
    view.apply(&parse::notify(notice.to_string().as_bytes()).unwrap());
    view
}

fn service(name: &str, frontends: &[&str], backends: &[&str]) -> Service {
    let backend = |address: &&str| Backend { address: (*address).to_owned(), ..Backend::default() };
    Service {
        name: name.to_owned(),
        frontends: frontends.iter().map(ToString::to_string).collect(),
        backends: backends.iter().map(backend).collect(),
        ports: vec![PortMap { protocol: Protocol::Tcp, ..PortMap::default() }],
        ..Service::default()
    }
}

fn resolved(document: &Document, pod: &[&str]) -> Resolved {
    let pod: Vec<IpAddr> = pod.iter().map(|text| text.parse().unwrap()).collect();
    let names = HashMap::from([
        (
            "dual.example".to_owned(),
            Ok(vec!["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]),
        ),
        ("gone.example".to_owned(), Err("no such name".to_owned())),
    ]);
    let view = view();
    let resolved = resolve(document, &Facts { view: &view, pod: &pod, names: &names });
    let mut document = resolved.document.clone();
    document.settings.interfaces.tailnet = vec!["tailscale0".into()];
    document.settings.interfaces.cluster = vec!["eth0".into()];
    validate::compile(&document).unwrap();
    resolved
}

fn reasons(resolved: &Resolved) -> Vec<Option<&'static str>> {
    let targets = resolved.targets.iter();
    targets.map(|target| target.trouble.as_ref().map(|trouble| trouble.reason)).collect()
}

#[test]
fn words_become_addresses_of_the_families_that_can_be_served() {
    let document = Document {
        ingress: vec![
            service("dual", &["tailnet"], &["dual.example"]),
            service("vip", &["svc:web"], &["dual.example"]),
        ],
        egress: vec![service("both", &["cluster"], &["both.ts.net"])],
        ..Document::default()
    };
    let out = resolved(&document, &["192.0.2.1"]);
    let frontends: Vec<_> = out.document.ingress.iter().map(|s| s.frontends.clone()).collect();
    assert_eq!(frontends, [vec!["100.64.0.1", "fd7a::1"], vec!["100.99.0.9"]]);
    let backends = |s: &Service| s.backends.iter().map(|b| b.address.clone()).collect::<Vec<_>>();
    assert_eq!(backends(&out.document.ingress[1]), ["10.0.0.1"], "no frontend of its family");
    assert_eq!(backends(&out.document.egress[0]), ["100.64.0.2"]);
    assert_eq!(reasons(&out), [None, None, None]);
    let four = vec![service("four", &["tailnet"], &["10.0.0.2"])];
    let out = resolved(&Document { ingress: four, ..Document::default() }, &[]);
    assert_eq!(out.document.ingress[0].frontends, ["100.64.0.1"]);
    assert_eq!(reasons(&out), [None]);
}

/// R05: what has IPv6 only gets no IPv4, and if the pod has no IPv6, that is said.
#[test]
fn a_target_of_another_family_is_told_and_gets_no_frontend() {
    let document = Document {
        egress: vec![service("six", &["cluster"], &["six.ts.net"])],
        ..Document::default()
    };
    let out = resolved(&document, &["192.0.2.1", "2001:db8:2::1"]);
    assert_eq!(out.document.egress[0].frontends, ["2001:db8:2::1"]);
    assert_eq!(reasons(&out), [None]);
    let out = resolved(&document, &["192.0.2.1"]);
    assert_eq!(out.document.egress, []);
    assert_eq!(reasons(&out), [Some("family")]);
    let message = &out.targets[0].trouble.as_ref().unwrap().message;
    assert!(message.contains("six.ts.net has IPv6 addresses only"), "{message}");
}

#[test]
fn a_target_without_address_is_refused_rather_than_left_to_time_out() {
    let document = Document {
        ingress: vec![
            service("gone", &["tailnet"], &["gone.example"]),
            service("new", &["tailnet"], &["new.example"]),
            service("none", &["svc:other"], &["10.0.0.2"]),
        ],
        egress: vec![service("nobody", &["cluster"], &["nobody.ts.net"])],
        ..Document::default()
    };
    assert_eq!(names(&document), ["gone.example".to_owned(), "new.example".to_owned()].into());
    let document = Document {
        ingress: vec![document.ingress[0].clone(), document.ingress[2].clone()],
        ..document
    };
    let out = resolved(&document, &["192.0.2.1"]);
    assert_eq!(out.document.ingress.len(), 1);
    assert_eq!(out.document.ingress[0].backends, []);
    assert_eq!(out.document.egress[0].backends, []);
    assert_eq!(reasons(&out), [Some("unresolved"), Some("no-frontend"), Some("unresolved")]);
}

#[test]
fn routes_are_what_is_advertised_and_what_the_subnet_reaches() {
    let route = |name: &str, from, word: &str| Route {
        name: name.into(),
        from,
        destinations: vec![word.into()],
        ..Route::default()
    };
    let document = Document {
        routes: vec![
            route("out", proxy_rules::Side::Tailnet, ADVERTISED),
            route("back", proxy_rules::Side::Cluster, REACHABLE),
        ],
        ..Document::default()
    };
    let out = resolved(&document, &[]);
    assert_eq!(out.document.routes[0].destinations, ["0.0.0.0/0", "10.0.0.0/8"]);
    assert_eq!(
        out.document.routes[1].destinations,
        ["100.64.0.2/32", "fd7a::2/128", "fd7a::3/128"]
    );
    assert_eq!(out.targets.len(), 2, "peers are no targets");
}

#[test]
fn only_what_the_tailnet_assigns_is_protected() {
    let mut document = Document::default();
    document.settings.protected_sources = vec![ASSIGNED.into(), "203.0.113.0/24".into()];
    let out = resolved(&document, &[]);
    let protected = &out.document.settings.protected_sources;
    let expected = [
        "203.0.113.0/24",
        "100.64.0.1",
        "100.64.0.2",
        "100.99.0.9",
        "fd7a::1",
        "fd7a::2",
        "fd7a::3",
    ];
    assert_eq!(*protected, expected);
}
