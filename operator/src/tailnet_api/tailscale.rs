//! Tailscale's API v2.

pub(super) mod wire;

use async_trait::async_trait;
use hyper::header::{ACCEPT, HeaderValue, IF_MATCH};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    AuthKey, ControlServer, Deleted, Device, DeviceId, Error, Failure, Feature, KeyInfo,
    KeyRequest, Policy, ServiceName, TailnetApi, VipService,
    http::{Answer, Ask, Http},
    settings::Credentials,
    token::Tokens,
};

/// The tailnet that the credentials belong to.
const TAILNET: &str = "/api/v2/tailnet/-";

/// What stays as it is in a part of a path. `svc:web` does.
const PART: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// One tailnet at Tailscale, or at a server with the same API.
#[derive(Debug)]
pub(super) struct Tailscale {
    http: Http,
    tokens: Tokens,
}

impl Tailscale {
    pub(super) fn new(http: Http, credentials: Credentials) -> Self {
        Self { http, tokens: Tokens::new(credentials) }
    }

    /// Asks with a token, and once more with a fresh one if it is refused.
    async fn ask(&self, ask: Ask) -> Result<Answer, Failure> {
        let token = self.tokens.get(&self.http).await?;
        match self.http.ask(&ask, Some(&token)).await {
            Err(Failure::Unauthorized(_)) => {
                self.tokens.refused(&token).await;
                let token = self.tokens.get(&self.http).await?;
                self.http.ask(&ask, Some(&token)).await
            }
            other => other,
        }
    }

