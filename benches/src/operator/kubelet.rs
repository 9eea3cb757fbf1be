//! What a cluster does for either operator: pods of StatefulSets are there and ready, and their proxies have logged in.

use std::{collections::HashSet, convert::Infallible, sync::Mutex, time::Duration};

use anyhow::{Context, Result, bail};
use futures::TryStreamExt as _;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use proxy_testbed::kubernetes::OPERATOR;
use serde_json::{Value, json};

/// Pods at once.
const AT_ONCE: usize = 8;
/// Between two looks for a Secret that is not there yet.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs until it is dropped, or something is wrong.
pub async fn run(client: Client) -> Result<Infallible> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), OPERATOR.0);
    let started = Mutex::new(HashSet::new());
    let changes = watcher(sets, watcher::Config::default()).default_backoff().touched_objects();
    let work = changes.map_err(anyhow::Error::from).try_for_each_concurrent(AT_ONCE, |set| {
        let (client, started) = (&client, &started);
        async move {
            for ordinal in 0..set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1) {
                let name = format!("{}-{ordinal}", set.name_any());
                if started.lock().is_ok_and(|mut all| all.insert(name.clone())) {
                    start(client, &set, &name, ordinal)
                        .await
                        .with_context(|| format!("pod {name}"))?;
                }
            }
            Ok(())
        }
    });
    work.await?;
    bail!("the watch of StatefulSets has ended")
}

/// A pod starts, and its proxy logs in.
async fn start(client: &Client, set: &StatefulSet, name: &str, ordinal: i32) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), OPERATOR.0);
    let template = set.spec.as_ref().map(|spec| &spec.template).context("no template")?;
    let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = labels.unwrap_or_default();
    labels.insert("statefulset.kubernetes.io/pod-name".into(), name.into());
    labels.insert("apps.kubernetes.io/pod-index".into(), ordinal.to_string());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels, "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set.name_any(),
            "uid": set.uid(), "controller": true,
        }] },
        "spec": { "containers": [{ "name": "tailscale", "image": "proxy:bench" }] },
    }))?;
    let pod = pods.create(&PostParams::default(), &pod).await.context("make the pod")?;
    let number = address(name);
    let [a, b] = [number >> 8 & 0xff, number & 0xff];
    let condition = |kind: &str| json!({ "type": kind, "status": "True" });
    let status = json!({ "status": {
        "phase": "Running", "podIP": format!("10.244.{a}.{b}"),
        "podIPs": [{ "ip": format!("10.244.{a}.{b}") }],
        "conditions": [condition("Ready"), condition("ContainersReady")],
    } });
    let params = PatchParams::default();
    pods.patch_status(name, &params, &Patch::Merge(status)).await.context("start the pod")?;
    let uid = pod.uid().unwrap_or_default();
    let told = json!({ "stringData": state(name, number, &uid) });
    let secrets: Api<Secret> = Api::namespaced(client.clone(), OPERATOR.0);
    loop {
        match secrets.patch(name, &params, &Patch::Merge(&told)).await {
            Ok(_) => return Ok(()),
            // Of one operator the Secret comes first, of the other perhaps not.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error).context("tell the device"),
        }
    }
}

/// What a proxy writes into its Secret once it is on the tailnet.
fn state(name: &str, number: u32, uid: &str) -> Value {
    let host = format!("{name}.tailnet.ts.net");
    let addresses = [
        format!("100.{}.{}.{}", 80 + (number >> 16 & 0x3), number >> 8 & 0xff, number & 0xff),
        format!("fd7a:115c:a1e0::{number:x}"),
    ];
    let device = format!("n{number}CNTRL");
    let profile = json!({
        "Config": { "NodeID": device, "UserProfile": { "LoginName": host } },
        "NodeID": device,
    });
    json!({
        "device_id": device, "device_fqdn": format!("{host}."), "https_endpoint": host,
        "device_ips": json!(addresses).to_string(), "pod_uid": uid, "tailscale_capver": "138",
        "_current-profile": "profile-1", "profile-1": profile.to_string(),
    })
}

/// A number that names have to themselves, as far as a hash can give them one.
fn address(name: &str) -> u32 {
    // FNV-1a.
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash >> 12 | 1
}
