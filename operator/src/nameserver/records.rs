//! The records, as the operator writes them and as the nameserver looks them up.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use hickory_proto::rr::Name;
use serde::{Deserialize, Serialize};

/// The only version of the file. Records of IPv6 were added to it later: a file without them is as good.
pub const VERSION: &str = "v1alpha1";

/// The domain of Tailscale's tailnets. Nobody else can have names in it.
const TAILSCALE: &str = "ts.net.";

/// The key `records.json` of the ConfigMap `dnsrecords`: upstream's format.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct File {
    /// [`VERSION`]
    pub version: String,
    /// IPv4 addresses by full name.
    #[serde(default)]
    pub ip4: BTreeMap<String, Vec<String>>,
    /// IPv6 addresses by full name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ip6: BTreeMap<String, Vec<String>>,
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRecords {
    /// It is not of the format.
    #[error("it is no file of records: {0}")]
    Format(#[from] serde_json::Error),
    /// It is of a version that is not known.
    #[error("its version is {0:?}: this nameserver reads {VERSION}, use its own operator's")]
    Version(String),
}

/// What is answered.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Records {
    names: HashMap<Name, Addresses>,
    /// Names that have none of their own but below which there are some.
    above: HashSet<Name>,
    /// Domains that we answer for.
    zones: HashSet<Name>,
}

/// The addresses of a name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Addresses {
    pub(super) v4: Vec<Ipv4Addr>,
    pub(super) v6: Vec<Ipv6Addr>,
}

/// What there is of a name.
pub(super) enum Found<'a> {
    /// It has these, in this zone.
    Here(&'a Addresses, Name),
    /// There is none of this name in this zone, or only names below it.
    NotHere { zone: Name, exists: bool },
    /// Somebody else answers for it.
    Elsewhere,
}

impl Records {
    /// What a file says, and what in it says nothing: names that are none and addresses that are none.
    pub fn read(text: &[u8]) -> Result<(Self, Vec<String>), BadRecords> {
        let file: File = serde_json::from_slice(text)?;
        if file.version != VERSION {
            return Err(BadRecords::Version(file.version));
        }
        let mut records = Self::default();
        let mut skipped = Vec::new();
        for (name, addresses) in &file.ip4 {
            if let Some((own, all)) = records.add::<Ipv4Addr>(name, addresses, &mut skipped) {
                own.v4.extend(all);
            }
        }
        for (name, addresses) in &file.ip6 {
            if let Some((own, all)) = records.add::<Ipv6Addr>(name, addresses, &mut skipped) {
                own.v6.extend(all);
            }
        }
        Ok((records, skipped))
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn add<A: FromStr>(
        &mut self,
        name: &str,
        addresses: &[String],
        skipped: &mut Vec<String>,
    ) -> Option<(&mut Addresses, Vec<A>)> {
        let Some(key) = full_name(name) else {
            skipped.push(format!("{name:?} is no name"));
            return None;
        };
        let mut all = Vec::with_capacity(addresses.len());
        for address in addresses {
            match address.parse() {
                Ok(address) => all.push(address),
                Err(_) => skipped.push(format!("{address:?} of {name:?} is no such address")),
            }
        }
        self.zones.insert(if tailscale().zone_of(&key) { tailscale() } else { key.base_name() });
        let mut above = key.base_name();
        while !above.is_root() && self.above.insert(above.clone()) {
            above = above.base_name();
        }
        Some((self.names.entry(key).or_default(), all))
    }

    /// What there is of a name, in any case.
    pub(super) fn find(&self, name: &Name) -> Found<'_> {
        let name = name.to_lowercase();
        let Some(zone) = self.zone(&name) else { return Found::Elsewhere };
        match self.names.get(&name) {
            Some(addresses) => Found::Here(addresses, zone),
            None => Found::NotHere { exists: name == zone || self.above.contains(&name), zone },
        }
    }

    /// The zone of a name in lower case: Tailscale's, or the tailnet's whose names the records have.
    fn zone(&self, name: &Name) -> Option<Name> {
        if tailscale().zone_of(name) {
            return Some(tailscale());
        }
        let mut zone = name.clone();
        while !zone.is_root() {
            if self.zones.contains(&zone) {
                return Some(zone);
            }
            zone = zone.base_name();
        }
        None
    }
}

/// A name without addresses is there all the same: they come back.
impl From<BTreeMap<String, BTreeSet<IpAddr>>> for File {
    fn from(all: BTreeMap<String, BTreeSet<IpAddr>>) -> Self {
        let (mut ip4, mut ip6) = (BTreeMap::new(), BTreeMap::new());
        for (name, addresses) in all {
            let texts = |v4| {
                let own = addresses.iter().filter(move |address| address.is_ipv4() == v4);
                own.map(ToString::to_string).collect::<Vec<_>>()
            };
            let six = texts(false);
            if six.is_empty() {
                ip4.insert(name, texts(true));
                continue;
            }
            let four = texts(true);
            if !four.is_empty() {
                ip4.insert(name.clone(), four);
            }
            ip6.insert(name, six);
        }
        Self { version: VERSION.to_owned(), ip4, ip6 }
    }
}

