//! The nameserver of a DNSConfig: a ServiceAccount, the records, the pods and the Service that they are reached through.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy},
        core::v1::{
            Capabilities, ConfigMap, ConfigMapVolumeSource, Container, ContainerPort, PodSpec,
            PodTemplateSpec, Probe, SeccompProfile, SecurityContext, Service, ServiceAccount,
            ServicePort, ServiceSpec, TCPSocketAction, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
};

use crate::{
    crd::dns_config::NameserverPod,
    label::{self, Labels},
};

/// The name of everything that is the nameserver's, but for the records.
pub const NAME: &str = "nameserver";
/// The name of the ConfigMap with the records.
pub const RECORDS: &str = "dnsrecords";
/// The key of the records in it.
pub const RECORDS_KEY: &str = "records.json";

/// Where the pods answer: no privilege is needed for it.
const PORT: i32 = 1053;
/// Where the Service does.
const SERVICE_PORT: i32 = 53;
/// Nobody; images need not name a user then.
const USER: i64 = 65_532;

/// A nameserver, with everything that is known about it.
#[derive(Clone, Debug)]
pub struct Nameserver {
    /// The DNSConfig that it is made for.
    pub owner: OwnerReference,
    /// Where it is: the operator's namespace.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// What is started in it; empty for what the image starts by itself.
    pub command: Vec<String>,
    /// How many pods.
    pub replicas: i32,
    /// The address of its Service, if it is not the cluster that chooses it.
    pub cluster_ip: Option<String>,
    /// What users want of its pods.
    pub pod: NameserverPod,
    /// The records, JSON.
    pub records: String,
}

/// What makes it, in the order in which it is applied.
#[derive(Clone, Debug)]
pub struct NameserverObjects {
    /// Who its pods are for the API server, which they ask nothing.
    pub account: ServiceAccount,
    /// The records.
    pub records: ConfigMap,
    /// Where it is reached.
    pub service: Service,
    /// The pods.
    pub deployment: Deployment,
}

impl Nameserver {
    /// What makes it.
    pub fn objects(&self) -> NameserverObjects {
        NameserverObjects {
            account: ServiceAccount {
                metadata: self.metadata(NAME),
                automount_service_account_token: Some(false),
                ..ServiceAccount::default()
            },
            records: ConfigMap {
                metadata: self.metadata(RECORDS),
                data: Some(BTreeMap::from([(RECORDS_KEY.to_owned(), self.records.clone())])),
                ..ConfigMap::default()
            },
            service: self.service(),
            deployment: self.deployment(),
        }
    }

    fn metadata(&self, name: &str) -> ObjectMeta {
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(label::labels([
                (label::MANAGED, "true"),
                (label::PARENT_KIND, label::NAMESERVER),
                (label::PARENT_NAME, &self.owner.name),
                (label::PARENT_NAMESPACE, &self.namespace),
                ("app.kubernetes.io/name", "tailscale"),
                ("app.kubernetes.io/component", "nameserver"),
            ])),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    fn service(&self) -> Service {
        let port = |name: &str, protocol: &str| ServicePort {
            name: Some(name.to_owned()),
            port: SERVICE_PORT,
            target_port: Some(IntOrString::Int(PORT)),
            protocol: Some(protocol.to_owned()),
            ..ServicePort::default()
        };
        Service {
            metadata: self.metadata(NAME),
            spec: Some(ServiceSpec {
                cluster_ip: self.cluster_ip.clone(),
                selector: Some(selector()),
                ports: Some(vec![port("udp", "UDP"), port("tcp", "TCP")]),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    fn deployment(&self) -> Deployment {
        Deployment {
            metadata: self.metadata(NAME),
            spec: Some(DeploymentSpec {
                replicas: Some(self.replicas),
                revision_history_limit: Some(5),
                strategy: Some(DeploymentStrategy {
                    type_: Some("Recreate".into()),
                    ..DeploymentStrategy::default()
                }),
                selector: LabelSelector {
                    match_labels: Some(selector()),
                    ..LabelSelector::default()
                },
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(selector()),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(self.pod()),
                },
                ..DeploymentSpec::default()
            }),
            ..Deployment::default()
        }
    }

    fn pod(&self) -> PodSpec {
        let port = |name: &str, protocol: &str| ContainerPort {
            name: Some(name.to_owned()),
            container_port: PORT,
            protocol: Some(protocol.to_owned()),
            ..ContainerPort::default()
        };
        let container = Container {
            name: NAME.into(),
            image: Some(self.image.clone()),
            image_pull_policy: Some("IfNotPresent".into()),
            command: Some(self.command.clone()).filter(|command| !command.is_empty()),
            ports: Some(vec![port("tcp", "TCP"), port("udp", "UDP")]),
            readiness_probe: Some(Probe {
                tcp_socket: Some(TCPSocketAction {
                    port: IntOrString::Int(PORT),
                    ..TCPSocketAction::default()
                }),
                ..Probe::default()
            }),
            security_context: Some(SecurityContext {
                allow_privilege_escalation: Some(false),
                capabilities: Some(Capabilities {
                    drop: Some(vec!["ALL".into()]),
                    ..Capabilities::default()
                }),
                read_only_root_filesystem: Some(true),
                run_as_group: Some(USER),
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".into(),
                    ..SeccompProfile::default()
                }),
                ..SecurityContext::default()
            }),
            volume_mounts: Some(vec![VolumeMount {
                name: RECORDS.into(),
                mount_path: "/config".into(),
                ..VolumeMount::default()
            }]),
            ..Container::default()
        };
        let some = |list: &Vec<_>| Some(list.clone()).filter(|list| !list.is_empty());
        PodSpec {
            service_account_name: Some(NAME.into()),
            containers: vec![container],
            volumes: Some(vec![Volume {
                name: RECORDS.into(),
                config_map: Some(ConfigMapVolumeSource {
                    name: RECORDS.into(),
                    ..ConfigMapVolumeSource::default()
                }),
                ..Volume::default()
            }]),
            affinity: self.pod.affinity.clone(),
            image_pull_secrets: some(&self.pod.image_pull_secrets),
            node_selector: Some(self.pod.node_selector.clone()).filter(|all| !all.is_empty()),
            tolerations: Some(self.pod.tolerations.clone()).filter(|all| !all.is_empty()),
            ..PodSpec::default()
        }
    }
}

/// Upstream's: the selector of a Deployment cannot be changed.
fn selector() -> Labels {
    label::labels([(label::APP, NAME)])
}
