//! The control server's HTTP API for administrators, as tests set it up and disturb it. It answers at [`Tailnet::url`]:
//! Tailscale's v2 paths and Headscale's v1 paths, on the nodes, keys and Services that the tailnet has.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::Tailnet;

/// Whose identity tokens are exchanged for access tokens. Signatures are not checked.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// The token, if it must be this one.
    pub token: String,
    /// The subject of tokens, as `system:serviceaccount:tailscale:operator`.
    pub subject: String,
    /// One of their audiences.
    pub audience: String,
}

/// What the next calls of a path get.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A status, with that `Retry-After` if it is not empty. Nothing is done.
    Status(u16, &'static str),
    /// No answer for as long as the client waits.
    Silence,
    /// The connection is closed. Nothing is done.
    HangUp,
    /// What was asked for is done, and the answer lost.
    Lost,
    /// What was asked for is done, and then another client changes the Service.
    Meddle,
}

impl Tailnet {
    /// The OAuth clients that get access tokens: ids with their secrets. At first there is none.
    pub fn set_clients(&self, clients: &[(&str, &str)]) -> Result<()> {
        self.call("PUT", "/api/clients", &clients.iter().copied().collect::<BTreeMap<_, _>>())
    }

    /// The federated identities that get access tokens, by client id.
    pub fn set_identities(&self, identities: &[(&str, Identity)]) -> Result<()> {
        let identities = identities.iter().map(|(id, identity)| (*id, identity));
        self.call("PUT", "/api/identities", &identities.collect::<BTreeMap<_, _>>())
    }

    /// Headscale's API keys.
    pub fn set_api_keys(&self, keys: &[&str]) -> Result<()> {
        let keys = keys.iter().map(|&key| (key, true));
        self.call("PUT", "/api/keys", &keys.collect::<BTreeMap<_, _>>())
    }

    /// How long access tokens last that are given from now on; at first an hour.
    pub fn set_token_lifetime(&self, lifetime: Duration) -> Result<()> {
        self.call("PUT", "/api/lifetime", &lifetime.as_secs_f64())
    }

    /// Ends every access token that was given.
    pub fn expire_tokens(&self) -> Result<()> {
        self.call("POST", "/api/expire", &())
    }

    /// Whether Services have versions (`ETag`) that a client may require (`If-Match`); at first not, as at Tailscale.
    pub fn set_etags(&self, on: bool) -> Result<()> {
        self.call("PUT", "/api/etags", &on)
    }

    /// Replaces the text of the policy that the API shows. The packet filter does not follow it.
    pub fn set_policy(&self, text: &str) -> Result<()> {
        self.call("PUT", "/api/policy", &text)
    }

    /// Plans a fault for the next `count` calls that are not planned for yet. `call` is method and path with its
    /// variables, as `DELETE /api/v2/device/{id}`.
    pub fn plan_fault(&self, call: &str, count: usize, fault: &Fault) -> Result<()> {
        let (kind, status, retry_after) = match fault {
            Fault::Status(status, retry_after) => ("", *status, *retry_after),
            Fault::Silence => ("silence", 0, ""),
            Fault::HangUp => ("hang-up", 0, ""),
            Fault::Lost => ("lost", 0, ""),
            Fault::Meddle => ("meddle", 0, ""),
        };
        let plan = json!({
            "call": call, "count": count, "kind": kind, "status": status, "retry_after": retry_after,
        });
        self.call("POST", "/api/faults", &plan)
    }

    /// Forgets the faults that have not come yet.
    pub fn clear_faults(&self) -> Result<()> {
        self.call("DELETE", "/api/faults", &Value::Null)
    }

    /// How often each path was called since this was asked last, by the names that [`Self::plan_fault`] takes; `/api/`
    /// counts those that do not exist.
    pub fn take_calls(&self) -> Result<BTreeMap<String, usize>> {
        self.call("POST", "/api/calls", &())
    }
}
