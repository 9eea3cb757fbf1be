//! A tailnet in memory, for tests of what uses the API. It has no network and no time: what is asked is done at once,
//! but for failures that the test asks for. Not used outside tests; a module like any other so that integration tests
//! of this crate can use it too.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Mutex, MutexGuard, PoisonError},
};

use async_trait::async_trait;
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    AuthKey, ControlServer, Deleted, Device, DeviceId, Error, Failure, KeyInfo, KeyRequest, Policy,
    ServiceName, TailnetApi, VipService,
};

/// The tailnet. Share it by `Arc`; the test keeps a clone and looks into it.
#[derive(Debug)]
pub struct FakeTailnet {
    login_server: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<(KeyRequest, AuthKey)>,
    devices: BTreeMap<DeviceId, Device>,
    services: BTreeMap<ServiceName, VipService>,
    policy: String,
    calls: Vec<Call>,
    failures: VecDeque<(Call, Failure)>,
    last: u32,
}

/// A method of [`TailnetApi`], as it was called.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// [`TailnetApi::create_key`]
    CreateKey,
    /// [`TailnetApi::keys`]
    Keys,
    /// [`TailnetApi::devices`]
    Devices,
    /// [`TailnetApi::device`]
    Device,
    /// [`TailnetApi::delete_device`]
    DeleteDevice,
    /// [`TailnetApi::vip_services`]
    VipServices,
    /// [`TailnetApi::vip_service`]
    VipService,
    /// [`TailnetApi::put_vip_service`]
    PutVipService,
    /// [`TailnetApi::delete_vip_service`]
    DeleteVipService,
    /// [`TailnetApi::policy`]
    Policy,
}

impl FakeTailnet {
    /// An empty one, whose proxies are told to log in at that address.
    pub fn new(login_server: &str) -> Self {
        Self { login_server: login_server.to_owned(), state: Mutex::default() }
    }

    /// Lets the next calls of that method fail so, one for each of these.
    pub fn fail(&self, call: Call, failures: impl IntoIterator<Item = Failure>) {
        self.state().failures.extend(failures.into_iter().map(|failure| (call, failure)));
    }

    /// What was called since the last time that this was asked.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls)
    }

    /// What keys were asked for, in order.
    pub fn key_requests(&self) -> Vec<KeyRequest> {
        self.state().keys.iter().map(|(request, _)| request.clone()).collect()
    }

    /// A device logs in with a key, as a proxy does; `None` if nobody made the key or it was used up.
    pub fn log_in(&self, secret: &str, hostname: &str) -> Option<Device> {
        let mut state = self.state();
        let found = state.keys.iter().position(|(_, key)| key.secret.expose_secret() == secret)?;
        let (request, _) = state.keys.get(found)?.clone();
        if !request.reusable {
            state.keys.remove(found);
        }
        state.last += 1;
        let number = state.last;
        let device = Device {
            id: DeviceId::new(format!("n{number}CNTRL")),
            name: format!("{hostname}.tailnet.ts.net"),
            hostname: hostname.to_owned(),
            addresses: addresses(64, number),
            tags: request.tags,
            authorized: request.preauthorized,
            connected: Some(true),
        };
        state.devices.insert(device.id.clone(), device.clone());
        Some(device)
    }

    /// Puts a device there, or changes it.
    pub fn set_device(&self, device: Device) {
        self.state().devices.insert(device.id.clone(), device);
    }

    /// Puts a Tailscale Service there or changes it, as another operator would.
    pub fn set_vip_service(&self, service: VipService) {
        self.state().services.insert(service.name.clone(), service);
    }

    /// Replaces the policy.
    pub fn set_policy(&self, text: &str) {
        text.clone_into(&mut self.state().policy);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the call and fails it if it is to fail.
    fn begin(&self, call: Call) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.state();
        state.calls.push(call);
        let planned = state.failures.iter().position(|(which, _)| *which == call);
        match planned.and_then(|at| state.failures.remove(at)) {
            Some((_, failure)) => Err(self.error(call, failure)),
            None => Ok(state),
        }
    }

    fn error(&self, call: Call, failure: Failure) -> Error {
        Error {
            attempt: format!("{call:?}").into(),
            server: self.login_server.clone().into(),
            failure,
        }
    }
}

#[async_trait]
impl TailnetApi for FakeTailnet {
    fn control_server(&self) -> ControlServer {
        ControlServer::Tailscale
    }

    fn login_server(&self) -> &str {
        &self.login_server
    }

    async fn create_key(&self, request: &KeyRequest) -> Result<AuthKey, Error> {
        let mut state = self.begin(Call::CreateKey)?;
        state.last += 1;
        let id = format!("k{}CNTRL", state.last);
        let secret = SecretString::from(format!("tskey-auth-{id}-fake"));
        let key = AuthKey { id, secret, expires: None };
        state.keys.push((request.clone(), key.clone()));
        Ok(key)
    }

    async fn keys(&self) -> Result<Vec<KeyInfo>, Error> {
        let state = self.begin(Call::Keys)?;
        let info = |(request, key): &(KeyRequest, AuthKey)| KeyInfo {
            id: key.id.clone(),
            tags: request.tags.clone(),
            description: request.description.clone(),
            created: None,
            expires: None,
            usable: true,
        };
        Ok(state.keys.iter().map(info).collect())
    }

    async fn devices(&self) -> Result<Vec<Device>, Error> {
        Ok(self.begin(Call::Devices)?.devices.values().cloned().collect())
    }

