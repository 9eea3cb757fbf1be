//! Tailscale Services as they were seen last, so that the control server is not asked what is known.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::tailnet_api::{ServiceName, VipService};

/// After a write it is looked once more whether it stayed so: operators of other clusters may have written at the same time,
/// and the API has no precondition that would have told. Not all at once.
const SOONEST: Duration = Duration::from_mins(5);
const SPREAD: u64 = 240;

/// Tailscale Services, by tailnet and name.
#[derive(Debug, Default)]
pub struct Known(Mutex<HashMap<(String, ServiceName), Seen>>);

#[derive(Debug)]
struct Seen {
    service: VipService,
    look_at: Option<Instant>,
}

impl Known {
    /// As it was seen last; `None` if it must be looked at.
    pub fn get(&self, tailnet: &str, name: &ServiceName) -> Option<VipService> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = all.get(&(tailnet.to_owned(), name.clone()))?;
        let is_due = seen.look_at.is_some_and(|time| time <= Instant::now());
        (!is_due).then(|| seen.service.clone())
    }

    /// It was read.
    pub fn read(&self, tailnet: &str, service: &VipService) {
        self.set(tailnet, service, None);
    }

    /// It was written.
    pub fn written(&self, tailnet: &str, service: &VipService) {
        let spread = service
            .name
            .as_str()
            .bytes()
            .fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
        let pause = SOONEST + Duration::from_secs(spread % SPREAD);
        self.set(tailnet, service, Instant::now().checked_add(pause));
    }

    /// It was changed, or is gone.
    pub fn forget(&self, tailnet: &str, name: &ServiceName) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&(tailnet.to_owned(), name.clone()));
    }

    /// How long until it must be looked at again, if it must.
    pub fn pause(&self, tailnet: &str, name: &ServiceName) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let time = all.get(&(tailnet.to_owned(), name.clone()))?.look_at?;
        Some(time.saturating_duration_since(Instant::now()))
    }

    fn set(&self, tailnet: &str, service: &VipService, look_at: Option<Instant>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = Seen { service: service.clone(), look_at };
        all.insert((tailnet.to_owned(), service.name.clone()), seen);
    }
}

#[cfg(test)]
mod tests {
    use super::{Known, SOONEST};
    use crate::tailnet_api::VipService;

    #[test]
    fn what_was_written_is_looked_at_once_more_and_what_was_read_is_not() {
        let known = Known::default();
        let web = VipService::new("svc:web".parse().unwrap());
        assert_eq!(known.get("", &web.name), None);
        known.written("", &web);
        assert_eq!(known.get("", &web.name), Some(web.clone()));
        assert_eq!(known.get("other", &web.name), None);
        let pause = known.pause("", &web.name).unwrap();
        assert!(pause + std::time::Duration::from_secs(5) > SOONEST, "{pause:?}");
        known.read("", &web);
        assert_eq!(known.pause("", &web.name), None);
        known.forget("", &web.name);
        assert_eq!(known.get("", &web.name), None);
    }
}
