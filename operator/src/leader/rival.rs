//! Upstream's operator, alive beside us: two operators that reconcile the same objects undo each other's work.

use std::{fmt, sync::Arc};

use futures::{StreamExt as _, stream};
use k8s_openapi::{
    api::{apps::v1::Deployment, core::v1::Pod},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, ResourceExt as _,
    runtime::{WatchStreamExt as _, reflector, reflector::store, watcher},
};
use tokio::sync::watch::Sender;

use crate::{
    context::{Context, Settings},
    label::{self, Labels},
};

/// What upstream's Deployment is called unless somebody gave it another name.
const USUAL_NAME: &str = "operator";

/// The label of our own operator's pods, and its value.
const OURS: (&str, &str) = ("app.kubernetes.io/name", "sluice-operator");

/// Another operator with pods that are ready.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rival {
    /// What its Deployment is, without what it asks for.
    deployment: Deployment,
    image: String,
}

impl Rival {
    /// What runs it.
    pub(super) fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// Its namespace and name.
    pub(super) fn name(&self) -> String {
        let namespace = self.deployment.namespace().unwrap_or_default();
        format!("{namespace}/{}", self.deployment.name_any())
    }

    fn of(deployment: &Deployment, settings: &Settings, own: Option<&Labels>) -> Option<Self> {
        let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas);
        let spec = deployment.spec.as_ref()?;
        let pod = spec.template.spec.as_ref()?;
        let variable = |name: &str| {
            let mut all =
                pod.containers.iter().flat_map(|container| container.env.iter().flatten());
            all.find(|variable| variable.name == name)
        };
        let container = pod.containers.iter().find(|container| {
            let has =
                |name: &str| container.env.iter().flatten().any(|variable| variable.name == name);
            has("OPERATOR_NAMESPACE") && has("OPERATOR_INITIAL_TAGS")
        })?;
        let labels = spec.template.metadata.as_ref().and_then(|pod| pod.labels.as_ref());
        let is_ours = label::has(labels, &label::labels([OURS]));
        let same_namespace = deployment.namespace().as_ref() == Some(&settings.namespace);
        let runs_us = same_namespace
            && own.is_some_and(|own| {
                let selected = spec.selector.match_labels.as_ref();
                selected.is_some_and(|selected| label::has(Some(own), selected))
            });
        let class = variable("OPERATOR_INGRESS_CLASS_NAME")
            .and_then(|variable| variable.value.as_deref())
            .unwrap_or("tailscale");
        let concerns_us = same_namespace || class == settings.ingress_class_name;
        (ready.unwrap_or(0) > 0 && concerns_us && !is_ours && !runs_us).then(|| Self {
            deployment: Deployment {
                metadata: ObjectMeta {
                    name: deployment.metadata.name.clone(),
                    namespace: deployment.metadata.namespace.clone(),
                    uid: deployment.metadata.uid.clone(),
                    ..ObjectMeta::default()
                },
                ..Deployment::default()
            },
            image: container.image.clone().unwrap_or_default(),
        })
    }
}

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, image) = (self.name(), &self.image);
        let (namespace, deployment) = name.split_once('/').unwrap_or_default();
        write!(
            f,
            "another operator is running: Deployment {name} with image {image}; stop it: \
             `kubectl -n {namespace} scale deployment {deployment} --replicas=0`"
        )
    }
}

/// Who else is there.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Beside {
    /// Nobody has looked yet.
    Unknown,
    /// No other operator.
    Nobody,
    /// This one, and perhaps more.
    Rival(Box<Rival>),
}

/// Keeps `found` up to date, for ever.
pub(super) async fn watch(context: Arc<Context>, found: Sender<Beside>) {
    let own = own_labels(&context).await;
    let here = Api::<Deployment>::namespaced(context.client.clone(), &context.settings.namespace);
    let everywhere = Api::<Deployment>::all(context.client.clone());
    let usual = watcher::Config::default().fields(&format!("metadata.name={USUAL_NAME}"));
    let (near, writer) = store();
    let near_changes =
        reflector(writer, watcher(here, watcher::Config::default()).default_backoff());
    let (far, writer) = store();
    let far_changes = reflector(writer, watcher(everywhere, usual).default_backoff());
    let mut changes = stream::select(
        near_changes.map(|event| (0, event)).boxed(),
        far_changes.map(|event| (1, event)).boxed(),
    );
    let mut looked = [false; 2];
    while let Some((place, event)) = changes.next().await {
        let is_told = match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => false,
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "whether another operator runs is looked at again later");
                true
            }
        };
        if let Some(looked) = looked.get_mut(place) {
            *looked |= is_told;
        }
        if !is_told || looked.contains(&false) {
            continue;
        }
        let all = near.state().into_iter().chain(far.state());
        let mut rivals: Vec<_> = all
            .filter_map(|deployment| Rival::of(&deployment, &context.settings, own.as_ref()))
            .collect();
        rivals.sort_by_key(Rival::name);
        let first = rivals.into_iter().next().map(Box::new);
        let now = first.map_or(Beside::Nobody, Beside::Rival);
        found.send_if_modified(|known| {
            let is_news = *known != now;
            *known = now;
            is_news
        });
    }
}

