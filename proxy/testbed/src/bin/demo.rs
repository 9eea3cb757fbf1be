//! The demonstration: real traffic through each data path of the real binary, and counters that add up with what was sent.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]
#![expect(
    clippy::indexing_slicing,
    reason = "JSON: what is not there reads as null, and fails the comparison"
)]
#![expect(clippy::format_push_string, reason = "a text of twenty lines, written once")]

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use proxy_testbed::{
    ProxyProcess, Topology,
    topology::{HOSTS, PEERS, PROXY_CLUSTER, PROXY_TAILNET},
    traffic::{
        icmp::Pinger,
        steady::Steady,
        tcp::{Client, TcpServer},
        udp::{Answer, UdpClient, UdpServer},
    },
};

const CONNECTIONS: u64 = 3;
const STREAM: usize = 65_536;
const DATAGRAMS: usize = 20;
const DATAGRAM: usize = 100;
const PINGS: usize = 5;

/// One exchange: what is sent to, on which side, and the rule and port that must count it.
struct Exchange {
    rule: &'static str,
    from_tailnet: bool,
    frontend: [&'static str; 2],
    backend: [&'static str; 2],
    tcp: (u16, u16),
    udp: (u16, u16),
}

const EXCHANGES: [Exchange; 2] = [
    Exchange {
        rule: "web",
        from_tailnet: true,
        frontend: PROXY_TAILNET,
        backend: HOSTS[0],
        tcp: (80, 8080),
        udp: (53, 5353),
    },
    Exchange {
        rule: "printer",
        from_tailnet: false,
        frontend: PROXY_CLUSTER,
        backend: PEERS[0],
        tcp: (5432, 15_432),
        udp: (5000, 5001),
    },
];

fn config() -> String {
    let mut text = "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: \
                    { tailnet: [tailscale0], cluster: [eth0] }\n  drainSeconds: 1\n"
        .to_owned();
    for exchange in &EXCHANGES {
        let Exchange { rule, frontend: [f4, f6], backend: [b4, b6], tcp, udp, .. } = exchange;
        let section = if exchange.from_tailnet { "ingress" } else { "egress" };
        text += &format!(
            "{section}:\n  - name: {rule}\n    frontends: [{f4}, \"{f6}\"]\n    ports:\n      - \
             {{ protocol: tcp, port: {}, targetPort: {} }}\n      - {{ protocol: udp, port: {}, \
             targetPort: {} }}\n      - {{ protocol: icmp }}\n    backends: [{{ address: {b4} }}, \
             {{ address: \"{b6}\" }}]\n",
            tcp.0, tcp.1, udp.0, udp.1
        );
    }
    text
}

/// Original packets, original bytes, reply bytes, flows, by rule, protocol and port.
type Counts = BTreeMap<(String, String, String), [u64; 4]>;

fn counts(proxy: &ProxyProcess<'_>) -> Result<Counts> {
    let status = proxy.status()?;
    let ports = status["ports"].as_array().context("status without ports")?;
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Ok(ports
        .iter()
        .map(|port| {
            let key = (text(&port["rule"]), text(&port["protocol"]), text(&port["port"]));
            let numbers = ["original_packets", "original_bytes", "reply_bytes", "flows"]
                .map(|name| port[name].as_u64().unwrap_or_default());
            (key, numbers)
        })
        .collect())
}

fn send(topology: &Topology, exchange: &Exchange, icmp: bool) -> Result<()> {
    let client = if exchange.from_tailnet { &topology.tailnet } else { &topology.cluster };
    for frontend in exchange.frontend {
        let to = |port: u16| -> Result<SocketAddr> { Ok(SocketAddr::new(frontend.parse()?, port)) };
        for _ in 0..CONNECTIONS {
            let mut stream = Client::connect(client, to(exchange.tcp.0)?)
                .with_context(|| format!("TCP to {frontend}"))?;
            stream.echo(STREAM).with_context(|| format!("echo over TCP to {frontend}"))?;
            stream.close().with_context(|| format!("end of TCP to {frontend}"))?;
        }
        let echoed = UdpClient::new(client, to(exchange.udp.0)?)?
            .echo(DATAGRAMS, DATAGRAM)
            .with_context(|| format!("UDP to {frontend}"))?;
        ensure!(echoed == DATAGRAMS, "{echoed} of {DATAGRAMS} datagrams to {frontend} came back");
        if icmp {
            let answered =
                Pinger::new(client, frontend.parse()?)?.pings(PINGS, 56, Duration::from_secs(5))?;
            ensure!(answered == PINGS, "{answered} of {PINGS} pings to {frontend} were answered");
        }
    }
    Ok(())
}

/// What has been sent through one path, beside what it has counted. Both families share a series.
fn compare(path: &str, exchange: &Exchange, before: &Counts, after: &Counts) -> Result<()> {
    let userspace = path == "userspace";
    for (protocol, port) in [("tcp", exchange.tcp.0), ("udp", exchange.udp.0), ("icmp", 0)] {
        if protocol == "icmp" && userspace {
            continue;
        }
        let found = |counts: &Counts| {
            counts
                .iter()
                .find(|((rule, name, number), _)| {
                    rule == exchange.rule
                        && name == protocol
                        && (port == 0 || *number == port.to_string())
                })
                .map(|(_, numbers)| *numbers)
        };
        let (old, new) =
            (found(before).unwrap_or_default(), found(after).context("no such counter")?);
        let grown: Vec<u64> = new.iter().zip(old).map(|(new, old)| new - old).collect();
        let [packets, bytes, replies, flows] = grown[..] else { bail!("four numbers") };
        let (sent, right) = match protocol {
            "tcp" => {
                let payload = 2 * CONNECTIONS * STREAM as u64;
                let right = bytes >= payload && replies >= payload && flows == 2 * CONNECTIONS;
                (format!("{payload} bytes each way"), right)
            }
            "udp" => {
                let right = packets == 2 * DATAGRAMS as u64
                    && bytes == (DATAGRAMS * (2 * DATAGRAM + 28 + 48)) as u64
                    && bytes == replies;
                (format!("{} datagrams", 2 * DATAGRAMS), right)
            }
            _ => {
                let right = packets == 2 * PINGS as u64
                    && bytes == (PINGS * (2 * 64 + 20 + 40)) as u64
                    && bytes == replies;
                (format!("{} pings", 2 * PINGS), right)
            }
        };
        println!(
            "  {path:<10} {:<8} {protocol:<5} {port:>5}   {sent:<24} {packets:>6} packets {bytes:>8} \
             bytes >  {replies:>8} bytes <  {flows:>3} flows  {}",
            exchange.rule,
            if right { "adds up" } else { "DOES NOT ADD UP" }
        );
        ensure!(right, "{path}: the counters of {} {protocol} do not add up", exchange.rule);
    }
    Ok(())
}

fn main() -> Result<()> {
    let start = Instant::now();
    let say = |text: &str| println!("[{:>4.1} s] {text}", start.elapsed().as_secs_f64());
    let binary = std::env::var_os("SLUICE_PROXY").map(PathBuf::from);
    let binary = binary.context("SLUICE_PROXY must name the proxy's binary")?;

    say("three namespaces: tailnet = TUN = proxy = veth = cluster");
    let topology = Topology::new()?;
    let mut servers = (Vec::new(), Vec::new());
    for exchange in &EXCHANGES {
        let side = if exchange.from_tailnet { &topology.cluster } else { &topology.tailnet };
        for backend in exchange.backend {
            let at =
                |port| Ok::<_, anyhow::Error>(SocketAddr::new(backend.parse()?, port).to_string());
            servers.0.push(TcpServer::new(side, &at(exchange.tcp.1)?)?);
            servers.1.push(UdpServer::new(side, &at(exchange.udp.1)?, Answer::Echo)?);
        }
    }
    say("the proxy starts");
    let proxy = ProxyProcess::start(&topology.proxy, &binary, &config())?;
    let switch = |kind: &str| -> Result<()> {
        let body = format!("{{\"kind\":\"{kind}\"}}");
        proxy
            .request("POST", "/v1/data-path", &body)
            .map_err(|error| error.context(proxy.log()))?;
        let kind_now = proxy.status()?["data_path"]["kind"].clone();
        ensure!(kind_now == kind, "the data path is {kind_now}, not {kind}:\n{}", proxy.log());
        Ok(())
    };
    let named: Vec<String> = std::env::args().skip(1).collect();
    for path in ["ebpf", "nftables", "userspace"] {
        if !named.is_empty() && !named.iter().any(|name| name == path) {
            continue;
        }
        switch(path)?;
        say(&format!("{path}: TCP, UDP and ICMP, IPv4 and IPv6, both directions"));
        for exchange in &EXCHANGES {
            let before = counts(&proxy)?;
            send(&topology, exchange, path != "userspace").map_err(|error| {
                error.context(format!("{:#}", proxy.status().unwrap_or_default()["drops"]))
            })?;
            compare(path, exchange, &before, &counts(&proxy)?)?;
        }
    }
    switch("ebpf")?;
    say("40 connections and a UDP stream while the path changes: eBPF, nftables, eBPF");
    let to = |port| Ok::<_, anyhow::Error>(SocketAddr::new(PROXY_TAILNET[0].parse()?, port));
    let steady = Steady::start(&topology.tailnet, 40, &[to(80)?], Some(to(53)?))?;
    for path in ["nftables", "ebpf"] {
        steady.await_rounds(2)?;
        switch(path)?;
    }
    steady.await_rounds(2)?;
    let report = steady.finish()?;
    println!(
        "  {} blocks on 40 connections, {} broken; {} datagrams, {} lost",
        report.blocks,
        report.broken.len(),
        report.datagrams,
        report.lost
    );
    ensure!(report.broken.is_empty(), "connections broke: {:?}", report.broken);
    say("what an operator sees: sluice-proxy status, sluice-proxy top --once");
    let program = binary.to_string_lossy();
    println!("{}", topology.proxy.run(&program, &["status", "--admin", "127.0.0.1:9002"])?);
    println!("{}", topology.proxy.run(&program, &["top", "--once", "--admin", "127.0.0.1:9002"])?);
    say("done: every counter adds up with what was sent");
    Ok(())
}
