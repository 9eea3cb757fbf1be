//! Headscale's API v1 (0.26 and later), by API key. It has no Tailscale Services.

pub(super) mod wire;

use async_trait::async_trait;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::{
    AuthKey, ControlServer, Deleted, Device, DeviceId, Error, Failure, Feature, KeyInfo,
    KeyRequest, Policy, ServiceName, TailnetApi, VipService,
    http::{Answer, Ask, Http},
    settings::Source,
};

/// How long a key lets devices in unless the request says otherwise: as long as at Tailscale. Always sent, as servers
/// differ in what its absence means.
const EXPIRY: SignedDuration = SignedDuration::from_hours(90 * 24);

/// One Headscale server.
#[derive(Debug)]
pub(super) struct Headscale {
    http: Http,
    api_key: Source,
    user: Option<String>,
}

impl Headscale {
    pub(super) fn new(http: Http, api_key: Source, user: Option<String>) -> Self {
        Self { http, api_key, user }
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, Failure> {
        let key = self.api_key.read().await;
        let key = key.map_err(|problem| Failure::Credentials(problem.into()))?;
        self.http.ask(&ask, Some(&key)).await
    }

    /// Asks for one node.
    async fn ask_node(
        &self,
        id: &DeviceId,
        ask: impl FnOnce(String) -> Ask,
    ) -> Result<Answer, Failure> {
        let path = format!("/api/v1/node/{}", utf8_percent_encode(id.as_str(), NON_ALPHANUMERIC));
        // Versions up to 0.28 at least answer 500 for what their database does not find.
        let ask = Ask { vague: true, ..ask(path) };
        self.ask(ask).await.map_err(|failure| match failure {
            // Numbers only: a device of another control server, as after a move, is refused and is not there.
            Failure::Invalid(_) if id.as_str().parse::<u64>().is_err() => Failure::NotFound,
            other => other,
        })
    }

    /// The number of the user that keys are to belong to.
    async fn user(&self) -> Result<Option<String>, Failure> {
        let Some(name) = &self.user else { return Ok(None) };
        let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let answer = self.ask(Ask::get(format!("/api/v1/user?name={encoded}"))).await?;
        let found = wire::user(&answer.body, name)?;
        let missing = || Failure::Invalid(format!("there is no user {name:?}: create it").into());
        found.ok_or_else(missing).map(Some)
    }

    async fn create(&self, request: &KeyRequest) -> Result<AuthKey, Failure> {
        let asked = request.expiry.and_then(|expiry| SignedDuration::try_from(expiry).ok());
        let expiration = Timestamp::now().checked_add(asked.unwrap_or(EXPIRY));
        let expiration =
            expiration.map_err(|error| Failure::Invalid(format!("expiry: {error}").into()))?;
        let body = wire::key_request(request, &expiration, self.user().await?.as_deref());
        wire::made_key(&self.ask(Ask::post("/api/v1/preauthkey".to_owned(), &body)).await?)
    }

    async fn unsupported<T>(&self, attempt: &str, feature: Feature) -> Result<T, Error> {
        self.http.call(attempt, async { Err(Failure::Unsupported(feature)) }).await
    }
}

#[async_trait]
impl TailnetApi for Headscale {
    fn control_server(&self) -> ControlServer {
        ControlServer::Headscale
    }

    fn login_server(&self) -> &str {
        self.http.server()
    }

    async fn create_key(&self, request: &KeyRequest) -> Result<AuthKey, Error> {
        let attempt = format!("create a pre-auth key for {}", request.tags.join(", "));
        self.http.call(&attempt, self.create(request)).await
    }

    async fn keys(&self) -> Result<Vec<KeyInfo>, Error> {
        let work = async {
            let user = self.user().await?;
            let query = user.map(|user| format!("?user={user}")).unwrap_or_default();
            wire::keys(&self.ask(Ask::get(format!("/api/v1/preauthkey{query}"))).await?.body)
        };
        self.http.call("list pre-auth keys", work).await
    }

    async fn devices(&self) -> Result<Vec<Device>, Error> {
        let ask = Ask::get("/api/v1/node".to_owned());
        self.http.call("list nodes", async { wire::nodes(&self.ask(ask).await?.body) }).await
    }

    async fn device(&self, id: &DeviceId) -> Result<Device, Error> {
        let work = async { wire::node(&self.ask_node(id, Ask::get).await?.body) };
        self.http.call(&format!("read the node {id}"), work).await
    }

    async fn delete_device(&self, id: &DeviceId) -> Result<Deleted, Error> {
        let work = async {
            match self.ask_node(id, Ask::delete).await {
                Ok(_) => Ok(Deleted::Now),
                Err(Failure::NotFound) => Ok(Deleted::Already),
                Err(failure) => Err(failure),
            }
        };
        self.http.call(&format!("delete the node {id}"), work).await
    }

    async fn vip_services(&self) -> Result<Vec<VipService>, Error> {
        self.unsupported("list Tailscale Services", Feature::VipServices).await
    }

    async fn vip_service(&self, name: &ServiceName) -> Result<VipService, Error> {
        let attempt = format!("read the Tailscale Service {name}");
        self.unsupported(&attempt, Feature::VipServices).await
    }

    async fn put_vip_service(
        &self,
        desired: &VipService,
        _: Option<&VipService>,
    ) -> Result<VipService, Error> {
        let attempt = format!("write the Tailscale Service {}", desired.name);
        self.unsupported(&attempt, Feature::VipServices).await
    }

    async fn delete_vip_service(&self, seen: &VipService) -> Result<Deleted, Error> {
        let attempt = format!("delete the Tailscale Service {}", seen.name);
        self.unsupported(&attempt, Feature::VipServices).await
    }

    async fn policy(&self) -> Result<Policy, Error> {
        let ask = Ask::get("/api/v1/policy".to_owned());
        self.http.call("read the policy", async { wire::policy(&self.ask(ask).await?.body) }).await
    }
}
