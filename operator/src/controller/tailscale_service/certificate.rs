//! The certificate of a name: made empty, filled by a proxy, deleted with what it was made for.

use k8s_openapi::api::{
    core::v1::Secret,
    rbac::v1::{Role, RoleBinding},
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use crate::{
    build::certificate::{Certificate, is_filled},
    context::{Context, labelled},
    controller::standalone::delete,
    error::Error,
    label::{self, Parent},
};

/// Makes what a certificate needs. Returns whether there is one in it.
pub(in crate::controller) async fn certificate(
    context: &Context,
    wanted: &Certificate<'_>,
) -> Result<bool, Error> {
    let namespace = &context.settings.namespace;
    let live = context.cache.secrets.get(&ObjectRef::new(wanted.domain).within(namespace));
    let role = context.cache.roles.get(&ObjectRef::new(wanted.domain).within(namespace));
    let binding = context.cache.bindings.get(&ObjectRef::new(wanted.domain).within(namespace));
    let apply = &context.applier;
    let secret = apply.apply(&wanted.secret(live.as_deref()), live.as_deref()).await?;
    apply.apply(&wanted.role(), role.as_deref()).await?;
    apply.apply(&wanted.binding(), binding.as_deref()).await?;
    delete_others(context, wanted.parent, Some(wanted.domain)).await?;
    Ok(is_filled(&secret))
}

/// Deletes all certificates that were made for an object, but that for this name.
pub(super) async fn delete_others(
    context: &Context,
    parent: &Parent,
    domain: Option<&str>,
) -> Result<(), Error> {
    let mut labels = parent.child_labels();
    labels.insert(label::SECRET_TYPE.into(), label::SECRET_CERTS.into());
    for secret in labelled(&context.cache.secrets, &labels) {
        let name = secret.name_any();
        if domain != Some(name.as_str()) {
            delete::<RoleBinding>(context, &name).await?;
            delete::<Role>(context, &name).await?;
            // Last: what is left is found by it.
            delete::<Secret>(context, &name).await?;
        }
    }
    Ok(())
}
