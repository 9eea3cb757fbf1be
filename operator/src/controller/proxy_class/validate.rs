//! Everything that is wrong with a ProxyClass, all at once, each with field and remedy.

use super::{
    fetch::Surroundings,
    image::is_image,
    metadata::{annotations, labels},
    ports,
};
use crate::crd::{
    ProxyClass,
    data_path::{DataPath, Mode, Xdp},
    proxy_class::{Metrics, Pod, ProxyContainer},
};

/// What flow tables may hold, as the schema says.
const FLOWS: std::ops::RangeInclusive<i32> = 1024..=16_777_216;

/// Empty if it can be used.
pub(super) fn violations(class: &ProxyClass, surroundings: &Surroundings) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(set) = &class.spec.stateful_set {
        labels("spec.statefulSet.labels", &set.labels, &mut wrong);
        annotations("spec.statefulSet.annotations", &set.annotations, &mut wrong);
        if let Some(pod) = &set.pod {
            check_pod(pod, &mut wrong);
        }
    }
    if let Some(metrics) = &class.spec.metrics {
        check_metrics(metrics, surroundings, &mut wrong);
    }
    ports::check(class, surroundings, &mut wrong);
    if let Some(endpoints) = &class.spec.static_endpoints {
        let field = "spec.staticEndpoints.nodePort.selector";
        labels(field, &endpoints.node_port.selector, &mut wrong);
    }
    if let Some(data_path) = &class.spec.data_path {
        check_data_path(data_path, &mut wrong);
    }
    wrong
}

/// Variables that are the operator's own. Whoever sets one should know what it does: users are warned.
pub(super) fn own_variables(class: &ProxyClass) -> impl Iterator<Item = &str> {
    let pod = class.spec.stateful_set.as_ref().and_then(|set| set.pod.as_ref());
    let container = pod.and_then(|pod| pod.tailscale_container.as_ref());
    let names = container.into_iter().flat_map(|container| &container.container.env);
    names.map(|variable| variable.name.as_str()).filter(|name| {
        name.starts_with("TS_")
            || name.eq_ignore_ascii_case("EXPERIMENTAL_TS_CONFIGFILE_PATH")
            || name.eq_ignore_ascii_case("EXPERIMENTAL_ALLOW_PROXYING_CLUSTER_TRAFFIC_VIA_INGRESS")
    })
}

fn check_pod(pod: &Pod, wrong: &mut Vec<String>) {
    labels("spec.statefulSet.pod.labels", &pod.labels, wrong);
    annotations("spec.statefulSet.pod.annotations", &pod.annotations, wrong);
    labels("spec.statefulSet.pod.nodeSelector", &pod.node_selector, wrong);
    check_image("tailscaleContainer", pod.tailscale_container.as_ref(), wrong);
    let init = pod.tailscale_init_container.as_ref();
    check_image("tailscaleInitContainer", init, wrong);
    if init.is_some_and(|init| init.debug.is_some()) {
        wrong.push(
            "spec.statefulSet.pod.tailscaleInitContainer.debug: the init container serves nothing, set it at tailscaleContainer"
                .to_owned(),
        );
    }
}

fn check_image(which: &str, container: Option<&ProxyContainer>, wrong: &mut Vec<String>) {
    let image = container.and_then(|container| container.container.image.as_ref());
    // None is named by an empty one.
    if let Some(image) = image.filter(|image| !image.is_empty() && !is_image(image)) {
        wrong.push(format!(
            "spec.statefulSet.pod.{which}.image: `{image}` is not the name of an image, write it as registry/name:tag"
        ));
    }
}

fn check_metrics(metrics: &Metrics, surroundings: &Surroundings, wrong: &mut Vec<String>) {
    let Some(monitor) = &metrics.service_monitor else { return };
    let field = "spec.metrics.serviceMonitor";
    if monitor.enable && !metrics.enable {
        wrong.push(format!("{field}.enable: needs metrics, set spec.metrics.enable as well"));
    }
    if monitor.enable && !surroundings.service_monitors {
        wrong.push(format!(
            "{field}.enable: the cluster has no ServiceMonitors, install the Prometheus operator's definitions or set it to false"
        ));
    }
    labels(&format!("{field}.labels"), &monitor.labels, wrong);
}

fn check_data_path(data_path: &DataPath, wrong: &mut Vec<String>) {
    if let Some(flows) = data_path.max_flows.filter(|flows| !FLOWS.contains(flows)) {
        wrong.push(format!(
            "spec.dataPath.maxFlows: {flows} is out of range, use {} to {}",
            FLOWS.start(),
            FLOWS.end()
        ));
    }
    let in_kernel = matches!(data_path.mode, Some(Mode::Ebpf | Mode::Nftables));
    if in_kernel && data_path.proxy_protocol == Some(true) {
        wrong.push(
            "spec.dataPath.proxyProtocol: needs user space, set spec.dataPath.mode to auto or userspace or leave proxyProtocol out"
                .to_owned(),
        );
    }
    let without_ebpf = matches!(data_path.mode, Some(Mode::Nftables | Mode::Userspace));
    if without_ebpf && data_path.xdp.is_some_and(|xdp| xdp != Xdp::Off) {
        wrong.push(
            "spec.dataPath.xdp: needs eBPF, set spec.dataPath.mode to auto or ebpf or leave xdp out"
                .to_owned(),
        );
    }
}
