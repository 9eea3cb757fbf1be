//! What the pods of a proxy may do at the API server: read and write their own Secrets, and tell of it in Events.

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

const GROUP: &str = "rbac.authorization.k8s.io";

/// Pods and their Secrets.
pub(super) struct Access {
    /// Of account, role and binding: they have the StatefulSet's name.
    pub(super) metadata: ObjectMeta,
    /// The Secrets that they may read and write.
    pub(super) secrets: Vec<String>,
    /// Whether they may list all Secrets of the namespace: tailscaled finds certificates that another replica has renewed in no
    /// other way.
    pub(super) lists_secrets: bool,
}

impl Access {
    pub(super) fn account(&self) -> ServiceAccount {
        ServiceAccount { metadata: self.metadata.clone(), ..ServiceAccount::default() }
    }

    pub(super) fn role(&self) -> Role {
        let rule = |resource: &str, names: Option<&Vec<String>>, verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            resource_names: names.cloned(),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        };
        let mut rules = Vec::new();
        if self.lists_secrets {
            rules.push(rule("secrets", None, &["list"]));
        }
        // A rule that names no Secret would allow all of them.
        if !self.secrets.is_empty() {
            rules.push(rule("secrets", Some(&self.secrets), &["get", "patch", "update"]));
        }
        rules.push(rule("events", None, &["create", "get", "patch"]));
        Role { metadata: self.metadata.clone(), rules: Some(rules) }
    }

    pub(super) fn binding(&self) -> RoleBinding {
        let name = self.metadata.name.clone().unwrap_or_default();
        RoleBinding {
            metadata: self.metadata.clone(),
            role_ref: RoleRef { api_group: GROUP.into(), kind: "Role".into(), name: name.clone() },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name,
                namespace: self.metadata.namespace.clone(),
                ..Subject::default()
            }]),
        }
    }
}
