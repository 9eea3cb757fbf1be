//! A cluster with the operator in it, a tailnet in memory, and what a cluster has besides: pods' ends and proxies that log in.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use clap::Parser;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{Secret, Service},
        events::v1::Event,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, ObjectMeta, Patch, PatchParams,
        TypeMeta,
    },
    core::GroupVersionKind,
    runtime::wait::await_condition,
};
use operator::{
    context::{Context, Settings},
    controller,
    tailnet_api::{Registry, fake::FakeTailnet},
};
use proxy_testbed::ApiServer;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::oneshot;

#[path = "rights.rs"]
mod rights;

/// Where the operator is.
pub(crate) const NAMESPACE: &str = "tailscale";

/// How long anything may take: a server, etcd and an operator of each of several tests share two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what cannot be watched.
const PAUSE: Duration = Duration::from_millis(20);
/// As long as nothing happens, nothing is going to.
const QUIET: Duration = Duration::from_millis(500);

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    settings: Settings,
}

/// A cluster, seen by somebody who may do anything.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) tailnet: Arc<FakeTailnet>,
    /// What the operator wrote: method and path.
    writes: Arc<Mutex<Vec<String>>>,
    pub(crate) context: Arc<Context>,
}

/// Runs a test in a cluster with an operator that has these flags.
pub(crate) fn in_cluster(flags: &[&str], test: impl AsyncFnOnce(&Cluster) + Send) {
    let server = ApiServer::start().unwrap();
    for name in [NAMESPACE, "shop"] {
        let metadata = json!({ "name": name });
        server
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }))
            .unwrap();
    }
    for definition in operator::crd::definitions() {
        server.apply(&serde_json::to_value(definition).unwrap()).unwrap();
    }
    let account = server.account(NAMESPACE, "operator").unwrap();
    rights::allow(&server);
    let mut all = vec!["operator", "--namespace", NAMESPACE];
    all.extend(flags);
    let settings = Flags::parse_from(all).settings;
    server
        .admin(async |client| {
            wait_for_definitions(&client).await;
            let tailnet = Arc::new(FakeTailnet::new("https://control.example"));
            let writes = Arc::default();
            let own = server.client(account.token())?;
            rights::wait_for_rights(&own).await;
            let forbidden = Arc::default();
            let counted = counted(own, Arc::clone(&writes), Arc::clone(&forbidden));
            let registry = Registry::new(tailnet.clone());
            let context = Arc::new(Context::new(counted, settings, registry));
            let cluster = Cluster { client, tailnet, writes, context: Arc::clone(&context) };
            let (stop, stopped) = oneshot::channel::<()>();
            let running = tokio::spawn(controller::run(context, async {
                let _ = stopped.await;
            }));
            test(&cluster).await;
            stop.send(()).unwrap();
            tokio::time::timeout(PATIENCE, running).await.expect("the operator stops").unwrap();
            let forbidden = std::mem::take(&mut *forbidden.lock().unwrap());
            assert_eq!(forbidden, Vec::<String>::new(), "the chart does not allow this");
            Ok(())
        })
        .unwrap();
}

/// The same client; what it writes, and what it may not do, is noted.
fn counted(
    client: Client,
    writes: Arc<Mutex<Vec<String>>>,
    forbidden: Arc<Mutex<Vec<String>>>,
) -> Client {
    let noting = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let asked = format!("{} {}", request.method(), request.uri().path());
        if request.method() != hyper::Method::GET {
            writes.lock().unwrap().push(asked.clone());
        }
        let (client, forbidden) = (client.clone(), Arc::clone(&forbidden));
        async move {
            let answer = client.send(request).await;
            if answer.as_ref().is_ok_and(|answer| answer.status() == hyper::StatusCode::FORBIDDEN) {
                forbidden.lock().unwrap().push(asked);
            }
            answer
        }
    });
    Client::new(noting, NAMESPACE)
}

