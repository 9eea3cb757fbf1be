//! Who pods are for the API server, and what they may do.

use std::fmt;

use anyhow::{Context as _, Result};
use k8s_openapi::api::{
    authentication::v1::TokenRequest, core::v1::ServiceAccount, rbac::v1::PolicyRule,
};
use kube::{Api, api::PostParams};
use serde_json::json;

use super::ApiServer;

/// A service account with a token of its. The token is never shown.
#[derive(Clone)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name, which its Role and RoleBinding have too.
    pub name: String,
    token: String,
}

impl Account {
    /// What it shows the API server; for an hour.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account")
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A rule of a Role: these verbs (`get`, `patch`) on these objects of a resource (`secrets`); on all of them, without names.
pub fn rule(resource: &str, names: &[&str], verbs: &[&str]) -> PolicyRule {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: (!names.is_empty()).then(|| owned(names)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

impl ApiServer {
    /// A service account without rights, and its namespace, made if they are not there.
    pub fn account(&self, namespace: &str, name: &str) -> Result<Account> {
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace },
        }))?;
        self.apply(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": name, "namespace": namespace },
        }))?;
        let request: TokenRequest =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "audiences": [] } }))?;
        let token = self
            .admin(async |client| {
                let accounts: Api<ServiceAccount> = Api::namespaced(client, namespace);
                Ok(accounts.create_token_request(name, &PostParams::default(), &request).await?)
            })
            .with_context(|| format!("ask for a token of {namespace}/{name}"))?;
        let token = token.status.context("a token request without a status")?.token;
        Ok(Account { namespace: namespace.to_owned(), name: name.to_owned(), token })
    }

    /// Allows the account just this, instead of what it was allowed before. It holds within a moment.
    pub fn allow(&self, account: &Account, rules: &[PolicyRule]) -> Result<()> {
        let group = "rbac.authorization.k8s.io";
        let metadata = json!({ "name": account.name, "namespace": account.namespace });
        self.apply(&json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
            "rules": rules,
        }))?;
        self.apply(&json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": account.name },
            "subjects": [{
                "kind": "ServiceAccount", "name": account.name, "namespace": account.namespace,
            }],
        }))
        .map(drop)
    }
}
