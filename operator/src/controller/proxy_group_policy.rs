//! ProxyGroupPolicies: which ProxyGroups the Services and Ingresses of a namespace may name.
//!
//! What is reconciled is the namespace, by all policies in it: a policy has no finalizer, so that one which was the last is
//! noticed only by what it leaves, even if nobody watched when it went.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use futures::{Future, Stream, StreamExt as _, stream};
use k8s_openapi::{
    ClusterResourceScope,
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        core::v1::Namespace,
    },
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::DeleteParams,
    runtime::{
        controller::Action,
        reflector::{Lookup, ObjectRef, Store},
    },
};
use serde::{Serialize, de::DeserializeOwned};

use super::reconcile::{Reconciled, drive};
use crate::{
    build::admission::{Allowed, Way},
    context::{Context, Trigger},
    error::{Error, ResultExt as _},
    label,
};

/// Runs until it is told to stop. On an API server that has no such policies it does nothing but wait for them.
pub(super) async fn run(
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    tokio::select! {
        () = context.cache.wait_for_admission() => {}
        () = stop.clone() => return,
    }
    let changes = context.cache.changes();
    drive::<Namespace, _>(context, stop, |_| concerned(changes)).await;
}

fn concerned(
    changes: impl Stream<Item = Trigger> + Send + 'static,
) -> impl Stream<Item = ObjectRef<Namespace>> + Send + 'static {
    changes.flat_map(|trigger| {
        stream::iter(match trigger {
            Trigger::Policies(namespace) => Some(ObjectRef::new(&namespace)),
            _ => None,
        })
    })
}

impl Reconciled for Namespace {
    const CONTROLLER: &str = "proxygrouppolicy";

    fn step(&self, context: &Context) -> impl Future<Output = Result<Action, Error>> + Send {
        step(self, context)
    }
}

async fn step(namespace: &Namespace, context: &Context) -> Result<Action, Error> {
    let name = namespace.name_any();
    let policies = context.cache.policies.state_filter(|policy| {
        policy.metadata.namespace.as_ref() == Some(&name)
            && policy.metadata.deletion_timestamp.is_none()
    });
    for way in Way::ALL {
        if policies.is_empty() {
            remove(context, way, &name).await?;
            continue;
        }
        let groups = policies.iter().flat_map(|policy| match way {
            Way::Ingress => policy.spec.ingress.clone(),
            Way::Egress => policy.spec.egress.clone(),
        });
        let groups: BTreeSet<_> = groups.collect();
        let allowed = Allowed { namespace: name.clone(), way, groups };
        apply(context, &allowed.policy(), &context.cache.admission).await?;
        apply(context, &allowed.binding(), &context.cache.admission_bindings).await?;
    }
    Ok(Action::await_change())
}

/// The kinds that a ProxyGroupPolicy becomes.
trait Admission:
    Resource<DynamicType = (), Scope = ClusterResourceScope>
    + Lookup<DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + 'static
{
}

impl Admission for ValidatingAdmissionPolicy {}
impl Admission for ValidatingAdmissionPolicyBinding {}

async fn apply<K: Admission>(
    context: &Context,
    desired: &K,
    store: &Store<K>,
) -> Result<(), Error> {
    let live = store.get(&ObjectRef::from(desired));
    let api: Api<K> = Api::all(context.client.clone());
    context.applier.apply_with(&api, desired, live.as_deref()).await.map(drop)
}

/// Takes both away, the binding first: a binding without its policy would be told as a fault.
async fn remove(context: &Context, way: Way, namespace: &str) -> Result<(), Error> {
    let name = way.name(namespace);
    let cache = &context.cache;
    if let Some(binding) = cache.admission_bindings.get(&ObjectRef::new(&name))
        && binding.spec.as_ref().is_some_and(|spec| spec.policy_name.as_ref() == Some(&name))
    {
        delete::<ValidatingAdmissionPolicyBinding>(context, &name).await?;
    }
    if let Some(policy) = cache.admission.get(&ObjectRef::new(&name))
        && is_ours(&policy)
    {
        delete::<ValidatingAdmissionPolicy>(context, &name).await?;
    }
    Ok(())
}

/// Whether it is about ProxyGroups: another one may have such a name.
fn is_ours(policy: &ValidatingAdmissionPolicy) -> bool {
    let Some(spec) = &policy.spec else { return false };
    let own = spec.validations.iter().flatten().map(|one| &one.expression);
    let shared = spec.variables.iter().flatten().map(|one| &one.expression);
    own.chain(shared).any(|expression| expression.contains(label::PROXY_GROUP))
}

async fn delete<K: Admission>(context: &Context, name: &str) -> Result<(), Error> {
    let api: Api<K> = Api::all(context.client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        outcome => {
            outcome.map(drop).doing(|| format!("delete {} {name}", <K as Resource>::kind(&())))
        }
    }
}