    async fn device(&self, id: &DeviceId) -> Result<Device, Error> {
        let found = self.begin(Call::Device)?.devices.get(id).cloned();
        found.ok_or_else(|| self.error(Call::Device, Failure::NotFound))
    }

    async fn delete_device(&self, id: &DeviceId) -> Result<Deleted, Error> {
        let removed = self.begin(Call::DeleteDevice)?.devices.remove(id);
        Ok(if removed.is_some() { Deleted::Now } else { Deleted::Already })
    }

    async fn vip_services(&self) -> Result<Vec<VipService>, Error> {
        Ok(self.begin(Call::VipServices)?.services.values().cloned().collect())
    }

    async fn vip_service(&self, name: &ServiceName) -> Result<VipService, Error> {
        let found = self.begin(Call::VipService)?.services.get(name).cloned();
        found.ok_or_else(|| self.error(Call::VipService, Failure::NotFound))
    }

    async fn put_vip_service(
        &self,
        desired: &VipService,
        seen: Option<&VipService>,
    ) -> Result<VipService, Error> {
        let mut state = self.begin(Call::PutVipService)?;
        let there = state.services.get(&desired.name);
        if !unchanged(there, seen) {
            let failure = Failure::Conflict("it is not what was read".into());
            return Err(self.error(Call::PutVipService, failure));
        }
        let mut fresh = desired.clone();
        if fresh.addresses.is_empty() {
            let kept = there.map(|service| service.addresses.clone());
            state.last += 1;
            fresh.addresses = kept.unwrap_or_else(|| addresses(100, state.last));
        }
        state.services.insert(fresh.name.clone(), fresh.clone());
        Ok(fresh)
    }

    async fn delete_vip_service(&self, seen: &VipService) -> Result<Deleted, Error> {
        let mut state = self.begin(Call::DeleteVipService)?;
        match state.services.get(&seen.name) {
            None => Ok(Deleted::Already),
            there if unchanged(there, Some(seen)) => {
                state.services.remove(&seen.name);
                Ok(Deleted::Now)
            }
            Some(_) => {
                let failure = Failure::Conflict("it is not what was read".into());
                Err(self.error(Call::DeleteVipService, failure))
            }
        }
    }

    async fn policy(&self) -> Result<Policy, Error> {
        Ok(Policy { text: self.begin(Call::Policy)?.policy.clone(), version: None })
    }
}

fn unchanged(there: Option<&VipService>, seen: Option<&VipService>) -> bool {
    match (there, seen) {
        (None, None) => true,
        (Some(there), Some(seen)) => there.same_content(seen),
        _ => false,
    }
}

/// IPv4 and IPv6, as a control server gives them.
fn addresses(second: u8, number: u32) -> Vec<IpAddr> {
    let [_, _, high, low] = number.to_be_bytes();
    let v4 = Ipv4Addr::new(100, second, high, low);
    let v6 = Ipv6Addr::new(0xfd7a, 0x115c, 0xa1e0, 0, 0, 0, u16::from(second), number as u16);
    vec![v4.into(), v6.into()]
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::{Call, FakeTailnet};
    use crate::tailnet_api::{Deleted, Failure, KeyRequest, TailnetApi as _, VipService};

    #[tokio::test]
    async fn a_key_lets_one_device_in_and_the_device_is_deleted_once() {
        let tailnet = FakeTailnet::new("https://fake.example");
        let key = tailnet.create_key(&KeyRequest::for_proxy(["tag:k8s"])).await.unwrap();
        let device = tailnet.log_in(key.secret.expose_secret(), "web").unwrap();
        assert_eq!(device.tags, ["tag:k8s"]);
        assert!(tailnet.log_in(key.secret.expose_secret(), "web").is_none(), "used up");
        assert_eq!(tailnet.device(&device.id).await.unwrap(), device);
        assert_eq!(tailnet.delete_device(&device.id).await.unwrap(), Deleted::Now);
        assert_eq!(tailnet.delete_device(&device.id).await.unwrap(), Deleted::Already);
        assert!(tailnet.device(&device.id).await.unwrap_err().is_not_found());
    }

    #[tokio::test]
    async fn a_service_that_another_changed_is_not_overwritten() {
        let tailnet = FakeTailnet::new("https://fake.example");
        let web = VipService::new("svc:web".parse().unwrap());
        let made = tailnet.put_vip_service(&web, None).await.unwrap();
        assert_eq!(made.addresses.len(), 2);
        assert!(tailnet.put_vip_service(&web, None).await.unwrap_err().is_conflict());
        let changed = VipService { comment: "theirs".into(), ..made.clone() };
        tailnet.set_vip_service(changed.clone());
        assert!(tailnet.delete_vip_service(&made).await.unwrap_err().is_conflict());
        assert_eq!(tailnet.delete_vip_service(&changed).await.unwrap(), Deleted::Now);
    }

    #[tokio::test]
    async fn failures_come_as_asked_and_calls_are_noted() {
        let tailnet = FakeTailnet::new("https://fake.example");
        tailnet.fail(Call::Devices, [Failure::RateLimited { retry_after: None }]);
        assert_eq!(tailnet.devices().await.unwrap_err().reason(), "RateLimited");
        assert!(tailnet.devices().await.unwrap().is_empty());
        assert_eq!(tailnet.take_calls(), [Call::Devices, Call::Devices]);
        assert!(tailnet.take_calls().is_empty());
    }
}
