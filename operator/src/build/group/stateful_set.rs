//! The StatefulSet of a ProxyGroup.

use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec},
        core::v1::{
            ConfigMapVolumeSource, HTTPGetAction, Lifecycle, LifecycleHandler, PodReadinessGate,
            PodSpec, PodTemplateSpec, SecretVolumeSource, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::{
    Group, GroupDuty, READINESS_GATE, config_map_name, config_name,
    environment::{FILES, environment, moves_health},
};
use crate::build::{
    overlay::{self, Applies, METRICS_PORT},
    pod::{GRACE_SECONDS, container},
    secret_name,
};

/// Until clients are no longer led to an egress proxy that ends, which may take the time that Services need to change.
const EGRESS_GRACE_SECONDS: i64 = 360;
/// Answers once clients are no longer led here.
const PRE_STOP: &str = "/internal-egress-services-preshutdown";

pub(super) fn stateful_set(group: &Group) -> StatefulSet {
    let labels = group.parent.child_labels();
    let mut set = StatefulSet {
        metadata: group.metadata(&group.parent.name),
        spec: Some(StatefulSetSpec {
            replicas: i32::try_from(group.replicas.len()).ok(),
            selector: LabelSelector {
                match_labels: Some(labels.clone()),
                ..LabelSelector::default()
            },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(group)),
            },
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    };
    if let Some(class) = &group.class {
        let applies = Applies {
            endpoints: true,
            certificates: matches!(group.duty, GroupDuty::Ingress { .. }),
        };
        overlay::apply(&mut set, class, applies);
    }
    set
}

fn pod(group: &Group) -> PodSpec {
    let (volumes, mounts) = volumes(group);
    let mut container = container(&group.image, environment(group), mounts, false);
    let is_egress = matches!(group.duty, GroupDuty::Egress { .. });
    let waits = is_egress && !moves_health(group.class.as_ref());
    if waits {
        let ask = HTTPGetAction {
            path: Some(PRE_STOP.into()),
            port: IntOrString::Int(METRICS_PORT),
            ..HTTPGetAction::default()
        };
        let stop = LifecycleHandler { http_get: Some(ask), ..LifecycleHandler::default() };
        container.lifecycle = Some(Lifecycle { pre_stop: Some(stop), ..Lifecycle::default() });
    }
    let gate = PodReadinessGate { condition_type: READINESS_GATE.into() };
    PodSpec {
        service_account_name: Some(group.parent.name.clone()),
        containers: vec![container],
        volumes: Some(volumes),
        readiness_gates: waits.then(|| vec![gate]),
        priority_class_name: group.priority_class.clone(),
        termination_grace_period_seconds: Some(if waits {
            EGRESS_GRACE_SECONDS
        } else {
            GRACE_SECONDS
        }),
        ..PodSpec::default()
    }
}

/// The configurations of all replicas: a StatefulSet has one template for all of its pods.
fn volumes(group: &Group) -> (Vec<Volume>, Vec<VolumeMount>) {
    let name = &group.parent.name;
    let mount = |name: &str, path: String| VolumeMount {
        name: name.to_owned(),
        mount_path: path,
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let config = |ordinal| {
        let volume = format!("tailscaledconfig-{ordinal}");
        let secret = SecretVolumeSource {
            secret_name: Some(config_name(name, ordinal)),
            ..SecretVolumeSource::default()
        };
        let mount = mount(&volume, format!("/etc/tsconfig/{}", secret_name(name, ordinal)));
        (Volume { name: volume, secret: Some(secret), ..Volume::default() }, mount)
    };
    let files = config_map_name(name, &group.duty);
    let source = ConfigMapVolumeSource { name: files.clone(), ..ConfigMapVolumeSource::default() };
    let map = Volume { name: files.clone(), config_map: Some(source), ..Volume::default() };
    let mount = mount(&files, FILES.to_owned());
    (0..group.replicas.len()).map(config).chain([(map, mount)]).unzip()
}
