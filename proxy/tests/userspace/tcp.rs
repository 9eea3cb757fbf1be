//! TCP connections.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Ipv6Addr, Shutdown, TcpStream},
    thread,
    time::Duration,
};

use proxy::data_path::DataPath;
use proxy_rules::{Action, Affinity, BackendState, DropReason, Protocol};

use crate::support::*;

#[test]
fn bytes_come_back_and_are_counted() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let rule = rule(Protocol::Tcp, front, &[echo.address]);
    let path = path([rule.clone()]);
    let mut client = connect(front);
    echoes(&mut client, b"hello");
    echoes(&mut client, &vec![7; 300_000]);
    let count = count(&path, &rule);
    assert_eq!((count.original_bytes, count.reply_bytes), (300_005, 300_005));
    assert_eq!((count.flows, count.dropped), (1, 0));
    assert!(count.original_packets >= 2 && count.reply_packets >= 2, "{count:?}");
    assert_eq!(path.counters().unwrap().live_flows, Some(1));
    drop(client);
    eventually("the flow ends", || path.counters().unwrap().live_flows == Some(0));
}

#[test]
fn ipv6_is_carried() {
    let (echo, front) = (Echo::tcp(Ipv6Addr::LOCALHOST.into()), frontend6());
    let _path = path([rule(Protocol::Tcp, front, &[echo.address])]);
    echoes(&mut connect(front), b"six");
}

#[test]
fn a_client_that_has_ended_its_direction_still_receives() {
    let ((server, address), front) = (listener(local()), frontend());
    let _path = path([rule(Protocol::Tcp, front, &[address])]);
    let mut client = connect(front);
    let mut backend = accept(&server);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    backend.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    backend.write_all(b"answer").unwrap();
    drop(backend);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn resets_pass_through_in_both_directions() {
    let ((server, address), front) = (listener(local()), frontend());
    let _path = path([rule(Protocol::Tcp, front, &[address])]);

    let mut client = connect(front);
    abort(accept(&server));
    assert_reset(&mut client);

    let client = connect(front);
    let mut backend = accept(&server);
    abort(client);
    assert_reset(&mut backend);

    // The reader of the client's direction has ended: only the socket's error tells.
    let client = connect(front);
    let mut backend = accept(&server);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(backend.read(&mut [0; 1]).unwrap(), 0);
    abort(client);
    // The backend's direction is not read to its end, so the reset shows as an error of a write.
    eventually("the backend's write fails", || backend.write_all(b"late").is_err());
}

#[test]
fn a_slow_reader_stops_the_sender_and_loses_nothing() {
    const LIMIT: usize = 64 << 20;
    let ((server, address), front) = (listener(local()), frontend());
    let _path = path([rule(Protocol::Tcp, front, &[address])]);
    let mut client = connect(front);
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut backend = accept(&server);
    let chunk: Vec<u8> = (0..=250).cycle().take(251 * 256).collect();
    let mut sent = 0;
    let error = loop {
        match client.write(&chunk[sent % chunk.len()..]) {
            Ok(written) => sent += written,
            Err(error) => break error,
        }
        assert!(sent < LIMIT, "nobody reads, and yet {sent} bytes were taken");
    };
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    client.shutdown(Shutdown::Write).unwrap();
    let mut received = Vec::new();
    backend.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), sent);
    assert!(received.iter().zip(chunk.iter().cycle()).all(|(a, b)| a == b), "bytes differ");
}

#[test]
fn an_abandoned_connection_does_not_wait_for_a_peer_that_never_reads() {
    let ((server, address), front) = (listener(local()), frontend());
    let path = path([rule(Protocol::Tcp, front, &[address])]);
    let mut client = connect(front);
    client.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let _backend = accept(&server);
    while client.write(&vec![0; 1 << 16]).is_ok() {}
    abort(client);
    eventually("the flow ends", || path.counters().unwrap().live_flows == Some(0));
}

#[test]
fn two_hundred_connections_at_once() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let rule = rule(Protocol::Tcp, front, &[echo.address]);
    let path = path([rule.clone()]);
    let mut clients: Vec<_> = (0..200).map(|_| connect(front)).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.write_all(&vec![index as u8; 10_000]).unwrap();
    }
    for (index, client) in clients.iter_mut().enumerate() {
        let mut back = vec![0; 10_000];
        client.read_exact(&mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == index as u8), "connection {index}");
    }
    let count = count(&path, &rule);
    assert_eq!((count.flows, count.original_bytes, count.reply_bytes), (200, 2_000_000, 2_000_000));
    assert_eq!(path.counters().unwrap().live_flows, Some(200));
}

#[test]
fn the_proxy_header_comes_first_and_names_client_and_frontend() {
    let ((server, address), front) = (listener(local()), frontend());
    let mut rule = rule(Protocol::Tcp, front, &[address]);
    if let Action::Dnat { proxy_protocol, .. } = &mut rule.action {
        *proxy_protocol = true;
    }
    let _path = path([rule]);
    let mut client = connect(front);
    client.write_all(b"payload").unwrap();
    let mut received = [0; 28 + 7];
    accept(&server).read_exact(&mut received).unwrap();
    let octets = |address: std::net::SocketAddr| match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets(),
        std::net::IpAddr::V6(ip) => panic!("{ip}"),
    };
    let from = client.local_addr().unwrap();
    let expected = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
        &octets(from),
        &octets(front),
        &from.port().to_be_bytes(),
        &front.port().to_be_bytes(),
        b"payload",
    ]
    .concat();
    assert_eq!(received[..], expected);
}

