//! What the operator is told, through the state Secret: which device this is, and what of its configuration is installed.
//! Only what is in force is told, never what is wanted.

use std::{collections::BTreeMap, future, net::IpAddr, sync::Arc};

use tokio::sync::watch;

use super::{
    files::Files,
    secret::{Desired, Key, StateSecret, device_ips},
    settings,
    state::Pod,
    upstream::{EgressServices, EgressStatus, IngressConfig, IngressStatus, InstalledService},
};
use crate::pod::resolve::Target;

/// Keeps the Secret's content as it should be, for as long as the process runs.
pub async fn report(
    pod: Arc<Pod>,
    secret: Arc<StateSecret>,
    place: settings::Pod,
    mut files: watch::Receiver<Files>,
) {
    let (mut link, mut installed) = (pod.link.subscribe(), pod.installed.subscribe());
    let mut endpoint = pod.https_endpoint.subscribe();
    let mut status = secret.status();
    loop {
        let told = files.borrow_and_update().clone();
        installed.mark_unchanged();
        link.mark_unchanged();
        endpoint.mark_unchanged();
        secret.want(|desired| want(desired, &pod, &place, &told));
        pod.troubles().secret =
            status.borrow_and_update().failure.as_ref().map(|failure| failure.message.clone());
        let more = tokio::select! {
            changed = link.changed() => changed.is_ok(),
            changed = installed.changed() => changed.is_ok(),
            changed = files.changed() => changed.is_ok(),
            changed = endpoint.changed() => changed.is_ok(),
            changed = status.changed() => changed.is_ok(),
        };
        if !more {
            return future::pending().await;
        }
    }
}

fn want(desired: &mut Desired, pod: &Pod, place: &settings::Pod, files: &Files) {
    let installed = pod.installed.borrow().clone();
    let own = pod.view().own.clone();
    let link = pod.link.borrow().clone();
    if let Some(own) = own.filter(|_| link.is_logged_in()) {
        // Before anything else: by it the operator deletes the device if this pod is never seen again.
        desired.set(Key::DeviceId, own.id);
        // The operator takes these for readiness.
        if pod.latches().iter().all(|(_, open)| *open) {
            desired.set(Key::DeviceFqdn, own.name);
            desired.set(Key::DeviceIps, device_ips(&own.addresses));
        }
        // It was of use, and whoever reads the Secret could use it again.
        desired.remove(Key::AuthKey);
    }
    if let Some(endpoint) = pod.https_endpoint.borrow().clone() {
        desired.set(Key::HttpsEndpoint, endpoint);
    }
    if installed.generation.is_none() {
        return;
    }
    let text = |address: Option<IpAddr>| address.map(|ip| ip.to_string()).unwrap_or_default();
    let (pod_ipv4, pod_ipv6) = (text(place.ipv4()), text(place.ipv6()));
    if let Some(egress) = &files.egress {
        let services = egress_services(egress, &installed.targets);
        let status =
            EgressStatus { pod_ipv4: pod_ipv4.clone(), pod_ipv6: pod_ipv6.clone(), services };
        desired.set(Key::EgressServices, serde_json::to_vec(&status).unwrap_or_default());
    }
    if let Some(ingress) = &files.ingress {
        let configs = ingress_services(ingress, &installed.targets);
        let status = IngressStatus { configs, pod_ipv4, pod_ipv6 };
        desired.set(Key::IngressConfig, serde_json::to_vec(&status).unwrap_or_default());
    }
}

/// The Services with rules in force: the operator leads clients to no others.
fn egress_services(
    file: &EgressServices,
    targets: &[Target],
) -> BTreeMap<String, InstalledService> {
    let service = |(name, service): (&String, &super::upstream::EgressService)| {
        let target = targets
            .iter()
            .find(|target| target.entry == *name && target.is_served())
            .filter(|target| !target.addresses.is_empty())?;
        let installed = InstalledService {
            ports: service.ports.clone(),
            tailnet_target_ips: target.addresses.clone(),
            tailnet_target: service.tailnet_target.clone(),
        };
        Some((name.clone(), installed))
    };
    file.0.iter().filter_map(service).collect()
}

fn ingress_services(file: &IngressConfig, targets: &[Target]) -> IngressConfig {
    let is_installed =
        |name: &String| targets.iter().any(|target| target.entry == *name && target.is_served());
    let services = file.0.iter().filter(|(name, _)| is_installed(name));
    IngressConfig(services.map(|(name, mapping)| (name.clone(), mapping.clone())).collect())
}
