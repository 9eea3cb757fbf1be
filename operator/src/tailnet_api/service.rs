//! Tailscale Services: a name with addresses of its own, served by whichever devices advertise it.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr};

/// The name of a Tailscale Service with its prefix: `svc:` and one DNS label, lower case.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceName(String);

/// Why a text is no name of a Tailscale Service.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{0:?} is no Tailscale Service: write svc: and a DNS label (a-z, 0-9 and inner hyphens, at most 63)"
)]
pub struct BadServiceName(String);

impl ServiceName {
    /// The name of the Service that is to be reached as `label` in the tailnet's domain.
    pub fn of_label(label: &str) -> Result<Self, BadServiceName> {
        format!("svc:{label}").parse()
    }

    /// With the prefix: `svc:web`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without the prefix: `web`.
    pub fn label(&self) -> &str {
        self.0.strip_prefix("svc:").unwrap_or(&self.0)
    }
}

impl FromStr for ServiceName {
    type Err = BadServiceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let label = text.strip_prefix("svc:").unwrap_or_default();
        let letters = label.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
        let edges = label.starts_with('-') || label.ends_with('-');
        if letters && !edges && (1..=63).contains(&label.len()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadServiceName(text.to_owned()))
        }
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A Tailscale Service (`vip-services` in the API).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VipService {
    /// Its name.
    pub name: ServiceName,
    /// Its addresses. Empty in a request for a new one: the server gives an IPv4 and an IPv6 address.
    pub addresses: Vec<IpAddr>,
    /// For people.
    pub comment: String,
    /// Marks of those who use it; ours name the owners.
    pub annotations: BTreeMap<String, String>,
    /// What it serves, as `tcp:443`; `do-not-validate` leaves that to the devices.
    pub ports: Vec<String>,
    /// Its tags, as `tag:k8s`.
    pub tags: Vec<String>,
    /// The version that was read, where the server tells one (its `ETag`). Not part of the content.
    pub version: Option<String>,
}

impl VipService {
    /// One that has nothing but its name.
    pub fn new(name: ServiceName) -> Self {
        Self {
            name,
            addresses: Vec::new(),
            comment: String::new(),
            annotations: BTreeMap::new(),
            ports: Vec::new(),
            tags: Vec::new(),
            version: None,
        }
    }

    /// Whether both say the same, whatever their versions and the order of lists.
    pub fn same_content(&self, other: &Self) -> bool {
        fn sorted<T: Clone + Ord>(list: &[T]) -> Vec<T> {
            let mut list = list.to_vec();
            list.sort();
            list
        }
        self.name == other.name
            && self.comment == other.comment
            && self.annotations == other.annotations
            && sorted(&self.addresses) == sorted(&other.addresses)
            && sorted(&self.ports) == sorted(&other.ports)
            && sorted(&self.tags) == sorted(&other.tags)
    }

    /// Whether the server's answer is what was asked for: addresses may be its own choice where none were asked for.
    pub fn is_met_by(&self, answer: &Self) -> bool {
        let mut asked = self.clone();
        if asked.addresses.is_empty() {
            asked.addresses.clone_from(&answer.addresses);
        }
        asked.same_content(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::{ServiceName, VipService};

    #[test]
    fn names_are_labels_with_the_prefix() {
        assert_eq!("svc:web-1".parse::<ServiceName>().unwrap().label(), "web-1");
        assert_eq!(ServiceName::of_label("web").unwrap().as_str(), "svc:web");
        for bad in ["web", "svc:", "svc:-a", "svc:a-", "svc:A", "svc:a.b", "svc:a/b"] {
            let refused = bad.parse::<ServiceName>().unwrap_err();
            assert!(refused.to_string().contains(bad), "{refused}");
        }
        assert!(ServiceName::of_label(&"a".repeat(63)).is_ok());
        assert!(ServiceName::of_label(&"a".repeat(64)).is_err());
    }

    #[test]
    fn content_is_compared_without_order_and_version() {
        let mut one = VipService::new("svc:web".parse().unwrap());
        one.tags = vec!["tag:a".into(), "tag:b".into()];
        let mut other = one.clone();
        other.tags.reverse();
        other.version = Some("7".into());
        assert!(one.same_content(&other));
        other.addresses = vec!["100.100.0.1".parse().unwrap()];
        assert!(!one.same_content(&other));
        assert!(one.is_met_by(&other), "the server chooses addresses");
        assert!(!other.is_met_by(&one), "an address that was asked for is missing");
        other.comment = "x".into();
        assert!(!one.is_met_by(&other));
    }
}
