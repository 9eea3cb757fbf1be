use super::*;

/// As §3.1 of the catalogue has it.
const EGRESS_FILE: &str = r#"{"default-db":{"healthCheckEndpoint":"http://ts-db.tailscale.svc:9002/healthz",
  "tailnetTarget":{"ip":"","fqdn":"db.tail1234.ts.net"},
  "ports":[{"protocol":"TCP","matchPort":10432,"targetPort":5432},{"protocol":"udp","matchPort":10053,"targetPort":53}]},
 "default-bad":{"tailnetTarget":{"ip":"","fqdn":""},"ports":null},
 "default-odd":{"tailnetTarget":{"ip":"100.64.0.9","fqdn":""},"ports":[{"protocol":"SCTP","matchPort":1,"targetPort":2}]}}"#;

#[test]
fn an_egress_groups_file_becomes_services_and_one_bad_entry_spoils_no_other() {
    let file: EgressServices = serde_json::from_str(EGRESS_FILE).unwrap();
    let (services, errors) = file.services(&[9002]);
    let names: Vec<_> = services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["default-db"]);
    assert_eq!(services[0].backends[0].address, "db.tail1234.ts.net");
    let ports: Vec<_> = services[0].ports.iter().map(|p| (p.protocol, p.target_port)).collect();
    assert_eq!(ports, [(Protocol::Tcp, Some(5432)), (Protocol::Udp, Some(53))]);
    let paths: Vec<_> = errors.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["default-bad.tailnetTarget", "default-odd.ports[0].protocol"]);
}

/// The kubelet's probes would be led to the tailnet.
#[test]
fn a_port_that_the_pod_serves_itself_is_not_given_away() {
    let file: EgressServices = serde_json::from_str(EGRESS_FILE).unwrap();
    let (services, errors) = file.services(&[10_432, 10_053]);
    assert_eq!(services[0].ports.len(), 1, "UDP has ports of its own");
    assert!(errors.iter().any(|error| error.path == "default-db.ports[0].matchPort"));
}

#[test]
fn an_ingress_groups_file_becomes_services_of_the_families_that_have_addresses() {
    let text = r#"{"svc:web":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.2","ClusterIP":"10.0.3.4"},
        "IPv6Mapping":{"TailscaleServiceIP":"","ClusterIP":"fd00::4"}},
      "svc:bad":{"IPv4Mapping":{"TailscaleServiceIP":"100.99.1.3","ClusterIP":"invalid IP"}}}"#;
    let file: IngressConfig = serde_json::from_str(text).unwrap();
    let (services, errors) = file.services();
    assert_eq!(services.len(), 1);
    assert_eq!(services[0].frontends, ["100.99.1.2"]);
    assert_eq!(services[0].backends[0].address, "10.0.3.4");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].path, "svc:bad.IPv4Mapping.ClusterIP");
}

#[test]
fn statuses_are_written_as_upstreams_operator_reads_them() {
    let mut status = EgressStatus { pod_ipv4: "10.1.0.7".into(), ..EgressStatus::default() };
    let file: EgressServices = serde_json::from_str(EGRESS_FILE).unwrap();
    let installed = InstalledService {
        ports: file.0["default-db"].ports[..1].to_vec(),
        tailnet_target_ips: vec!["100.64.0.2".parse().unwrap()],
        tailnet_target: file.0["default-db"].tailnet_target.clone(),
    };
    status.services.insert("default-db".into(), installed);
    let expected = r#"{"podIPv4":"10.1.0.7","services":{"default-db":{"ports":[{"protocol":"TCP","matchPort":10432,"targetPort":5432}],"tailnetTargetIPs":["100.64.0.2"],"tailnetTarget":{"ip":"","fqdn":"db.tail1234.ts.net"}}}}"#;
    assert_eq!(serde_json::to_string(&status).unwrap(), expected);
    let status = IngressStatus { pod_ipv4: "10.1.0.7".into(), ..IngressStatus::default() };
    let expected = r#"{"configs":{},"podIPv4":"10.1.0.7","podIPv6":""}"#;
    assert_eq!(serde_json::to_string(&status).unwrap(), expected);
}
