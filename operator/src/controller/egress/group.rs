//! What all egress Services of a ProxyGroup share: the file for its proxies, and which pods clients are led to.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Pod, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{ResourceExt as _, runtime::reflector::ObjectRef};

use super::gate;
use crate::{
    build::group::{
        EGRESS_SERVICES,
        egress::{
            EgressService, EgressStatus, Entry, Family, Served, config_hash, entry, slice,
            slice_name,
        },
    },
    context::{Context, labelled},
    controller::{proxy_group::pods, standalone::delete},
    error::Error,
    label::{self, Parent},
};

/// Requests to the API server at once.
const AT_ONCE: usize = 8;

/// The egress Services of a ProxyGroup, as far as the cache knows them.
pub(in crate::controller) struct Gathered {
    /// The file for the proxies.
    pub(in crate::controller) file: String,
    /// What was made for each, and what the proxies do for it.
    children: Vec<(Arc<Service>, Entry)>,
}

/// What was made for Services on a ProxyGroup.
pub(super) fn on_group(context: &Context, group: &str) -> Vec<Arc<Service>> {
    let labels = [(label::PROXY_GROUP, group), (label::SERVICE_TYPE, label::EGRESS)];
    labelled(&context.cache.services, &label::labels(labels))
}

/// Gathers them. `live` is the ConfigMap as it is there.
pub(in crate::controller) fn gather(
    context: &Context,
    group: &str,
    live: Option<&ConfigMap>,
) -> Gathered {
    let before = live.and_then(|map| map.binary_data.as_ref()?.get(EGRESS_SERVICES));
    let before: BTreeMap<String, EgressService> =
        before.and_then(|file| serde_json::from_slice(&file.0).ok()).unwrap_or_default();
    let mut children = Vec::new();
    for child in on_group(context, group) {
        let entry = entry(&child).or_else(|| {
            // Made by upstream's operator, and not taken over yet: it goes on as it is.
            let label = |key: &str| child.labels().get(key).cloned().unwrap_or_default();
            let key = format!("{}-{}", label(label::PARENT_NAMESPACE), label(label::PARENT_NAME));
            let service = before.get(&key)?.clone();
            Some(Entry { key, service })
        });
        children.extend(entry.map(|entry| (child, entry)));
    }
    let services: BTreeMap<_, _> =
        children.iter().map(|(_, entry)| (&entry.key, &entry.service)).collect();
    // Strings and numbers always have a JSON form.
    Gathered { file: serde_json::to_string(&services).unwrap_or_default(), children }
}

/// A pod that is there to stay, and what its proxy tells.
struct Running {
    pod: Arc<Pod>,
    addresses: Vec<IpAddr>,
    status: EgressStatus,
}

/// Leads clients to the pods that do what they are told, and says of pods when clients are led to them.
pub(in crate::controller) async fn settle(
    context: &Context,
    parent: &Parent,
    gathered: &Gathered,
) -> Result<(), Error> {
    let running = running(context, parent);
    let mut wanted = Vec::new();
    for (child, entry) in &gathered.children {
        let hash = config_hash(&parent.name, entry);
        for family in Family::of(child) {
            let served: Vec<_> =
                running.iter().filter_map(|pod| pod.serves(entry, family)).collect();
            wanted.push(slice(child, &hash, family, &served));
        }
    }
    let namespace = &context.settings.namespace;
    stream::iter(wanted.iter().map(Ok))
        .try_for_each_concurrent(AT_ONCE, |slice: &EndpointSlice| async move {
            let name = ObjectRef::new(&slice.name_any()).within(namespace);
            let live = context.cache.slices.get(&name);
            context.applier.apply(slice, live.as_deref()).await.map(drop)
        })
        .await?;
    orphans(context, parent, gathered).await?;
    for pod in &running {
        gate::open(context, parent, &pod.pod);
    }
    Ok(())
}

/// EndpointSlices of what is gone, and of families that it no longer has.
async fn orphans(context: &Context, parent: &Parent, gathered: &Gathered) -> Result<(), Error> {
    let labels = [(label::PROXY_GROUP, parent.name.as_str()), (label::SERVICE_TYPE, label::EGRESS)];
    let there = labelled(&context.cache.slices, &label::labels(labels));
    let names = gathered.children.iter().flat_map(|(child, _)| {
        let name = child.name_any();
        Family::of(child).into_iter().map(move |family| slice_name(&name, family))
    });
    let names: std::collections::BTreeSet<_> = names.collect();
    let orphans = there.iter().map(|slice| slice.name_any()).filter(|name| !names.contains(name));
    // Of one that was not taken over and is not in the file nothing is known.
    let unknown: Vec<_> =
        on_group(context, &parent.name).iter().map(|one| one.name_any()).collect();
    let of_none =
        |name: &String| !unknown.iter().any(|service| name.starts_with(&format!("{service}-ipv")));
    stream::iter(orphans.filter(of_none))
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |name| async move {
            delete::<EndpointSlice>(context, &name).await
        })
        .await
}

fn running(context: &Context, parent: &Parent) -> Vec<Running> {
    let pods = pods(context, parent).into_iter();
    let pods = pods.filter(|(_, pod)| pod.metadata.deletion_timestamp.is_none());
    pods.map(|(name, pod)| {
        let secret = ObjectRef::new(&name).within(&context.settings.namespace);
        let secret = context.cache.secrets.get(&secret);
        let status = secret.and_then(|secret| status(&secret)).unwrap_or_default();
        Running { addresses: addresses(&pod), pod, status }
    })
    .collect()
}

/// What a proxy tells in its Secret.
pub(super) fn status(secret: &Secret) -> Option<EgressStatus> {
    serde_json::from_slice(&secret.data.as_ref()?.get(EGRESS_SERVICES)?.0).ok()
}

/// The addresses of a pod, the primary one first.
pub(super) fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let all = pod.status.as_ref().and_then(|status| status.pod_ips.as_ref());
    all.into_iter().flatten().filter_map(|one| one.ip.parse().ok()).collect()
}

impl Running {
    /// Where clients of a family are led to, if this pod does what they need. What a pod before it told does not count.
    fn serves(&self, entry: &Entry, family: Family) -> Option<Served> {
        let address = *self.addresses.iter().find(|address| family.has(address))?;
        let is_its_own = self.status.address(family) == Some(address);
        let does = self.status.services.get(&entry.key)?.does(&entry.service);
        (is_its_own && does).then(|| Served { address, uid: self.pod.uid().unwrap_or_default() })
    }
}
