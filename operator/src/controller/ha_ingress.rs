//! Ingresses on ingress ProxyGroups: HTTPS and HTTP under the name of a Tailscale Service, served by every replica.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::networking::v1::Ingress;
use kube::{
    ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};

use super::{
    ingress::{
        api, backend,
        status::{Notice, Outcome},
    },
    standalone::https_name,
    tailscale_service::{
        self, Group, OnGroup, Owned, Record, Refusal, Wanted, certificate, mark, offer, record,
        rival, set_entry, sweep, withdraw,
    },
};
use crate::{
    annotation::{self, GroupIngress},
    build::{
        certificate::Certificate,
        ingress_config::{self, File, PlainHttp},
    },
    context::{Context, Trigger},
    error::Error,
    label::{self, Parent, ParentKind},
};

/// What is wrong with what an Ingress asks for.
const INVALID: &str = "InvalidIngressConfiguration";
/// How soon it is looked again whether a Tailscale Service is somebody else's: nobody tells us.
const LOOK_AGAIN: Duration = Duration::from_mins(5);

impl OnGroup for Ingress {
    const FINALIZER: &str = label::INGRESS_GROUP_FINALIZER;
    const FILE: File = File::Serve;
}

/// Those on ProxyGroups that something else concerns.
pub(super) fn touched(
    context: &Context,
    store: &Store<Ingress>,
    trigger: &Trigger,
) -> Vec<ObjectRef<Ingress>> {
    tailscale_service::touched(context, store, trigger, tailscale_service::of_ingress)
}

/// Undoes what was made, if anything was.
pub(super) async fn end(
    ingress: &Ingress,
    context: &Context,
    parent: &Parent,
) -> Result<(), Error> {
    context.waiting.set(ParentKind::Ingress.label(), &parent.namespace, &parent.name, false);
    let kept = ingress.finalizers().iter().any(|own| own == Ingress::FINALIZER);
    // Upstream's operator records nothing.
    let asked = || {
        let class = &context.settings.ingress_class_name;
        let asks = annotation::group_ingress(ingress, class).ok()??.asks;
        Some(Record::of(context, &asks))
    };
    let record = record(ingress).or_else(|| kept.then(asked).flatten());
    if let Some(record) = &record {
        withdraw(context, ingress, parent, record, None).await?;
    }
    if kept || record.is_some() {
        mark(&api(context, ingress), ingress, Ingress::FINALIZER, None).await?;
    }
    Ok(())
}

