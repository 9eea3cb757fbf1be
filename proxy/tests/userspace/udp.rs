//! UDP sessions.

use std::net::{Ipv6Addr, UdpSocket};

use proxy::data_path::DataPath;
use proxy_rules::{BackendState, DropReason, Protocol};

use crate::support::*;

#[test]
fn every_client_gets_its_own_replies_from_the_frontend() {
    let (echo, front) = (Echo::udp(local(), b""), frontend());
    let rule = rule(Protocol::Udp, front, &[echo.address]);
    let path = path([rule.clone()]);
    let clients = [(); 20].map(|()| udp_client(front));
    for round in 0..3u8 {
        for (index, client) in clients.iter().enumerate() {
            client.send(&[round, index as u8, 0, 0, 0]).unwrap();
        }
        for (index, client) in clients.iter().enumerate() {
            let mut buffer = [0; 32];
            assert_eq!(client.recv(&mut buffer).unwrap(), 5);
            assert_eq!(buffer[..2], [round, index as u8]);
        }
    }
    let count = count(&path, &rule);
    assert_eq!((count.original_packets, count.original_bytes), (60, 60 * 33));
    assert_eq!((count.reply_packets, count.reply_bytes), (60, 60 * 33));
    assert_eq!((count.flows, path.counters().unwrap().live_flows), (20, Some(20)));
}

#[test]
fn ipv6_is_carried_and_counted_with_its_longer_header() {
    let (echo, front) = (Echo::udp(Ipv6Addr::LOCALHOST.into(), b"re:"), frontend6());
    let rule = rule(Protocol::Udp, front, &[echo.address]);
    let path = path([rule.clone()]);
    assert_eq!(ask(&udp_client(front), b"six"), b"re:six");
    let count = count(&path, &rule);
    assert_eq!((count.original_bytes, count.reply_bytes), (48 + 3, 48 + 6));
}

#[test]
fn any_datagram_is_carried_as_it_is() {
    let (echo, front) = (Echo::udp(local(), b""), frontend());
    let _path = path([rule(Protocol::Udp, front, &[echo.address])]);
    let client = udp_client(front);
    let mut state = 1_u32;
    for length in [0, 1, 2, 1472, 1473, 9000, 65_000, 65_507] {
        let payload: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(length)
        .collect();
        assert!(ask(&client, &payload) == payload, "{length} bytes");
    }
}

#[test]
fn a_session_moves_when_its_backend_is_removed_and_stays_while_it_drains() {
    let (one, two, front) = (Echo::udp(local(), b"1"), Echo::udp(local(), b"2"), frontend());
    let mut path = path([rule(Protocol::Udp, front, &[one.address])]);
    let client = udp_client(front);
    assert_eq!(ask(&client, b"a"), b"1a");

    let mut both = rule(Protocol::Udp, front, &[one.address, two.address]);
    for backend in &mut backends(&mut both).list {
        if backend.address == one.address.ip() {
            backend.state = BackendState::Draining;
        }
    }
    path.apply(&table([both])).unwrap();
    assert_eq!(ask(&client, b"b"), b"1b");
    assert_eq!(ask(&udp_client(front), b"b"), b"2b");

    let only = rule(Protocol::Udp, front, &[two.address]);
    path.apply(&table([only.clone()])).unwrap();
    assert_eq!(ask(&client, b"c"), b"2c");
    assert_eq!(count(&path, &only).flows, 3);
    eventually("the old session is gone", || path.counters().unwrap().live_flows == Some(2));
}

#[test]
fn without_a_backend_datagrams_are_dropped_and_counted() {
    let front = frontend();
    let rule = rule(Protocol::Udp, front, &[]);
    let path = path([rule.clone()]);
    let client = udp_client(front);
    for _ in 0..3 {
        client.send(b"nobody").unwrap();
    }
    eventually("three drops", || drops(&path, DropReason::NoBackend) == 3);
    assert_eq!((count(&path, &rule).dropped, count(&path, &rule).flows), (3, 0));
}

#[test]
fn an_unreachable_port_behind_the_frontend_is_counted_and_the_session_lives() {
    let front = frontend();
    let closed = UdpSocket::bind((local(), 0)).unwrap();
    let backend = closed.local_addr().unwrap();
    drop(closed);
    let rule = rule(Protocol::Udp, front, &[backend]);
    let path = path([rule.clone()]);
    let client = udp_client(front);
    client.send(b"lost").unwrap();
    eventually("the refusal is counted", || drops(&path, DropReason::BackendGone) > 0);

    let socket = UdpSocket::bind(backend).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    client.send(b"found").unwrap();
    let mut buffer = [0; 16];
    let (length, from) = socket.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"found");
    socket.send_to(b"reply", from).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 5);
    assert_eq!(count(&path, &rule).flows, 1);
}
