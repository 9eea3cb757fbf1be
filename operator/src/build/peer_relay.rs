//! The relays of a PeerRelay, and everything that makes them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec},
        core::v1::{
            ContainerPort, PodSpec, PodTemplateSpec, Secret, SecretVolumeSource, Service,
            ServiceAccount, ServicePort, ServiceSpec, Volume, VolumeMount,
        },
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{
    access::Access,
    environment::{field, plain},
    group::config_name,
    overlay::{self, Applies, METRICS_PORT},
    pod::{GRACE_SECONDS, container},
    secret_name,
};
use crate::{
    crd::{peer_relay::ElasticIp, proxy_class::ProxyClassSpec},
    label::{self, Labels, Parent},
};

/// Where relays are reached, over UDP.
pub const PORT: u16 = 41_641;

/// The key of the configuration. A tailscaled of this capability version knows its fields; which older one does is not
/// written down anywhere, and one that does not would end.
pub const CONFIG: &str = "cap-142.hujson";

/// Of AWS' load balancers.
const AWS: &str = "service.beta.kubernetes.io/aws-load-balancer-";

/// Relays, with everything that is known about them.
#[derive(Clone, Debug)]
pub struct Relays {
    /// The PeerRelay.
    pub parent: Parent,
    /// Where they are: the operator's namespace.
    pub namespace: String,
    /// All of them.
    pub relays: Vec<Relay>,
    /// Where they log in.
    pub login_server: String,
    /// What users want of their pods.
    pub class: Option<ProxyClassSpec>,
    /// Their image.
    pub image: String,
}

/// A replica.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Its name in the tailnet.
    pub hostname: String,
    /// What it logs in with, until it has.
    pub auth_key: Option<SecretString>,
    /// Where it is reached.
    pub addresses: Vec<IpAddr>,
}

/// Everything that makes them. Not `Debug`: Secrets hold keys.
pub struct RelayObjects {
    /// Who the pods are for the API server.
    pub account: ServiceAccount,
    /// What they may do.
    pub role: Role,
    /// That it is they who may.
    pub binding: RoleBinding,
    /// State, one a replica.
    pub states: Vec<Secret>,
    /// Configuration, one a replica.
    pub configs: Vec<Secret>,
    /// The pods.
    pub stateful_set: StatefulSet,
}

/// The name of everything that is a PeerRelay's, or its beginning.
pub fn base(relay: &str) -> String {
    format!("peerrelay-{relay}")
}

