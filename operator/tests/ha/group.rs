//! An ingress ProxyGroup with its pods: what the kubelet and the proxies do besides the operator.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret},
    },
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use operator::{
    build::ingress_config::{File, offered},
    crd::ProxyGroup,
    tailnet_api::{ServiceName, TailnetApi as _, VipService, fake::FakeTailnet},
};
use serde_json::{Value, json};

use crate::{
    bed::{self, config, end_pod, start_pod},
    cluster::{Cluster, NAMESPACE, PATIENCE},
    cluster_wide::wait_so,
};

/// Between two looks at what cannot be watched.
const PAUSE: Duration = Duration::from_millis(20);
/// Of every device.
pub(crate) const DOMAIN: &str = "tailnet.ts.net";

/// A ProxyGroup whose replicas work.
pub(crate) struct Group<'a> {
    cluster: &'a Cluster,
    pub(crate) name: String,
    replicas: usize,
}

impl<'a> Group<'a> {
    /// Made, with that many pods, which have logged in.
    pub(crate) async fn start(cluster: &'a Cluster, name: &str, replicas: usize) -> Self {
        Self::start_in(cluster, name, replicas, (&cluster.tailnet, None)).await
    }

    /// The same in the tailnet of a Tailnet.
    pub(crate) async fn start_in(
        cluster: &'a Cluster,
        name: &str,
        replicas: usize,
        (tailnet, resource): (&FakeTailnet, Option<&str>),
    ) -> Self {
        let group = Self { cluster, name: name.to_owned(), replicas };
        let mut spec = json!({ "type": "ingress", "replicas": replicas });
        if let Some(resource) = resource {
            spec["tailnet"] = json!(resource);
        }
        cluster.apply(bed::group(name, spec)).await;
        cluster.wait((NAMESPACE, name), "it is made", |_: &StatefulSet| true).await;
        for ordinal in 0..replicas {
            let told = group.start_pod(ordinal).await;
            let config = config(cluster, name, ordinal).await;
            let text = |key: &str| config[key].as_str().unwrap_or_else(|| panic!("no {key}"));
            let device = tailnet.log_in(text("AuthKey"), text("Hostname")).expect("a good key");
            let ips = serde_json::to_string(&device.addresses).unwrap();
            let device = json!({ "device_id": device.id.to_string(), "device_ips": ips,
                "device_fqdn": format!("{}.", device.name), "pod_uid": told,
                "_current-profile": "profile-1", "profile-1": "{}" });
            group.tell(ordinal, device).await;
        }
        group.wait_available("True").await;
        group
    }

    /// Returns its UID.
    async fn start_pod(&self, ordinal: usize) -> Option<String> {
        let ip = format!("10.1.0.{ordinal}");
        start_pod(self.cluster, &self.name, ordinal, &[&ip]).await.uid()
    }

    async fn wait_available(&self, wanted: &str) {
        let is_so = |group: &ProxyGroup| {
            let conditions = group.status.as_ref().map_or(&[][..], |status| &status.conditions);
            conditions.iter().any(|one| one.type_ == "ProxyGroupAvailable" && one.status == wanted)
        };
        wait_so(self.cluster, &self.name, wanted, is_so).await;
    }

    /// Its pods end, or are there again.
    pub(crate) async fn is_available(&self, is: bool) {
        for ordinal in 0..self.replicas {
            if is {
                let uid = self.start_pod(ordinal).await;
                self.tell(ordinal, json!({ "pod_uid": uid })).await;
            } else {
                end_pod(self.cluster, &format!("{}-{ordinal}", self.name)).await;
            }
        }
        self.wait_available(if is { "True" } else { "False" }).await;
    }

    /// It is deleted, and all that is its own.
    pub(crate) async fn delete(&self) {
        let groups: Api<ProxyGroup> = Api::all(self.cluster.client.clone());
        groups.delete(&self.name, &DeleteParams::default()).await.unwrap();
        self.cluster.end_pods(&self.name).await;
        self.cluster.wait_gone::<ConfigMap>(NAMESPACE, &self.map()).await;
    }

    fn map(&self) -> String {
        format!("{}-ingress-config", self.name)
    }

    /// Waits for the entry of a Tailscale Service in a file; `None` until it has none.
    pub(crate) async fn wait_entry(&self, file: File, service: &str, wanted: Option<&Value>) {
        let what = format!("{service} is {wanted:?}");
        let map = self.map();
        self.cluster
            .wait((NAMESPACE, map.as_str()), &what, |map: &ConfigMap| {
                entries(map, file).get(service) == wanted
            })
            .await;
    }