fn tailscale() -> Name {
    // It is a name; were it none, nothing would be answered.
    Name::from_ascii(TAILSCALE).unwrap_or_default()
}

/// A name of at least two labels, in lower case.
fn full_name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?.to_lowercase();
    name.set_fqdn(true);
    (name.num_labels() > 1 && !name.is_wildcard()).then_some(name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    #[test]
    fn what_says_nothing_is_told_and_the_rest_counts() {
        let text =
            br#"{"version":"v1alpha1","ip4":{"DB.tail1.ts.net":["192.0.2.1","2001:db8::1","x"],
            "net":["192.0.2.2"],"a..b":["192.0.2.3"]},"ip6":{"db.tail1.ts.net.":["2001:db8::1"]}}"#;
        let (records, skipped) = Records::read(text).unwrap();
        assert_eq!(skipped.len(), 4, "{skipped:?}");
        assert_eq!(records.len(), 1);
        let Found::Here(addresses, zone) = records.find(&name("Db.Tail1.Ts.Net.")) else {
            panic!()
        };
        assert_eq!(zone, name("ts.net."));
        assert_eq!(addresses.v4, [Ipv4Addr::new(192, 0, 2, 1)]);
        assert_eq!(addresses.v6.len(), 1);
    }

    #[test]
    fn a_tailnet_of_any_control_server_is_answered_for_and_no_more() {
        let text = br#"{"version":"v1alpha1","ip4":{"db.tail.example.com":["192.0.2.1"]}}"#;
        let (records, _) = Records::read(text).unwrap();
        let found = |text: &str| match records.find(&name(text)) {
            Found::Here(..) => "here",
            Found::NotHere { exists: true, .. } => "exists",
            Found::NotHere { .. } => "not here",
            Found::Elsewhere => "elsewhere",
        };
        assert_eq!(found("db.tail.example.com."), "here");
        assert_eq!(found("tail.example.com."), "exists");
        assert_eq!(found("x.tail.example.com."), "not here");
        assert_eq!(found("a.db.tail.example.com."), "not here");
        assert_eq!(found("any.tail1.ts.net."), "not here");
        for other in ["example.com.", "www.example.com.", "com.", "."] {
            assert_eq!(found(other), "elsewhere", "{other}");
        }
    }

    #[test]
    fn other_versions_are_refused() {
        let refused = Records::read(br#"{"version":"v2","ip4":{}}"#).unwrap_err().to_string();
        assert!(refused.contains("\"v2\"") && refused.contains(VERSION), "{refused}");
        for broken in ["", "{", "[]", r#"{"ip4":{}}"#, r#"{"version":"v1alpha1","ip4":[]}"#] {
            assert!(matches!(Records::read(broken.as_bytes()), Err(BadRecords::Format(_))));
        }
    }

    #[test]
    fn what_the_operator_writes_is_what_is_read() {
        let v4 = |last| IpAddr::from([192, 0, 2, last]);
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        let all = [("a", vec![v4(10), v4(9), v4(9)]), ("b", vec![v6]), ("c", vec![])];
        let all = all.map(|(name, of)| (format!("{name}.t.ts.net"), of.into_iter().collect()));
        let text = serde_json::to_string(&File::from(BTreeMap::from(all))).unwrap();
        let wanted = r#"{"version":"v1alpha1","ip4":{"a.t.ts.net":["192.0.2.9","192.0.2.10"],"c.t.ts.net":[]},"ip6":{"b.t.ts.net":["2001:db8::1"]}}"#;
        assert_eq!(text, wanted);
        let (records, skipped) = Records::read(text.as_bytes()).unwrap();
        assert_eq!((records.len(), skipped.len()), (3, 0));
    }

    proptest! {
        #[test]
        fn no_file_ends_the_nameserver(text in ".*", names in prop::collection::vec(".{0,80}", 0..4)) {
            let _ = Records::read(text.as_bytes());
            let ip4: BTreeMap<_, _> = names.into_iter().map(|name| (name, vec![text.clone()])).collect();
            let file = File { version: VERSION.into(), ip4, ip6: BTreeMap::new() };
            let (records, skipped) = Records::read(serde_json::to_string(&file).unwrap().as_bytes()).unwrap();
            prop_assert!(records.len() <= file.ip4.len());
            prop_assert!(skipped.len() >= file.ip4.len().saturating_sub(records.len()));
        }
    }
}
