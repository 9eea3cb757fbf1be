//! From the tailnet to a subnet behind a Connector.

use std::net::SocketAddr;

use proxy_testbed::{
    DEADLINE, poll_until,
    tailnet::{HOSTS, Settings},
    traffic::tcp::{Client, TcpServer},
};
use serde_json::{Value, json};

use crate::world::{World, holds};

#[test]
fn a_subnet_is_reached_through_a_connector() {
    kernel_or_skip!();
    World::with(&["--accept-routes"], |world| {
        world.tailnet.configure(Settings { auto_approve: true, https: false }).unwrap();
        let host = SocketAddr::new(HOSTS[1][0].parse().unwrap(), 80);
        let _server = TcpServer::new(&world.cluster.namespace, &host.to_string()).unwrap();
        let connector = json!({
            "apiVersion": "tailscale.com/v1alpha1", "kind": "Connector",
            "metadata": { "name": "router" },
            "spec": { "hostname": "router", "subnetRouter": { "advertiseRoutes": ["10.77.0.0/24"] } },
        });
        world.apply(&connector);
        let pod = world.start_pod("router");
        let ready = |connector: &Value| {
            let has_device = connector["status"]["hostname"].is_string()
                || connector["status"]["devices"].as_array().is_some_and(|all| !all.is_empty());
            holds(connector, "ConnectorReady") && has_device
        };
        world.wait(&connector, "the Connector is ready", &pod, ready);
        world.peer.meet("router").unwrap();
        let client = &world.peer.underlay.namespace;
        let mut reached = None;
        poll_until(DEADLINE, "a connection to the subnet", || {
            reached = Client::connect(client, host).ok();
            reached.is_some()
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", pod.log()));
        reached.unwrap().echo(100_000).unwrap();
    });
}
