//! Events on users' objects.

use kube::{
    Client, Resource,
    runtime::events::{Event, EventType, Recorder, Reporter},
};

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

/// Tells users in Events.
#[derive(Clone)]
pub struct Events(Recorder);

impl Events {
    /// Tells through this API server.
    pub fn new(client: Client) -> Self {
        Self(Recorder::new(client, Reporter { controller: REPORTER.into(), instance: None }))
    }

    /// Tells. An Event that cannot be told stops nothing: the condition says the same.
    pub async fn tell<K>(&self, about: &K, kind: Kind, reason: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let end = note.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let end = end.take_while(|end| *end <= NOTE_LIMIT).last().unwrap_or(0);
        let event = Event {
            type_: match kind {
                Kind::Normal => EventType::Normal,
                Kind::Warning => EventType::Warning,
            },
            reason: reason.to_owned(),
            note: note.get(..end).map(str::to_owned),
            action: "Reconcile".into(),
            secondary: None,
        };
        if let Err(error) = self.0.publish(&event, &about.object_ref(&())).await {
            tracing::warn!(%error, reason, note, "an Event could not be told");
        }
    }
}
