//! What objects say of their traffic.

use std::{sync::Arc, time::Duration};

use clap::Parser;
use kube::{Api, ResourceExt as _};
use operator::{
    context::{Context, Settings},
    crd::{Connector, data_path::DataPathStatus},
    tailnet_api::{Registry, fake::FakeTailnet},
};
use serde_json::json;
use tokio::sync::oneshot;

use crate::{
    bed::{Bed, NAMESPACE, in_cluster, wait_until},
    proxies::{Proxy, make_connector},
};

/// Once a minute is too seldom for a test.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

/// Counts in a cluster while something happens.
async fn counting(bed: &Bed<'_>, test: impl AsyncFnOnce(&Context)) {
    let settings = Flags::parse_from(["operator", "--namespace", NAMESPACE]).settings;
    let client = bed.server.client(bed.account.token()).unwrap();
    let registry = Registry::new(Arc::new(FakeTailnet::new("https://control.example")));
    let context = Arc::new(Context::new(client, settings, registry));
    context.cache.wait_until_ready().await;
    let (stop, stopped) = oneshot::channel::<()>();
    let own = Arc::clone(&context);
    let counting = tokio::spawn(async move {
        let stop = async { drop(stopped.await) };
        own.counters.run(Arc::clone(&own), INTERVAL, stop).await;
    });
    test(&context).await;
    stop.send(()).unwrap();
    counting.await.unwrap();
    assert!(context.counters.reports(&context).await.is_none(), "another replica's turn");
}

async fn connector(bed: &Bed<'_>) -> Connector {
    Api::<Connector>::all(bed.client.clone()).get("routes").await.unwrap()
}

async fn status(bed: &Bed<'_>) -> DataPathStatus {
    connector(bed).await.status.and_then(|status| status.data_path).unwrap_or_default()
}

async fn wait_packets(bed: &Bed<'_>, packets: u64) {
    let what = format!("{packets} packets");
    wait_until(&what, async || {
        status(bed).await.ports.first().is_some_and(|port| port.packets == packets)
    })
    .await;
}

#[test]
fn a_status_follows_the_traffic_of_all_replicas_and_an_idle_one_is_not_written() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        make_connector(&bed.client, "routes").await;
        let first = Proxy::start(&bed.client, "routes", 0).await;
        let second = Proxy::start(&bed.client, "routes", 1).await;
        counting(bed, async |context| {
            wait_packets(bed, 2).await;
            let told = status(bed).await;
            assert_eq!(told.mode.as_deref(), Some("userspace"));
            assert_eq!(told.generation.as_deref(), Some("0eeea61baa1be637"));
            let port = &told.ports[0];
            assert_eq!(
                (port.name.as_deref(), port.protocol.as_str(), port.port),
                (Some("default/web"), "tcp", 8443)
            );
            assert_eq!(
                (port.bytes, port.reply_packets, port.reply_bytes, port.flows),
                (156, 4, 1464, 2)
            );

            // Nothing happens: nothing is written.
            let before = connector(bed).await;
            tokio::time::sleep(INTERVAL * 10).await;
            assert_eq!(connector(bed).await.resource_version(), before.resource_version());
            let managers = before.managed_fields().iter().filter_map(|own| own.manager.as_deref());
            let managers: std::collections::BTreeSet<_> = managers.collect();
            assert_eq!(managers, ["sluice-operator-counters", "user"].into());

            first.carried(10);
            wait_packets(bed, 11).await;
            // Restarted: it counts from nothing.
            first.carried(2);
            wait_packets(bed, 13).await;
            drop(second);
            wait_until("one does not answer", async || {
                let reports = context.counters.reports(context).await.unwrap();
                reports.parents[0].pods.iter().any(|pod| pod.error.is_some())
            })
            .await;
            first.carried(3);
            wait_packets(bed, 14).await;
        })
        .await;
    });
}

#[test]
fn a_change_of_the_data_path_and_a_target_that_fails_are_told_once() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        make_connector(&bed.client, "routes").await;
        let proxy = Proxy::start(&bed.client, "routes", 0).await;
        counting(bed, async |_| {
            wait_packets(bed, 1).await;
            assert!(bed.events("DataPathChanged").await.is_empty(), "it has not changed");
            let refusal = json!({ "kind": "ebpf", "reason": "capability", "message": "capability BPF is missing" });
            proxy.tell("/data_path/refusals", json!([refusal]));
            proxy.tell("/data_path/kind", json!("nftables"));
            wait_until("it is told", async || !bed.events("DataPathChanged").await.is_empty()).await;
            let told = bed.events("DataPathChanged").await;
            assert_eq!(told, ["traffic is carried by nftables, before by userspace: ebpf: capability BPF is missing"]);

            let target = |installed: bool| json!({ "rule": "db", "target": "db.example.ts.net", "installed": installed,
                "reason": "NoSuchName", "message": "no device or Service has this name" });
            proxy.tell_targets(json!([target(false)]));
            wait_until("it fails", async || !bed.events("TargetFailing").await.is_empty()).await;
            wait_until("its status says so", async || {
                status(bed).await.targets.first().is_some_and(|target| !target.ready)
            })
            .await;
            proxy.tell_targets(json!([target(true)]));
            wait_until("it is reached", async || !bed.events("TargetReached").await.is_empty()).await;
            tokio::time::sleep(INTERVAL * 5).await;
            let told = bed.events("TargetFailing").await;
            assert_eq!(told, ["db.example.ts.net is not reached (NoSuchName): no device or Service has this name"]);
            assert_eq!(bed.events("TargetReached").await, ["db.example.ts.net is reached again"]);
            assert_eq!(bed.events("DataPathChanged").await.len(), 1);
        })
        .await;
    });
}
