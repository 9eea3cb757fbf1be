//! The API server: found, and asked what we may do.

use std::time::Duration;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, Client, Config, api::PostParams};

use crate::pod::settings::Kube;

const CONNECT: Duration = Duration::from_secs(5);

/// The client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The pod has no service account.
    #[error("reading the pod's service account: set automountServiceAccountToken to true")]
    ServiceAccount(#[source] kube::config::InClusterError),
    /// What the service account says cannot be used.
    #[error("setting up TLS for the API server: check the service account's ca.crt")]
    Client(#[source] kube::Error),
}

/// A client as the pod's service account, and the pod's namespace. Connects to nothing yet.
pub fn client(settings: &Kube) -> Result<(Client, String), ClusterError> {
    let config = if settings.api_server_from_env {
        Config::incluster_env()
    } else {
        Config::incluster_dns()
    };
    let mut config = config.map_err(ClusterError::ServiceAccount)?;
    config.connect_timeout = Some(CONNECT);
    // Each of us tries again at its own pace, and tells why; fifteen quick attempts inside one would hide the reason.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    Ok((Client::try_from(config).map_err(ClusterError::Client)?, namespace))
}

/// What the service account may do with the Secret.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each verb")]
pub struct Access {
    /// `get`: `tailscaled` reads its state.
    pub get: bool,
    /// `update`: `tailscaled` writes its state.
    pub update: bool,
    /// `patch`: we write.
    pub patch: bool,
    /// `create`: if the Secret is not there.
    pub create: bool,
}

impl Access {
    /// Everything.
    pub(super) const ALL: Self = Self { get: true, update: true, patch: true, create: true };

    /// Verbs that are needed for a Secret that exists, and that are missing.
    pub fn missing(self) -> Vec<&'static str> {
        [("get", self.get), ("update", self.update), ("patch", self.patch)]
            .into_iter()
            .filter_map(|(verb, allowed)| (!allowed).then_some(verb))
            .collect()
    }

    /// Asks the API server.
    pub(super) async fn review(
        client: &Client,
        namespace: &str,
        name: &str,
    ) -> Result<Self, kube::Error> {
        let ask = async |verb: &str, name: Option<&str>| {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        namespace: Some(namespace.to_owned()),
                        verb: Some(verb.to_owned()),
                        resource: Some("secrets".to_owned()),
                        name: name.map(str::to_owned),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
            let answer = api.create(&PostParams::default(), &review).await?;
            Ok::<_, kube::Error>(answer.status.is_some_and(|status| status.allowed))
        };
        Ok(Self {
            get: ask("get", Some(name)).await?,
            update: ask("update", Some(name)).await?,
            patch: ask("patch", Some(name)).await?,
            // A rule that names resources never allows to create one.
            create: ask("create", None).await?,
        })
    }
}
