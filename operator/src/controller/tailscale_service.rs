//! What Ingresses and Services on ingress ProxyGroups share: a Tailscale Service each, which operators of several clusters may
//! own together, and entries in the files and the configurations of the ProxyGroup's proxies.
//!
//! What was made for an object is recorded on it, and is undone from the record: the ProxyGroup may be gone by then, or the
//! object may ask for something else.

mod certificate;
mod claim;
mod group;
mod hold;
mod offer;
mod record;
mod touched;
mod withdraw;

pub(super) use self::{
    certificate::certificate,
    claim::{Claimant, of_ingress, of_service, rival},
    group::{Group, Refusal},
    hold::{Owned, Wanted},
    offer::{offer, set_entry},
    record::{Record, mark, record},
    touched::touched,
    withdraw::{OnGroup, sweep, withdraw},
};