/// What leads to a replica from outside.
pub fn service(
    parent: &Parent,
    namespace: &str,
    ordinal: usize,
    annotations: &BTreeMap<String, String>,
    address: Option<&ElasticIp>,
) -> Service {
    let name = secret_name(&base(&parent.name), ordinal);
    let mut all = annotations.clone();
    let attributes = format!("{AWS}attributes");
    all.entry(attributes).or_insert_with(|| "load_balancing.cross_zone.enabled=true".into());
    for (key, value) in [
        ("type", "external"),
        ("nlb-target-type", "ip"),
        ("scheme", "internet-facing"),
        ("ip-address-type", "ipv4"),
        ("healthcheck-protocol", "http"),
        ("healthcheck-port", "9002"),
        ("healthcheck-path", "/healthz"),
    ] {
        all.insert(format!("{AWS}{key}"), value.to_owned());
    }
    let azure = "service.beta.kubernetes.io/azure-load-balancer-internal";
    all.insert(azure.to_owned(), "false".to_owned());
    if let Some(address) = address {
        all.insert(format!("{AWS}eip-allocations"), address.allocation_id.clone());
        all.insert(format!("{AWS}subnets"), address.subnet_id.clone());
    }
    let mut metadata = metadata(parent, namespace, &name);
    metadata.annotations = Some(all);
    numbered(&mut metadata, ordinal, None);
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some("LoadBalancer".into()),
            selector: Some(label::labels([("statefulset.kubernetes.io/pod-name", name.as_str())])),
            ports: Some(vec![ServicePort {
                name: Some("peerrelay".into()),
                protocol: Some("UDP".into()),
                port: PORT.into(),
                target_port: Some(IntOrString::Int(PORT.into())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// What makes these relays.
pub fn relay_objects(relays: &Relays) -> Box<RelayObjects> {
    let base = base(&relays.parent.name);
    let ordinals = 0..relays.relays.len();
    let names = ordinals
        .clone()
        .flat_map(|ordinal| [config_name(&base, ordinal), secret_name(&base, ordinal)]);
    let access =
        Access { metadata: relays.metadata(&base), secrets: names.collect(), lists_secrets: false };
    let state = |ordinal| {
        let mut metadata = relays.metadata(&secret_name(&base, ordinal));
        numbered(&mut metadata, ordinal, Some("state"));
        Secret { metadata, ..Secret::default() }
    };
    let config = |(ordinal, relay): (usize, &Relay)| {
        let mut metadata = relays.metadata(&config_name(&base, ordinal));
        numbered(&mut metadata, ordinal, Some("config"));
        let file = ByteString(file(relays, relay).into_bytes());
        let data = BTreeMap::from([(CONFIG.to_owned(), file)]);
        Secret { metadata, data: Some(data), ..Secret::default() }
    };
    Box::new(RelayObjects {
        account: access.account(),
        role: access.role(),
        binding: access.binding(),
        states: ordinals.map(state).collect(),
        configs: relays.relays.iter().enumerate().map(config).collect(),
        stateful_set: stateful_set(relays, &base),
    })
}

fn metadata(parent: &Parent, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(parent.child_labels()),
        ..ObjectMeta::default()
    }
}

/// Adds which replica it is of, and which kind of Secret it is.
fn numbered(metadata: &mut ObjectMeta, ordinal: usize, secret: Option<&str>) {
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(label::PEER_RELAY_REPLICA.to_owned(), ordinal.to_string());
    if let Some(kind) = secret {
        labels.insert(label::SECRET_TYPE.to_owned(), kind.to_owned());
    }
}

/// The configuration of a replica's tailscaled, in upstream's format `alpha0`.
fn file(relays: &Relays, relay: &Relay) -> String {
    let endpoints: Vec<_> =
        relay.addresses.iter().map(|address| SocketAddr::new(*address, PORT)).collect();
    let mut config = json!({
        "Version": "alpha0", "Locked": false, "ServerURL": relays.login_server,
        "Hostname": relay.hostname, "acceptDNS": false, "acceptRoutes": false,
        "RelayServerPort": PORT,
    });
    if let Some(fields) = config.as_object_mut() {
        if let Some(key) = &relay.auth_key {
            fields.insert("AuthKey".into(), json!(key.expose_secret()));
        }
        if !endpoints.is_empty() {
            fields.insert("RelayServerStaticEndpoints".into(), json!(endpoints));
        }
    }
    config.to_string()
}

fn stateful_set(relays: &Relays, base: &str) -> StatefulSet {
    let labels: Labels = relays.parent.child_labels();
    let mut set = StatefulSet {
        metadata: relays.metadata(base),
        spec: Some(StatefulSetSpec {
            replicas: i32::try_from(relays.relays.len()).ok(),
            service_name: Some(base.to_owned()),
            selector: LabelSelector {
                match_labels: Some(labels.clone()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(relays, base)),
            },
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    };
    if let Some(class) = &relays.class {
        overlay::apply(&mut set, class, Applies { endpoints: false, certificates: false });
    }
    // As upstream calls it; what a ProxyClass says of a proxy's container is about this one.
    let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut());
    for container in pod.into_iter().flat_map(|pod| &mut pod.containers) {
        container.name = "tailscaled".into();
    }
    set
}

fn pod(relays: &Relays, base: &str) -> PodSpec {
    let volume = |ordinal| {
        let name = format!("tailscaledconfig-{ordinal}");
        let mount = VolumeMount {
            name: name.clone(),
            mount_path: format!("/etc/tsconfig/{}", secret_name(base, ordinal)),
            read_only: Some(true),
            ..VolumeMount::default()
        };
        let secret = SecretVolumeSource {
            secret_name: Some(config_name(base, ordinal)),
            ..SecretVolumeSource::default()
        };
        (Volume { name, secret: Some(secret), ..Volume::default() }, mount)
    };
    let (volumes, mounts) = (0..relays.relays.len()).map(volume).unzip();
    let environment = vec![
        field("POD_NAME", "metadata.name"),
        plain("TS_EXPERIMENTAL_VERSIONED_CONFIG_DIR", "/etc/tsconfig/$(POD_NAME)"),
        plain("TS_KUBE_SECRET", "$(POD_NAME)"),
        plain("TS_ENABLE_HEALTH_CHECK", "true"),
    ];
    let mut container = container(&relays.image, environment, mounts, true);
    container.ports = Some(vec![ContainerPort {
        name: Some("healthz".into()),
        container_port: METRICS_PORT,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }]);
    PodSpec {
        service_account_name: Some(base.to_owned()),
        containers: vec![container],
        volumes: Some(volumes),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        ..PodSpec::default()
    }
}

impl Relays {
    fn metadata(&self, name: &str) -> ObjectMeta {
        metadata(&self.parent, &self.namespace, name)
    }
}
