//! What the state Secret is to say, and what of it differs from what it says.

use std::{collections::BTreeMap, fmt, net::IpAddr};

/// A key of ours in the state Secret. Keys of `tailscaled`'s are beside them, and never touched by what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The node's stable ID.
    DeviceId,
    /// The node's name, with a dot at the end.
    DeviceFqdn,
    /// Its addresses, a JSON array of strings: see [`device_ips`].
    DeviceIps,
    /// The UID of the pod that wrote the state.
    PodUid,
    /// The capability version of `tailscaled`, in decimal.
    CapabilityVersion,
    /// The name that HTTPS is served by, or `no-https`.
    HttpsEndpoint,
    /// What an egress proxy has installed, as JSON.
    EgressServices,
    /// What an ingress proxy has installed, as JSON.
    IngressConfig,
    /// The auth key that failed: a request for another.
    ReissueAuthKey,
    /// The auth key that a user put there; to be removed once it is used.
    AuthKey,
}

impl Key {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::DeviceId,
        Self::DeviceFqdn,
        Self::DeviceIps,
        Self::PodUid,
        Self::CapabilityVersion,
        Self::HttpsEndpoint,
        Self::EgressServices,
        Self::IngressConfig,
        Self::ReissueAuthKey,
        Self::AuthKey,
    ];

    /// Its name in the Secret.
    pub fn name(self) -> &'static str {
        match self {
            Self::DeviceId => "device_id",
            Self::DeviceFqdn => "device_fqdn",
            Self::DeviceIps => "device_ips",
            Self::PodUid => "pod_uid",
            Self::CapabilityVersion => "tailscale_capver",
            Self::HttpsEndpoint => "https_endpoint",
            Self::EgressServices => "egress-services",
            Self::IngressConfig => "ingress-config.json",
            Self::ReissueAuthKey => "reissue_authkey",
            Self::AuthKey => "authkey",
        }
    }
}

/// The value of [`Key::DeviceIps`].
pub fn device_ips(addresses: &[IpAddr]) -> String {
    let quoted: Vec<_> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[{}]", quoted.join(","))
}

#[derive(Clone, PartialEq, Eq)]
enum Wanted {
    Value(Vec<u8>),
    Absent,
    /// Absent, unless it is just this.
    AbsentUnless(Vec<u8>),
}

/// What is wanted of our keys. A key that nothing was said of stays as it is. Values are not in the `Debug` output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Desired(BTreeMap<Key, Wanted>);

impl Desired {
    /// What holds at every start: who is here, and nothing of what an earlier process had installed. The node's ID, name and
    /// addresses stay: the operator deletes a device by them. A request for another auth key is withdrawn when the
    /// configuration has another one by now.
    pub fn at_start(pod_uid: Option<&str>, capability: u32, auth_key: Option<&str>) -> Self {
        let mut desired = Self::default();
        desired.set(Key::CapabilityVersion, capability.to_string());
        if let Some(uid) = pod_uid {
            desired.set(Key::PodUid, uid);
        }
        desired.remove(Key::HttpsEndpoint);
        desired.remove(Key::EgressServices);
        desired.remove(Key::IngressConfig);
        if let Some(key) = auth_key.filter(|key| !key.is_empty()) {
            desired.0.insert(Key::ReissueAuthKey, Wanted::AbsentUnless(key.into()));
        }
        desired
    }

    /// Wants this value.
    pub fn set(&mut self, key: Key, value: impl Into<Vec<u8>>) {
        self.0.insert(key, Wanted::Value(value.into()));
    }

    /// Wants no such key.
    pub fn remove(&mut self, key: Key) {
        self.0.insert(key, Wanted::Absent);
    }

    /// Wants the key to be left as it is.
    pub fn leave(&mut self, key: Key) {
        self.0.remove(&key);
    }

