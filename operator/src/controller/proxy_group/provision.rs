//! From a ProxyGroup to proxies.

use kube::{Resource as _, ResourceExt as _};

use super::{
    api, endpoints,
    existing::{Existing, taken},
    replicas, shares_account,
    status::Outcome,
    tailnet,
    validate::{hostnames, violations},
    write::write,
};
use crate::{
    apply::set_finalizer,
    build::{
        group::{Group, GroupDuty, Replica, config_name, group_objects, stored},
        secret_name,
    },
    context::Context,
    controller::{
        egress::{gather, settle},
        standalone::{Class, Keys, Standalone as _, class, not_ready},
    },
    crd::{ProxyGroup, proxy_group::ProxyGroupType},
    error::Error,
    label::{self, Parent},
    tailnet_api::TailnetApi,
};

/// Makes the proxies. What cannot be done now is an outcome, what failed is an error.
pub(super) async fn provision(
    group: &ProxyGroup,
    context: &Context,
    parent: &Parent,
) -> Result<Outcome, Error> {
    let settings = &context.settings;
    let firewall_mode = match settings.firewall_mode() {
        Ok(mode) => mode,
        Err(error) => return Ok(Outcome::Invalid(error.to_string())),
    };
    let tailnet = context.tailnets.get(tailnet(group))?;
    set_finalizer(&api(context), group, label::FINALIZER, true).await?;
    let class = match class(context, group.class(context).as_deref()) {
        Err(error @ Error::ClassMissing(_)) => return Ok(Outcome::Creating(error.to_string())),
        Ok(Class::Pending(name)) => return Ok(Outcome::Creating(not_ready(&name))),
        Ok(Class::None) => None,
        Ok(Class::Ready(spec)) => Some(*spec),
        Err(error) => return Err(error),
    };
    if let Some(wrong) = violations(group, class.as_ref()) {
        return Ok(Outcome::Invalid(wrong));
    }
    let mut duty = match group.spec.type_ {
        // Which they are is known once it is known what is there.
        ProxyGroupType::Egress => GroupDuty::Egress { services: String::new() },
        ProxyGroupType::Ingress => GroupDuty::Ingress {
            account: shares_account(group, settings.shared_acme_account_key)
                .then(|| account_field(self::tailnet(group))),
        },
        // Made by a controller of its own.
        ProxyGroupType::KubeApiserver => {
            return Ok(Outcome::Invalid(
                "spec.type: kube-apiserver is not served yet, use egress or ingress".into(),
            ));
        }
    };
    let existing = Existing::find(context, parent, &duty);
    if existing.stateful_set.is_none()
        && let Some(other) = taken(context, parent).await?
    {
        return Ok(Outcome::Invalid(format!(
            "metadata.name: {other} exists and is not of this ProxyGroup, make the ProxyGroup anew under another name"
        )));
    }
    let mut replicas = replicas_of(group, context, &*tailnet, &existing).await?;
    let fixed = class.as_ref().and_then(|class| class.static_endpoints.as_ref());
    let port = match fixed {
        None => {
            for replica in &mut replicas {
                replica.endpoints.clear();
            }
            None
        }
        Some(fixed) => {
            match endpoints::assign(context, parent, &existing, &fixed.node_port, &mut replicas) {
                Ok(port) => Some(port),
                Err(why) => return Ok(Outcome::Failed(why)),
            }
        }
    };
    let gathered = if let GroupDuty::Egress { services } = &mut duty {
        let gathered = gather(context, &parent.name, existing.config_map.as_deref());
        services.clone_from(&gathered.file);
        Some(gathered)
    } else {
        None
    };
    let what = || Error::Incomplete(format!("ProxyGroup {}", parent.name), "UID");
    let group = Group {
        parent: parent.clone(),
        owner: group.controller_owner_ref(&()).ok_or_else(what)?,
        namespace: settings.namespace.clone(),
        duty,
        replicas,
        login_server: tailnet.login_server().to_owned(),
        class,
        image: settings.proxy_image.clone(),
        firewall_mode,
        priority_class: settings.priority_class(),
        port,
    };
    write(context, &*tailnet, &existing, &group_objects(&group)).await?;
    if let Some(gathered) = gathered {
        settle(context, parent, &gathered).await?;
    }
    Ok(Outcome::Made)
}

/// Makes keys for those that need one; the rest is as it is there.
async fn replicas_of(
    group: &ProxyGroup,
    context: &Context,
    tailnet: &dyn TailnetApi,
    existing: &Existing,
) -> Result<Vec<Replica>, Error> {
    let name = group.name_any();
    let tags = match group.spec.tags.as_slice() {
        [] => &context.settings.proxy_tags,
        own => own,
    };
    let number = replicas(group);
    let keys = Keys { context, tailnet, secrets: &existing.secrets, replicas: number, tags };
    let mut all = Vec::with_capacity(number);
    for (ordinal, hostname) in hostnames(group).into_iter().enumerate() {
        let config = config_name(&name, ordinal);
        let auth_key = keys.of(&name, &config, &secret_name(&name, ordinal)).await?;
        let live = existing.secrets.get(&config);
        let (stored, file) = live.map(|secret| stored(secret)).unwrap_or_default();
        all.push(Replica {
            hostname,
            auth_key,
            advertised: stored.advertised.unwrap_or_default(),
            endpoints: stored.endpoints.unwrap_or_default(),
            node_port: None,
            seen: live.and_then(|secret| secret.resource_version()),
            file,
        });
    }
    Ok(all)
}

/// One account a tailnet.
fn account_field(tailnet: &str) -> String {
    let tailnet = if tailnet.is_empty() { "_default" } else { tailnet };
    format!("{tailnet}.acme-account.key.pem")
}
