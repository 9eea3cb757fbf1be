//! The Lease that only one replica holds at a time.
//!
//! As client-go does it: the holder renews it; another one takes it once it has not been seen to change for its duration.
//! Each measures time by its own clock, so that clocks need not agree, and the holder gives up well before others may take
//! over. Every write names the version that it replaces, so that of two who try at once only one succeeds.

use std::{pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{
    api::coordination::v1::{Lease as Object, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::PostParams,
    runtime::{WatchStreamExt as _, watcher::watch_object},
};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::apply::FIELD_MANAGER;

/// Its name. The same whatever the installation is called: there is one namespace's work to be done.
pub const NAME: &str = "sluice-operator";

/// Others take it when it has not changed for so long.
const DURATION: i32 = 15;
/// Its holder gives up when it could not renew it for so long.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Its holder renews it so often.
const RENEW: Duration = Duration::from_secs(5);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);
/// An API server that is not heard of for so long is asked again.
const ANSWER: Duration = Duration::from_secs(3);

/// A way to the Lease, for one replica.
pub struct Lease {
    api: Api<Object>,
    identity: String,
}

/// The Lease, held by this replica.
pub(super) struct Held {
    object: Object,
    /// Nobody else has it before this and some time more.
    until: Instant,
}

/// Why a replica no longer holds the Lease.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    /// Somebody else has it.
    #[error("`{0}` holds the Lease")]
    Taken(String),
    /// It could not be renewed in time.
    #[error("the Lease could not be renewed for {} seconds", GIVE_UP.as_secs())]
    Late,
}

impl Lease {
    /// The Lease in this namespace, for the replica with this name; another process of the same name is another one.
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        let unique = Timestamp::now().as_nanosecond();
        let identity = format!("{name}_{:x}{unique:x}", std::process::id());
        Self { api: Api::namespaced(client, namespace), identity }
    }

    /// Who this replica is in the Lease.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Waits until nobody holds it, and takes it.
    pub(super) async fn acquire(&self) -> Held {
        let mut changes = pin!(watch_object(self.api.clone(), NAME).default_backoff());
        let mut seen: Option<Option<Object>> = None;
        let mut since = Instant::now();
        let mut earliest = since;
        loop {
            let free = seen.as_ref().map(|lease| (since + patience(lease.as_ref())).max(earliest));
            let is_free = async {
                match free {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(event) = changes.next() => match event {
                    Ok(lease) => {
                        // A watch that begins anew tells what is known: only a change tells that the holder lives.
                        if seen.as_ref().map(|old| version(old.as_ref())) != Some(version(lease.as_ref())) {
                            since = Instant::now();
                        }
                        seen = Some(lease);
                    }
                    Err(error) => tracing::warn!(%error, "the Lease {NAME} is watched again later"),
                },
                () = is_free => {
                    if let Some(held) = self.take(seen.as_ref().and_then(Option::as_ref)).await {
                        return held;
                    }
                    earliest = Instant::now() + RETRY;
                }
            }
        }
    }

    async fn take(&self, old: Option<&Object>) -> Option<Held> {
        let until = Instant::now() + GIVE_UP;
        match timeout(ANSWER, self.write(old, self.ours(old, Timestamp::now()))).await {
            Ok(Ok(object)) => return Some(Held { object, until }),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                tracing::debug!("another replica was sooner");
            }
            Ok(Err(error)) => tracing::warn!(%error, "the Lease {NAME} could not be taken"),
            Err(_) => tracing::warn!("the Lease {NAME} could not be taken: no answer"),
        }
        None
    }

    /// Renews it until that is no longer possible.
    pub(super) async fn keep(&self, held: &mut Held) -> Lost {
        loop {
            sleep(RENEW).await;
            let until = held.until;
            match timeout_at(until, self.renew(held)).await {
                Ok(None) => {}
                Ok(Some(lost)) => return lost,
                Err(_) => return Lost::Late,
            }
        }
    }

    async fn renew(&self, held: &mut Held) -> Option<Lost> {
        loop {
            let sent = Instant::now();
            let next = self.ours(Some(&held.object), Timestamp::now());
            match timeout(ANSWER, self.write(Some(&held.object), next)).await {
                Ok(Ok(object)) => {
                    *held = Held { object, until: sent + GIVE_UP };
                    return None;
                }
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                    if let Some(lost) = self.look(held).await {
                        return Some(lost);
                    }
                }
                Ok(Err(error)) => tracing::warn!(%error, "the Lease {NAME} is not renewed yet"),
                Err(_) => tracing::warn!("the Lease {NAME} is not renewed yet: no answer"),
            }
            sleep(RETRY).await;
        }
    }

    /// Somebody changed it: an earlier request of ours that was not seen to succeed, a person, or another replica.
    async fn look(&self, held: &mut Held) -> Option<Lost> {
        let found = timeout(ANSWER, self.api.get_opt(NAME)).await.ok()?.ok()?;
        let Some(object) = found else {
            // Deleted: whoever makes it first has it.
            held.object = Object::default();
            return None;
        };
        match holder(&object) {
            Some(holder) if holder == self.identity => {
                held.object = object;
                None
            }
            other => Some(Lost::Taken(other.unwrap_or("nobody").to_owned())),
        }
    }

    /// Lets the next one take it at once. Without an answer that one waits.
    pub(super) async fn release(&self, held: &Held) {
        let mut object = held.object.clone();
        let transitions = object.spec.as_ref().and_then(|spec| spec.lease_transitions);
        object.spec = Some(LeaseSpec { lease_transitions: transitions, ..LeaseSpec::default() });
        match timeout(ANSWER, self.write(Some(&held.object), object)).await {
            Ok(Ok(_)) => tracing::info!("the Lease {NAME} is released"),
            Ok(Err(error)) => tracing::warn!(%error, "the Lease {NAME} is not released"),
            Err(_) => tracing::warn!("the Lease {NAME} is not released: no answer"),
        }
    }

    async fn write(&self, old: Option<&Object>, next: Object) -> Result<Object, kube::Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        if old.is_some_and(|old| old.metadata.resource_version.is_some()) {
            self.api.replace(NAME, &params, &next).await
        } else {
            self.api.create(&params, &next).await
        }
    }

    /// What the Lease is when this replica has it from now on, or still.
    fn ours(&self, old: Option<&Object>, now: Timestamp) -> Object {
        let mut object = old.cloned().unwrap_or_default();
        object.metadata.name = Some(NAME.into());
        let is_ours = holder(&object) == Some(&self.identity);
        let old = object.spec.take().unwrap_or_default();
        let transitions = old.lease_transitions.unwrap_or(0) + i32::from(!is_ours);
        object.spec = Some(LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION),
            acquire_time: old.acquire_time.filter(|_| is_ours).or(Some(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(transitions),
            ..old
        });
        object
    }
}

