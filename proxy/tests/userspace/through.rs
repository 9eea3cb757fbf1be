//! Where there is no TUN device: doors for what tailscaled forwards, and backends behind its SOCKS5 server.

use std::{
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::Arc,
};

use proxy::data_path::{
    DataPath, Stance,
    userspace::{UserspacePath, through::Through},
};
use proxy_rules::{DropReason, Protocol, Rule, Side};

use crate::support::*;

/// Nobody is there.
const NOWHERE: &str = "127.83.76.2:1";
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// As tailscaled says it: the client, and an address of the node that is not looked at.
fn header(client: SocketAddr) -> Vec<u8> {
    let (family, octets, other) = match client.ip() {
        IpAddr::V4(ip) => (0x11, ip.octets().to_vec(), vec![9; 4]),
        IpAddr::V6(ip) => (0x21, ip.octets().to_vec(), vec![9; 16]),
    };
    let ports = [client.port().to_be_bytes(), [0, 80]].concat();
    let length = (2 * octets.len() + 4) as u16;
    [SIGNATURE, &[0x21, family], &length.to_be_bytes(), &octets, &other, &ports].concat()
}

fn from_tailnet(frontend: &str, backend: SocketAddr) -> Rule {
    let mut rule = rule(Protocol::Tcp, frontend.parse().unwrap(), &[backend]);
    rule.from = Side::Tailnet;
    rule
}

/// A path whose rules are reached through doors.
fn through(rules: impl IntoIterator<Item = Rule>) -> (UserspacePath, Arc<Through>) {
    let through = Arc::new(Through::new(NOWHERE.parse().unwrap()));
    let mut path = UserspacePath::new().unwrap().through(Arc::clone(&through));
    let table = table(rules);
    path.supports(&table).unwrap();
    path.apply(&table).unwrap();
    (path, through)
}

fn door(through: &Through, frontend: &str) -> SocketAddr {
    through.doors().borrow()[&frontend.parse().unwrap()]
}

/// A connection that tailscaled forwards for this client.
fn forwarded(door: SocketAddr, client: &str) -> TcpStream {
    let mut stream = connect(door);
    stream.write_all(&header(client.parse().unwrap())).unwrap();
    stream
}

#[test]
fn what_tailscaled_forwards_is_the_clients_and_counts_without_its_header() {
    let echo = Echo::tcp(local());
    let mut rule = from_tailnet("100.64.0.1:80", echo.address);
    rule.matches.src = vec!["100.64.0.7/32".parse().unwrap()];
    let (path, through) = through([rule.clone()]);
    let door = door(&through, "100.64.0.1:80");
    assert_eq!(door.ip().to_string(), "127.83.76.1");
    let mut client = forwarded(door, "100.64.0.7:5000");
    echoes(&mut client, b"hello");
    // With the first bytes in the same segment, and in version 1.
    let mut client = connect(door);
    client.write_all(b"PROXY TCP4 100.64.0.7 100.64.0.1 5001 80\r\nhello").unwrap();
    let mut back = [0; 5];
    std::io::Read::read_exact(&mut client, &mut back).unwrap();
    assert_eq!(&back, b"hello");
    let told = count(&path, &rule);
    assert_eq!((told.original_bytes, told.reply_bytes, told.flows), (10, 10, 2));
    // Somebody else is not whom the rule is for.
    assert_reset(&mut forwarded(door, "100.64.0.8:5000"));
    assert_eq!(drops(&path, DropReason::Rejected), 1);
}

#[test]
fn who_does_not_say_whose_connection_it_is_gets_none() {
    let echo = Echo::tcp(local());
    let (path, through) = through([from_tailnet("100.64.0.1:80", echo.address)]);
    let door = door(&through, "100.64.0.1:80");
    for said in [
        &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..],
        b"PROXY UNKNOWN\r\n",
        &[SIGNATURE, &[0x20, 0, 0, 0]].concat(),
    ] {
        let mut stream = connect(door);
        stream.write_all(said).unwrap();
        assert_reset(&mut stream);
    }
    eventually("all are counted", || drops(&path, DropReason::Malformed) == 3);
    assert_eq!(echo.accepted(), 0);
    eventually("no room is kept", || path.counters().unwrap().live_flows == Some(0));
}

#[test]
fn the_clients_family_tells_which_frontend_it_has_called() {
    let (v4, v6) = (Echo::tcp(local()), Echo::tcp("::1".parse().unwrap()));
    let (_path, through) = through([
        from_tailnet("100.64.0.1:80", v4.address),
        from_tailnet("[fd7a::1]:80", v6.address),
        from_tailnet("100.64.0.1:81", v4.address),
    ]);
    through.set_hosts(vec![vec!["100.64.0.1".parse().unwrap(), "fd7a::1".parse().unwrap()]]);
    let one = door(&through, "100.64.0.1:80");
    echoes(&mut forwarded(one, "[fd7a::7]:5000"), b"six");
    assert_eq!((v4.accepted(), v6.accepted()), (0, 1));
    echoes(&mut forwarded(door(&through, "[fd7a::1]:80"), "100.64.0.7:5000"), b"four");
    assert_eq!((v4.accepted(), v6.accepted()), (1, 1));
    // No rule is for that family.
    assert_reset(&mut forwarded(door(&through, "100.64.0.1:81"), "[fd7a::7]:5000"));
}

#[test]
fn doors_come_and_go_with_rules_and_stance() {
    let echo = Echo::tcp(local());
    let keep = from_tailnet("100.64.0.1:80", echo.address);
    let go = from_tailnet("100.64.0.1:81", echo.address);
    let (mut path, through) = through([keep.clone(), go]);
    let (stays, goes) = (door(&through, "100.64.0.1:80"), door(&through, "100.64.0.1:81"));
    let mut client = forwarded(stays, "100.64.0.7:5000");
    echoes(&mut client, b"before");
    path.apply(&table([keep])).unwrap();
    assert_eq!(door(&through, "100.64.0.1:80"), stays, "an established door is not moved");
    assert_eq!(through.doors().borrow().len(), 1);
    assert!(TcpStream::connect(goes).is_err());
    path.set_stance(Stance::KnownFlows).unwrap();
    assert!(through.doors().borrow().is_empty());
    echoes(&mut client, b"after");
    path.set_stance(Stance::All).unwrap();
    echoes(&mut forwarded(door(&through, "100.64.0.1:80"), "100.64.0.7:5000"), b"again");
    path.remove().unwrap();
    assert!(through.doors().borrow().is_empty());
}

#[test]
fn without_the_socks_server_the_tailnet_has_no_backend_and_the_cluster_has() {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let (path, through) = through([
        rule(Protocol::Tcp, front, &[echo.address]),
        from_tailnet("100.64.0.1:80", echo.address),
    ]);
    assert_refused(front);
    eventually("it is counted", || drops(&path, DropReason::NoBackend) == 1);
    assert_eq!(echo.accepted(), 0, "reached without the server");
    echoes(&mut forwarded(door(&through, "100.64.0.1:80"), "100.64.0.7:1"), b"directly");
}

#[test]
fn udp_from_the_tailnet_is_refused_by_name() {
    let mut rule = rule(Protocol::Udp, "100.64.0.1:53".parse().unwrap(), &[frontend()]);
    rule.from = Side::Tailnet;
    let path =
        UserspacePath::new().unwrap().through(Arc::new(Through::new(NOWHERE.parse().unwrap())));
    let refused = path.supports(&table([rule])).unwrap_err().to_string();
    assert!(refused.contains("UDP from the tailnet without a TUN device"), "{refused}");
}
