//! The pods of a proxy, before a ProxyClass changes them.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, EnvVar, KeyToPath, PodSpec, ResourceRequirements,
        SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    environment::environment,
    proxy::{Duty, Proxy, secret_name},
    secret::SERVE_CONFIG,
};

/// The container that carries the traffic.
pub(super) const CONTAINER: &str = "tailscale";

/// Longer than a proxy serves on after it was told to end (`SLUICE_DRAIN_SECONDS`, 20 unless it is set).
pub(super) const GRACE_SECONDS: i64 = 30;

pub(super) fn pod(proxy: &Proxy) -> PodSpec {
    let (volumes, mounts) = volumes(proxy);
    PodSpec {
        service_account_name: Some(proxy.base.clone()),
        containers: vec![container(
            &proxy.image,
            environment(proxy),
            mounts,
            proxy.duty.is_user_space(),
        )],
        volumes: Some(volumes),
        priority_class_name: proxy.priority_class.clone(),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        ..PodSpec::default()
    }
}

/// The container of a proxy. Never privileged: the data path needs NET_ADMIN and BPF, the TUN device's node MKNOD, and who
/// forwards no packets needs nothing.
pub(super) fn container(
    image: &str,
    environment: Vec<EnvVar>,
    mounts: Vec<VolumeMount>,
    is_user_space: bool,
) -> Container {
    let quantity = |(name, amount): (&str, &str)| (name.to_owned(), Quantity(amount.to_owned()));
    let needed: &[&str] = if is_user_space { &[] } else { &["BPF", "MKNOD", "NET_ADMIN"] };
    let security = SecurityContext {
        allow_privilege_escalation: Some(false),
        privileged: Some(false),
        capabilities: Some(Capabilities {
            add: (!needed.is_empty()).then(|| needed.iter().map(|&name| name.into()).collect()),
            drop: Some(vec!["ALL".into()]),
        }),
        ..SecurityContext::default()
    };
    Container {
        name: CONTAINER.into(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("Always".into()),
        command: Some(vec!["sluice-proxy".into(), "pod".into()]),
        env: Some(environment),
        resources: Some(ResourceRequirements {
            requests: Some([("cpu", "1m"), ("memory", "1Mi")].map(quantity).into()),
            ..ResourceRequirements::default()
        }),
        security_context: Some(security),
        volume_mounts: Some(mounts),
        ..Container::default()
    }
}

/// The Secrets of all replicas: a StatefulSet has one template for all of its pods.
fn volumes(proxy: &Proxy) -> (Vec<Volume>, Vec<VolumeMount>) {
    let serves = matches!(proxy.duty, Duty::Serve { .. });
    let mut all = BTreeMap::new();
    for ordinal in 0..proxy.nodes.len() {
        let secret = secret_name(&proxy.base, ordinal);
        let whole = SecretVolumeSource { secret_name: Some(secret.clone()), ..Default::default() };
        let at = format!("/etc/tsconfig/{secret}");
        all.insert(format!("tailscaledconfig-{ordinal}"), (whole.clone(), at));
        if serves {
            let item = KeyToPath {
                key: SERVE_CONFIG.into(),
                path: SERVE_CONFIG.into(),
                ..KeyToPath::default()
            };
            let part = SecretVolumeSource { items: Some(vec![item]), ..whole };
            let at = format!("/etc/tailscaled/{secret}");
            all.insert(format!("serve-config-{ordinal}"), (part, at));
        }
    }
    all.into_iter()
        .map(|(name, (secret, mount_path))| {
            let mount = VolumeMount {
                name: name.clone(),
                mount_path,
                read_only: Some(true),
                ..VolumeMount::default()
            };
            (Volume { name, secret: Some(secret), ..Volume::default() }, mount)
        })
        .unzip()
}