async fn wait_for_definitions(client: &Client) {
    let classes: Api<operator::crd::ProxyClass> = Api::all(client.clone());
    let connectors: Api<operator::crd::Connector> = Api::all(client.clone());
    let tailnets: Api<operator::crd::Tailnet> = Api::all(client.clone());
    let groups: Api<operator::crd::ProxyGroup> = Api::all(client.clone());
    let all = ListParams::default();
    let ready = async {
        while classes.list(&all).await.is_err()
            || connectors.list(&all).await.is_err()
            || tailnets.list(&all).await.is_err()
            || groups.list(&all).await.is_err()
        {
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(PATIENCE, ready).await.expect("the definitions are served");
}

impl Cluster {
    /// Waits until the operator has nothing to do: nothing was reconciled for some time.
    pub(crate) async fn wait_idle(&self, controller: &str) {
        let idle = async {
            let mut since = (Instant::now(), self.context.counts.total(controller));
            while since.0.elapsed() < QUIET {
                tokio::time::sleep(PAUSE).await;
                let total = self.context.counts.total(controller);
                if total != since.1 {
                    since = (Instant::now(), total);
                }
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("the operator comes to rest");
    }

    /// Has an object reconciled again, by a change that means nothing, and waits for it.
    pub(crate) async fn touch(&self, controller: &str, manifest: &Value, number: usize) {
        let before = self.context.counts.total(controller);
        let mut manifest = manifest.clone();
        manifest["metadata"]["annotations"]["example.com/touched"] = json!(number.to_string());
        self.apply(manifest).await;
        let reconciled = async {
            while self.context.counts.total(controller) == before {
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, reconciled).await.expect("it is reconciled");
    }

    /// What the operator wrote since the last time that this was asked.
    pub(crate) fn take_writes(&self) -> Vec<String> {
        std::mem::take(&mut *self.writes.lock().unwrap())
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes or changes an object as a user would.
    pub(crate) async fn apply(&self, manifest: Value) -> DynamicObject {
        let (api, name) = self.dynamic(&manifest);
        let params = PatchParams::apply("user").force();
        api.patch(&name, &params, &Patch::Apply(manifest)).await.unwrap()
    }

    /// Changes its status as whoever is responsible for it would.
    pub(crate) async fn apply_status(&self, manifest: Value) {
        let (api, name) = self.dynamic(&manifest);
        let params = PatchParams::apply("other").force();
        api.patch_status(&name, &params, &Patch::Apply(manifest)).await.unwrap();
    }

    fn dynamic(&self, manifest: &Value) -> (Api<DynamicObject>, String) {
        let types: TypeMeta = serde_json::from_value(manifest.clone()).unwrap();
        let metadata: ObjectMeta = serde_json::from_value(manifest["metadata"].clone()).unwrap();
        let mut resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&types).unwrap());
        if types.kind == "ProxyClass" {
            resource.plural = "proxyclasses".into();
        }
        let client = self.client.clone();
        let api = match metadata.namespace {
            Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        (api, metadata.name.unwrap())
    }

    /// Deletes an object; what waits for its finalizers is seen by [`Self::wait_gone`].
    pub(crate) async fn delete<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        self.api::<K>(namespace).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Waits until an object is so.
    pub(crate) async fn wait<K>(
        &self,
        (namespace, name): (&str, &str),
        what: &str,
        is_so: impl Fn(&K) -> bool + Send + Sync,
    ) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned
            + Send
            + 'static,
    {
        let condition = |object: Option<&K>| object.is_some_and(&is_so);
        let wait = await_condition(self.api::<K>(namespace), name, condition);
        if let Ok(found) = tokio::time::timeout(PATIENCE, wait).await {
            return found.unwrap().unwrap();
        }
        let found = self.api::<K>(namespace).get_opt(name).await.unwrap();
        let found = serde_json::to_value(found).unwrap_or_default();
        let seen = (&found["spec"], &found["status"]);
        panic!("{what}: not seen of {} {namespace}/{name}: {seen:?}", K::kind(&()));
    }

    /// Waits until an object is gone.
    pub(crate) async fn wait_gone<K>(&self, namespace: &str, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let gone = |object: Option<&K>| object.is_none();
        let wait = await_condition(self.api::<K>(namespace), name, gone);
        let waited = tokio::time::timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "{} {namespace}/{name} is still there", K::kind(&()));
    }

    /// Waits for the condition of a Service, as `Status/Reason`.
    pub(crate) async fn wait_condition(&self, name: &str, wanted: &str) -> Service {
        self.wait(("shop", name), wanted, |service: &Service| condition(service).0 == wanted).await
    }

    /// Waits for an Event on an object; returns its note.
    pub(crate) async fn wait_event(&self, name: &str, reason: &str) -> String {
        let wait = async {
            loop {
                if let Some(note) = self.events(name, reason).await.into_iter().next() {
                    return note;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect(reason)
    }

    /// The notes of an object's Events of a reason; as many times as each was told.
    pub(crate) async fn events(&self, name: &str, reason: &str) -> Vec<String> {
        let api: Api<Event> = Api::all(self.client.clone());
        let all = api.list(&ListParams::default()).await.unwrap().items.into_iter();
        all.filter(|event| {
            let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
            event.reason.as_deref() == Some(reason) && about == Some(name)
        })
        .flat_map(|event| {
            let times = event.series.as_ref().map_or(1, |series| series.count);
            std::iter::repeat_n(event.note.unwrap_or_default(), times.try_into().unwrap())
        })
        .collect()
    }

    /// The StatefulSet of what has this name, once it is there.
    pub(crate) async fn stateful_set(&self, parent: &str) -> StatefulSet {
        let api = self.api::<StatefulSet>(NAMESPACE);
        let of = format!("tailscale.com/parent-resource={parent}");
        let wait = async {
            loop {
                let found = api.list(&ListParams::default().labels(&of)).await.unwrap();
                if let Some(set) = found.items.into_iter().next() {
                    return set;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("a StatefulSet")
    }

    /// A replica starts: it logs in with the key that it was given, and tells so in its Secret. Returns its ID.
    pub(crate) async fn start_proxy(&self, secret: &str) -> String {
        let api = self.api::<Secret>(NAMESPACE);
        let found = api.get(secret).await.unwrap();
        let config: Value =
            serde_json::from_slice(&found.data.unwrap()["cap-107.hujson"].0).unwrap();
        let text = |key: &str| config[key].as_str().unwrap_or_else(|| panic!("no {key}"));
        let device = self.tailnet.log_in(text("AuthKey"), text("Hostname")).expect("a good key");
        let id = device.id.to_string();
        let told = json!({ "stringData": {
            "device_id": id, "device_fqdn": format!("{}.", device.name),
            "device_ips": serde_json::to_string(&device.addresses).unwrap(),
            "profile-1": "{}",
        } });
        let params =
            PatchParams { field_manager: Some("tailscale-container".into()), ..Default::default() };
        api.patch(secret, &params, &Patch::Merge(told)).await.unwrap();
        id
    }

    /// Lets a StatefulSet that is being deleted go once its pods have ended, as the garbage collector does.
    pub(crate) async fn end_pods(&self, set: &str) {
        let is_ending = |set: &StatefulSet| set.metadata.deletion_timestamp.is_some();
        self.wait((NAMESPACE, set), "it is being deleted", is_ending).await;
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
        let api = self.api::<StatefulSet>(NAMESPACE);
        api.patch(set, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Everything that is there of the operator's in its namespace: kind and name.
    pub(crate) async fn left(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (group, version, kind) in [
            ("", "v1", "Secret"),
            ("", "v1", "Service"),
            ("", "v1", "ConfigMap"),
            ("", "v1", "ServiceAccount"),
            ("apps", "v1", "StatefulSet"),
            ("rbac.authorization.k8s.io", "v1", "Role"),
            ("rbac.authorization.k8s.io", "v1", "RoleBinding"),
        ] {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), NAMESPACE, &resource);
            let managed = ListParams::default().labels("tailscale.com/managed=true");
            let found = api.list(&managed).await.unwrap();
            all.extend(found.items.iter().map(|object| format!("{kind} {}", object.name_any())));
        }
        all
    }
}

/// A Service's condition as `Status/Reason`, and its message.
pub(crate) fn condition(service: &Service) -> (String, String) {
    let all = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    all.into_iter()
        .flatten()
        .find(|condition| condition.type_ == "TailscaleProxyReady")
        .map(|condition| {
            (format!("{}/{}", condition.status, condition.reason), condition.message.clone())
        })
        .unwrap_or_default()
}