    /// What has to change; `None` is a key to be removed.
    pub(super) fn differences(
        &self,
        found: &BTreeMap<Key, Vec<u8>>,
    ) -> BTreeMap<Key, Option<&[u8]>> {
        self.0
            .iter()
            .filter_map(|(key, wanted)| match (wanted, found.get(key)) {
                (Wanted::Value(value), found) => {
                    (found != Some(value)).then_some((*key, Some(value.as_slice())))
                }
                (Wanted::Absent, Some(_)) => Some((*key, None)),
                (Wanted::AbsentUnless(kept), Some(found)) => {
                    (found != kept).then_some((*key, None))
                }
                (Wanted::Absent | Wanted::AbsentUnless(_), None) => None,
            })
            .collect()
    }
}

impl fmt::Debug for Desired {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(key, wanted)| match wanted {
            Wanted::Value(value) => (key.name(), format!("{} bytes", value.len())),
            Wanted::Absent => (key.name(), "absent".to_owned()),
            Wanted::AbsentUnless(_) => {
                (key.name(), "absent unless it is the current one".to_owned())
            }
        });
        formatter.debug_map().entries(shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(content: &[(Key, &str)]) -> BTreeMap<Key, Vec<u8>> {
        content.iter().map(|(key, value)| (*key, value.as_bytes().to_vec())).collect()
    }

    /// The differences as text: `key=value`, `-key`.
    fn differences(desired: &Desired, content: &[(Key, &str)]) -> Vec<String> {
        let found = found(content);
        let shown = desired.differences(&found).into_iter().map(|(key, value)| match value {
            Some(value) => format!("{}={}", key.name(), String::from_utf8_lossy(value)),
            None => format!("-{}", key.name()),
        });
        shown.collect()
    }

    #[test]
    fn a_start_clears_what_was_installed_and_leaves_the_device() {
        let desired = Desired::at_start(Some("uid-2"), 142, Some("new"));
        let content = [
            (Key::DeviceId, "n1"),
            (Key::PodUid, "uid-1"),
            (Key::CapabilityVersion, "142"),
            (Key::HttpsEndpoint, "a.ts.net"),
            (Key::IngressConfig, "{}"),
            (Key::ReissueAuthKey, "old"),
        ];
        assert_eq!(
            differences(&desired, &content),
            ["pod_uid=uid-2", "-https_endpoint", "-ingress-config.json", "-reissue_authkey"]
        );
    }

    #[test]
    fn a_request_for_a_key_stays_until_there_is_another_one() {
        let requested = [(Key::ReissueAuthKey, "k1"), (Key::CapabilityVersion, "1")];
        for (configured, withdrawn) in
            [(None, false), (Some(""), false), (Some("k1"), false), (Some("k2"), true)]
        {
            let desired = Desired::at_start(None, 1, configured);
            let withdraws = !differences(&desired, &requested).is_empty();
            assert_eq!(withdraws, withdrawn, "{configured:?}");
        }
    }

    #[test]
    fn what_is_said_last_holds_and_only_differences_count() {
        let mut desired = Desired::default();
        desired.set(Key::HttpsEndpoint, "a");
        desired.set(
            Key::DeviceIps,
            device_ips(&["100.64.0.1".parse().unwrap(), "fd7a::1".parse().unwrap()]),
        );
        desired.remove(Key::AuthKey);
        desired.set(Key::ReissueAuthKey, "");
        assert_eq!(
            differences(&desired, &[(Key::HttpsEndpoint, "a"), (Key::AuthKey, "k")]),
            ["device_ips=[\"100.64.0.1\",\"fd7a::1\"]", "reissue_authkey=", "-authkey"]
        );
        desired.remove(Key::HttpsEndpoint);
        desired.leave(Key::ReissueAuthKey);
        desired.leave(Key::DeviceIps);
        assert_eq!(differences(&desired, &[(Key::HttpsEndpoint, "a")]), ["-https_endpoint"]);
        assert!(differences(&desired, &[]).is_empty());
    }

    #[test]
    fn no_value_is_shown() {
        let mut desired = Desired::at_start(None, 1, Some("s3cret"));
        desired.set(Key::ReissueAuthKey, "s3cret");
        desired.set(Key::DeviceId, "s3cret");
        assert!(!format!("{desired:?}").contains("s3cret"), "{desired:?}");
    }
}
