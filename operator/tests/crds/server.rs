//! An API server that has the kinds, as they are in the files.

use std::{fmt, path::Path};

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::{GroupVersionKind, Status},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use operator::crd::{GROUP, VERSION};
use proxy_testbed::{ApiServer, DEADLINE};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Where namespaced objects are made.
pub(crate) const NAMESPACE: &str = "default";

/// Starts an API server and gives it every file of `deploy/crds`.
pub(crate) fn start() -> ApiServer {
    let server = ApiServer::start().unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        server.apply(&manifest).unwrap();
        names.push(manifest["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names.len(), 8, "{names:?}");
    let established = async |client: Client| {
        let api: Api<CustomResourceDefinition> = Api::all(client);
        for name in &names {
            let wait = await_condition(api.clone(), name, is_crd_established());
            tokio::time::timeout(DEADLINE, wait).await.with_context(|| name.clone())??;
            // What is not structural is told in a condition, and then neither pruned nor filled in.
            let stored = api.get(name).await?;
            let conditions = stored.status.unwrap_or_default().conditions.unwrap_or_default();
            let structural = conditions.iter().find(|each| each.type_ == "NonStructuralSchema");
            assert!(structural.is_none(), "{name}: {structural:?}");
        }
        Ok(())
    };
    server.admin(established).unwrap();
    server
}

/// Objects of a kind.
pub(crate) fn objects(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, kind));
    if kind == "ProxyGroupPolicy" {
        Api::namespaced_with(client.clone(), NAMESPACE, &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

/// An object.
pub(crate) fn object(kind: &str, name: &str, spec: &Value) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "spec": spec,
        "metadata": { "name": name },
    }))?)
}

/// A text of YAML.
pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Writes the status of an object.
pub(crate) async fn set_status(
    api: &Api<DynamicObject>,
    name: &str,
    status: &impl serde::Serialize,
) -> Result<DynamicObject, kube::Error> {
    let patch = json!({ "status": status });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Every object of a kind, as our type reads it.
pub(crate) async fn read_all<K>(client: &Client) -> Result<Vec<K>>
where
    K: kube::Resource<DynamicType = ()> + Clone + fmt::Debug + DeserializeOwned,
{
    let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await;
    Ok(all.with_context(|| format!("read every {}", K::kind(&())))?.items)
}

/// The fields that a refusal names.
pub(crate) fn named(status: &Status) -> Vec<String> {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.map(|cause| cause.field.clone()).collect()
}
