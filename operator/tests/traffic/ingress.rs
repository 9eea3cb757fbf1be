//! From the tailnet to a Service of the cluster.

use std::net::SocketAddr;

use proxy_testbed::traffic::tcp::{Client, TcpServer};
use serde_json::{Value, json};

use crate::world::World;

#[test]
fn an_exposed_service_is_reached_from_the_tailnet_at_the_address_that_its_status_tells() {
    kernel_or_skip!();
    World::with(&[], |world| {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web", "namespace": "shop" },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "tailscale",
                "allocateLoadBalancerNodePorts": false,
                "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80 }],
            },
        });
        world.apply(&service);
        let cluster_ip = world.get(&service)["spec"]["clusterIP"].as_str().unwrap().to_owned();
        // As kube-proxy would have it: who asks the Service reaches a pod that serves.
        let host = &world.cluster.namespace;
        host.ip([format!("address add {cluster_ip}/32 dev bridge").as_str()]).unwrap();
        let _server = TcpServer::new(host, &format!("{cluster_ip}:80")).unwrap();

        let pod = world.start_pod("web");
        let told = |service: &Value| {
            let first = &service["status"]["loadBalancer"]["ingress"];
            first.as_array().is_some_and(|all| all.iter().any(|one| one["ip"].is_string()))
        };
        let service = world.wait(&service, "an address in the status", &pod, told);
        let ingress = service["status"]["loadBalancer"]["ingress"].as_array().unwrap();
        let hostname = ingress.iter().find_map(|one| one["hostname"].as_str()).unwrap();
        let address = ingress.iter().filter_map(|one| one["ip"].as_str()?.parse().ok());
        let address = address.into_iter().find(std::net::IpAddr::is_ipv4).unwrap();
        let name = hostname.split('.').next().unwrap();
        world.peer.meet(name).unwrap();
        let client = &world.peer.underlay.namespace;
        let mut client = Client::connect(client, SocketAddr::new(address, 80))
            .unwrap_or_else(|error| panic!("{error}\n{}", pod.log()));
        client.echo(100_000).unwrap();
        assert_eq!(client.server.ip().to_string(), cluster_ip);
    });
}