    /// The entries of a file.
    pub(crate) async fn entries(&self, file: File) -> BTreeMap<String, Value> {
        let api: Api<ConfigMap> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        entries(&api.get(&self.map()).await.unwrap(), file)
    }

    /// Waits until replicas are to offer exactly this.
    pub(crate) async fn wait_offered(&self, wanted: &[&str]) {
        for ordinal in 0..self.replicas {
            self.wait_offered_by(ordinal, wanted).await;
        }
    }

    pub(crate) async fn wait_offered_by(&self, ordinal: usize, wanted: &[&str]) {
        let name = format!("{}-{ordinal}-config", self.name);
        let what = format!("{name} offers {wanted:?}");
        self.cluster
            .wait((NAMESPACE, name.as_str()), &what, |secret: &Secret| {
                let data = secret.data.as_ref().unwrap();
                offered(&data["cap-106.hujson"].0) == wanted
            })
            .await;
    }

    /// A replica does what it is told: it has installed what leads to Services, and offers what it is to offer.
    pub(crate) async fn follow(&self, ordinal: usize) {
        let name = format!("{}-{ordinal}", self.name);
        let api: Api<Secret> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        let config = api.get(&format!("{name}-config")).await.unwrap();
        let services = offered(&config.data.unwrap()["cap-106.hujson"].0);
        let profile = json!({ "Config": { "NodeID": format!("n{name}"),
            "UserProfile": { "LoginName": format!("{name}.{DOMAIN}") } }, "AdvertiseServices": services });
        let installed = json!({ "configs": self.entries(File::Ingress).await,
            "podIPv4": format!("10.1.0.{ordinal}") });
        let told = json!({ "profile-1": profile.to_string(), "ingress-config.json": installed.to_string() });
        self.tell(ordinal, told).await;
    }

    /// A replica tells something in its state Secret.
    pub(crate) async fn tell(&self, ordinal: usize, told: Value) {
        let name = format!("{}-{ordinal}", self.name);
        let api: Api<Secret> = Api::namespaced(self.cluster.client.clone(), NAMESPACE);
        let params =
            PatchParams { field_manager: Some("tailscale-container".into()), ..Default::default() };
        api.patch(&name, &params, &Patch::Merge(json!({ "stringData": told }))).await.unwrap();
    }

    /// All replicas do.
    pub(crate) async fn follow_all(&self) {
        for ordinal in 0..self.replicas {
            self.follow(ordinal).await;
        }
    }
}

fn entries(map: &ConfigMap, file: File) -> BTreeMap<String, Value> {
    let content = map.binary_data.as_ref().and_then(|data| data.get(file.key()));
    content.map(|text| file.entries(&text.0)).unwrap_or_default()
}

/// A Tailscale Service as the tailnet has it.
pub(crate) async fn vip(cluster: &Cluster, name: &str) -> Option<VipService> {
    let name: ServiceName = name.parse().unwrap();
    cluster.tailnet.vip_service(&name).await.ok()
}

/// Waits until a Tailscale Service is so.
pub(crate) async fn wait_vip(
    cluster: &Cluster,
    name: &str,
    is_so: impl Fn(Option<&VipService>) -> bool,
) -> Option<VipService> {
    let wait = async {
        loop {
            let found = vip(cluster, name).await;
            if is_so(found.as_ref()) {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{name} is not so"))
}

/// The replica that issues certificates has got one.
pub(crate) async fn issue(cluster: &Cluster, domain: &str) {
    let secret = |secret: &Secret| secret.type_.as_deref() == Some("kubernetes.io/tls");
    cluster.wait((NAMESPACE, domain), "there is room for a certificate", secret).await;
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let text = |text: &str| ByteString(text.as_bytes().to_vec());
    let data = json!({ "data": { "tls.crt": text("certificate"), "tls.key": text("key") } });
    let params =
        PatchParams { field_manager: Some("tailscale-container".into()), ..Default::default() };
    api.patch(domain, &params, &Patch::Merge(data)).await.unwrap();
}

/// Endpoints of a Service, ready or not.
pub(crate) async fn endpoints(cluster: &Cluster, service: &str, ready: bool) {
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": format!("{service}-1"), "namespace": "shop",
            "labels": { "kubernetes.io/service-name": service } },
        "addressType": "IPv4", "ports": [{ "port": 80 }],
        "endpoints": [{ "addresses": ["10.1.9.9"], "conditions": { "ready": ready } }] });
    cluster.apply(slice).await;
}

/// Makes an object that no test changes afterwards.
pub(crate) async fn create_secret(cluster: &Cluster, secret: Secret) {
    let api: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    api.create(&PostParams::default(), &secret).await.unwrap();
}
