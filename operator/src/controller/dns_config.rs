//! DNSConfigs: a nameserver for names of the tailnet, and its records.
//!
//! There is one nameserver in a cluster. Where there are several DNSConfigs, it is the oldest one's, and the others are told.

mod image;
mod status;

use std::{sync::Arc, time::Duration};

use futures::{Future, Stream, StreamExt as _, stream};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Service, ServiceAccount},
    },
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    runtime::{
        controller::Action,
        reflector::{Lookup, ObjectRef, Store},
    },
};

use self::status::Outcome;
use super::{
    dns_records,
    reconcile::{Reconciled, drive},
};
use crate::{
    apply::set_finalizer,
    build::nameserver::{NAME, Nameserver, NameserverObjects, RECORDS},
    context::{Context, Trigger},
    crd::DnsConfig,
    error::{Error, ResultExt as _},
    label,
};

/// Runs until it is told to stop.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let changes = context.cache.changes();
    drive::<DnsConfig, _>(context, stop, |store| all(changes, store)).await;
}

/// All of them, whenever something changes that a record or a nameserver is made of.
fn all(
    changes: impl Stream<Item = Trigger> + Send + 'static,
    store: Store<DnsConfig>,
) -> impl Stream<Item = ObjectRef<DnsConfig>> + Send + 'static {
    changes.flat_map(move |trigger| {
        let concerns = match trigger {
            Trigger::Child { kind, .. } => {
                kind == label::NAMESERVER || dns_records::concerns(&kind)
            }
            Trigger::Names => true,
            _ => false,
        };
        let found = if concerns { store.state() } else { Vec::new() };
        stream::iter(found).map(|found| ObjectRef::from(found.as_ref()))
    })
}

impl Reconciled for DnsConfig {
    const CONTROLLER: &str = "nameserver";

    /// They are about the same objects.
    const CONCURRENCY: u16 = 1;

    /// Many pods that start together are one change of the records.
    const DEBOUNCE: Duration = Duration::from_millis(100);

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(config: &DnsConfig, context: &Context) -> Result<Action, Error> {
    let api: Api<DnsConfig> = Api::all(context.client.clone());
    if config.metadata.deletion_timestamp.is_some() {
        // What is made for it goes with it.
        set_finalizer(&api, config, label::FINALIZER, false).await?;
        return Ok(Action::await_change());
    }
    let outcome = match rival(config, context) {
        Some(other) => Ok(Outcome::NotTheOne(other)),
        None => provision(config, context, &api).await,
    };
    match outcome {
        Ok(outcome) => status::tell(config, context, &outcome).await?,
        Err(error) => {
            if !error.is_conflict() {
                status::tell(config, context, &Outcome::Failed(error.to_string())).await?;
            }
            return Err(error);
        }
    }
    Ok(Action::await_change())
}

/// The name of the DNSConfig whose nameserver it is, if it is not this one's.
fn rival(config: &DnsConfig, context: &Context) -> Option<String> {
    let age = |one: &DnsConfig| (one.creation_timestamp(), one.name_any());
    let others = context.cache.dns_configs.state_filter(|other| {
        other.metadata.deletion_timestamp.is_none() && other.metadata.uid != config.metadata.uid
    });
    let oldest = others.into_iter().min_by_key(|other| age(other))?;
    (age(&oldest) < age(config)).then(|| oldest.name_any())
}

async fn provision(
    config: &DnsConfig,
    context: &Context,
    api: &Api<DnsConfig>,
) -> Result<Outcome, Error> {
    set_finalizer(api, config, label::FINALIZER, true).await?;
    let live = Live::find(context);
    let owner = config.controller_owner_ref(&());
    let owner = owner.ok_or_else(|| Error::Incomplete(config.name_any(), "UID"))?;
    let file = dns_records::records(&context.cache);
    let records = serde_json::to_string(&file).doing(|| "write the records".to_owned())?;
    let nameserver = nameserver(config, context, owner, live.address(), records);
    let service = live.apply(context, &nameserver.objects()).await?;
    let asked = config.spec.nameserver.service.as_ref();
    let asked = asked.and_then(|service| service.cluster_ip.clone());
    Ok(Outcome::Created { address: address(&service), asked })
}

fn nameserver(
    config: &DnsConfig,
    context: &Context,
    owner: OwnerReference,
    address: Option<String>,
    records: String,
) -> Nameserver {
    let spec = &config.spec.nameserver;
    let (image, command) = image::image(spec.image.as_ref(), &context.settings.operator_image);
    let asked = spec.service.as_ref().and_then(|service| service.cluster_ip.clone());
    Nameserver {
        owner,
        namespace: context.settings.namespace.clone(),
        image,
        command,
        replicas: spec.replicas.unwrap_or(1),
        // A Service keeps its address.
        cluster_ip: asked.map(|asked| address.unwrap_or(asked)),
        pod: spec.pod.clone().unwrap_or_default(),
        records,
    }
}

/// What is there of the nameserver, as far as the cache knows.
struct Live {
    account: Option<Arc<ServiceAccount>>,
    records: Option<Arc<ConfigMap>>,
    service: Option<Arc<Service>>,
    deployment: Option<Arc<Deployment>>,
}

impl Live {
    fn find(context: &Context) -> Self {
        fn get<K: Lookup<DynamicType = ()> + Clone + 'static>(
            store: &Store<K>,
            name: &str,
            namespace: &str,
        ) -> Option<Arc<K>> {
            store.get(&ObjectRef::new(name).within(namespace))
        }
        let (cache, namespace) = (&context.cache, context.settings.namespace.as_str());
        Self {
            account: get(&cache.accounts, NAME, namespace),
            records: get(&cache.config_maps, RECORDS, namespace),
            service: get(&cache.services, NAME, namespace),
            deployment: get(&cache.deployments, NAME, namespace),
        }
    }

    fn address(&self) -> Option<String> {
        self.service.as_deref().and_then(address)
    }

    /// Makes it so; returns the Service.
    async fn apply(
        &self,
        context: &Context,
        objects: &NameserverObjects,
    ) -> Result<Service, Error> {
        let apply = &context.applier;
        apply.apply(&objects.account, self.account.as_deref()).await?;
        apply.apply(&objects.records, self.records.as_deref()).await?;
        let service = apply.apply(&objects.service, self.service.as_deref()).await?;
        apply.apply(&objects.deployment, self.deployment.as_deref()).await?;
        Ok(service)
    }
}

fn address(service: &Service) -> Option<String> {
    service.spec.as_ref()?.cluster_ip.clone().filter(|address| !address.is_empty())
}
