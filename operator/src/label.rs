//! Every label, selector, annotation key and finalizer of the contract, once.

use std::collections::BTreeMap;

/// Labels or annotations, in order.
pub type Labels = BTreeMap<String, String>;

/// The finalizer of whatever a proxy of its own was made for.
pub const FINALIZER: &str = "tailscale.com/finalizer";

/// The finalizer of upstream's operator on Services whose names are in its records. Ours needs none.
pub const DNS_RECORDS_FINALIZER: &str = "tailscale.com/dns-records-reconciler";

/// On everything that the operator owns: `true`.
pub const MANAGED: &str = "tailscale.com/managed";
/// What kind of thing an object was made for: [`ParentKind::label`].
pub const PARENT_KIND: &str = "tailscale.com/parent-resource-type";
/// The name of what an object was made for.
pub const PARENT_NAME: &str = "tailscale.com/parent-resource";
/// Its namespace; present and empty for a Connector.
pub const PARENT_NAMESPACE: &str = "tailscale.com/parent-resource-ns";
/// The value of [`PARENT_KIND`] of what is made for a DNSConfig.
pub const NAMESERVER: &str = "nameserver";
/// On the Service of an egress ProxyGroup: the name of the tailnet that leads to it.
pub const MAGIC_DNS_NAME: &str = "tailscale.com/magic-dnsname";
/// Of pods: the UID of what they were made for.
pub const APP: &str = "app";

/// The ProxyClass of a Service or an Ingress, as a label or an annotation.
pub const PROXY_CLASS: &str = "tailscale.com/proxy-class";
/// The ProxyGroup of a Service or an Ingress.
pub const PROXY_GROUP: &str = "tailscale.com/proxy-group";
/// Exposes a Service: `true`.
pub const EXPOSE: &str = "tailscale.com/expose";
/// The node's name in the tailnet.
pub const HOSTNAME: &str = "tailscale.com/hostname";
/// The node's tags, separated by commas.
pub const TAGS: &str = "tailscale.com/tags";
/// An address of the tailnet that a Service leads to.
pub const TAILNET_IP: &str = "tailscale.com/tailnet-ip";
/// The deprecated name of [`TAILNET_IP`].
pub const TAILNET_IP_DEPRECATED: &str = "tailscale.com/ts-tailnet-target-ip";
/// A name of the tailnet that a Service leads to.
pub const TAILNET_FQDN: &str = "tailscale.com/tailnet-fqdn";

/// Of an Ingress: lets the internet in, `true`.
pub const FUNNEL: &str = "tailscale.com/funnel";
/// Of an Ingress: answers plain HTTP with the way to HTTPS, `true`.
pub const HTTP_REDIRECT: &str = "tailscale.com/http-redirect";
/// Of an Ingress: leads connections to the pod's address to its tailnet address, `true`.
pub const FORWARD_CLUSTER_TRAFFIC: &str =
    "tailscale.com/experimental-forward-cluster-traffic-via-ingress";

/// Of a ProxyGroup: whether its proxies share one ACME account with those of others, `true` or anything else.
pub const SHARE_ACME_ACCOUNT: &str = "tailscale.com/share-acme-account";

/// Of an Ingress on a ProxyGroup: serves plain HTTP too, `enabled`.
pub const HTTP_ENDPOINT: &str = "tailscale.com/http-endpoint";

/// The finalizer of Ingresses on ProxyGroups.
pub const INGRESS_GROUP_FINALIZER: &str = "tailscale.com/ingress-pg-finalizer";
/// The finalizer of Services on ingress ProxyGroups.
pub const SERVICE_GROUP_FINALIZER: &str = "tailscale.com/service-pg-finalizer";
/// The finalizer of ProxyGroups that offer the API server.
pub const API_SERVER_FINALIZER: &str = "tailscale.com/kube-apiserver-finalizer";
/// On what a ProxyGroup serves: which Tailscale Service was made for it, and where. It outlives the ProxyGroup.
pub const PROVISIONED: &str = "sluice.dev/provisioned";
/// On certificates: the name that they are for, shortened to what a label may be.
pub const DOMAIN: &str = "tailscale.com/domain";

/// On Secrets of ProxyGroups and the like: [`SECRET_CONFIG`], [`SECRET_STATE`] or [`SECRET_CERTS`].
pub const SECRET_TYPE: &str = "tailscale.com/secret-type";
/// A Secret that the operator writes and a replica reads.
pub const SECRET_CONFIG: &str = "config";
/// A Secret that a replica keeps its state in.
pub const SECRET_STATE: &str = "state";
/// A Secret with a certificate.
pub const SECRET_CERTS: &str = "certs";
/// On what was made for a Service on a ProxyGroup.
pub const SERVICE_TYPE: &str = "tailscale.com/svc-type";
/// The value of [`SERVICE_TYPE`].
pub const EGRESS: &str = "egress";
/// On what is made for an egress Service on a ProxyGroup: what its proxies are to do for it.
pub const LAST_EGRESS: &str = "tailscale.com/operator-last-set-egress-service";
/// On EndpointSlices: their Service.
pub const SLICE_SERVICE: &str = "kubernetes.io/service-name";
/// On EndpointSlices: who keeps them.
pub const SLICE_MANAGER: &str = "endpointslice.kubernetes.io/managed-by";
/// Keeps the Secret with shared ACME accounts.
pub const ACME_FINALIZER: &str = "tailscale.com/acme-account-protection";

