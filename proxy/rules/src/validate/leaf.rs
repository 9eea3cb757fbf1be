//! Leaves: addresses, prefixes, ports, names. Empty text has been reported before and yields nothing, silently.

use std::net::IpAddr;

use ipnet::IpNet;

use super::error::{Path, Report, shown};
use crate::{PortRange, Snat, config::PortSpec};

/// An address that a packet can have as source or destination of a flow.
pub(super) fn address(text: &str, path: &Path<'_>, report: &mut Report) -> Option<IpAddr> {
    if text.is_empty() {
        return None;
    }
    let Ok(address) = text.parse::<IpAddr>() else {
        let problem = format!("`{}` is not an address", shown(text));
        let remedy = match text.split_once('/') {
            Some((address, _)) if address.parse::<IpAddr>().is_ok() => {
                format!("leave out the prefix length: {address}")
            }
            _ => "use an IPv4 or IPv6 address, such as 192.0.2.1 or 2001:db8::1".to_owned(),
        };
        report.add(path, problem, remedy);
        return None;
    };
    if let IpAddr::V6(v6) = address
        && let Some(v4) = v6.to_ipv4_mapped()
    {
        report.add(path, format!("{address} is an IPv4 address in IPv6 form"), format!("use {v4}"));
        return None;
    }
    if address.is_unspecified() || address.is_multicast() {
        let remedy = "use the address of one host";
        report.add(path, format!("{address} is not the address of a host"), remedy);
        return None;
    }
    Some(address)
}

/// A prefix, or an address as the prefix of itself alone.
pub(super) fn network(text: &str, path: &Path<'_>, report: &mut Report) -> Option<IpNet> {
    if text.is_empty() {
        return None;
    }
    if !text.contains('/') {
        return address(text, path, report).map(IpNet::from);
    }
    let Ok(net) = text.parse::<IpNet>() else {
        let problem = format!("`{}` is not a prefix", shown(text));
        report.add(path, problem, "use address/length, such as 192.0.2.0/24 or 2001:db8::/32");
        return None;
    };
    if let IpNet::V6(v6) = net
        && v6.prefix_len() >= 96
        && let Some(v4) = v6.addr().to_ipv4_mapped()
    {
        let remedy = format!("use {v4}/{}", v6.prefix_len() - 96);
        report.add(path, format!("{net} is an IPv4 prefix in IPv6 form"), remedy);
        return None;
    }
    if net.trunc() != net {
        let remedy = format!("use {}, or {} for the host alone", net.trunc(), net.addr());
        report.add(path, format!("{net} has host bits set"), remedy);
        return None;
    }
    Some(net)
}

/// A list of prefixes.
pub(super) fn networks(list: &[String], path: &Path<'_>, report: &mut Report) -> Vec<IpNet> {
    let leaf = |(index, text): (usize, &String)| network(text, &path.index(index), report);
    list.iter().enumerate().filter_map(leaf).collect()
}

/// A port or a range.
pub(super) fn ports(spec: &PortSpec, path: &Path<'_>, report: &mut Report) -> Option<PortRange> {
    match spec {
        PortSpec::Number(number) => {
            u16::try_from(*number).ok().and_then(PortRange::single).or_else(|| {
                report.add(path, format!("{number} is not a port"), "use 1 to 65535");
                None
            })
        }
        PortSpec::Text(text) => port_text(text, path, report),
    }
}

/// A port or a range `first-last`, as text.
pub(super) fn port_text(text: &str, path: &Path<'_>, report: &mut Report) -> Option<PortRange> {
    if text.is_empty() {
        return None;
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse::<u16>()) else {
        let problem = format!("`{}` is neither a port nor a range of ports", shown(text));
        report.add(path, problem, "use 1 to 65535, or first-last such as 8000-8010");
        return None;
    };
    let range = PortRange::new(first, last);
    if range.is_none() && first > last {
        report.add(path, format!("{first}-{last} is reversed"), format!("use {last}-{first}"));
    } else if range.is_none() {
        report.add(path, "0 is not a port", "use 1 to 65535");
    }
    range
}

/// A name, unique or not.
pub(super) fn name(text: &str, path: &Path<'_>, report: &mut Report) {
    let odd = |c: &char| !(c.is_ascii_alphanumeric() || "._/:-".contains(*c));
    if let Some(c) = text.chars().find(odd) {
        let problem = format!("`{}` contains {:?}", shown(text), c);
        report.add(path, problem, "use letters, digits and . _ / : -");
    }
}

/// What becomes of the source.
pub(super) fn snat(text: &str, path: &Path<'_>, report: &mut Report) -> Option<Snat> {
    match text {
        "" => None,
        "keep" => Some(Snat::Keep),
        "masquerade" => Some(Snat::Masquerade),
        _ if text.parse::<IpAddr>().is_ok() => address(text, path, report).map(Snat::To),
        _ => {
            let problem = format!("`{}` is not known here", shown(text));
            report.add(path, problem, "use `keep`, `masquerade` or an address");
            None
        }
    }
}

/// A network device.
pub(super) fn interface(text: &str, path: &Path<'_>, report: &mut Report) -> Option<String> {
    const LONGEST: usize = 15; // IFNAMSIZ without the final zero
    if text.is_empty() {
        report.add(path, "empty name of a device", "give its name, such as eth0");
        return None;
    }
    let odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if text.len() > LONGEST || text == "." || text == ".." || text.contains(odd) {
        let problem = format!("`{}` cannot be the name of a device", shown(text));
        report.add(path, problem, "use at most 15 bytes without blanks, `/` and `:`");
        return None;
    }
    Some(text.to_owned())
}
