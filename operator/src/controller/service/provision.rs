//! From a valid request to a proxy that does it.

use k8s_openapi::api::core::v1::Service;
use kube::{
    Resource as _, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{api, status::Outcome};
use crate::{
    annotation::{self, Request},
    apply::{FIELD_MANAGER, set_finalizer},
    build::{self, Duty, Proxy},
    context::Context,
    controller::standalone::{self, Children, Class, class, device_info, nodes, write},
    error::{Error, ResultExt as _},
    label::{self, Parent},
};

/// Makes the proxy. What cannot be done now is an outcome, what failed is an error.
pub(super) async fn provision(
    service: &Service,
    context: &Context,
    parent: &Parent,
    request: Request,
) -> Result<Outcome, Error> {
    let settings = &context.settings;
    let firewall_mode = match settings.firewall_mode() {
        Ok(mode) => mode,
        Err(error) => return Ok(Outcome::BadSettings(error.to_string())),
    };
    let named = annotation::proxy_class(service, settings.default_class());
    let class = match class(context, named.as_deref())? {
        Class::Pending(name) => return Ok(Outcome::Pending(standalone::not_ready(&name))),
        Class::None => None,
        Class::Ready(spec) => Some(*spec),
    };
    let tailnet = context.tailnets.get("")?;
    set_finalizer(&api(context, service), service, label::FINALIZER, true).await?;

    let children = Children::find(&context.cache, &settings.namespace, parent);
    let tags = request.tags.as_ref().unwrap_or(&settings.proxy_tags);
    let hostnames = vec![request.hostname.to_string()];
    let nodes = nodes(context, &*tailnet, &children, hostnames, tags).await?;
    let proxy = Proxy {
        parent: parent.clone(),
        base: children.base().to_owned(),
        app: children.app().to_owned(),
        namespace: settings.namespace.clone(),
        duty: Duty::Carry(request.carries.clone()),
        nodes,
        login_server: tailnet.login_server().to_owned(),
        class,
        image: settings.proxy_image.clone(),
        firewall_mode,
        priority_class: settings.priority_class(),
    };
    write(context, &*tailnet, &children, &build::objects(&proxy)).await?;
    if request.carries.is_egress() {
        lead_to(service, context, &proxy.base).await?;
        return Ok(Outcome::Created);
    }
    if !request.load_balancer {
        return Ok(Outcome::Created);
    }
    let secret = children.secret(&build::secret_name(&proxy.base, 0));
    let device = secret.and_then(|secret| device_info(secret));
    Ok(match device.and_then(|device| Some((device.fqdn?, device.addresses))) {
        Some((name, addresses)) => Outcome::Balancing { name, addresses },
        None => Outcome::Waiting,
    })
}

/// Makes a Service's name that of a Service in the operator's namespace, by which the proxies' pods are reached.
pub(in crate::controller) async fn lead_to(
    service: &Service,
    context: &Context,
    base: &str,
) -> Result<(), Error> {
    let target = format!("{base}.{}.svc.{}", context.settings.namespace, context.cluster_domain);
    let spec = service.spec.as_ref();
    let is_so = spec.is_some_and(|spec| {
        spec.type_.as_deref() == Some("ExternalName")
            && spec.external_name.as_ref() == Some(&target)
            && spec.selector.as_ref().is_none_or(std::collections::BTreeMap::is_empty)
    });
    if is_so {
        return Ok(());
    }
    // The fields are the user's own: they are changed, not taken over.
    let patch = json!({
        "metadata": { "resourceVersion": service.resource_version(), "uid": service.uid() },
        "spec": { "type": "ExternalName", "externalName": target, "selector": null },
    });
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let name = service.name_any();
    let what = || format!("lead {} {name} to its proxy", Service::kind(&()));
    api(context, service).patch(&name, &params, &Patch::Merge(patch)).await.map(drop).doing(what)
}
