//! When a pod of an egress ProxyGroup counts as ready: once clients that go to its Services are led to it. A StatefulSet ends
//! the next pod only then, so that some pod always serves.

use std::{net::IpAddr, time::Duration};

use http_body_util::Empty;
use hyper::{Request, StatusCode, body::Bytes, header};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::{
    api::{
        core::v1::{Pod, Secret, Service},
        discovery::v1::EndpointSlice,
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::json;

use super::group::{addresses, status};
use crate::{
    annotation::HEALTH_PORT,
    apply::FIELD_MANAGER,
    build::group::{
        READINESS_GATE,
        egress::{Family, slice_name},
    },
    context::Context,
    label::{self, Parent},
};

/// How long one answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two rounds of questions.
const PAUSE: Duration = Duration::from_secs(5);

/// Asks until clients are led to this pod, unless that is known or being asked already.
pub(super) fn open(context: &Context, parent: &Parent, pod: &Pod) {
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    let waits = gates.is_some_and(|all| all.iter().any(|one| one.condition_type == READINESS_GATE));
    if !waits || is_open(pod) {
        return;
    }
    let gate = Gate {
        client: context.client.clone(),
        http: HttpClient::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build(HttpConnector::new()),
        namespace: context.settings.namespace.clone(),
        group: parent.name.clone(),
        pods: context.cache.pods.clone(),
        secrets: context.cache.secrets.clone(),
        services: context.cache.services.clone(),
        slices: context.cache.slices.clone(),
        pod: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    };
    context.tasks.start(&gate.uid.clone(), || Box::pin(gate.run()));
}

fn is_open(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == READINESS_GATE && one.status == "True")
}

struct Gate {
    client: Client,
    http: HttpClient<HttpConnector, Empty<Bytes>>,
    namespace: String,
    group: String,
    pods: Store<Pod>,
    secrets: Store<Secret>,
    services: Store<Service>,
    slices: Store<EndpointSlice>,
    pod: String,
    uid: String,
}

impl Gate {
    async fn run(self) {
        loop {
            let pod = self.pods.get(&ObjectRef::new(&self.pod).within(&self.namespace));
            let is_same = |pod: &Pod| {
                pod.uid().as_ref() == Some(&self.uid)
                    && pod.metadata.deletion_timestamp.is_none()
                    && !is_open(pod)
            };
            let Some(pod) = pod.filter(|pod| is_same(pod)) else { return };
            let outcome = match self.is_led_to(&pod).await {
                Ok(()) => self.tell().await.map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            match outcome {
                Ok(()) => return,
                Err(why) => tracing::debug!(pod = self.pod, why, "not ready for egress Services"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Whether clients of every Service are led to the pod. One that no replica serves is not waited for: a target that is
    /// gone keeps no pod from being ready for the others.
    async fn is_led_to(&self, pod: &Pod) -> Result<(), String> {
        let own = addresses(pod);
        let primary = *own.first().ok_or("it has no address")?;
        let labels =
            [(label::PROXY_GROUP, self.group.as_str()), (label::SERVICE_TYPE, label::EGRESS)];
        let labels = label::labels(labels);
        let services =
            self.services.state_filter(|one| label::has(one.metadata.labels.as_ref(), &labels));
        if services.is_empty() {
            return Ok(());
        }
        let secret = self.secrets.get(&ObjectRef::new(&self.pod).within(&self.namespace));
        let told = secret.and_then(|secret| status(&secret));
        let family = if primary.is_ipv4() { Family::V4 } else { Family::V6 };
        if told.and_then(|told| told.address(family)) != Some(primary) {
            return Err("it has not told what it serves".into());
        }
        if !can_be_asked(pod) {
            return Ok(());
        }
        // Each of this many questions is answered by some replica.
        let of_group = |one: &Pod| one.labels().get(label::PARENT_NAME) == Some(&self.group);
        let replicas = self.pods.state_filter(of_group).len();
        let times = replicas.max(1) * 3;
        for service in services {
            let name = service.name_any();
            let served = |family: &Family| self.is_served(&name, *family);
            let Some((family, by_this)) = Family::of(&service)
                .into_iter()
                .find_map(|family| Some((family, served(&family)?)))
            else {
                continue;
            };
            if !by_this {
                return Err(format!("it does not serve {name} yet"));
            }
            let Some(url) = health(&service, family) else { continue };
            self.ask(&url, primary, times).await.map_err(|why| format!("{url}: {why}"))?;
        }
        Ok(())
    }

    /// Whether this pod is among those that clients are led to; `None` if none is.
    fn is_served(&self, service: &str, family: Family) -> Option<bool> {
        let name = ObjectRef::new(&slice_name(service, family)).within(&self.namespace);
        let slice = self.slices.get(&name)?;
        if slice.endpoints.is_empty() {
            return None;
        }
        Some(slice.endpoints.iter().any(|one| one.hostname.as_ref() == Some(&self.uid)))
    }

    /// Until the pod answers for itself.
    async fn ask(&self, url: &str, own: IpAddr, times: usize) -> Result<(), String> {
        let name = if own.is_ipv4() { "pod-ipv4" } else { "pod-ipv6" };
        for _ in 0..times {
            let request = Request::get(url).header(header::CONNECTION, "close");
            let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
            let answer = tokio::time::timeout(PATIENCE, self.http.request(request)).await;
            let answer = answer.map_err(|_| "no answer".to_owned())?;
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.status() != StatusCode::OK {
                return Err(answer.status().to_string());
            }
            let told = answer.headers().get(name).and_then(|value| value.to_str().ok());
            // Who does not tell cannot be told from the others.
            if told.is_none_or(|told| told.parse() == Ok(own)) {
                return Ok(());
            }
        }
        Err("other pods answer".into())
    }

    async fn tell(&self) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let condition = json!({ "type": READINESS_GATE, "status": "True",
            "lastTransitionTime": Timestamp::now(), "reason": "ReadyToRouteTraffic" });
        let status =
            json!({ "metadata": { "uid": self.uid }, "status": { "conditions": [condition] } });
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        api.patch_status(&self.pod, &params, &Patch::Strategic(status)).await?;
        tracing::info!(pod = self.pod, "ready for egress Services");
        Ok(())
    }
}

/// Whether the proxy answers questions about its health at all.
fn can_be_asked(pod: &Pod) -> bool {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let environment = container.and_then(|container| container.env.as_ref());
    let asks = |name: &str, value: &str| name == "TS_ENABLE_HEALTH_CHECK" && value == "true";
    let mut all = environment.into_iter().flatten();
    all.any(|one| asks(&one.name, one.value.as_deref().unwrap_or_default()))
}

/// Where a Service's replicas tell who they are. By address: the name of a Service that was just made may not be known yet.
fn health(service: &Service, family: Family) -> Option<String> {
    let spec = service.spec.as_ref()?;
    let ports = spec.ports.as_ref()?;
    let port = ports.iter().find(|port| port.name.as_deref() == Some(HEALTH_PORT))?.port;
    let addresses = spec.cluster_ips.iter().flatten().filter_map(|one| one.parse().ok());
    let address = addresses.into_iter().find(|address: &IpAddr| family.has(address))?;
    Some(format!("http://{}/healthz", std::net::SocketAddr::new(address, port.try_into().ok()?)))
}
