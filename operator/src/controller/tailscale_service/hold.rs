//! A Tailscale Service in the tailnet: had, changed, left. Nothing is asked of the control server that is known.

use std::sync::Arc;

use crate::{
    context::Context,
    error::Error,
    tailnet_api::{
        ServiceName, TailnetApi, VipService,
        owner::{Owner, OwnerError, Release},
    },
};

/// For people who look at Tailscale Services.
const COMMENT: &str =
    "Managed by the Kubernetes operator Sluice: it writes this again when it is changed";
/// How often it is read and decided again when others write at the same time.
const ATTEMPTS: usize = 3;

/// What a Tailscale Service is to be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(in crate::controller) struct Wanted {
    /// Its name.
    pub(in crate::controller) service: ServiceName,
    /// What it serves.
    pub(in crate::controller) ports: Vec<String>,
    /// Its tags.
    pub(in crate::controller) tags: Vec<String>,
}

/// Whose Tailscale Services of a tailnet are.
pub(in crate::controller) struct Owned<'a> {
    context: &'a Context,
    tailnet: &'a str,
    api: Arc<dyn TailnetApi>,
    owner: Owner,
    former: Option<Owner>,
}

/// What was found of a Tailscale Service that is wanted.
pub(in crate::controller) enum Look {
    /// It is as it is wanted.
    Is(VipService),
    /// It is to be written.
    Write {
        /// What is there.
        seen: Option<VipService>,
        /// What is to be there.
        desired: VipService,
    },
}

impl<'a> Owned<'a> {
    /// Those that operators share.
    pub(in crate::controller) async fn shared(
        context: &'a Context,
        tailnet: &'a str,
    ) -> Result<Self, Error> {
        Self::by(context, tailnet, Owner::operator).await
    }

    /// Those of an owner that is made of an operator's name.
    pub(in crate::controller) async fn by(
        context: &'a Context,
        tailnet: &'a str,
        owner: impl Fn(String) -> Owner,
    ) -> Result<Self, Error> {
        let api = context.tailnets.get(tailnet)?;
        let names = context.identity.names().await?.clone();
        let former = names.former.map(&owner);
        Ok(Self { context, tailnet, api, owner: owner(names.own), former })
    }

    /// What there is to do, if it may be had.
    pub(in crate::controller) async fn look(
        &self,
        wanted: &Wanted,
    ) -> Result<Result<Look, OwnerError>, Error> {
        let known = self.context.known.get(self.tailnet, &wanted.service);
        let seen = match known {
            Some(known) => Some(known),
            None => self.read(&wanted.service).await?,
        };
        let renamed = seen.as_ref().map(|seen| self.renamed(seen));
        let annotations = match self.owner.claim(renamed.as_ref()) {
            Ok(annotations) => annotations,
            Err(refused) => {
                // It may be put right where nobody tells us: it is looked at each time.
                self.context.known.forget(self.tailnet, &wanted.service);
                return Ok(Err(refused));
            }
        };
        let mut desired = seen.clone().unwrap_or_else(|| {
            let comment = COMMENT.to_owned();
            VipService { comment, ..VipService::new(wanted.service.clone()) }
        });
        desired.annotations = annotations;
        desired.ports.clone_from(&wanted.ports);
        desired.tags.clone_from(&wanted.tags);
        Ok(Ok(match seen {
            Some(seen) if seen.same_content(&desired) && !seen.addresses.is_empty() => {
                Look::Is(seen)
            }
            seen => Look::Write { seen, desired },
        }))
    }

    /// Makes it so.
    pub(in crate::controller) async fn hold(
        &self,
        wanted: &Wanted,
        mut look: Look,
    ) -> Result<Result<VipService, OwnerError>, Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let (seen, desired) = match look {
                Look::Is(service) => return Ok(Ok(service)),
                Look::Write { seen, desired } => (seen, desired),
            };
            match self.api.put_vip_service(&desired, seen.as_ref()).await {
                Ok(service) => {
                    tracing::info!(service = %service.name, "wrote a Tailscale Service");
                    self.context.known.written(self.tailnet, &service);
                    return Ok(Ok(service));
                }
                Err(error) => {
                    self.context.known.forget(self.tailnet, &wanted.service);
                    if !error.is_conflict() || attempt == ATTEMPTS {
                        return Err(error.into());
                    }
                }
            }
            look = match self.look(wanted).await? {
                Ok(look) => look,
                Err(refused) => return Ok(Err(refused)),
            };
        }
    }

    /// Leaves it: the last owner deletes it.
    pub(in crate::controller) async fn leave(&self, service: &ServiceName) -> Result<(), Error> {
        for attempt in 1..=ATTEMPTS {
            // What others have written meanwhile decides what is left.
            let Some(seen) = self.read(service).await? else { break };
            let left = match self.owner.release(&self.renamed(&seen)) {
                Ok(Release::Delete) => self.api.delete_vip_service(&seen).await.map(drop),
                Ok(Release::Update(rest)) => {
                    self.api.put_vip_service(&rest, Some(&seen)).await.map(drop)
                }
                Ok(Release::NotOurs) => break,
                Err(error) => {
                    tracing::warn!(%service, %error, "a Tailscale Service is left as it is");
                    break;
                }
            };
            match left {
                Ok(()) => {
                    tracing::info!(%service, "left a Tailscale Service");
                    break;
                }
                Err(error) if error.is_conflict() && attempt < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.context.known.forget(self.tailnet, service);
        Ok(())
    }

    async fn read(&self, service: &ServiceName) -> Result<Option<VipService>, Error> {
        match self.api.vip_service(service).await {
            Ok(found) => {
                self.context.known.read(self.tailnet, &found);
                Ok(Some(found))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// As if what was the operator's under its former name were its own.
    fn renamed(&self, service: &VipService) -> VipService {
        match &self.former {
            Some(former) => self.owner.renamed(service, &former.operator),
            None => service.clone(),
        }
    }
}
