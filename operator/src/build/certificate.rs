//! A certificate of the proxies of a ProxyGroup: the Secret that one of them fills, and who may read and write it.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::{
        core::v1::Secret,
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::{
    label::{self, Labels, Parent},
    name,
};

const TYPE: &str = "kubernetes.io/tls";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// A certificate that is wanted. Everything that it needs has its domain as name.
#[derive(Clone, Debug)]
pub struct Certificate<'a> {
    /// What it is for.
    pub domain: &'a str,
    /// The operator's namespace.
    pub namespace: &'a str,
    /// The ProxyGroup that serves it.
    pub group: &'a str,
    /// The `ServiceAccount` of its pods.
    pub account: &'a str,
    /// What it is made for.
    pub parent: &'a Parent,
}

impl Certificate<'_> {
    /// The Secret. What is in it is the proxies' own: it is kept, and made empty if there is none.
    pub fn secret(&self, live: Option<&Secret>) -> Secret {
        let mut metadata = self.metadata();
        let mut labels = self.parent.child_labels();
        labels.insert(label::SECRET_TYPE.into(), label::SECRET_CERTS.into());
        metadata.labels.get_or_insert_default().append(&mut labels);
        // Whoever fills it meanwhile makes this fail.
        metadata.resource_version = live.and_then(|live| live.metadata.resource_version.clone());
        let empty = || [CERTIFICATE, KEY].map(|key| (key.to_owned(), ByteString::default()));
        let data = live.and_then(|live| live.data.clone());
        Secret {
            metadata,
            type_: Some(TYPE.into()),
            data: Some(data.unwrap_or_else(|| BTreeMap::from(empty()))),
            ..Secret::default()
        }
    }

    /// Who may read and write it.
    pub fn role(&self) -> Role {
        let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let rule = PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(texts(&["secrets"])),
            resource_names: Some(texts(&[self.domain])),
            verbs: texts(&["get", "list", "patch", "update"]),
            ..PolicyRule::default()
        };
        Role { metadata: self.metadata(), rules: Some(vec![rule]) }
    }

    /// That it is the ProxyGroup's pods.
    pub fn binding(&self) -> RoleBinding {
        RoleBinding {
            metadata: self.metadata(),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".into(),
                kind: "Role".into(),
                name: self.domain.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: self.account.to_owned(),
                namespace: Some(self.namespace.to_owned()),
                ..Subject::default()
            }]),
        }
    }

    fn metadata(&self) -> ObjectMeta {
        let labels: Labels = label::labels([
            (label::MANAGED, "true"),
            (label::PROXY_GROUP, self.group),
            (label::DOMAIN, name::label_value(self.domain).as_str()),
        ]);
        ObjectMeta {
            name: Some(self.domain.to_owned()),
            namespace: Some(self.namespace.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        }
    }
}

/// Whether there is a certificate in it.
pub fn is_filled(secret: &Secret) -> bool {
    let data = secret.data.as_ref();
    [CERTIFICATE, KEY]
        .iter()
        .all(|key| data.and_then(|data| data.get(*key)).is_some_and(|value| !value.0.is_empty()))
}