/// The labels of the pod that we are in, if we are in one.
async fn own_labels(context: &Context) -> Option<Labels> {
    let name = context.settings.pod_name.as_deref()?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &context.settings.namespace);
    match pods.get(name).await {
        Ok(pod) => pod.metadata.labels,
        Err(error) => {
            tracing::warn!(%error, name, "the operator's own pod (POD_NAME) is not known");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    fn upstream() -> Value {
        let variable = |name: &str, value: &str| json!({ "name": name, "value": value });
        json!({
            "metadata": { "name": "operator", "namespace": "tailscale" },
            "spec": {
                "selector": { "matchLabels": { "app": "operator" } },
                "template": {
                    "metadata": { "labels": { "app": "operator" } },
                    "spec": { "containers": [{ "name": "operator", "image": "tailscale/k8s-operator:v1.102.5",
                        "env": [variable("OPERATOR_INITIAL_TAGS", "tag:k8s-operator"),
                            variable("OPERATOR_NAMESPACE", "tailscale"),
                            variable("OPERATOR_INGRESS_CLASS_NAME", "tailscale")] }] },
                },
            },
            "status": { "readyReplicas": 1 },
        })
    }

    fn found(deployment: &Value, own: Option<&Labels>) -> Option<String> {
        let settings = Flags::parse_from(["operator", "--namespace", "tailscale"]).settings;
        let deployment: Deployment = serde_json::from_value(deployment.clone()).unwrap();
        Rival::of(&deployment, &settings, own).map(|rival| rival.to_string())
    }

    #[test]
    fn upstreams_operator_is_a_rival_and_the_remedy_is_a_command() {
        let said = found(&upstream(), None).unwrap();
        assert_eq!(
            said,
            "another operator is running: Deployment tailscale/operator with image \
             tailscale/k8s-operator:v1.102.5; stop it: `kubectl -n tailscale scale deployment operator --replicas=0`"
        );
    }

    #[test]
    fn what_is_not_ready_not_an_operator_or_our_own_is_no_rival() {
        let changed = |pointer: &str, value: Value| {
            let mut deployment = upstream();
            *deployment.pointer_mut(pointer).unwrap() = value;
            deployment
        };
        let gone = changed("/status/readyReplicas", json!(0));
        assert_eq!(found(&gone, None), None);
        let other = changed("/spec/template/spec/containers/0/env", json!([]));
        assert_eq!(found(&other, None), None);
        let labels = json!({ "app": "operator", "app.kubernetes.io/name": "sluice-operator" });
        let ours = changed("/spec/template/metadata/labels", labels);
        assert_eq!(found(&ours, None), None);
        // Upstream's Deployment with nothing but another image, which is us.
        let own = label::labels([("app", "operator"), ("pod-template-hash", "x")]);
        assert_eq!(found(&upstream(), Some(&own)), None);
    }

    #[test]
    fn in_another_namespace_only_the_same_class_is_a_rivals() {
        let mut away = upstream();
        away["metadata"]["namespace"] = json!("other");
        assert!(found(&away, None).unwrap().contains("-n other scale"));
        let own = label::labels([("app", "operator")]);
        assert!(found(&away, Some(&own)).is_some(), "a selector says nothing of other namespaces");
        let class = "/spec/template/spec/containers/0/env/2/value";
        *away.pointer_mut(class).unwrap() = json!("tailscale-internal");
        assert_eq!(found(&away, None), None);
        away["metadata"]["namespace"] = json!("tailscale");
        assert!(found(&away, None).is_some(), "the same namespace: the same Services");
    }
}
