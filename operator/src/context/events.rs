//! Events on users' objects.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use k8s_openapi::{
    api::events::v1::Event,
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{Api, Client, Resource, ResourceExt as _, api::PostParams};

/// Who we are in Events, as upstream's operator is.
const REPORTER: &str = "tailscale-operator";
/// The API server takes no more.
const NOTE_LIMIT: usize = 1000;

/// How an Event is meant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Nothing is wrong.
    Normal,
    /// Somebody should look.
    Warning,
}

impl Kind {
    /// As Events spell it.
    fn label(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Tells users in Events.
///
/// Each is told when it is news and never again, so each is an object of its own. kube's recorder would put all of a reason
/// under the first one's words.
pub struct Events {
    client: Client,
    /// What each object was told last, by UID.
    told: Mutex<HashMap<String, Vec<(&'static str, String)>>>,
}

impl Events {
    /// Tells through this API server.
    pub fn new(client: Client) -> Self {
        Self { client, told: Mutex::default() }
    }

    /// Tells what was not told last time, for objects without conditions that would remember it: each with its reason.
    pub async fn tell_news<K>(&self, about: &K, all: Vec<(Kind, &'static str, &str)>)
    where
        K: Resource<DynamicType = ()>,
    {
        let now: Vec<_> =
            all.iter().map(|(_, reason, note)| (*reason, (*note).to_owned())).collect();
        let uid = about.meta().uid.clone().unwrap_or_default();
        let before = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if now.is_empty() { told.remove(&uid) } else { told.insert(uid, now) }
        };
        let before = before.unwrap_or_default();
        for (kind, reason, note) in all {
            if !before.iter().any(|(old, text)| *old == reason && text == note) {
                self.tell(about, kind, reason, note).await;
            }
        }
    }

    /// Tells. An Event that cannot be told stops nothing: the condition says the same.
    pub async fn tell<K>(&self, about: &K, kind: Kind, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let end = note.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let end = end.take_while(|end| *end <= NOTE_LIMIT).last().unwrap_or(0);
        let now = Timestamp::now();
        let regarding = about.object_ref(&());
        // As Kubernetes names them; what has no namespace has its Events in `default`.
        let namespace = about.namespace().unwrap_or_else(|| "default".to_owned());
        let event = Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:x}", about.name_any(), now.as_nanosecond())),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            action: Some("Reconcile".into()),
            event_time: Some(MicroTime(now)),
            note: note.get(..end).map(str::to_owned),
            reason: Some(reason.to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some(REPORTER.into()),
            reporting_instance: Some(REPORTER.into()),
            type_: Some(kind.label().to_owned()),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        if let Err(error) = api.create(&PostParams::default(), &event).await {
            tracing::warn!(%error, reason, note, "an Event could not be told");
        }
    }
}
