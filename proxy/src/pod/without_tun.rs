//! What takes the place of a TUN device.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context as _, Result};

use super::settings::Settings;
use crate::data_path::userspace::through::Through;

/// The way through tailscaled, by the SOCKS5 server that the settings name or by one at an address that is free now.
pub fn through(settings: &Settings) -> Result<Through> {
    let socks5 = match &settings.tailscaled.socks5 {
        Some(text) => reachable(text).with_context(|| {
            format!("TS_SOCKS5_SERVER: `{text}` is not an address with a port: use one such as localhost:1055")
        })?,
        None => Through::free_socks5().context("a loopback port for tailscaled's SOCKS5 server")?,
    };
    Ok(Through::new(socks5))
}

/// Where a server that was told to listen there is reached.
fn reachable(listen: &str) -> Option<SocketAddr> {
    let (host, port) = listen.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let ip: IpAddr = match host.trim_start_matches('[').trim_end_matches(']') {
        "" | "localhost" | "0.0.0.0" => Ipv4Addr::LOCALHOST.into(),
        "::" => Ipv6Addr::LOCALHOST.into(),
        host => host.parse().ok()?,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn a_server_that_listens_everywhere_is_reached_on_loopback() {
        for (listen, wanted) in [
            (":1055", Some("127.0.0.1:1055")),
            ("localhost:1055", Some("127.0.0.1:1055")),
            ("0.0.0.0:1055", Some("127.0.0.1:1055")),
            ("[::]:1055", Some("[::1]:1055")),
            ("127.0.0.2:1055", Some("127.0.0.2:1055")),
            (":0", None),
            ("1055", None),
            ("example:1055", None),
        ] {
            assert_eq!(reachable(listen), wanted.map(|text| text.parse().unwrap()), "{listen}");
        }
    }
}