/// Has it served. Comes back with when to look again, if nobody will tell.
pub(super) async fn provision(
    ingress: &Ingress,
    context: &Context,
    parent: &Parent,
    request: &GroupIngress,
) -> Result<(Outcome, Option<Duration>), Error> {
    let GroupIngress { asks, ingress: of, .. } = request;
    let group = match Group::find(context, &asks.group) {
        Ok(group) => group,
        Err(refusal) => return Ok((refused(&refusal), None)),
    };
    let own = tailscale_service::of_ingress(context, ingress);
    if let Some(rival) = own.and_then(|own| rival(context, &own)) {
        end(ingress, context, parent).await?;
        context.waiting.set(ParentKind::Ingress.label(), &parent.namespace, &parent.name, true);
        let why = format!(
            "the name `{}` is that of {} already: choose another one in field `spec.tls[0].hosts[0]`",
            asks.service.label(),
            rival.shown()
        );
        return Ok((Outcome::refused(INVALID, &why), None));
    }
    context.waiting.set(ParentKind::Ingress.label(), &parent.namespace, &parent.name, false);
    let Some(domain) = group.domain() else {
        let refusal = Refusal::NotReady(group.name);
        return Ok((refused(&refusal), None));
    };
    let domain = format!("{}.{domain}", asks.service.label());
    let mut notices = unsupported(request);
    let services = backend::services(ingress, context);
    let found = backend::handlers(ingress, of, &services);
    notices.extend(found.notices);
    let http = match (request.endpoint, of.redirect) {
        (true, _) => PlainHttp::Serve,
        (false, true) => PlainHttp::Redirect,
        (false, false) => PlainHttp::None,
    };
    let is_plain = http != PlainHttp::None;
    let is_served = !found.handlers.is_empty();
    if !is_served {
        let none = "no rule and no default backend leads to a Service that can be reached: add one";
        notices.push(Notice::warning("NoValidBackends", none));
        if record(ingress).is_none() {
            return Ok((Outcome { notices, ..Outcome::default() }, None));
        }
    }

    let ports: &[&str] = if is_plain { &["tcp:443", "tcp:80"] } else { &["tcp:443"] };
    let wanted = Wanted {
        service: asks.service.clone(),
        ports: ports.iter().map(|port| (*port).to_owned()).collect(),
        tags: asks.tags.clone().unwrap_or_else(|| context.settings.proxy_tags.clone()),
    };
    let owned = Owned::shared(context, &group.tailnet).await?;
    let held = match owned.look(&wanted).await? {
        Ok(look) => {
            let is = Record::of(context, asks);
            if let Some(was) = record(ingress).filter(|was| *was != is) {
                withdraw(context, ingress, parent, &was, Some(&is)).await?;
            }
            mark(&api(context, ingress), ingress, Ingress::FINALIZER, Some(&is)).await?;
            owned.hold(&wanted, look).await?
        }
        Err(refused) => Err(refused),
    };
    if let Err(refused) = held {
        let outcome = Outcome::refused("InvalidTailscaleService", &refused);
        return Ok((outcome, Some(LOOK_AGAIN)));
    }

    let wanted = Certificate {
        domain: &domain,
        namespace: &context.settings.namespace,
        group: &group.name,
        account: &group.name,
        parent,
    };
    let certified = certificate(context, &wanted).await?;
    let entry = is_served.then(|| ingress_config::served(&domain, &found.handlers, http));
    set_entry(context, &group.name, File::Serve, &asks.service, entry.as_ref()).await?;
    // Who comes before there is a certificate is not sent away, but to those who have one.
    let is_offered = is_served && (certified || is_plain);
    let all = group.configs.iter().map(|config| config.name_any());
    let on: BTreeSet<_> = all.filter(|_| is_offered).collect();
    offer(context, &group.name, &asks.service, &on).await?;
    sweep::<Ingress>(context, &group.name, &group.tailnet).await?;

    if group.states.iter().any(|state| matches!(https_name(state), Some(Err(_)))) {
        let told = "the tailnet gives its nodes no certificates: enable HTTPS in its settings";
        notices.push(Notice::warning("HTTPSNotEnabled", told));
    }
    let ports = [(443, certified), (80, is_plain)];
    let ports: Vec<_> = ports.into_iter().filter(|(_, is)| *is).map(|(port, _)| port).collect();
    let is_reached = is_served && !ports.is_empty() && group.offering(&asks.service) > 0;
    let outcome = Outcome { name: is_reached.then_some(domain), ports, notices };
    Ok((outcome, context.known.pause(&group.tailnet, &asks.service)))
}

/// Its ProxyGroup serves nobody now. That it does not work yet is no fault of anybody's.
fn refused(refusal: &Refusal) -> Outcome {
    let notice = match refusal {
        Refusal::Missing(_) | Refusal::Ending(_) => {
            Notice::warning("ProxyGroupNotFound", refusal.to_string())
        }
        Refusal::OtherType(..) => Notice::warning(INVALID, refusal.to_string()),
        Refusal::NotReady(_) => Notice::normal("ProxyGroupNotReady", refusal.to_string()),
    };
    Outcome { notices: vec![notice], ..Outcome::default() }
}

/// What only a proxy of its own can do.
fn unsupported(request: &GroupIngress) -> Vec<Notice> {
    let asked = [
        (request.ingress.funnel, label::FUNNEL),
        (request.ingress.forward_cluster_traffic, label::FORWARD_CLUSTER_TRAFFIC),
    ];
    let told = |(_, key)| {
        Notice::warning(
            INVALID,
            format!(
                "annotation `{key}` has no effect on a ProxyGroup: remove it, or remove annotation `{}`",
                label::PROXY_GROUP
            ),
        )
    };
    asked.into_iter().filter(|(is, _)| *is).map(told).collect()
}
