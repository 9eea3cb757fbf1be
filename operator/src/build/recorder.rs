//! The StatefulSet of a Recorder, and everything that it needs.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec},
        core::v1::{
            Container, EmptyDirVolumeSource, EnvFromSource, EnvVar, KeyToPath, PodSpec,
            PodTemplateSpec, Secret, SecretEnvSource, SecretVolumeSource, ServiceAccount, Volume,
            VolumeMount,
        },
        rbac::v1::{Role, RoleBinding},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    access::Access,
    environment::{field, plain},
    secret_name,
};
use crate::{
    crd::recorder::{Pod, RecorderSpec},
    label::{self, Labels, Parent},
};

/// The key of a Secret with an auth key.
pub const AUTH_KEY: &str = "authkey";

/// The image that upstream's operator of the version that we follow takes.
pub const IMAGE: &str = "tailscale/tsrecorder:v1.102.5";

/// Recorders, with everything that is known about them.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The Recorder. Its name is the StatefulSet's.
    pub parent: Parent,
    /// The same: what is made ends with it.
    pub owner: OwnerReference,
    /// Where they are: the operator's namespace.
    pub namespace: String,
    /// What is asked for.
    pub spec: RecorderSpec,
    /// What each replica logs in with. It is kept: pods mount it.
    pub keys: Vec<SecretString>,
    /// Where they log in.
    pub login_server: String,
    /// What the pods are selected by, if that is settled already: it cannot be changed.
    pub selector: Option<Labels>,
}

/// Everything that makes them, in the order in which it is applied. Not `Debug`: Secrets hold keys.
pub struct RecordingObjects {
    /// Who the pods are for the API server.
    pub account: ServiceAccount,
    /// What they may do.
    pub role: Role,
    /// That it is they who may.
    pub binding: RoleBinding,
    /// State, one a replica.
    pub states: Vec<Secret>,
    /// Auth keys, one a replica.
    pub keys: Vec<Secret>,
    /// The pods.
    pub stateful_set: StatefulSet,
}

/// The Secret with the auth key of a replica.
pub fn key_name(recorder: &str, ordinal: usize) -> String {
    format!("{recorder}-auth-{ordinal}")
}

/// The name of the ServiceAccount.
pub fn account_name<'a>(recorder: &'a str, spec: &'a RecorderSpec) -> &'a str {
    let asked = pod_of(spec).and_then(|pod| pod.service_account.as_ref()?.name.as_deref());
    asked.filter(|name| !name.is_empty()).unwrap_or(recorder)
}

/// What makes these recorders.
pub fn recording_objects(recording: &Recording) -> Box<RecordingObjects> {
    let name = &recording.parent.name;
    let names = (0..recording.keys.len())
        .flat_map(|ordinal| [secret_name(name, ordinal), key_name(name, ordinal)]);
    let access = Access {
        metadata: recording.metadata(name),
        secrets: names.collect(),
        lists_secrets: false,
    };
    let account_name = account_name(name, &recording.spec);
    let mut account = access.account();
    account.metadata.name = Some(account_name.to_owned());
    let annotations = pod_of(&recording.spec).and_then(|pod| pod.service_account.as_ref());
    account.metadata.annotations = some(annotations.map(|account| &account.annotations));
    let mut binding = access.binding();
    for subject in binding.subjects.iter_mut().flatten() {
        account_name.clone_into(&mut subject.name);
    }
    let key = |(ordinal, key): (usize, &SecretString)| Secret {
        metadata: recording.metadata(&key_name(name, ordinal)),
        data: Some(BTreeMap::from([(
            AUTH_KEY.to_owned(),
            ByteString(key.expose_secret().as_bytes().to_vec()),
        )])),
        ..Secret::default()
    };
    let state = |ordinal| Secret {
        metadata: recording.metadata(&secret_name(name, ordinal)),
        ..Secret::default()
    };
    Box::new(RecordingObjects {
        account,
        role: access.role(),
        binding,
        states: (0..recording.keys.len()).map(state).collect(),
        keys: recording.keys.iter().enumerate().map(key).collect(),
        stateful_set: recording.stateful_set(),
    })
}

fn pod_of(spec: &RecorderSpec) -> Option<&Pod> {
    spec.stateful_set.as_ref()?.pod.as_ref()
}

/// A map, unless it is empty.
fn some(all: Option<&BTreeMap<String, String>>) -> Option<Labels> {
    all.filter(|all| !all.is_empty()).cloned()
}

