//! What a replica has installed, as it tells in its state Secret.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    build::ingress_config::{File, Mapping},
    context::Context,
    tailnet_api::ServiceName,
};

#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    configs: Option<serde_json::Map<String, Value>>,
    #[serde(rename = "podIPv4", default)]
    v4: String,
    #[serde(rename = "podIPv6", default)]
    v6: String,
}

/// Whether the pod that runs now leads a Tailscale Service as wanted. A pod that was there before may have told it, too.
pub(super) fn is_installed(
    context: &Context,
    state: &Secret,
    service: &ServiceName,
    mapping: &Mapping,
) -> bool {
    let pod = ObjectRef::new(&state.name_any()).within(&context.settings.namespace);
    let Some(pod) = context.cache.pods.get(&pod) else { return false };
    let told = state.data.as_ref().and_then(|data| data.get(File::Ingress.key()));
    let Some(told) = told.and_then(|text| serde_json::from_slice::<Told>(&text.0).ok()) else {
        return false;
    };
    let installed = told.configs.as_ref().and_then(|all| all.get(service.as_str()));
    let installed = installed.and_then(|one| serde_json::from_value::<Mapping>(one.clone()).ok());
    installed.as_ref() == Some(mapping) && told.is_of(&pod)
}

impl Told {
    fn is_of(&self, pod: &Pod) -> bool {
        let parse = |text: &str| text.parse::<IpAddr>().ok();
        let mut told: Vec<_> =
            [&self.v4, &self.v6].into_iter().filter_map(|ip| parse(ip)).collect();
        let ips = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
        let mut live: Vec<_> = ips.into_iter().flatten().filter_map(|ip| parse(&ip.ip)).collect();
        told.sort_unstable();
        live.sort_unstable();
        !live.is_empty() && told == live
    }
}

/// The addresses of the tailnet that lead somewhere.
pub(super) fn addresses(mapping: &Mapping) -> Vec<IpAddr> {
    let v4 = mapping.ipv4.as_ref().map(|pair| pair.from.into());
    let v6 = mapping.ipv6.as_ref().map(|pair| pair.from.into());
    v4.into_iter().chain(v6).collect()
}
