//! A node that joins a tailnet and leaves it, and others that do.

use std::{collections::BTreeSet, net::IpAddr, sync::Mutex};

use proxy::localapi::{NodeId, Notify, State};
use proxy_testbed::{
    Tailnet,
    tailnet::{Mask, NodeChange},
};

use crate::{everything, node, skipped, tagged, until};

#[tokio::test(flavor = "multi_thread")]
async fn log_in_and_out_are_seen_on_the_bus() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "joining");
    let mut bus = api.watch(everything()).await.unwrap();
    node.up(&tailnet.auth_key(&tagged()).unwrap(), &[]).unwrap();
    until(&mut bus, "the log-in", |notify| notify.login_finished).await;
    let addresses = node.addresses().unwrap();
    let own = until(&mut bus, "its own node", |notify| notify.self_change.is_some()).await;
    let own = own.self_change.unwrap();
    assert_eq!(own.name, "joining.tailnet.ts.net.");
    assert_eq!(own.ips().collect::<Vec<_>>(), addresses);
    assert_eq!((own.allowed_ips, &*own.tags), (own.addresses, &["tag:k8s".to_owned()][..]));
    until(&mut bus, "that it runs", |notify| notify.state == Some(State::Running)).await;
    let status = api.status(true).await.unwrap();
    assert_eq!((status.state(), status.auth_url), (Some(State::Running), None));
    assert_eq!(status.magic_dns_suffix, "tailnet.ts.net");
    assert_eq!(status.tailscale_ips, addresses);
    let known = status.self_node.unwrap();
    let info = tailnet.find("joining").unwrap();
    assert_eq!((known.stable_id, known.public_key), (info.stable_id, info.key));
    assert_eq!(known.id, NodeId(info.id as i64));

    api.logout().await.unwrap();
    until(&mut bus, "that it must log in", |notify| notify.state == Some(State::NeedsLogin)).await;
    assert_eq!(api.status(false).await.unwrap().state(), Some(State::NeedsLogin));
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_come_change_and_go_are_seen_on_the_bus() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (watching, api) = node(&tailnet, "watching");
    let key = tailnet.auth_key(&tagged()).unwrap();
    watching.up(&key, &[]).unwrap();
    let mut bus = api.watch(everything()).await.unwrap();
    assert!(bus.next().await.unwrap().unwrap().initial_status.unwrap().peers.is_empty());

    let (peer, _) = node(&tailnet, "peer");
    peer.up(&key, &["--advertise-routes=192.0.2.0/24"]).unwrap();
    let info = tailnet.find("peer").unwrap();
    let id = NodeId(info.id as i64);
    let of = |notify: &Notify| notify.peers_changed.iter().find(|node| node.id == id).cloned();
    let seen = until(&mut bus, "the peer", |notify| of(notify).is_some()).await;
    let seen = of(&seen).unwrap();
    assert_eq!((&seen.name, &seen.key), (&"peer.tailnet.ts.net.".to_owned(), &info.key));
    assert_eq!(seen.ips().collect::<Vec<_>>(), info.addresses);
    let status = api.status(true).await.unwrap();
    assert_eq!(status.peers[&info.key].dns_name, seen.name);

    let route = "192.0.2.0/24".parse().unwrap();
    tailnet.approve(info.id, &["192.0.2.0/24"]).unwrap();
    until(&mut bus, "its route", |notify| {
        of(notify).is_some_and(|node| node.primary_routes == [route])
    })
    .await;

    let addresses: [IpAddr; 2] =
        ["100.64.7.7", "fd7a:115c:a1e0::707"].map(|text| text.parse().unwrap());
    let change = NodeChange { addresses: Some(addresses), ..NodeChange::default() };
    tailnet.change(info.id, &change).unwrap();
    let moved = until(&mut bus, "its new addresses", |notify| {
        of(notify).is_some_and(|node| node.ips().eq(addresses))
    })
    .await;
    assert!(of(&moved).unwrap().allowed_ips.contains(&route), "its route stays");

    let who = api.whois((addresses[1], 80).into()).await.unwrap().unwrap();
    assert_eq!((who.node.id, who.node.name), (id, seen.name));
    assert_eq!(who.user_profile.login_name, "tagged-devices");

    tailnet.delete(info.id).unwrap();
    until(&mut bus, "its removal", |notify| notify.peers_removed.contains(&id)).await;
    assert_eq!(api.whois((addresses[1], 80).into()).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_thousands_of_peers_none_is_missed() {
    const MANY: usize = 3000;
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let (node, api) = node(&tailnet, "crowd");
    node.up(&tailnet.auth_key(&tagged()).unwrap(), &[]).unwrap();
    let mut bus = api.watch(everything()).await.unwrap();
    bus.next().await.unwrap();
    tailnet.add_fakes(MANY, "fake").unwrap();
    let peers = Mutex::new(BTreeSet::new());
    until(&mut bus, "all peers", |notify| {
        let mut peers = peers.lock().unwrap();
        peers.extend(notify.peers_changed.iter().map(|node| node.id));
        peers.len() == MANY
    })
    .await;
    let status = api.status(true).await.unwrap();
    assert_eq!(status.peers.len(), MANY);
    // A new watch begins with the same, in one message.
    let first = api.watch(everything()).await.unwrap().next().await.unwrap().unwrap();
    assert_eq!(first.initial_status.unwrap().peers.len(), MANY);
    tailnet.remove_fakes().unwrap();
    until(&mut bus, "that all are gone", |notify| {
        let mut peers = peers.lock().unwrap();
        peers.retain(|id| !notify.peers_removed.contains(id));
        peers.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_knows_us_by_another_address_says_so() {
    if skipped() {
        return;
    }
    let tailnet = Tailnet::start().unwrap();
    let key = tailnet.auth_key(&tagged()).unwrap();
    let ((left, api), (right, _)) = (node(&tailnet, "left"), node(&tailnet, "right"));
    left.up(&key, &[]).unwrap();
    right.up(&key, &[]).unwrap();
    left.wait_peer("right").unwrap();
    let mut bus = api.watch(everything()).await.unwrap();
    let (own, peer) = (tailnet.find("left").unwrap().id, tailnet.find("right").unwrap().id);
    let address = "100.99.0.1".parse().unwrap();
    tailnet.set_masks(&[Mask { node: own, peer, addresses: vec![address] }]).unwrap();
    let seen = until(&mut bus, "the masquerade", |notify| {
        notify.peers_changed.iter().any(|node| node.masquerade4 == Some(address))
    })
    .await;
    assert_eq!(seen.peers_changed[0].masquerade6, None);
}