impl Recording {
    fn metadata(&self, name: &str) -> ObjectMeta {
        let mut labels = self.parent.child_labels();
        // Upstream's have none of these. They are how changes are noticed.
        labels.extend(label::labels([
            (label::MANAGED, "true"),
            (label::PARENT_KIND, self.parent.kind.label()),
            (label::PARENT_NAME, &self.parent.name),
        ]));
        ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        }
    }

    fn stateful_set(&self) -> StatefulSet {
        let wanted = self.spec.stateful_set.as_ref();
        let pod = pod_of(&self.spec);
        let mut metadata = self.metadata(&self.parent.name);
        metadata.annotations = some(wanted.map(|set| &set.annotations));
        let mut labels = wanted.map(|set| set.labels.clone()).unwrap_or_default();
        labels.extend(metadata.labels.take().unwrap_or_default());
        metadata.labels = Some(labels);
        let mut of_pod = pod.map(|pod| pod.labels.clone()).unwrap_or_default();
        of_pod.extend(self.parent.child_labels());
        // As upstream has it when it makes one: with the labels that users want of pods.
        let selector = self.selector.clone().unwrap_or_else(|| of_pod.clone());
        of_pod.extend(selector.clone());
        StatefulSet {
            metadata,
            spec: Some(StatefulSetSpec {
                replicas: i32::try_from(self.keys.len()).ok(),
                selector: LabelSelector {
                    match_labels: Some(selector),
                    ..LabelSelector::default()
                },
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(of_pod),
                        annotations: some(pod.map(|pod| &pod.annotations)),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(self.pod(pod)),
                },
                ..StatefulSetSpec::default()
            }),
            ..StatefulSet::default()
        }
    }

    fn pod(&self, wanted: Option<&Pod>) -> PodSpec {
        let container = wanted.and_then(|pod| pod.container.as_ref());
        let image = container.and_then(|container| container.image.clone());
        let (volumes, mounts) = self.volumes();
        let container = Container {
            name: "recorder".into(),
            image: Some(image.filter(|image| !image.is_empty()).unwrap_or_else(|| IMAGE.into())),
            image_pull_policy: container
                .and_then(|container| container.image_pull_policy)
                .map(|policy| policy.label().to_owned()),
            command: Some(vec!["/tsrecorder".into()]),
            env: Some(self.environment(wanted)),
            env_from: self.credentials().map(|one| vec![one]),
            resources: container.and_then(|container| container.resources.clone()),
            security_context: container.and_then(|container| container.security_context.clone()),
            volume_mounts: Some(mounts),
            ..Container::default()
        };
        let wanted = wanted.cloned().unwrap_or_default();
        PodSpec {
            service_account_name: Some(account_name(&self.parent.name, &self.spec).to_owned()),
            containers: vec![container],
            volumes: Some(volumes),
            affinity: wanted.affinity,
            security_context: wanted.security_context,
            image_pull_secrets: Some(wanted.image_pull_secrets).filter(|all| !all.is_empty()),
            node_selector: some(Some(&wanted.node_selector)),
            tolerations: Some(wanted.tolerations).filter(|all| !all.is_empty()),
            ..PodSpec::default()
        }
    }

    /// In upstream's order: users can change what is before theirs, and nothing behind it.
    fn environment(&self, wanted: Option<&Pod>) -> Vec<EnvVar> {
        let mut all = vec![
            field("POD_NAME", "metadata.name"),
            field("POD_UID", "metadata.uid"),
            plain("TS_AUTHKEY_FILE", "/etc/tailscaled/$(POD_NAME)/authkey"),
            plain("TS_STATE", "kube:$(POD_NAME)"),
            plain("TSRECORDER_HOSTNAME", "$(POD_NAME)"),
            plain("TSRECORDER_LOGIN_SERVER", &self.login_server),
        ];
        let theirs = wanted.and_then(|pod| pod.container.as_ref()).map(|one| one.env.as_slice());
        for one in theirs.unwrap_or_default() {
            all.push(plain(&one.name, one.value.as_deref().unwrap_or("")));
        }
        match self.spec.storage.as_ref().and_then(|storage| storage.s3.as_ref()) {
            Some(s3) => {
                let endpoint = s3.endpoint.as_deref().unwrap_or("");
                all.push(plain("TSRECORDER_DST", &format!("s3://{endpoint}")));
                all.push(plain("TSRECORDER_BUCKET", s3.bucket.as_deref().unwrap_or("")));
            }
            None => all.push(plain("TSRECORDER_DST", "/data/recordings")),
        }
        if self.spec.enable_ui == Some(true) {
            all.push(plain("TSRECORDER_UI", "true"));
        }
        // The last one of a name counts, as at run time; two of a name cannot be applied.
        let mut last: Vec<EnvVar> = Vec::with_capacity(all.len());
        for one in all {
            match last.iter_mut().find(|own| own.name == one.name) {
                Some(own) => *own = one,
                None => last.push(one),
            }
        }
        last
    }

    fn credentials(&self) -> Option<EnvFromSource> {
        let s3 = self.spec.storage.as_ref()?.s3.as_ref()?;
        let name = s3.credentials.as_ref()?.secret.as_ref()?.name.clone()?;
        Some(EnvFromSource {
            secret_ref: Some(SecretEnvSource { name, ..SecretEnvSource::default() }),
            ..EnvFromSource::default()
        })
    }

    fn volumes(&self) -> (Vec<Volume>, Vec<VolumeMount>) {
        let data = (
            Volume {
                name: "data".into(),
                empty_dir: Some(EmptyDirVolumeSource::default()),
                ..Volume::default()
            },
            VolumeMount {
                name: "data".into(),
                mount_path: "/data".into(),
                ..VolumeMount::default()
            },
        );
        let name = &self.parent.name;
        let key = |ordinal| {
            let volume = format!("authkey-{ordinal}");
            let item =
                KeyToPath { key: AUTH_KEY.into(), path: AUTH_KEY.into(), ..KeyToPath::default() };
            let secret = SecretVolumeSource {
                secret_name: Some(key_name(name, ordinal)),
                items: Some(vec![item]),
                ..SecretVolumeSource::default()
            };
            let mount = VolumeMount {
                name: volume.clone(),
                mount_path: format!("/etc/tailscaled/{}", secret_name(name, ordinal)),
                read_only: Some(true),
                ..VolumeMount::default()
            };
            (Volume { name: volume, secret: Some(secret), ..Volume::default() }, mount)
        };
        [data].into_iter().chain((0..self.keys.len()).map(key)).unzip()
    }
}
