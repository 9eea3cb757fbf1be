//! The nameserver as a process, asked over UDP and TCP. It listens on loopback only; no root is needed.
#![cfg(test)]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
    time::{Duration, Instant},
};

use hickory_proto::{
    op::{Message, MessageType, Query, ResponseCode},
    rr::{Name, RecordType},
};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(20);

/// A nameserver with records in a directory that is laid out as the kubelet lays out a ConfigMap.
struct Nameserver {
    child: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
    directory: TempDir,
}

impl Nameserver {
    fn start(listen: &str, records: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        if let Some(records) = records {
            swap(directory.path(), records);
        }
        let mut child = Command::new(env!("CARGO_BIN_EXE_sluice-operator"))
            .env_clear()
            .args(["nameserver", "--listen", listen, "--records"])
            .arg(directory.path().join("records.json"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut this = Self { child, log, address, directory };
        let line = this.wait_for("started");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        let listen = line.pointer("/fields/listen").or(line.get("listen")).unwrap();
        this.address = listen.as_str().unwrap().parse().unwrap();
        if this.address.ip().is_unspecified() {
            this.address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        if records.is_some() {
            this.wait_for("records read");
        }
        this
    }

    /// The next line of the log with this text; what it has not said yet is waited for.
    fn wait_for(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let start = all.len();
            let read = self.log.read_line(&mut all).unwrap();
            assert!(read > 0, "it ended before {text:?}: {all}");
            if all[start..].contains(text) {
                return all.split_off(start);
            }
        }
    }

    fn change(&self, records: &str) {
        swap(self.directory.path(), records);
    }

    fn udp(&self) -> UdpSocket {
        let any = if self.address.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
        let socket = UdpSocket::bind(any).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket.connect(self.address).unwrap();
        socket
    }

    fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Code and addresses, over UDP.
    fn ask(&self, name: &str, of: RecordType) -> String {
        let socket = self.udp();
        socket.send(&question(1, name, of)).unwrap();
        let mut reply = [0; 2000];
        let length = socket.recv(&mut reply).unwrap();
        told(1, &reply[..length])
    }
}

impl Drop for Nameserver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Replaces the content of a mounted ConfigMap: a directory of a new name, and `..data` renamed to lead to it.
fn swap(mount: &Path, records: &str) {
    let fresh = tempfile::Builder::new().prefix("..v").tempdir_in(mount).unwrap().keep();
    std::fs::write(fresh.join("records.json"), records).unwrap();
    symlink(fresh.file_name().unwrap(), mount.join("..data_tmp")).unwrap();
    std::fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    let _ = symlink("..data/records.json", mount.join("records.json"));
}

fn records(address: &str) -> String {
    format!(
        r#"{{"version":"v1alpha1","ip4":{{"db.tail1.ts.net":["{address}"]}},"ip6":{{"db.tail1.ts.net":["2001:db8::1"]}}}}"#
    )
}

fn question(id: u16, name: &str, of: RecordType) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), of));
    message.to_vec().unwrap()
}

fn told(id: u16, reply: &[u8]) -> String {
    let reply = Message::from_vec(reply).unwrap();
    assert_eq!((reply.metadata.id, reply.metadata.message_type), (id, MessageType::Response));
    let answers: Vec<_> = reply.answers.iter().map(|one| one.data.to_string()).collect();
    format!("{:?} {}", reply.metadata.response_code, answers.join(","))
}

fn ask_over(stream: &mut TcpStream, id: u16, packet: &[u8]) -> String {
    let mut framed = u16::try_from(packet.len()).unwrap().to_be_bytes().to_vec();
    framed.extend(packet);
    stream.write_all(&framed).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut reply = vec![0; u16::from_be_bytes(length).into()];
    stream.read_exact(&mut reply).unwrap();
    told(id, &reply)
}

#[test]
fn both_families_are_answered_over_udp_and_tcp() {
    for listen in ["[::]:0", "127.0.0.1:0", "[::1]:0"] {
        let nameserver = Nameserver::start(listen, Some(&records("192.0.2.1")));
        assert_eq!(nameserver.ask("db.tail1.ts.net.", RecordType::A), "NoError 192.0.2.1");
        assert_eq!(nameserver.ask("db.tail1.ts.net.", RecordType::AAAA), "NoError 2001:db8::1");
        assert_eq!(nameserver.ask("no.tail1.ts.net.", RecordType::A), "NXDomain ");
        assert_eq!(nameserver.ask("example.com.", RecordType::A), "Refused ");
        // One connection, several questions, one of them in two pieces.
        let mut stream = nameserver.tcp();
        for id in 0..3 {
            let packet = question(id, "db.tail1.ts.net.", RecordType::A);
            assert_eq!(ask_over(&mut stream, id, &packet), "NoError 192.0.2.1");
        }
    }
}

