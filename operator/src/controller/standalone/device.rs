//! What a proxy tells in its Secret about its device.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Secret;

use crate::{tailnet_api::DeviceId, tailnet_state::profile};

/// A device that has logged in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::controller) struct DeviceInfo {
    /// What the control server calls it.
    pub(in crate::controller) id: DeviceId,
    /// Its full name without a dot at the end, once the proxy works.
    pub(in crate::controller) fqdn: Option<String>,
    /// Its addresses, once the proxy works.
    pub(in crate::controller) addresses: Vec<IpAddr>,
}

/// The ID of a Secret's device: as the proxy tells it, or else as tailscaled keeps it.
pub(in crate::controller) fn device_id(secret: &Secret) -> Option<DeviceId> {
    let told = text(secret, "device_id").filter(|id| !id.is_empty());
    told.or_else(|| profile(secret)?.node).map(DeviceId::new)
}

/// The device of a Secret, once it has logged in.
pub(in crate::controller) fn device_info(secret: &Secret) -> Option<DeviceInfo> {
    let id = text(secret, "device_id").filter(|id| !id.is_empty())?;
    let fqdn = text(secret, "device_fqdn").map(|name| name.trim_end_matches('.').to_owned());
    let addresses = text(secret, "device_ips").and_then(|list| serde_json::from_str(&list).ok());
    Some(DeviceInfo {
        id: DeviceId::new(id),
        fqdn: fqdn.filter(|name| !name.is_empty()),
        addresses: addresses.unwrap_or_default(),
    })
}

/// A tailnet without certificates.
pub(in crate::controller) struct NoCertificates;

/// The name that a proxy serves HTTPS under, once it is known. Before capability version 109 proxies did not tell.
pub(in crate::controller) fn https_name(secret: &Secret) -> Option<Result<String, NoCertificates>> {
    const TELLS: u32 = 109;
    let version = text(secret, "tailscale_capver").and_then(|version| version.parse::<u32>().ok());
    if version.is_none_or(|version| version < TELLS) {
        return device_info(secret)?.fqdn.map(Ok);
    }
    let name = text(secret, "https_endpoint").filter(|name| !name.is_empty())?;
    Some(if name == "no-https" { Err(NoCertificates) } else { Ok(name) })
}

/// A value of a Secret that is text.
pub(in crate::controller) fn text(secret: &Secret, key: &str) -> Option<String> {
    let value = secret.data.as_ref()?.get(key)?;
    String::from_utf8(value.0.clone()).ok()
}