/// The pod of a holder, by its identity.
pub fn pod(identity: &str) -> Option<&str> {
    Some(identity.rsplit_once('_')?.0)
}

fn holder(lease: &Object) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn version(lease: Option<&Object>) -> Option<String> {
    lease.and_then(ResourceExt::resource_version)
}

/// How long it must not change before it may be taken.
fn patience(lease: Option<&Object>) -> Duration {
    let held = lease.filter(|lease| holder(lease).is_some());
    held.map_or(Duration::ZERO, |lease| {
        let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
        Duration::from_secs(seconds.unwrap_or(DURATION).try_into().unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(name: &str) -> Lease {
        let nobody = tower::service_fn(async |_: hyper::Request<kube::client::Body>| {
            Err::<hyper::Response<kube::client::Body>, _>(std::io::Error::other("nobody"))
        });
        Lease::new(Client::new(nobody, "n"), "n", name)
    }

    #[tokio::test]
    async fn a_lease_is_kept_or_handed_over_and_what_is_free_waits_for_nobody() {
        let (a, b) = (replica("a"), replica("b"));
        assert_eq!(patience(None), Duration::ZERO);
        let early: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let late: Timestamp = "2026-01-02T03:05:05Z".parse().unwrap();
        let first = a.ours(None, early);
        assert_eq!(patience(Some(&first)), Duration::from_secs(15));
        let spec = |object: &Object| object.spec.clone().unwrap();
        assert_eq!(spec(&first).lease_transitions, Some(1));

        let kept = spec(&a.ours(Some(&first), late));
        assert_eq!(kept.acquire_time, Some(MicroTime(early)));
        assert_eq!((kept.renew_time, kept.lease_transitions), (Some(MicroTime(late)), Some(1)));

        let taken = spec(&b.ours(Some(&first), late));
        assert_eq!(taken.holder_identity.as_deref(), Some(b.identity()));
        assert_eq!((taken.acquire_time, taken.lease_transitions), (Some(MicroTime(late)), Some(2)));

        let mut free = first;
        free.spec.as_mut().unwrap().holder_identity = Some(String::new());
        assert_eq!(patience(Some(&free)), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_second_process_of_the_same_name_is_another_holder() {
        let (a, b) = (replica("a_b"), replica("a_b"));
        assert_ne!(a.identity(), b.identity());
        assert_eq!((pod(a.identity()), pod("a")), (Some("a_b"), None));
    }
}
