//! Who the operator is for operators of other clusters that share Tailscale Services with it.
//!
//! Upstream's operator is the device that it is in the tailnet. When it loses that, it is somebody else and everything that
//! it owned is somebody else's. Ours is what the cluster and the namespace are: nothing that can be lost. What upstream's
//! operator owned as a device, whose state is in a Secret, is taken over.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::OnceCell;

use super::Settings;
use crate::{
    error::{Error, ResultExt as _},
    tailnet_state::profile,
};

/// The namespace that every cluster has for its whole life.
const CLUSTER: &str = "kube-system";

/// Who the operator is. It is looked up when it is needed first.
#[derive(Debug)]
pub struct Identity {
    namespace: String,
    secret: String,
    client: Opaque,
    found: OnceCell<Names>,
}

/// Not `Debug` itself.
struct Opaque(Client);

impl std::fmt::Debug for Opaque {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Client")
    }
}

/// What the operator is called as an owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Names {
    /// By itself.
    pub own: String,
    /// As upstream's operator, whose installation it has taken over.
    pub former: Option<String>,
}

impl Identity {
    /// In this cluster.
    pub fn new(client: Client, settings: &Settings) -> Self {
        Self {
            namespace: settings.namespace.clone(),
            secret: settings.operator_secret.clone(),
            client: Opaque(client),
            found: OnceCell::new(),
        }
    }

    /// What it is called.
    pub async fn names(&self) -> Result<&Names, Error> {
        self.found.get_or_try_init(|| self.find()).await
    }

    async fn find(&self) -> Result<Names, Error> {
        let namespaces: Api<Namespace> = Api::all(self.client.0.clone());
        let what = || format!("read Namespace {CLUSTER}, which tells clusters apart");
        let cluster = namespaces.get(CLUSTER).await.doing(what)?;
        let uid = cluster.uid().ok_or_else(|| Error::Incomplete(CLUSTER.to_owned(), "UID"))?;
        let (namespace, name) = (&self.namespace, &self.secret);
        let secrets: Api<Secret> = Api::namespaced(self.client.0.clone(), namespace);
        let what = || format!("read Secret {namespace}/{name}");
        let state = secrets.get_opt(name).await.doing(what)?;
        let former = state.as_ref().and_then(profile).and_then(|profile| profile.node);
        Ok(Names { own: format!("{uid}/{namespace}"), former })
    }
}
