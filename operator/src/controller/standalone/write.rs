//! Applies what makes a proxy, and deletes what it no longer needs.

use std::fmt::Debug;

use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Secret, Service},
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject},
};
use serde::de::DeserializeOwned;

use super::{Children, device_info};
use crate::{
    build::{Objects, metrics::monitor_resource},
    context::Context,
    controller::dns_records::release,
    error::{Error, ResultExt as _},
    tailnet_api::TailnetApi,
};

/// Makes it so.
pub(in crate::controller) async fn write(
    context: &Context,
    tailnet: &dyn TailnetApi,
    children: &Children,
    objects: &Objects,
) -> Result<(), Error> {
    let apply = &context.applier;
    apply.apply(&objects.account, children.account.as_deref()).await?;
    apply.apply(&objects.role, children.role.as_deref()).await?;
    apply.apply(&objects.binding, children.binding.as_deref()).await?;
    if let Some(headless) = &children.headless {
        release(context, headless).await?;
    }
    apply.apply(&objects.headless, children.headless.as_deref()).await?;
    for secret in &objects.secrets {
        apply.apply(secret, children.secret(&secret.name_any()).map(AsRef::as_ref)).await?;
    }
    apply.apply(&objects.stateful_set, children.stateful_set.as_deref()).await?;
    if let Some(metrics) = &objects.metrics {
        let name = metrics.name_any();
        let live = children.metrics.iter().find(|live| live.name_any() == name);
        let service = apply.apply(metrics, live.map(AsRef::as_ref)).await?;
        monitor(context, &name, objects.monitor.clone(), &service).await?;
    }
    orphans(context, tailnet, children, objects).await
}

/// The monitor of a metrics Service, which it ends with.
pub(in crate::controller) async fn monitor(
    context: &Context,
    name: &str,
    wanted: Option<DynamicObject>,
    service: &Service,
) -> Result<(), Error> {
    let resource = monitor_resource();
    let namespace = &context.settings.namespace;
    let api: Api<DynamicObject> =
        Api::namespaced_with(context.client.clone(), namespace, &resource);
    // A missing kind is a missing object: whoever wants a monitor is told when it is applied.
    let what = || format!("read ServiceMonitor {namespace}/{name}");
    let live = match api.get(name).await {
        Ok(live) => Some(live),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => return Err(error).doing(what),
    };
    match (wanted, live) {
        (Some(mut wanted), live) => {
            wanted.metadata.owner_references =
                service.controller_owner_ref(&()).map(|one| vec![one]);
            context.applier.apply_dynamic(&api, &wanted, live.as_ref()).await
        }
        (None, Some(_)) => {
            let what = || format!("delete ServiceMonitor {namespace}/{name}");
            api.delete(name, &DeleteParams::default()).await.map(drop).doing(what)
        }
        (None, None) => Ok(()),
    }
}

/// Replicas that are too many, with their devices; metrics that nobody wants any more.
async fn orphans(
    context: &Context,
    tailnet: &dyn TailnetApi,
    children: &Children,
    objects: &Objects,
) -> Result<(), Error> {
    for (name, secret) in &children.secrets {
        if objects.secrets.iter().all(|wanted| wanted.name_any() != *name) {
            if let Some(device) = device_info(secret) {
                tailnet.delete_device(&device.id).await?;
            }
            delete::<Secret>(context, name).await?;
        }
    }
    for live in &children.metrics {
        let name = live.name_any();
        if objects.metrics.as_ref().is_none_or(|wanted| wanted.name_any() != name) {
            delete::<Service>(context, &name).await?;
        }
    }
    Ok(())
}

/// Deletes an object of the operator's namespace; that it is gone already is as good.
pub(in crate::controller) async fn delete<K>(context: &Context, name: &str) -> Result<(), Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned,
{
    let namespace = &context.settings.namespace;
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => {
            outcome.map(drop).doing(|| format!("delete {} {namespace}/{name}", K::kind(&())))
        }
    }
}
