//! Variables, each read by its form, with what is wrong collected.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use ipnet::IpNet;
use proxy_rules::{
    Protocol,
    config::{PortMap, PortSpec},
};
use secrecy::SecretString;

use super::{Lookup, Problem, SettingsError, go};

/// The variables, and what was found to be wrong with them.
pub(super) struct Environment<'a> {
    lookup: &'a Lookup<'a>,
    pub(super) errors: Vec<SettingsError>,
    pub(super) warnings: Vec<SettingsError>,
}

impl<'a> Environment<'a> {
    pub(super) fn new(lookup: &'a Lookup<'a>) -> Self {
        Self { lookup, errors: Vec::new(), warnings: Vec::new() }
    }

    pub(super) fn error(&mut self, variable: &'static str, problem: Problem) {
        self.errors.push(SettingsError { variable, problem });
    }

    pub(super) fn warn(&mut self, variable: &'static str, problem: Problem) {
        self.warnings.push(SettingsError { variable, problem });
    }

    /// Set, even to nothing.
    pub(super) fn set(&mut self, variable: &'static str) -> Option<String> {
        let text = (self.lookup)(variable)?.into_string().ok();
        if text.is_none() {
            self.error(variable, Problem::NotUtf8);
        }
        text
    }

    /// Set to something.
    pub(super) fn text(&mut self, variable: &'static str) -> Option<String> {
        self.set(variable).filter(|text| !text.is_empty())
    }

    pub(super) fn path(&mut self, variable: &'static str) -> Option<PathBuf> {
        self.text(variable).map(PathBuf::from)
    }

    pub(super) fn secret(&mut self, variable: &'static str) -> Option<SecretString> {
        self.text(variable).map(SecretString::from)
    }

    /// What is neither is the default, as upstream has it, but not silently.
    pub(super) fn flag(&mut self, variable: &'static str, default: bool) -> bool {
        let Some(value) = self.text(variable) else { return default };
        go::bool(&value).unwrap_or_else(|| {
            self.warn(variable, Problem::NotABool { value, default });
            default
        })
    }

    pub(super) fn address(&mut self, variable: &'static str) -> Option<IpAddr> {
        let value = self.text(variable)?;
        let address: IpAddr =
            self.parse(variable, value, |value| Problem::NotAnAddress { value })?;
        if address.is_unspecified() || address.is_multicast() {
            self.error(variable, Problem::NotAHost { value: address.to_string() });
            return None;
        }
        Some(address)
    }

    pub(super) fn listener(&mut self, variable: &'static str) -> Option<SocketAddr> {
        let value = self.text(variable)?;
        self.parse(variable, value, |value| Problem::NotAnAddressAndPort { value })
    }

    pub(super) fn duration(&mut self, variable: &'static str, default: Duration) -> Duration {
        let Some(value) = self.text(variable) else { return default };
        go::duration(&value).filter(|duration| !duration.is_zero()).unwrap_or_else(|| {
            self.error(variable, Problem::NotADuration { value });
            default
        })
    }

    /// Networks with commas between them; set but empty are none.
    pub(super) fn networks(&mut self, variable: &'static str) -> Option<Vec<IpNet>> {
        let text = self.set(variable)?;
        let mut networks = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let value = word.to_owned();
            match word.parse::<IpNet>() {
                Ok(network) if network == network.trunc() => networks.push(network),
                Ok(network) => {
                    let network = network.trunc().to_string();
                    self.error(variable, Problem::HostBits { value, network });
                }
                Err(_) => self.error(variable, Problem::NotANetwork { value }),
            }
        }
        Some(networks)
    }

    /// Addresses with commas between them, one of each family at most. Unlike others, an empty value is wrong: a pod
    /// without an address is not ready to forward.
    pub(super) fn addresses(&mut self, variable: &'static str) -> Option<Vec<IpAddr>> {
        let text = self.set(variable)?;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for word in text.split(',') {
            let parsed: Option<IpAddr> = self
                .parse(variable, word.trim().to_owned(), |value| Problem::NotAnAddress { value });
            addresses.extend(parsed);
        }
        let ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
        let family = ipv4.max(addresses.len() - ipv4);
        if family > 1 {
            let count = addresses.len();
            self.error(variable, Problem::TooManyAddresses { count, family });
        }
        Some(addresses)
    }

    /// `tcp:80` or `udp:5000-5010`, with commas between them. Each port takes a socket.
    pub(super) fn ports(&mut self, variable: &'static str) -> Vec<PortMap> {
        const MOST: u32 = 1024;
        let text = self.text(variable).unwrap_or_default();
        let mut ports = Vec::new();
        let mut count = 0;
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match port_map(word) {
                Some((map, some)) => {
                    ports.push(map);
                    count += some;
                }
                None => self.error(variable, Problem::NotAPort { value: word.to_owned() }),
            }
        }
        if count > MOST {
            self.error(variable, Problem::TooManyPorts { count, most: MOST });
        }
        ports
    }

    pub(super) fn parse<T: std::str::FromStr>(
        &mut self,
        variable: &'static str,
        value: String,
        problem: impl FnOnce(String) -> Problem,
    ) -> Option<T> {
        value.parse().map_err(|_| self.error(variable, problem(value))).ok()
    }
}

/// One protocol and its port or ports, and how many they are.
fn port_map(word: &str) -> Option<(PortMap, u32)> {
    let (protocol, ports) = word.split_once(':')?;
    let protocol = match protocol.to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let (first, last) = (port(first)?, port(last)?);
    let spec = match first.cmp(&last) {
        std::cmp::Ordering::Less => PortSpec::Text(format!("{first}-{last}")),
        std::cmp::Ordering::Equal => PortSpec::Number(first.into()),
        std::cmp::Ordering::Greater => return None,
    };
    let map = PortMap { protocol, port: Some(spec), ..PortMap::default() };
    Some((map, u32::from(last - first) + 1))
}
