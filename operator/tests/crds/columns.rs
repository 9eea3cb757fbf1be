//! What users see of the kinds: names, columns, and the status that fills them.

use std::collections::BTreeMap;

use anyhow::Result;
use hyper::Request;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use kube::{
    Api, Client, Error,
    api::{Patch, PatchParams, PostParams},
};
use operator::{
    crd::{
        GROUP, ProxyGroup, VERSION,
        connector::{ConnectorDevice, ConnectorStatus},
        data_path::{DataPathStatus, PortTraffic, TargetStatus},
        peer_relay::{PeerRelayStatus, RelayEndpoint},
        proxy_class::ProxyClassStatus,
        proxy_group::{ProxyGroupDevice, ProxyGroupSpec, ProxyGroupStatus},
        recorder::{RecorderDevice, RecorderStatus},
    },
    status::{ConditionType, Finding, Holds, set_condition},
};
use serde_json::{Value, json};

use super::{
    kernel_or_skip,
    server::{named, object, objects, set_status, start, yaml},
};

fn conditions(condition: ConditionType) -> Vec<Condition> {
    let mut conditions = Vec::new();
    let finding = Finding {
        condition,
        holds: Holds::True,
        reason: "ItWorks",
        message: String::new(),
        generation: Some(1),
    };
    set_condition(&mut conditions, finding, Timestamp::now());
    conditions
}

fn data_path() -> DataPathStatus {
    DataPathStatus {
        mode: Some("ebpf".to_owned()),
        reason: Some("the best".to_owned()),
        generation: Some("0123".to_owned()),
        ports: vec![PortTraffic {
            name: Some("web".to_owned()),
            protocol: "tcp".to_owned(),
            port: 65535,
            packets: 1 << 53,
            bytes: i64::MAX as u64,
            ..PortTraffic::default()
        }],
        targets: vec![TargetStatus { target: "a".to_owned(), ..TargetStatus::default() }],
    }
}

/// An object, and how `kubectl get` shows it.
struct Row {
    kind: &'static str,
    spec: &'static str,
    status: Value,
    /// Columns with what stands in them; an age is what the clock makes of it.
    cells: Vec<(&'static str, &'static str)>,
}

fn rows() -> Vec<Row> {
    let connector = ConnectorStatus {
        conditions: conditions(ConditionType::ConnectorReady),
        subnet_routes: Some("10.0.0.0/8,192.0.2.0/24".to_owned()),
        is_exit_node: Some(true),
        is_app_connector: Some(false),
        tailnet_ips: vec!["100.64.0.9".to_owned()],
        hostname: Some("a.example.ts.net".to_owned()),
        devices: vec![ConnectorDevice {
            hostname: Some("a.example.ts.net".to_owned()),
            tailnet_ips: vec!["100.64.0.9".to_owned()],
        }],
        data_path: Some(data_path()),
    };
    let group = ProxyGroupStatus {
        conditions: conditions(ConditionType::ProxyGroupReady),
        devices: vec![ProxyGroupDevice {
            hostname: "pg-0".to_owned(),
            tailnet_ips: vec!["100.64.0.9".to_owned()],
            static_endpoints: vec!["192.0.2.1:30000".to_owned()],
        }],
        url: Some("https://pg.example.ts.net".to_owned()),
        data_path: Some(data_path()),
    };
    let class = ProxyClassStatus { conditions: conditions(ConditionType::ProxyClassReady) };
    let recorder = RecorderStatus {
        conditions: conditions(ConditionType::RecorderReady),
        devices: vec![
            RecorderDevice { hostname: "rec-0".to_owned(), ..RecorderDevice::default() },
            RecorderDevice {
                hostname: "rec-1".to_owned(),
                url: Some("https://rec-1.example.ts.net".to_owned()),
                ..RecorderDevice::default()
            },
        ],
    };
    let endpoint = |replica, address: &str| RelayEndpoint {
        replica,
        address: address.to_owned(),
        port: 41641,
    };
    let relay = PeerRelayStatus {
        conditions: conditions(ConditionType::PeerRelayReady),
        endpoints: vec![endpoint(0, "192.0.2.1"), endpoint(0, "192.0.2.2")],
    };
    let of = |kind, spec, status: serde_json::Result<Value>, cells: &[_]| Row {
        kind,
        spec,
        status: status.unwrap(),
        cells: cells.to_vec(),
    };
    let tailnet = json!({ "conditions": conditions(ConditionType::TailnetReady) });
    vec![
        of(
            "Connector",
            "{exitNode: true}",
            serde_json::to_value(connector),
            &[
                ("SubnetRoutes", "10.0.0.0/8,192.0.2.0/24"),
                ("IsExitNode", "true"),
                ("IsAppConnector", "false"),
                ("DataPath", "ebpf"),
                ("Status", "ItWorks"),
                ("Age", ""),
            ],
        ),
        of("ProxyClass", "{}", serde_json::to_value(class), &[("Status", "ItWorks"), ("Age", "")]),
        of(
            "ProxyGroup",
            "{type: egress}",
            serde_json::to_value(group),
            &[
                ("Status", "ItWorks"),
                ("URL", "https://pg.example.ts.net"),
                ("Type", "egress"),
                ("DataPath", "ebpf"),
                ("Age", ""),
            ],
        ),
        of("ProxyGroupPolicy", "{}", Ok(json!({})), &[("Age", "")]),
        of(
            "Recorder",
            "{}",
            serde_json::to_value(recorder),
            &[("Status", "ItWorks"), ("URL", "https://rec-1.example.ts.net"), ("Age", "")],
        ),
        of(
            "Tailnet",
            "{credentials: {secretName: a}}",
            Ok(tailnet),
            &[("Age", ""), ("Status", "ItWorks")],
        ),
        of(
            "PeerRelay",
            "{}",
            serde_json::to_value(relay),
            &[("Age", ""), ("Status", "ItWorks"), ("Endpoints", "192.0.2.1")],
        ),
        of(
            "DNSConfig",
            "{nameserver: {}}",
            Ok(json!({ "nameserver": { "ip": "10.96.0.53" } })),
            &[("NameserverIP", "10.96.0.53"), ("Age", "")],
        ),
    ]
}

