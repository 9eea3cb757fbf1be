//! What `tailscaled` keeps in the state Secret.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;

use super::Key;

/// The content of a Secret.
pub(super) type Data = BTreeMap<String, ByteString>;

const CURRENT: &str = "_current-profile";
const PROFILES: &str = "_profiles";
const MACHINE: &str = "_machinekey";
const PROFILE: &str = "profile-";

/// Whether `tailscaled` may be ended: it writes one key after another, and a node whose state is whole or not there at all
/// comes back as itself or as a new one, but never as half of one.
pub fn is_consistent(data: &Data) -> bool {
    let has = |key: &str| data.contains_key(key);
    let profiles = data.keys().filter(|key| key.starts_with(PROFILE)).count();
    match (has(CURRENT), has(PROFILES), has(MACHINE), profiles) {
        (current, known, machine, 0) => !current && !known && !machine,
        (current, known, machine, 1) => current && known && machine,
        _ => false,
    }
}

/// Every key that belongs to the node's identity: without them the next log-in makes a new node.
pub(super) fn identity(data: &Data) -> Vec<String> {
    let ours = [Key::ReissueAuthKey, Key::DeviceId, Key::DeviceFqdn, Key::DeviceIps];
    let mut keys: Vec<_> = ours
        .iter()
        .map(|key| key.name())
        .chain([MACHINE, PROFILES, CURRENT])
        .map(str::to_owned)
        .collect();
    if let Some(ByteString(name)) = data.get(CURRENT) {
        keys.extend(String::from_utf8(name.clone()).ok().filter(|name| !name.is_empty()));
    }
    keys.retain(|key| data.contains_key(key));
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(keys: &str) -> Data {
        let value = |key: &str| {
            let value = if key == CURRENT { "profile-1" } else { "x" };
            (key.to_owned(), ByteString(value.as_bytes().to_vec()))
        };
        keys.split_whitespace().map(value).collect()
    }

    #[test]
    fn state_is_whole_or_not_there() {
        for (keys, consistent) in [
            ("", true),
            ("device_id tailscale_capver", true),
            ("_current-profile _profiles _machinekey profile-1", true),
            ("_machinekey", false),
            ("_current-profile _profiles _machinekey", false),
            ("_profiles _machinekey profile-1", false),
            ("profile-1", false),
            ("_current-profile _profiles _machinekey profile-1 profile-2", false),
        ] {
            assert_eq!(is_consistent(&data(keys)), consistent, "{keys}");
        }
    }

    #[test]
    fn a_nodes_identity_is_its_state_and_what_we_said_of_it() {
        let all = data(
            "_current-profile _profiles _machinekey profile-1 profile-2 device_id device_ips pod_uid \
             reissue_authkey https_endpoint",
        );
        let mut keys = identity(&all);
        keys.sort();
        let wanted = [
            "_current-profile",
            "_machinekey",
            "_profiles",
            "device_id",
            "device_ips",
            "profile-1",
            "reissue_authkey",
        ];
        assert_eq!(keys, wanted);
        assert!(identity(&data("")).is_empty());
    }
}
