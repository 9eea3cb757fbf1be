//! From the cluster to a host of the tailnet.

use std::net::SocketAddr;

use proxy_testbed::traffic::tcp::{Client, TcpServer};
use serde_json::json;

use crate::world::{World, holds};

#[test]
fn a_host_of_the_tailnet_is_reached_through_an_egress_service() {
    kernel_or_skip!();
    World::with(&[], |world| {
        let [target, _] = world.peer.addresses().unwrap();
        let _server =
            TcpServer::new(&world.peer.underlay.namespace, &format!("{target}:5432")).unwrap();
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "database", "namespace": "shop",
                "annotations": { "tailscale.com/tailnet-ip": target.to_string() } },
            "spec": { "type": "ExternalName", "externalName": "placeholder" },
        });
        world.apply(&service);
        let pod = world.start_pod("database");
        let ready = |service: &serde_json::Value| holds(service, "TailscaleProxyReady");
        let service = world.wait(&service, "the Service is ready", &pod, ready);
        let name = service["spec"]["externalName"].as_str().unwrap();
        assert!(name.ends_with(".tailscale.svc.cluster.local"), "{name}");
        let device = name.split('.').next().unwrap();
        let pod_name = format!("{device}-0");
        assert_eq!(pod.underlay.name, pod_name, "the name is that of the pods");
        // The headless Service's name would be resolved to the pod's addresses.
        let [at, _] = pod.addresses;
        let connect = || Client::connect(&world.cluster.namespace, SocketAddr::new(at, 5432));
        let mut client = None;
        proxy_testbed::poll_until(crate::world::PATIENCE, "a connection", || {
            client = connect().ok();
            client.is_some()
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.log()));
        let mut client = client.unwrap();
        client.echo(100_000).unwrap();
        assert_eq!(client.server, SocketAddr::new(target, 5432));
    });
}
