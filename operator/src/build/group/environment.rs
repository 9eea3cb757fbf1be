//! The environment of a ProxyGroup's containers, in upstream's order: later variables use earlier ones.

use k8s_openapi::api::core::v1::EnvVar;

use super::{ACME_ACCOUNTS, Group, GroupDuty};
use crate::{
    build::environment::{data_path, field, plain, pod},
    crd::proxy_class::ProxyClassSpec,
};

/// The condition that pods of egress ProxyGroups wait for before they count as ready.
pub const READINESS_GATE: &str = "tailscale.com/egress-services";
/// Where the files of the ConfigMap are.
pub(super) const FILES: &str = "/etc/proxies";

pub(super) fn environment(group: &Group) -> Vec<EnvVar> {
    let mut all = pod("false");
    all.extend([
        field("POD_IPS", "status.podIPs"),
        plain("TS_KUBE_SECRET", "$(POD_NAME)"),
        plain("TS_EXPERIMENTAL_SERVICE_AUTO_ADVERTISEMENT", "false"),
        plain("TS_STATE", "kube:$(POD_NAME)"),
        plain("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/$(POD_NAME)"),
    ]);
    if let Some(port) = group.port {
        all.push(plain("PORT", &port.to_string()));
    }
    if let Some(mode) = &group.firewall_mode {
        all.push(plain("TS_DEBUG_FIREWALL_MODE", mode));
    }
    let file = |name: &str| format!("{FILES}/{name}");
    match &group.duty {
        GroupDuty::Egress { .. } => all.extend([
            plain("TS_EGRESS_SERVICES_CONFIG_PATH", &file(super::EGRESS_SERVICES)),
            plain("TS_EGRESS_PROXIES_CONFIG_PATH", FILES),
            plain("TS_INTERNAL_APP", "k8s-operator-proxygroup-egress"),
            plain("TS_ENABLE_HEALTH_CHECK", "true"),
        ]),
        GroupDuty::Ingress { account } => {
            all.extend([
                plain("TS_INTERNAL_APP", "k8s-operator-proxygroup-ingress"),
                plain("TS_INGRESS_PROXIES_CONFIG_PATH", &file("ingress-config.json")),
                plain("TS_SERVE_CONFIG", &file("serve-config.json")),
                plain("TS_EXPERIMENTAL_CERT_SHARE", "true"),
            ]);
            match account {
                Some(field) => all.extend([
                    plain("TS_ACME_ACCOUNT_SECRET_NAME", ACME_ACCOUNTS),
                    plain("TS_ACME_ACCOUNT_FIELD", field),
                ]),
                None => all.push(plain("TS_DEBUG_ACME_FORCE_RENEWAL", "true")),
            }
        }
    }
    all.extend(data_path(group.class.as_ref()));
    all
}

/// Whether a ProxyClass moves what proxies serve about themselves: then nobody can ask them before they end.
pub(super) fn moves_health(class: Option<&ProxyClassSpec>) -> bool {
    let pod = class
        .and_then(|class| class.stateful_set.as_ref()?.pod.as_ref()?.tailscale_container.as_ref());
    pod.is_some_and(|pod| pod.container.env.iter().any(|one| one.name == "TS_LOCAL_ADDR_PORT"))
}