#[test]
fn a_backend_that_refuses_is_passed_over() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let (closed, refusing) = listener(local());
    drop(closed);
    let rule = rule(Protocol::Tcp, front, &[refusing, echo.address]);
    let path = path([rule.clone()]);
    for _ in 0..20 {
        echoes(&mut connect(front), b"served");
    }
    assert_eq!((echo.accepted(), count(&path, &rule).dropped), (20, 0));
}

#[test]
fn without_a_backend_clients_are_reset() {
    let (closed, refusing) = listener(local());
    drop(closed);
    let (none, all_refuse) = (frontend(), frontend());
    let rules =
        [rule(Protocol::Tcp, none, &[]), rule(Protocol::Tcp, all_refuse, &[refusing, refusing])];
    let path = path(rules.clone());
    for (rule, front) in rules.iter().zip([none, all_refuse]) {
        // The reset may arrive before or after the client knows that it is connected.
        match TcpStream::connect_timeout(&front, DEADLINE) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                assert_reset(&mut stream);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        eventually("the refused client is counted", || count(&path, rule).dropped == 1);
        assert_eq!(count(&path, rule).flows, 0);
    }
    assert_eq!(drops(&path, DropReason::NoBackend), 2);
}

#[test]
fn flows_of_a_removed_backend_are_reset_and_of_a_draining_one_kept() {
    let (one, two, front) = (Echo::tcp(local()), Echo::tcp(local()), frontend());
    let mut first = rule(Protocol::Tcp, front, &[one.address]);
    let mut path = path([first.clone()]);
    let mut client = connect(front);
    echoes(&mut client, b"before");

    let mut both = rule(Protocol::Tcp, front, &[one.address, two.address]);
    for backend in &mut backends(&mut both).list {
        if backend.address == one.address.ip() {
            backend.state = BackendState::Draining;
        }
    }
    path.apply(&table([both])).unwrap();
    echoes(&mut client, b"while draining");
    for _ in 0..10 {
        echoes(&mut connect(front), b"elsewhere");
    }
    assert_eq!((one.accepted(), two.accepted()), (1, 10));

    let mut other = connect(front);
    echoes(&mut other, b"stays");
    first = rule(Protocol::Tcp, front, &[two.address]);
    path.apply(&table([first.clone()])).unwrap();
    assert_reset(&mut client);
    echoes(&mut other, b"stays");
    eventually("the reset is counted", || drops(&path, DropReason::BackendGone) == 1);
    assert_eq!(count(&path, &first).flows, 12);
}

#[test]
fn client_affinity_sends_all_flows_of_a_client_to_one_backend() {
    let (echoes_, front) = ([(); 3].map(|()| Echo::tcp(local())), frontend());
    let addresses: Vec<_> = echoes_.iter().map(|echo| echo.address).collect();
    let mut rule = rule(Protocol::Tcp, front, &addresses);
    backends(&mut rule).affinity = Affinity::ClientIp;
    let _path = path([rule]);
    let client = local();
    for _ in 0..12 {
        echoes(&mut connect_from(client, front), b"x");
    }
    let mut accepted = echoes_.each_ref().map(Echo::accepted);
    accepted.sort_unstable();
    assert_eq!(accepted, [0, 0, 12]);
}

#[test]
fn flows_spread_over_backends() {
    let (echoes_, front) = ([(); 3].map(|()| Echo::tcp(local())), frontend());
    let addresses: Vec<_> = echoes_.iter().map(|echo| echo.address).collect();
    let _path = path([rule(Protocol::Tcp, front, &addresses)]);
    for _ in 0..120 {
        echoes(&mut connect(front), b"x");
    }
    let accepted = echoes_.each_ref().map(Echo::accepted);
    assert!(accepted.iter().all(|count| *count > 10), "{accepted:?}");
}

#[test]
fn a_source_address_is_used_towards_the_backend() {
    let ((server, address), front, source) = (listener(local()), frontend(), local());
    let mut rule = rule(Protocol::Tcp, front, &[address]);
    if let Action::Dnat { snat, .. } = &mut rule.action {
        *snat = proxy_rules::Snat::To(source);
    }
    let _path = path([rule]);
    let _client = connect(front);
    assert_eq!(accept(&server).peer_addr().unwrap().ip(), source);
}

#[test]
fn bulk_data_in_both_directions_at_once() {
    const TOTAL: usize = 48 << 20;
    let ((server, address), front) = (listener(local()), frontend());
    let rule = rule(Protocol::Tcp, front, &[address]);
    let path = path([rule.clone()]);
    let client = connect(front);
    let backend = accept(&server);
    thread::scope(|scope| {
        for (stream, seed) in [(&client, 1), (&backend, 2)] {
            scope.spawn(move || {
                let mut stream = stream;
                for chunk in 0..TOTAL >> 16 {
                    stream.write_all(&vec![(chunk as u8).wrapping_mul(seed); 1 << 16]).unwrap();
                }
                stream.shutdown(Shutdown::Write).unwrap();
            });
        }
        for (stream, seed) in [(&backend, 1_u8), (&client, 2)] {
            scope.spawn(move || {
                let (mut stream, mut buffer) = (stream, vec![0; 1 << 16]);
                for chunk in 0..TOTAL >> 16 {
                    stream.read_exact(&mut buffer).unwrap();
                    let expected = (chunk as u8).wrapping_mul(seed);
                    assert!(buffer.iter().all(|byte| *byte == expected), "chunk {chunk}");
                }
                assert_eq!(stream.read(&mut buffer).unwrap(), 0);
            });
        }
    });
    let count = count(&path, &rule);
    assert_eq!((count.original_bytes, count.reply_bytes), (TOTAL as u64, TOTAL as u64));
}