/// What `kubectl get` asks for: names of columns and cells of the first row.
async fn table(client: &Client, kind: &str) -> Result<Vec<(String, String)>> {
    let api = objects(client, kind);
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let request = Request::get(api.resource_url()).header("accept", accept).body(Vec::new())?;
    let table: Value = client.request(request).await?;
    let names = table["columnDefinitions"].as_array().unwrap().iter();
    let cells = table["rows"][0]["cells"].as_array().unwrap().iter();
    let text = |cell: &Value| match cell {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    Ok(names.zip(cells).map(|(name, cell)| (text(&name["name"]), text(cell))).collect())
}

#[test]
fn users_see_the_columns_of_the_contract_and_the_data_path() {
    kernel_or_skip!();
    let server = start();
    let run = async |client: Client| {
        for Row { kind, spec, status, cells } in rows() {
            let api = objects(&client, kind);
            api.create(&PostParams::default(), &object(kind, "a", &yaml(spec))?).await?;
            let stored = set_status(&api, "a", &status).await?;
            let found = stored.data.get("status").cloned().unwrap_or_default();
            assert!(found == status || status == json!({}), "{kind}: {found} is not {status}");
            let shown = table(&client, kind).await?;
            assert_eq!(shown[0], ("Name".to_owned(), "a".to_owned()), "{kind}");
            for (place, (name, cell)) in cells.iter().enumerate() {
                let (found_name, found_cell) = &shown[place + 1];
                assert_eq!(found_name, name, "{kind}");
                assert!(*name == "Age" || found_cell == cell, "{kind} {name}: {found_cell}");
            }
            assert_eq!(shown.len(), cells.len() + 1, "{kind}: {shown:?}");
        }
        Ok(())
    };
    server.admin(run).unwrap();
}

#[test]
fn kinds_have_their_names_and_scopes_and_a_status_of_its_own() {
    kernel_or_skip!();
    let server = start();
    let run = async |client: Client| {
        let group = format!("{GROUP}/{VERSION}");
        let list = client.list_api_group_resources(&group).await?;
        let mut names = BTreeMap::new();
        let mut statuses = 0;
        for resource in list.resources {
            if resource.name.ends_with("/status") {
                statuses += 1;
                continue;
            }
            let short = resource.short_names.unwrap_or_default().join(",");
            let found = (short, resource.singular_name, resource.namespaced);
            names.insert(resource.kind, (resource.name, found));
        }
        let wanted = [
            ("Connector", "connectors", "cn"),
            ("DNSConfig", "dnsconfigs", "dc"),
            ("PeerRelay", "peerrelays", "pr"),
            ("ProxyClass", "proxyclasses", ""),
            ("ProxyGroup", "proxygroups", "pg"),
            ("ProxyGroupPolicy", "proxygrouppolicies", "pgp"),
            ("Recorder", "recorders", "rec"),
            ("Tailnet", "tailnets", "tn"),
        ];
        let wanted = wanted.map(|(kind, plural, short)| {
            let namespaced = kind == "ProxyGroupPolicy";
            let rest = (short.to_owned(), kind.to_lowercase(), namespaced);
            (kind.to_owned(), (plural.to_owned(), rest))
        });
        assert_eq!(names, BTreeMap::from(wanted));
        assert_eq!(statuses, 8);
        Ok(())
    };
    server.admin(run).unwrap();
}

#[test]
fn a_condition_is_bounded_and_two_writers_keep_one_of_each_type() {
    kernel_or_skip!();
    let server = start();
    let run = async |client: Client| {
        let api: Api<ProxyGroup> = Api::all(client.clone());
        api.create(&PostParams::default(), &ProxyGroup::new("a", ProxyGroupSpec::default()))
            .await?;
        let apply = async |manager: &str, conditions: Value| {
            let patch = json!({
                "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ProxyGroup",
                "status": { "conditions": conditions },
            });
            let params = PatchParams::apply(manager);
            api.patch_status("a", &params, &Patch::Apply(patch)).await
        };
        let ready = conditions(ConditionType::ProxyGroupReady);
        let available = conditions(ConditionType::ProxyGroupAvailable);
        apply("one", serde_json::to_value(&ready)?).await?;
        let both = apply("two", serde_json::to_value(&available)?).await?;
        let types: Vec<_> =
            both.status.unwrap().conditions.into_iter().map(|each| each.type_).collect();
        assert_eq!(types, ["ProxyGroupReady", "ProxyGroupAvailable"]);

        for (field, value) in [
            ("reason", json!("")),
            ("reason", json!("not a word")),
            ("status", json!("Maybe")),
            ("type", json!("a b")),
            ("message", json!("x".repeat(32_769))),
            ("observedGeneration", json!(-1)),
            ("lastTransitionTime", json!("yesterday")),
        ] {
            let mut broken = serde_json::to_value(&ready)?;
            broken[0][field] = value;
            let Err(Error::Api(status)) = apply("one", broken).await else {
                panic!("{field} was accepted");
            };
            let fields = named(&status);
            let wanted = format!(".{field}");
            assert!(fields.iter().any(|each| each.ends_with(&wanted)), "{field}: {fields:?}");
        }
        Ok(())
    };
    server.admin(run).unwrap();
}
