//! Who owns a Tailscale Service: operators of several clusters may share one, and none may take another's.
//!
//! The owners stand in an annotation of the Service, in a form that operators of either make read and write. A Service
//! for Ingresses and Services is shared: each operator adds itself, and the last one that leaves deletes it. A Service for
//! a Kubernetes resource (an API server) is that resource's alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::VipService;

/// The annotation that names the owners.
pub const OWNERS: &str = "tailscale.com/owner-references";

/// One owner.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Owner {
    /// The stable id of the operator's own device. An operator that logs in anew as another device loses what it owns.
    #[serde(rename = "operatorID", default)]
    pub operator: String,
    /// The resource that has the Service for itself; none if it is shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<OwningResource>,
    /// What newer operators may say; kept.
    #[serde(flatten)]
    further: Map<String, Value>,
}

/// A resource of Kubernetes that has a Service for itself.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct OwningResource {
    /// Its kind, as `ProxyGroup`.
    #[serde(default)]
    pub kind: String,
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its UID, which alone decides.
    #[serde(default)]
    pub uid: String,
    /// What newer operators may say; kept.
    #[serde(flatten)]
    further: Map<String, Value>,
}

/// The annotation's value.
#[derive(Default, Deserialize, Serialize)]
struct Owners {
    #[serde(rename = "ownerRefs", default)]
    list: Vec<Owner>,
    #[serde(flatten)]
    further: Map<String, Value>,
}

/// Why a Service cannot be had. Nothing was changed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum OwnerError {
    /// It exists and names no owner: a person has made it.
    #[error(
        "the Tailscale Service {0} exists and was not made by an operator: delete it, or choose another name"
    )]
    Unowned(String),
    /// Operators of other clusters own it, and this use is for one alone.
    #[error(
        "the Tailscale Service {0} belongs to other operators and cannot be shared for this: choose another name"
    )]
    Others(String),
    /// A resource has it for itself.
    #[error("the Tailscale Service {service} belongs to the {kind} {name:?}: choose another name")]
    Resource {
        /// The Service.
        service: String,
        /// The resource's kind.
        kind: String,
        /// The resource's name.
        name: String,
    },
    /// It is in use for Ingresses or Services.
    #[error("the Tailscale Service {0} is in use for an Ingress or a Service: choose another name")]
    Shared(String),
    /// The annotation is not of the form that operators write.
    #[error(
        "the annotation {OWNERS} of the Tailscale Service {service} cannot be read ({problem}): correct or delete the Service"
    )]
    Unreadable {
        /// The Service.
        service: String,
        /// What is wrong.
        problem: String,
    },
}

/// What becomes of a Service that an owner leaves.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Release {
    /// It is not the owner's: leave it.
    NotOurs,
    /// Nobody else owns it: delete it.
    Delete,
    /// Others own it: write it so.
    Update(VipService),
}

impl Owner {
    /// An operator that shares Services.
    pub fn operator(id: impl Into<String>) -> Self {
        Self { operator: id.into(), resource: None, further: Map::new() }
    }

    /// A resource that has a Service for itself.
    pub fn resource(operator: impl Into<String>, kind: &str, name: &str, uid: &str) -> Self {
        let resource = OwningResource {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            further: Map::new(),
        };
        Self { resource: Some(resource), ..Self::operator(operator) }
    }

    /// The same owner, whatever its resource is called by now.
    fn is(&self, other: &Self) -> bool {
        let same_resource = match (&self.resource, &other.resource) {
            (None, None) => true,
            (Some(one), Some(other)) => one.kind == other.kind && one.uid == other.uid,
            _ => false,
        };
        self.operator == other.operator && same_resource
    }

    /// The annotations that the Service must have to be this owner's, too. What is right already comes back unchanged to
    /// the letter, so that a comparison of annotations tells whether there is something to write.
    pub fn claim(
        &self,
        service: Option<&VipService>,
    ) -> Result<BTreeMap<String, String>, OwnerError> {
        let Some(service) = service else {
            return Ok(with(
                BTreeMap::new(),
                &Owners { list: vec![self.clone()], ..Owners::default() },
            ));
        };
        let mut owners = owners(service)?;
        let name = || service.name.to_string();
        let first = owners.list.first().ok_or_else(|| OwnerError::Unowned(name()))?;
        match (&self.resource, &first.resource) {
            (None, _) if owners.list.iter().any(|owner| owner.is(self)) => {
                return Ok(service.annotations.clone());
            }
            (None, None) => owners.list.push(self.clone()),
            (Some(_), _) if owners.list.len() > 1 || first.operator != self.operator => {
                return Err(OwnerError::Others(name()));
            }
            (Some(_), None) => return Err(OwnerError::Shared(name())),
            (Some(ours), Some(theirs)) if first.is(self) => {
                if ours.name == theirs.name {
                    return Ok(service.annotations.clone());
                }
                for owned in owners.list.iter_mut().filter_map(|owner| owner.resource.as_mut()) {
                    owned.name.clone_from(&ours.name);
                }
            }
            (_, Some(theirs)) => {
                let (kind, name) = (theirs.kind.clone(), theirs.name.clone());
                return Err(OwnerError::Resource { service: service.name.to_string(), kind, name });
            }
        }
        Ok(with(service.annotations.clone(), &owners))
    }

    /// What becomes of the Service when this owner leaves it.
    pub fn release(&self, service: &VipService) -> Result<Release, OwnerError> {
        let mut owners = owners(service)?;
        let before = owners.list.len();
        // All of them: two writers at once can have entered one twice.
        owners.list.retain(|owner| !owner.is(self));
        Ok(if owners.list.len() == before {
            Release::NotOurs
        } else if owners.list.is_empty() {
            Release::Delete
        } else {
            let annotations = with(service.annotations.clone(), &owners);
            Release::Update(VipService { annotations, ..service.clone() })
        })
    }

    /// The Service as it would be if it were this operator's what was its under a former name. Where the annotation cannot be
    /// read, nothing is.
    pub fn renamed(&self, service: &VipService, former: &str) -> VipService {
        let Ok(mut all) = owners(service) else { return service.clone() };
        let mut any = false;
        for owner in all.list.iter_mut().filter(|owner| owner.operator == former) {
            owner.operator.clone_from(&self.operator);
            any = true;
        }
        let annotations = any.then(|| with(service.annotations.clone(), &all));
        VipService {
            annotations: annotations.unwrap_or_else(|| service.annotations.clone()),
            ..service.clone()
        }
    }

    /// Whether the Service is this owner's and nobody else's.
    pub fn owns_alone(&self, service: &VipService) -> bool {
        self.release(service) == Ok(Release::Delete)
    }
}

fn owners(service: &VipService) -> Result<Owners, OwnerError> {
    let text = service.annotations.get(OWNERS).map_or("", |text| text.trim());
    if text.is_empty() {
        return Ok(Owners::default());
    }
    serde_json::from_str(text).map_err(|error| OwnerError::Unreadable {
        service: service.name.to_string(),
        problem: error.to_string(),
    })
}

fn with(mut annotations: BTreeMap<String, String>, owners: &Owners) -> BTreeMap<String, String> {
    // Texts and maps of JSON always have a JSON form.
    let text = serde_json::to_string(owners).unwrap_or_default();
    annotations.insert(OWNERS.to_owned(), text);
    annotations
}

#[cfg(test)]
mod tests;
