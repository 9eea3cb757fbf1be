//! The end of a proxy: pods first, then their devices, then what they used.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use serde::de::DeserializeOwned;

use super::device_id;
use crate::{
    build::metrics,
    context::{Context, labelled},
    controller::dns_records::release,
    crd::Tailnet,
    error::{Error, ResultExt as _},
    label::{self, Parent, ParentKind},
    tailnet_api::{RegistryError, TailnetApi},
};

/// Whether nothing is left.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::controller) enum Done {
    /// Nothing is.
    Yes,
    /// Pods are ending.
    NotYet,
}

/// Goes one step on. A pod that still runs would log in again with the state of a device that was deleted, so its end is
/// waited for. What is there is asked of the API server: a cache that lags would leave a device behind.
pub(in crate::controller) async fn clean_up(
    context: &Context,
    tailnet: Result<Arc<dyn TailnetApi>, RegistryError>,
    parent: &Parent,
) -> Result<Done, Error> {
    let namespace = &context.settings.namespace;
    let client = || context.client.clone();
    let labels = label::selector(&parent.child_labels());
    let all = ListParams::default().labels(&labels);
    let sets: Api<StatefulSet> = Api::namespaced(client(), namespace);
    let what = || format!("list StatefulSets of {labels} in {namespace}");
    let found = sets.list(&all).await.doing(what)?.items;
    if !found.is_empty() {
        for set in found.iter().filter(|set| set.metadata.deletion_timestamp.is_none()) {
            let name = set.name_any();
            let what = || format!("delete StatefulSet {namespace}/{name}");
            match sets.delete(&name, &DeleteParams::foreground()).await {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                outcome => drop(outcome.doing(what)?),
            }
        }
        return Ok(Done::NotYet);
    }
    let secrets: Api<Secret> = Api::namespaced(client(), namespace);
    let what = || format!("list Secrets of {labels} in {namespace}");
    let secrets = secrets.list(&all).await.doing(what)?.items;
    let devices: Vec<_> = secrets.iter().filter_map(device_id).collect();
    if is_abandoned(context, &tailnet).await? {
        let devices: Vec<_> = devices.iter().map(ToString::to_string).collect();
        tracing::warn!(?devices, parent = %parent.name, "devices stay in a tailnet that is gone");
    } else if !devices.is_empty() {
        // Without devices nobody needs the tailnet.
        let tailnet = tailnet?;
        for device in devices {
            tailnet.delete_device(&device).await?;
            tracing::info!(%device, parent = %parent.name, "deleted a device");
        }
    }
    for service in labelled(&context.cache.services, &parent.child_labels()) {
        release(context, &service).await?;
    }
    // What was made for the same on a ProxyGroup has the labels of these and more: Services, certificates.
    let own = format!("{labels},!{}", label::PROXY_GROUP);
    delete_all::<Secret>(context, &own).await?;
    delete_all::<Service>(context, &own).await?;
    if let Some(metrics) = metrics::selector(parent) {
        delete_all::<Service>(context, &label::selector(&metrics)).await?;
    }
    if parent.kind == ParentKind::ProxyGroup {
        delete_all::<ConfigMap>(context, &labels).await?;
    }
    delete_all::<RoleBinding>(context, &labels).await?;
    delete_all::<Role>(context, &labels).await?;
    delete_all::<ServiceAccount>(context, &labels).await?;
    Ok(Done::Yes)
}

/// Whether what is asked of a tailnet can never be done: its Tailnet is gone. One that is not known yet is waited for.
pub(in crate::controller) async fn is_abandoned(
    context: &Context,
    tailnet: &Result<Arc<dyn TailnetApi>, RegistryError>,
) -> Result<bool, Error> {
    let Err(RegistryError::Unknown(name)) = tailnet else { return Ok(false) };
    let tailnets: Api<Tailnet> = Api::all(context.client.clone());
    let found = tailnets.get_metadata_opt(name).await.doing(|| format!("read Tailnet {name}"))?;
    Ok(found.is_none())
}

/// Deletes everything of a kind in the operator's namespace that has these labels.
pub(in crate::controller) async fn delete_all<K>(
    context: &Context,
    selector: &str,
) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let namespace = &context.settings.namespace;
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let these = ListParams::default().labels(selector);
    let what = || format!("delete every {} of {selector} in {namespace}", K::kind(&()));
    api.delete_collection(&DeleteParams::default(), &these).await.map(drop).doing(what)
}
