//! What the pods of a proxy may do at the API server: read and write their own Secrets, and tell of it in Events.

use k8s_openapi::api::{
    core::v1::ServiceAccount,
    rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
};

use super::proxy::{Proxy, secret_name};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Its name is the StatefulSet's.
pub(super) fn account(proxy: &Proxy) -> ServiceAccount {
    ServiceAccount { metadata: proxy.metadata(&proxy.base), ..ServiceAccount::default() }
}

pub(super) fn role(proxy: &Proxy) -> Role {
    let texts = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let names = (0..proxy.nodes.len()).map(|ordinal| secret_name(&proxy.base, ordinal)).collect();
    let secrets = PolicyRule {
        api_groups: Some(texts(&[""])),
        resources: Some(texts(&["secrets"])),
        resource_names: Some(names),
        verbs: texts(&["get", "patch", "update"]),
        ..PolicyRule::default()
    };
    let events = PolicyRule {
        api_groups: Some(texts(&[""])),
        resources: Some(texts(&["events"])),
        verbs: texts(&["create", "get", "patch"]),
        ..PolicyRule::default()
    };
    // A rule that names no Secret would allow all of them.
    let rules = if proxy.nodes.is_empty() { vec![events] } else { vec![secrets, events] };
    Role { metadata: proxy.metadata(&proxy.base), rules: Some(rules) }
}

pub(super) fn binding(proxy: &Proxy) -> RoleBinding {
    RoleBinding {
        metadata: proxy.metadata(&proxy.base),
        role_ref: RoleRef {
            api_group: GROUP.into(),
            kind: "Role".into(),
            name: proxy.base.clone(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: proxy.base.clone(),
            namespace: Some(proxy.namespace.clone()),
            ..Subject::default()
        }]),
    }
}
