//! What a ProxyClass changes of a StatefulSet.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Container as PodContainer, ContainerPort, EnvVar, PodSpec, ResourceRequirements},
};

use super::{environment::plain, pod::CONTAINER};
use crate::{
    crd::{
        container::Container,
        proxy_class::{Pod, ProxyClassSpec},
    },
    label::{self, Labels},
};

/// Where metrics are served.
pub(crate) const METRICS_PORT: i32 = 9002;
const DEBUG_PORT: i32 = 9001;
const STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// Which parts of a ProxyClass concern a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Applies {
    /// Whether its pods can be asked for metrics, and tailscaled in them for help in finding faults.
    pub(super) endpoints: bool,
    /// Whether it has certificates made.
    pub(super) certificates: bool,
}

pub(super) fn apply(set: &mut StatefulSet, class: &ProxyClassSpec, applies: Applies) {
    let template = set.spec.as_mut().map(|spec| &mut spec.template);
    let Some(template) = template else { return };
    let Some(pod) = template.spec.as_mut() else { return };
    if let Some(container) = container(pod) {
        // Where connections to the pod's address are led elsewhere, nobody would reach them.
        if applies.endpoints {
            endpoints(container, class);
        }
        let staging = class.use_lets_encrypt_staging_environment == Some(true);
        if staging && applies.certificates {
            set_variable(container, plain("TS_DEBUG_ACME_DIRECTORY_URL", STAGING));
        }
    }
    let Some(wanted) = &class.stateful_set else { return };
    merge(&mut set.metadata.labels, &wanted.labels, &label::MANAGED_LABELS);
    merge(&mut set.metadata.annotations, &wanted.annotations, &label::MANAGED_ANNOTATIONS);
    let Some(wanted) = &wanted.pod else { return };
    let metadata = template.metadata.get_or_insert_default();
    merge(&mut metadata.labels, &wanted.labels, &label::MANAGED_LABELS);
    merge(&mut metadata.annotations, &wanted.annotations, &label::MANAGED_ANNOTATIONS);
    pod_fields(pod, wanted);
    if let (Some(container), Some(wanted)) = (container(pod), &wanted.tailscale_container) {
        container_fields(container, &wanted.container);
    }
}

fn container(pod: &mut PodSpec) -> Option<&mut PodContainer> {
    pod.containers.iter_mut().find(|container| container.name == CONTAINER)
}

/// Where the proxy tells about itself.
fn endpoints(container: &mut PodContainer, class: &ProxyClassSpec) {
    let metrics = class.metrics.as_ref().is_some_and(|metrics| metrics.enable);
    let own =
        class.stateful_set.as_ref().and_then(|set| set.pod.as_ref()?.tailscale_container.as_ref());
    let debug = own.and_then(|container| container.debug.as_ref());
    if debug.map_or(metrics, |debug| debug.enable == Some(true)) {
        set_variable(container, plain("TS_DEBUG_ADDR_PORT", &at_pod(DEBUG_PORT)));
        let argument = "--debug=$(TS_DEBUG_ADDR_PORT)";
        set_variable(container, plain("TS_TAILSCALED_EXTRA_ARGS", argument));
        container.ports.get_or_insert_default().push(port("debug", DEBUG_PORT));
    }
    if metrics {
        set_variable(container, plain("TS_LOCAL_ADDR_PORT", &at_pod(METRICS_PORT)));
        set_variable(container, plain("TS_ENABLE_METRICS", "true"));
        container.ports.get_or_insert_default().push(port("metrics", METRICS_PORT));
    }
}

fn at_pod(port: i32) -> String {
    format!("$(POD_IP):{port}")
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// All of them, empty ones too: who says something about pods says everything.
fn pod_fields(pod: &mut PodSpec, wanted: &Pod) {
    let list = |empty| if empty { None } else { Some(()) };
    pod.security_context.clone_from(&wanted.security_context);
    pod.image_pull_secrets =
        list(wanted.image_pull_secrets.is_empty()).map(|()| wanted.image_pull_secrets.clone());
    pod.node_name.clone_from(&wanted.node_name);
    pod.node_selector =
        list(wanted.node_selector.is_empty()).map(|()| wanted.node_selector.clone());
    pod.affinity.clone_from(&wanted.affinity);
    pod.tolerations = list(wanted.tolerations.is_empty()).map(|()| wanted.tolerations.clone());
    pod.priority_class_name.clone_from(&wanted.priority_class_name);
    pod.topology_spread_constraints = list(wanted.topology_spread_constraints.is_empty())
        .map(|()| wanted.topology_spread_constraints.clone());
    if let Some(policy) = wanted.dns_policy {
        pod.dns_policy = Some(policy.label().to_owned());
    }
    if let Some(config) = &wanted.dns_config {
        pod.dns_config = Some(config.clone());
    }
}

fn container_fields(container: &mut PodContainer, wanted: &Container) {
    if let Some(context) = &wanted.security_context {
        container.security_context = Some(context.clone());
    }
    if let Some(wanted) = &wanted.resources {
        let ResourceRequirements { requests, limits, claims } =
            container.resources.get_or_insert_default();
        for (ours, wanted) in [(requests, &wanted.requests), (limits, &wanted.limits)] {
            if wanted.as_ref().is_some_and(|wanted| !wanted.is_empty()) {
                ours.clone_from(wanted);
            }
        }
        claims.clone_from(&wanted.claims);
    }
    for variable in &wanted.env {
        set_variable(container, plain(&variable.name, variable.value.as_deref().unwrap_or("")));
    }
    if let Some(image) = wanted.image.as_ref().filter(|image| !image.is_empty()) {
        container.image = Some(image.clone());
    }
    if let Some(policy) = wanted.image_pull_policy {
        container.image_pull_policy = Some(policy.label().to_owned());
    }
}

/// The last one of a name counts, as at run time; two of a name cannot be applied.
fn set_variable(container: &mut PodContainer, variable: EnvVar) {
    let all = container.env.get_or_insert_default();
    match all.iter_mut().find(|own| own.name == variable.name) {
        Some(own) => *own = variable,
        None => all.push(variable),
    }
}

/// What is wanted, but for keys that are ours, which stay as they are.
fn merge(ours: &mut Option<Labels>, wanted: &Labels, managed: &[&str]) {
    if wanted.is_empty() {
        return;
    }
    let mut all = wanted.clone();
    all.retain(|key, _| !managed.contains(&key.as_str()));
    all.extend(ours.take().unwrap_or_default());
    *ours = Some(all);
}