/// The load-balancer class of Services that are exposed.
pub const LOAD_BALANCER_CLASS: &str = "tailscale";

/// On pods, so that they restart when it changes: the address that traffic is led to.
pub const LAST_CLUSTER_IP: &str = "tailscale.com/operator-last-set-cluster-ip";
/// The same, for a DNS name.
pub const LAST_CLUSTER_DNS_NAME: &str = "tailscale.com/operator-last-set-cluster-dns-name";
/// The same, for an address of the tailnet.
pub const LAST_TAILNET_IP: &str = "tailscale.com/operator-last-set-ts-tailnet-target-ip";
/// The same, for a name of the tailnet.
pub const LAST_TAILNET_FQDN: &str = "tailscale.com/operator-last-set-ts-tailnet-target-fqdn";

/// On metrics Services: the StatefulSet that is measured.
pub const METRICS_TARGET: &str = "tailscale.com/metrics-target";
/// On metrics Services: what kind of proxy is measured.
pub const METRICS_PROXY_TYPE: &str = "ts_proxy_type";
/// On metrics Services: what the proxy was made for.
pub const METRICS_PARENT_NAME: &str = "ts_proxy_parent_name";
/// On metrics Services: the namespace of what the proxy was made for, if it has one.
pub const METRICS_PARENT_NAMESPACE: &str = "ts_proxy_parent_namespace";
/// On metrics Services: the name of the Prometheus job.
pub const METRICS_JOB: &str = "ts_prom_job";

/// Labels that a ProxyClass cannot change.
pub const MANAGED_LABELS: [&str; 5] = [MANAGED, PARENT_KIND, PARENT_NAME, PARENT_NAMESPACE, APP];
/// Annotations that a ProxyClass cannot change.
pub const MANAGED_ANNOTATIONS: [&str; 4] =
    [LAST_CLUSTER_IP, LAST_CLUSTER_DNS_NAME, LAST_TAILNET_IP, LAST_TAILNET_FQDN];

/// On what is a PeerRelay's: the number of its replica.
pub const PEER_RELAY_REPLICA: &str = "tailscale.com/peer-relay-replica";

/// The kinds of things that have a proxy of their own.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ParentKind {
    /// A Service.
    Service,
    /// An Ingress.
    Ingress,
    /// A Connector.
    Connector,
    /// A ProxyGroup.
    ProxyGroup,
    /// A Recorder.
    Recorder,
    /// A PeerRelay.
    PeerRelay,
}

impl ParentKind {
    /// The value of [`PARENT_KIND`].
    pub fn label(self) -> &'static str {
        match self {
            Self::Service => "svc",
            Self::Ingress => "ingress",
            Self::Connector => "connector",
            Self::ProxyGroup => "proxygroup",
            Self::Recorder => "recorder",
            Self::PeerRelay => "peerrelay",
        }
    }

    /// Whether such things are in a namespace.
    pub fn has_namespace(self) -> bool {
        matches!(self, Self::Service | Self::Ingress)
    }
}

/// What a proxy was made for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Parent {
    /// Its kind.
    pub kind: ParentKind,
    /// Its namespace; empty for what has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Parent {
    /// The labels of every object that was made for it. They find those objects again, those of upstream's operator too.
    pub fn child_labels(&self) -> Labels {
        if self.kind == ParentKind::Recorder {
            return labels([
                ("app.kubernetes.io/name", self.kind.label()),
                ("app.kubernetes.io/instance", &self.name),
                ("app.kubernetes.io/managed-by", "tailscale-operator"),
            ]);
        }
        let mut all = labels([
            (MANAGED, "true"),
            (PARENT_KIND, self.kind.label()),
            (PARENT_NAME, &self.name),
        ]);
        if !matches!(self.kind, ParentKind::ProxyGroup | ParentKind::PeerRelay) {
            all.insert(PARENT_NAMESPACE.into(), self.namespace.clone());
        }
        all
    }
}

/// A map of labels or annotations.
pub fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// A label selector that finds what has all of these.
pub fn selector(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Whether an object has all of these labels.
pub fn has(object: Option<&Labels>, wanted: &Labels) -> bool {
    wanted.iter().all(|(key, value)| object.and_then(|labels| labels.get(key)) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_a_connector_have_an_empty_namespace_and_are_not_found_without_it() {
        let parent = Parent {
            kind: ParentKind::Connector,
            namespace: String::new(),
            name: "prod".into(),
            uid: "u".into(),
        };
        let labels = parent.child_labels();
        assert_eq!(
            selector(&labels),
            "tailscale.com/managed=true,tailscale.com/parent-resource=prod,tailscale.com/parent-resource-ns=,\
             tailscale.com/parent-resource-type=connector"
        );
        let mut without = labels.clone();
        without.remove(PARENT_NAMESPACE);
        assert!(
            has(Some(&labels), &labels) && !has(Some(&without), &labels) && !has(None, &labels)
        );
    }
}
