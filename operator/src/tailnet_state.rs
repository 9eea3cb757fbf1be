//! What tailscaled keeps of itself in a state Secret: who it is in the tailnet, and what it offers there.

use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

use crate::tailnet_api::ServiceName;

/// The part of tailscaled's profile that the operator reads.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Profile {
    /// What the control server calls the device.
    pub node: Option<String>,
    /// The device's full name without a dot at its end, if it has tags: they have no user whose name it would be.
    pub name: Option<String>,
    /// The Tailscale Services that it offers.
    pub offered: Vec<String>,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(rename = "Config", default)]
    config: Option<Config>,
    #[serde(rename = "AdvertiseServices", default)]
    services: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "NodeID", default)]
    node: String,
    #[serde(rename = "UserProfile", default)]
    user: User,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(rename = "LoginName", default)]
    name: String,
}

/// The profile that is in use, once the device has logged in.
pub fn profile(secret: &Secret) -> Option<Profile> {
    let data = secret.data.as_ref()?;
    let current = std::str::from_utf8(&data.get("_current-profile")?.0).ok()?;
    let stored: Stored = serde_json::from_slice(&data.get(current)?.0).ok()?;
    let config = stored.config.map(|config| (config.node, config.user.name));
    let (node, name) = config.unwrap_or_default();
    Some(Profile {
        node: Some(node).filter(|node| !node.is_empty()),
        name: Some(name.trim_end_matches('.').to_owned()).filter(|name| name.contains('.')),
        offered: stored.services.unwrap_or_default(),
    })
}

/// Whether a device offers a Tailscale Service.
pub fn offers(secret: &Secret, service: &ServiceName) -> bool {
    profile(secret).is_some_and(|profile| profile.offered.iter().any(|one| one == service.as_str()))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use serde_json::json;

    use super::{Profile, offers, profile};

    fn secret(profile: &str) -> Secret {
        let text =
            json!({ "stringData": { "_current-profile": "profile-1", "profile-1": profile } });
        let mut secret: Secret = serde_json::from_value(text).unwrap();
        let data = secret.string_data.take().unwrap().into_iter();
        let bytes = |text: String| k8s_openapi::ByteString(text.into_bytes());
        secret.data = Some(data.map(|(key, text)| (key, bytes(text))).collect());
        secret
    }

    #[test]
    fn a_profile_tells_who_it_is_and_what_it_offers() {
        let text = json!({ "Config": { "NodeID": "n1CNTRL", "UserProfile": {
            "LoginName": "in-0.tail1.ts.net." } }, "AdvertiseServices": ["svc:web"] });
        let found = profile(&secret(&text.to_string())).unwrap();
        assert_eq!(found.node.as_deref(), Some("n1CNTRL"));
        assert_eq!(found.name.as_deref(), Some("in-0.tail1.ts.net"));
        let stored = secret(&text.to_string());
        assert!(offers(&stored, &"svc:web".parse().unwrap()));
        assert!(!offers(&stored, &"svc:we".parse().unwrap()));
        assert_eq!(profile(&secret("{}")), Some(Profile::default()));
        let untagged = json!({ "Config": { "UserProfile": { "LoginName": "alice" } } });
        assert_eq!(profile(&secret(&untagged.to_string())).unwrap().name, None);
        assert_eq!(profile(&secret("no")), None);
        assert_eq!(profile(&Secret::default()), None);
    }
}
