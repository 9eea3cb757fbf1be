//! The loop that makes the Secret say what is wanted.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use secrecy::SecretString;
use tokio::{sync::watch, time};

use super::{
    Access, Failure, Opened, Revised, SecretError, SecretStatus,
    content::Data,
    desired::{Desired, Key},
};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A request that takes longer has failed: the API server is down, or what is between.
const REQUEST: Duration = Duration::from_secs(10);
/// How often is looked whether others have changed what we wrote.
const AGAIN: Duration = Duration::from_mins(10);
/// Who writes, for those who look at managed fields.
const MANAGER: &str = "sluice-proxy";

/// The Secret at the API server.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What the loop has learned.
#[derive(Default)]
struct Known {
    access: Option<Access>,
    /// Our keys as they are; `None` until they are read.
    keys: Option<BTreeMap<Key, Vec<u8>>>,
    exists: bool,
}

pub(super) async fn run(
    store: Store,
    mut desired: watch::Receiver<Revised>,
    status: watch::Sender<SecretStatus>,
    opened: watch::Sender<Option<Opened>>,
) {
    let mut known = Known::default();
    let mut pause = FIRST_PAUSE;
    loop {
        let Revised { revision, desired: wanted } = desired.borrow_and_update().clone();
        match store.settle(&wanted, &mut known, &opened).await {
            Ok(written) => {
                pause = FIRST_PAUSE;
                status.send_modify(|status| {
                    if let Some(failure) = status.failure.take() {
                        tracing::info!(
                            attempts = failure.attempts,
                            "the state Secret is written again"
                        );
                    }
                    status.access = known.access;
                    status.exists = Some(known.exists);
                    status.revision = revision;
                    status.writes += u64::from(written);
                });
                tokio::select! {
                    changed = desired.changed() => if changed.is_err() { return },
                    () = time::sleep(AGAIN) => known.keys = None,
                }
            }
            Err(error) => {
                known.keys = None;
                if matches!(error, SecretError::Forbidden { .. } | SecretError::Denied { .. }) {
                    // The rules may be changed any time.
                    known.access = None;
                }
                report(&status, known.access, &error);
                time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

fn report(status: &watch::Sender<SecretStatus>, access: Option<Access>, error: &SecretError) {
    let message = error.to_string();
    status.send_modify(|status| {
        status.access = access.or(status.access);
        if status.failure.as_ref().is_none_or(|failure| failure.message != message) {
            tracing::warn!("{message}");
        }
        let first = || Failure { message: String::new(), since: SystemTime::now(), attempts: 0 };
        let failure = status.failure.get_or_insert_with(first);
        failure.message = message;
        failure.attempts += 1;
    });
}

/// Replicas that lost the same API server do not come back at the same moment.
fn jittered(pause: Duration) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    pause.mul_f64(0.75 + 0.5 * f64::from(now.subsec_nanos() % 1000) / 1000.0)
}

impl Store {
    fn api(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes the Secret say what is wanted, by one request if anything differs. Tells whether anything did.
    async fn settle(
        &self,
        wanted: &Desired,
        known: &mut Known,
        opened: &watch::Sender<Option<Opened>>,
    ) -> Result<bool, SecretError> {
        let access = if let Some(access) = known.access {
            access
        } else {
            let review = Access::review(&self.client, &self.namespace, &self.name);
            let access = match self.bounded("reviewing access to", review).await {
                // Who may not even ask finds out by trying.
                Err(SecretError::Denied { .. }) => Access::ALL,
                access => access?,
            };
            *known.access.insert(access)
        };
        if known.keys.is_none() {
            let data = self.read().await?;
            known.exists = data.is_some();
            let data = data.unwrap_or_default();
            known.keys = Some(ours(&data));
            let auth_key = data.get(Key::AuthKey.name());
            let auth_key = auth_key.and_then(|ByteString(key)| String::from_utf8(key.clone()).ok());
            let auth_key = auth_key.filter(|key| !key.is_empty()).map(SecretString::from);
            // Only the first look counts: what was there before we wrote.
            opened.send_if_modified(|opened| {
                let first = opened.is_none();
                if first {
                    *opened = Some(Opened { access, exists: known.exists, auth_key });
                }
                first
            });
        }
        let found = known.keys.as_ref().map_or_else(BTreeMap::new, Clone::clone);
        let changes = wanted.differences(&found);
        if changes.is_empty() {
            return Ok(false);
        }
        let secret = if known.exists {
            if !access.patch {
                return Err(self.forbidden("patch"));
            }
            self.patch(changes.iter().map(|(key, value)| (key.name(), *value))).await?
        } else {
            if !access.create {
                return Err(self.forbidden("create"));
            }
            self.create(&changes).await?
        };
        let keys: Vec<_> = changes.keys().map(|key| key.name()).collect();
        tracing::debug!(?keys, "the state Secret is written");
        known.exists = true;
        known.keys = Some(ours(&secret.data.unwrap_or_default()));
        Ok(true)
    }

    /// Its content, if it exists.
    pub(super) async fn read(&self) -> Result<Option<Data>, SecretError> {
        let api = self.api();
        let secret = self.bounded("reading", api.get_opt(&self.name)).await?;
        Ok(secret.map(|secret| secret.data.unwrap_or_default()))
    }

    /// Changes these keys and no other; `None` removes.
    pub(super) async fn patch<'a>(
        &self,
        changes: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) -> Result<Secret, SecretError> {
        let data: BTreeMap<_, _> = changes
            .map(|(key, value)| (key, value.map(|value| ByteString(value.to_vec()))))
            .collect();
        let patch = Patch::Merge(serde_json::json!({ "data": data }));
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let api = self.api();
        self.bounded("writing", api.patch(&self.name, &params, &patch)).await
    }

    async fn create(&self, changes: &BTreeMap<Key, Option<&[u8]>>) -> Result<Secret, SecretError> {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            data: Some(
                changes
                    .iter()
                    .filter_map(|(key, value)| {
                        Some((key.name().to_owned(), ByteString((*value)?.to_vec())))
                    })
                    .collect(),
            ),
            ..Secret::default()
        };
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let api = self.api();
        self.bounded("creating", api.create(&params, &secret)).await
    }

    async fn bounded<T>(
        &self,
        action: &'static str,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, SecretError> {
        let secret = || format!("{}/{}", self.namespace, self.name);
        match time::timeout(REQUEST, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                Err(SecretError::Denied { action, secret: secret(), message: status.message })
            }
            Ok(Err(kube::Error::Api(status))) => {
                let (code, message) = (status.code, status.message);
                Err(SecretError::Answer { action, secret: secret(), code, message })
            }
            Ok(Err(source)) => {
                Err(SecretError::Unreachable { action, secret: secret(), source: Box::new(source) })
            }
            Err(_) => Err(SecretError::TimedOut { action, secret: secret(), after: REQUEST }),
        }
    }

    fn forbidden(&self, verb: &'static str) -> SecretError {
        SecretError::Forbidden { verb, secret: format!("{}/{}", self.namespace, self.name) }
    }
}

/// Our keys of a Secret's content.
fn ours(data: &Data) -> BTreeMap<Key, Vec<u8>> {
    let value = |key: Key| Some((key, data.get(key.name())?.0.clone()));
    Key::ALL.into_iter().filter_map(value).collect()
}