#[test]
fn records_change_while_it_runs_and_a_broken_file_changes_nothing() {
    let mut nameserver = Nameserver::start("127.0.0.1:0", None);
    nameserver.wait_for("bad records");
    assert_eq!(nameserver.ask("db.tail1.ts.net.", RecordType::A), "ServFail ");
    for last in 1..=5 {
        nameserver.change(&records(&format!("192.0.2.{last}")));
        nameserver.wait_for("records read");
        let told = nameserver.ask("db.tail1.ts.net.", RecordType::A);
        assert_eq!(told, format!("NoError 192.0.2.{last}"));
    }
    for (broken, why) in [
        ("{", "EOF while parsing"),
        (r#"{"version":"v9","ip4":{}}"#, "v9"),
        (r#"{"version":"v1alpha1","ip4":{"db.tail1.ts.net":"x"}}"#, "expected a sequence"),
    ] {
        nameserver.change(broken);
        let said = nameserver.wait_for("bad records");
        assert!(said.contains(why) && said.contains("WARN"), "{said}");
        assert_eq!(nameserver.ask("db.tail1.ts.net.", RecordType::A), "NoError 192.0.2.5");
    }
    // What is wrong in a good file is left out, and said.
    nameserver.change(
        r#"{"version":"v1alpha1","ip4":{"a.t.ts.net":["192.0.2.7"],"b.t.ts.net":["nine"]}}"#,
    );
    let said = nameserver.wait_for("left out");
    assert!(said.contains("nine") && said.contains("b.t.ts.net"), "{said}");
    assert_eq!(nameserver.ask("a.t.ts.net.", RecordType::A), "NoError 192.0.2.7");
    // Without IPv6 it is the format of old.
    nameserver.change(r#"{"version":"v1alpha1","ip4":{}}"#);
    nameserver.wait_for("records read");
    assert_eq!(nameserver.ask("a.t.ts.net.", RecordType::A), "NXDomain ");
}

#[test]
fn many_questions_and_bad_packets_harm_nobody() {
    let nameserver = Nameserver::start("127.0.0.1:0", Some(&records("192.0.2.1")));
    let socket = nameserver.udp();
    let mut reply = [0; 2000];
    let begun = Instant::now();
    let mut random = 12_345_u32;
    for id in 0..20_000_u16 {
        if id % 4 == 0 {
            // Random bytes of random lengths, some of them answers, which are not answered.
            let mut packet = vec![0x80; usize::from(id % 300)];
            for byte in &mut packet {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                *byte = (random >> 24) as u8;
            }
            if let Some(flags) = packet.get_mut(2) {
                *flags |= 0x80;
            }
            socket.send(&packet).unwrap();
        }
        socket.send(&question(id, "db.tail1.ts.net.", RecordType::A)).unwrap();
        let length = socket.recv(&mut reply).unwrap();
        assert_eq!(told(id, &reply[..length]), "NoError 192.0.2.1");
    }
    assert!(begun.elapsed() < DEADLINE * 3, "{:?}", begun.elapsed());
    // 65 535 questions, says a header that nothing follows.
    socket.send(&[0, 9, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).unwrap();
    let length = socket.recv(&mut reply).unwrap();
    let refused = Message::from_vec(&reply[..length]).unwrap();
    assert_eq!(refused.metadata.response_code, ResponseCode::FormErr);

    // More connections than are served at once: those that say nothing delay others, and UDP not at all.
    let silent: Vec<_> = (0..300).map(|_| nameserver.tcp()).collect();
    assert_eq!(nameserver.ask("db.tail1.ts.net.", RecordType::A), "NoError 192.0.2.1");
    drop(silent);
    let packet = question(7, "db.tail1.ts.net.", RecordType::A);
    assert_eq!(ask_over(&mut nameserver.tcp(), 7, &packet), "NoError 192.0.2.1");
    // Too long, or no question: the connection ends, the next one is served.
    for bad in [&[0xff, 0xff, 0, 0][..], &[0, 3, 1, 2, 3], &[0, 0]] {
        let mut stream = nameserver.tcp();
        stream.write_all(bad).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }
    assert_eq!(ask_over(&mut nameserver.tcp(), 7, &packet), "NoError 192.0.2.1");
}

#[test]
fn it_ends_when_it_is_told_to() {
    let mut nameserver = Nameserver::start("127.0.0.1:0", Some(&records("192.0.2.1")));
    let process = nix::unistd::Pid::from_raw(nameserver.child.id().try_into().unwrap());
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGTERM).unwrap();
    let begun = Instant::now();
    while nameserver.child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < DEADLINE, "it goes on");
        std::thread::yield_now();
    }
    assert!(nameserver.child.wait().unwrap().success());
}