    async fn read_service(&self, name: &ServiceName) -> Result<Option<VipService>, Failure> {
        match self.ask(Ask::get(service_path(name))).await {
            Ok(answer) => wire::service(&answer).map(Some),
            Err(Failure::NotFound) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Reads a Service and compares it with what was seen.
    async fn unchanged(
        &self,
        name: &ServiceName,
        seen: Option<&VipService>,
    ) -> Result<Option<VipService>, Failure> {
        let there = self.read_service(name).await?;
        match (&there, seen) {
            (None, None) => Ok(there),
            (Some(now), Some(seen)) if now.same_content(seen) => Ok(there),
            (None, Some(_)) => Err(Failure::Conflict(format!("{name} was deleted").into())),
            _ => Err(Failure::Conflict(format!("{name} is not what was read").into())),
        }
    }

    async fn put(
        &self,
        desired: &VipService,
        seen: Option<&VipService>,
    ) -> Result<VipService, Failure> {
        let name = &desired.name;
        let there = self.unchanged(name, seen).await?;
        let mut desired = desired.clone();
        if let Some(there) = &there
            && desired.addresses.is_empty()
        {
            // Without them it would get others, and everyone who knows the old ones would lose it.
            desired.addresses.clone_from(&there.addresses);
        }
        let ask = Ask::put(service_path(name), &wire::service_request(&desired));
        match self.ask(required(ask, there.as_ref())?).await {
            // A repetition of a request that was done is refused: the version is a new one by then.
            Ok(_) | Err(Failure::Conflict(_)) => {}
            Err(failure) => return offered(Feature::VipServices, Err(failure)),
        }
        // The API at Tailscale has no preconditions: whoever wrote at the same time is found out here.
        match self.read_service(name).await? {
            Some(now) if desired.is_met_by(&now) => Ok(now),
            _ => Err(Failure::Conflict(format!("{name} was changed at the same time").into())),
        }
    }

    async fn delete(&self, seen: &VipService) -> Result<Deleted, Failure> {
        let Some(there) = self.read_service(&seen.name).await? else {
            return Ok(Deleted::Already);
        };
        if !there.same_content(seen) {
            return Err(Failure::Conflict(format!("{} is not what was read", seen.name).into()));
        }
        let ask = required(Ask::delete(service_path(&seen.name)), Some(&there))?;
        match deleted(self.ask(ask).await) {
            // A repetition of a request that was done is refused: the version is gone with the Service.
            Err(Failure::Conflict(why)) => match self.read_service(&seen.name).await? {
                Some(_) => Err(Failure::Conflict(why)),
                None => Ok(Deleted::Now),
            },
            other => other,
        }
    }
}

/// The version that must still be there, where the server has versions.
fn required(ask: Ask, there: Option<&VipService>) -> Result<Ask, Failure> {
    let Some(version) = there.and_then(|service| service.version.as_ref()) else {
        return Ok(ask);
    };
    let value = HeaderValue::from_str(version)
        .map_err(|_| Failure::Malformed("an ETag that no header may have".into()))?;
    Ok(ask.header(IF_MATCH, value))
}

/// A path without a name of ours in it that is not there belongs to what the server does not have: others speak this API
/// too, in part.
fn offered<T>(feature: Feature, outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.map_err(|failure| match failure {
        Failure::NotFound => Failure::Unsupported(feature),
        other => other,
    })
}

/// What is not there is deleted.
fn deleted(outcome: Result<Answer, Failure>) -> Result<Deleted, Failure> {
    match outcome {
        Ok(_) => Ok(Deleted::Now),
        Err(Failure::NotFound) => Ok(Deleted::Already),
        Err(failure) => Err(failure),
    }
}

fn device_path(id: &DeviceId) -> String {
    format!("/api/v2/device/{}", utf8_percent_encode(id.as_str(), PART))
}

fn service_path(name: &ServiceName) -> String {
    format!("{TAILNET}/vip-services/{}", utf8_percent_encode(name.as_str(), PART))
}

#[async_trait]
impl TailnetApi for Tailscale {
    fn control_server(&self) -> ControlServer {
        ControlServer::Tailscale
    }

    fn login_server(&self) -> &str {
        self.http.server()
    }

    async fn create_key(&self, request: &KeyRequest) -> Result<AuthKey, Error> {
        let attempt = format!("create an auth key for {}", request.tags.join(", "));
        let ask = Ask::post(format!("{TAILNET}/keys"), &wire::key_request(request));
        self.http.call(&attempt, async { wire::made_key(&self.ask(ask).await?) }).await
    }

    async fn keys(&self) -> Result<Vec<KeyInfo>, Error> {
        let ask = Ask::get(format!("{TAILNET}/keys"));
        self.http.call("list auth keys", async { wire::keys(&self.ask(ask).await?.body) }).await
    }

    async fn devices(&self) -> Result<Vec<Device>, Error> {
        let ask = Ask::get(format!("{TAILNET}/devices"));
        self.http.call("list devices", async { wire::devices(&self.ask(ask).await?.body) }).await
    }

    async fn device(&self, id: &DeviceId) -> Result<Device, Error> {
        let ask = Ask::get(device_path(id));
        let work = async { wire::device(&self.ask(ask).await?.body) };
        self.http.call(&format!("read the device {id}"), work).await
    }

    async fn delete_device(&self, id: &DeviceId) -> Result<Deleted, Error> {
        let ask = Ask::delete(device_path(id));
        let work = async { deleted(self.ask(ask).await) };
        self.http.call(&format!("delete the device {id}"), work).await
    }

    async fn vip_services(&self) -> Result<Vec<VipService>, Error> {
        let ask = Ask::get(format!("{TAILNET}/vip-services"));
        let work =
            async { wire::services(&offered(Feature::VipServices, self.ask(ask).await)?.body) };
        self.http.call("list Tailscale Services", work).await
    }

    async fn vip_service(&self, name: &ServiceName) -> Result<VipService, Error> {
        let work = async { self.read_service(name).await?.ok_or(Failure::NotFound) };
        self.http.call(&format!("read the Tailscale Service {name}"), work).await
    }

    async fn put_vip_service(
        &self,
        desired: &VipService,
        seen: Option<&VipService>,
    ) -> Result<VipService, Error> {
        let attempt = format!("write the Tailscale Service {}", desired.name);
        self.http.call(&attempt, self.put(desired, seen)).await
    }

    async fn delete_vip_service(&self, seen: &VipService) -> Result<Deleted, Error> {
        let attempt = format!("delete the Tailscale Service {}", seen.name);
        self.http.call(&attempt, self.delete(seen)).await
    }

    async fn policy(&self) -> Result<Policy, Error> {
        let ask = Ask::get(format!("{TAILNET}/acl"))
            .header(ACCEPT, HeaderValue::from_static("application/hujson"));
        let work = async {
            let answer = offered(Feature::Policy, self.ask(ask).await)?;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            Ok(Policy { text, version: answer.etag })
        };
        self.http.call("read the tailnet policy", work).await
    }
}
