//! The environment of a proxy's container, in upstream's order: later variables use earlier ones.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

use super::proxy::{Duty, Proxy};
use crate::{
    annotation::Carries,
    crd::{data_path::Mode, proxy_class::ProxyClassSpec},
};

pub(super) fn environment(proxy: &Proxy) -> Vec<EnvVar> {
    let user_space = proxy.duty.is_user_space().to_string();
    let mut all = pod(&user_space);
    all.extend([
        plain("TS_KUBE_SECRET", "$(POD_NAME)"),
        plain("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
        plain("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/$(POD_NAME)"),
        plain("TS_DEBUG_ACME_FORCE_RENEWAL", "true"),
    ]);
    if let Duty::Serve { forward_cluster_traffic: true, .. } = proxy.duty {
        all.push(plain("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS", "true"));
    }
    if let Some(mode) = &proxy.firewall_mode {
        all.push(plain("TS_DEBUG_FIREWALL_MODE", mode));
    }
    all.extend(target(&proxy.duty));
    all.push(plain("TS_INTERNAL_APP", proxy.duty.app()));
    all.extend(data_path(proxy.class.as_ref()));
    all
}

/// What a pod says to its container about itself.
pub(super) fn pod(user_space: &str) -> Vec<EnvVar> {
    vec![
        plain("TS_USERSPACE", user_space),
        field("POD_IP", "status.podIP"),
        field("POD_NAME", "metadata.name"),
        field("POD_UID", "metadata.uid"),
    ]
}

/// What a ProxyClass wants to carry the traffic.
pub(super) fn data_path(class: Option<&ProxyClassSpec>) -> Option<EnvVar> {
    let mode = match class?.data_path.as_ref()?.mode? {
        Mode::Auto => "auto",
        Mode::Ebpf => "ebpf",
        Mode::Nftables => "nftables",
        Mode::Userspace => "userspace",
    };
    Some(plain("SLUICE_DATA_PATH", mode))
}

fn target(duty: &Duty) -> Option<EnvVar> {
    Some(match duty {
        Duty::Carry(Carries::ClusterIp(address)) => plain("TS_DEST_IP", &address.to_string()),
        Duty::Carry(Carries::ClusterName(name)) => plain("TS_EXPERIMENTAL_DEST_DNS_NAME", name),
        Duty::Carry(Carries::TailnetIp(address)) => {
            plain("TS_TAILNET_TARGET_IP", &address.to_string())
        }
        Duty::Carry(Carries::TailnetName(name)) => plain("TS_TAILNET_TARGET_FQDN", name),
        Duty::Serve { .. } => plain("TS_SERVE_CONFIG", "/etc/tailscaled/$(POD_NAME)/serve-config"),
        Duty::Connect(_) => return None,
    })
}

/// A variable with a value.
pub(super) fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), ..EnvVar::default() }
}

/// A variable with the value of a field of the pod.
pub(super) fn field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { field_path: path.to_owned(), ..Default::default() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value_from: Some(source), ..EnvVar::default() }
}
