//! What all kinds share that have a proxy of their own: what is there already, keys, objects, devices, and the end.

mod children;
mod cleanup;
mod device;
mod keys;
mod run;
mod write;

pub(super) use self::{
    children::Children,
    cleanup::{Done, clean_up, delete_all, is_abandoned},
    device::{DeviceInfo, device_id, device_info, https_name, text},
    keys::{Keys, nodes},
    run::{Standalone, run},
    write::{delete, monitor, write},
};
use crate::{
    context::Context,
    crd::proxy_class::ProxyClassSpec,
    error::Error,
    status::{ConditionType, holds},
};
use kube::runtime::reflector::ObjectRef;

/// A ProxyClass, as far as it can be used.
pub(super) enum Class {
    /// None is named.
    None,
    /// It can be used.
    Ready(Box<ProxyClassSpec>),
    /// It was not found good yet, or not since it changed.
    Pending(String),
}

/// The ProxyClass of that name.
pub(super) fn class(context: &Context, name: Option<&str>) -> Result<Class, Error> {
    let Some(name) = name else { return Ok(Class::None) };
    let found = context.cache.classes.get(&ObjectRef::new(name));
    let class = found.ok_or_else(|| Error::ClassMissing(name.to_owned()))?;
    let conditions = class.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let ready = holds(conditions, ConditionType::ProxyClassReady, class.metadata.generation);
    Ok(if ready {
        Class::Ready(Box::new(class.spec.clone()))
    } else {
        Class::Pending(name.to_owned())
    })
}

/// What users are told while a ProxyClass cannot be used.
pub(super) fn not_ready(class: &str) -> String {
    format!("ProxyClass `{class}` is not ready: its condition ProxyClassReady says why")
}
