//! The control server's HTTP API behind one trait: auth keys, devices, Tailscale Services, the policy.
//!
//! Controllers take an `Arc<dyn TailnetApi>` from the [`Registry`] by the name of a `Tailnet` resource and know no
//! control server by name. What a server does not offer is [`Failure::Unsupported`], never a silent success.

pub mod answers;
mod device;
mod error;
pub mod fake;
mod headscale;
mod http;
mod key;
pub mod owner;
mod registry;
pub mod resource;
mod service;
mod settings;
mod tailscale;
mod token;

use std::fmt::Debug;

use async_trait::async_trait;

pub use device::{Device, DeviceId};
pub use error::{Error, Failure, Feature, Retry};
pub use key::{AuthKey, KeyInfo, KeyRequest};
pub use registry::{Registry, RegistryError};
pub use service::{BadServiceName, ServiceName, VipService};
pub use settings::{
    Credentials, IDENTITY_TOKEN, Mint, Patience, Settings, SettingsError, Source, TAILSCALE,
};

/// The implementation that serves a tailnet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ControlServer {
    /// Tailscale's API v2, by OAuth client or workload identity.
    Tailscale,
    /// Headscale's API v1, by API key.
    Headscale,
}

/// Whether a deletion found something to delete. Both are success: what should be gone is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Deleted {
    /// It was there.
    Now,
    /// It was not there (HTTP 404).
    Already,
}

/// The tailnet policy (ACL) as the control server keeps it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// Its text, `HuJSON`.
    pub text: String,
    /// The version, where the server tells one (its `ETag`).
    pub version: Option<String>,
}

/// What the operator asks of a tailnet's control server.
///
/// Every call is bounded in time and is repeated by itself as far as that is safe; an error that comes out is for the
/// caller's own [`Error::retry`] policy. Implementations are cheap to share and may be called concurrently.
#[async_trait]
pub trait TailnetApi: Debug + Send + Sync {
    /// Which implementation answers.
    fn control_server(&self) -> ControlServer;

    /// What proxies log in at (`ServerURL` in their configuration); never empty, without a slash at the end.
    fn login_server(&self) -> &str;

    /// Makes an auth key. Not repeated by itself once the request may have reached the server: a key that nobody knows
    /// of would stay behind.
    async fn create_key(&self, request: &KeyRequest) -> Result<AuthKey, Error>;

    /// The auth keys that the credentials may see, without their secrets.
    async fn keys(&self) -> Result<Vec<KeyInfo>, Error>;

    /// All devices of the tailnet.
    async fn devices(&self) -> Result<Vec<Device>, Error>;

    /// One device; [`Failure::NotFound`] if there is none.
    async fn device(&self, id: &DeviceId) -> Result<Device, Error>;

    /// Deletes a device: it is logged out and its name and addresses become free.
    async fn delete_device(&self, id: &DeviceId) -> Result<Deleted, Error>;

    /// All Tailscale Services of the tailnet.
    async fn vip_services(&self) -> Result<Vec<VipService>, Error>;

    /// One Tailscale Service; [`Failure::NotFound`] if there is none.
    async fn vip_service(&self, name: &ServiceName) -> Result<VipService, Error>;

    /// Creates or replaces a Tailscale Service and returns it as the server has it afterwards, with its addresses.
    ///
    /// `seen` is what the caller has read and based `desired` on, `None` if nothing was there. If the server has another
    /// by now, or has another than `desired` right after the write, it is [`Failure::Conflict`]: read again, decide again.
    async fn put_vip_service(
        &self,
        desired: &VipService,
        seen: Option<&VipService>,
    ) -> Result<VipService, Error>;

    /// Deletes a Tailscale Service. `seen` as in [`Self::put_vip_service`].
    async fn delete_vip_service(&self, seen: &VipService) -> Result<Deleted, Error>;

    /// The tailnet policy.
    async fn policy(&self) -> Result<Policy, Error>;
}
