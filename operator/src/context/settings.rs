//! The operator's settings, from its environment.

use crate::{
    annotation::Options,
    name::{self, NameError},
};

/// What a pod's service account mounts.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// The operator's settings. Variables and defaults are those of upstream's operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// The operator's namespace, where everything is that belongs to proxies [default: the pod's].
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value_t = own_namespace())]
    pub namespace: String,
    /// The operator's own ServiceAccount, whose tokens stand for it where a Tailnet has workload identity.
    #[arg(long, env = "OPERATOR_SERVICE_ACCOUNT_NAME", default_value = "operator")]
    pub service_account: String,
    /// The operator's own pod, by whose name replicas tell each other apart.
    #[arg(long, env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// The Secret that an operator of upstream's keeps its own device in: what that device owns stays the operator's.
    #[arg(long, env = "OPERATOR_SECRET", default_value = "operator")]
    pub operator_secret: String,
    /// The image of proxies; `sluice-proxy` must be in its PATH.
    #[arg(long, env = "PROXY_IMAGE", default_value = "sluice-proxy:latest")]
    pub proxy_image: String,
    /// The operator's own image, which is the nameserver's too; `sluice-operator` must be in its PATH.
    #[arg(long, env = "OPERATOR_IMAGE", default_value = "sluice-operator:latest")]
    pub operator_image: String,
    /// Tags of proxies that name none, separated by commas.
    #[arg(long, env = "PROXY_TAGS", default_value = "tag:k8s", value_delimiter = ',',
        value_parser = tag)]
    pub proxy_tags: Vec<String>,
    /// Which of the kernel's firewalls proxies use where they do not use eBPF: auto, iptables, nftables or nothing.
    #[arg(long, env = "PROXY_FIREWALL_MODE", default_value = "")]
    pub proxy_firewall_mode: String,
    /// The ProxyClass of Services, Ingresses and ProxyGroups that name none.
    #[arg(long, env = "PROXY_DEFAULT_CLASS", default_value = "")]
    pub proxy_default_class: String,
    /// The priority class of proxies' pods.
    #[arg(long, env = "PROXY_PRIORITY_CLASS_NAME", default_value = "")]
    pub proxy_priority_class_name: String,
    /// Act for load balancers and Ingresses without a class.
    #[arg(long, env = "OPERATOR_DEFAULT_LOAD_BALANCER", default_value = "false",
        value_parser = boolean, action = clap::ArgAction::Set)]
    pub default_load_balancer: bool,
    /// Let ingress ProxyGroups share one ACME account, unless their annotation `tailscale.com/share-acme-account` says otherwise.
    #[arg(long, env = "OPERATOR_SHARED_ACME_ACCOUNT_KEY", default_value = "false",
        value_parser = boolean, action = clap::ArgAction::Set)]
    pub shared_acme_account_key: bool,
    /// The class of Ingresses that are ours.
    #[arg(long, env = "OPERATOR_INGRESS_CLASS_NAME", default_value = "tailscale")]
    pub ingress_class_name: String,
}

/// A firewall that there is not.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "PROXY_FIREWALL_MODE of the operator is `{0}`: use auto, iptables or nftables, or leave it empty"
)]
pub struct BadFirewallMode(String);

impl Settings {
    /// What is passed on to proxies.
    pub fn firewall_mode(&self) -> Result<Option<String>, BadFirewallMode> {
        match self.proxy_firewall_mode.as_str() {
            "" => Ok(None),
            mode @ ("auto" | "iptables" | "nftables") => Ok(Some(mode.to_owned())),
            other => Err(BadFirewallMode(other.to_owned())),
        }
    }

    /// The ProxyClass of what names none.
    pub fn default_class(&self) -> Option<&str> {
        Some(self.proxy_default_class.as_str()).filter(|name| !name.is_empty())
    }

    /// The priority class of what has no ProxyClass.
    pub fn priority_class(&self) -> Option<String> {
        Some(self.proxy_priority_class_name.clone()).filter(|name| !name.is_empty())
    }

    /// How Services are read.
    pub fn service_options(&self, cluster_domain: &str) -> Options {
        Options {
            default_load_balancer: self.default_load_balancer,
            cluster_domain: cluster_domain.to_owned(),
        }
    }
}

/// The namespace of the pod that we are in, or the usual one.
pub fn own_namespace() -> String {
    let found = std::fs::read_to_string(NAMESPACE_FILE).ok();
    found
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "tailscale".into())
}

fn tag(text: &str) -> Result<String, NameError> {
    name::tag(text.trim())
}

/// As upstream reads truth.
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".into()),
    }
}
