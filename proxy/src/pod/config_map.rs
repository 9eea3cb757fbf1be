//! The rules in a ConfigMap, watched through the API server: a change is in force as soon as it is written, not after the
//! kubelet's next look at its volumes (up to a minute and a half). A mounted copy stands in until the API server has answered;
//! what was read last stays in force while it does not, or while the ConfigMap is gone.

use std::{path::PathBuf, time::Duration};

use futures::{StreamExt as _, pin_mut};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{ListParams, WatchEvent, WatchParams},
};
use tokio::{sync::mpsc, time};

use crate::{
    config_watch::{self, Event},
    data_path::select::chain,
};

/// The key of the rules.
pub const KEY: &str = "rules.yaml";
/// Until the API server is asked again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long one watch lasts, in seconds: a connection that has died in silence is noticed after this at the latest.
const LASTS: u32 = 240;
/// HTTP's "gone": the version asked for is older than what the API server remembers.
const GONE: u16 = 410;

/// Where the rules are.
#[derive(Clone)]
pub struct Place {
    /// The API server.
    pub client: Client,
    /// The ConfigMap's namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.to_string())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ConfigMap {}/{}", self.namespace, self.name)
    }
}

/// Tells of every content until the receiver is gone. `mounted` is followed until the API server has given one.
pub async fn follow(place: Place, mounted: Option<PathBuf>, events: mpsc::Sender<Event>) {
    let (sender, mut own) = mpsc::channel(1);
    let watcher = watch(place, sender);
    pin_mut!(watcher);
    let (sender, mut file) = mpsc::channel(1);
    let (_again, asked) = mpsc::channel(1);
    let reader = mounted.map(|file| tokio::spawn(config_watch::watch(file, sender, asked)));
    let mut is_read = reader.is_none();
    loop {
        let event = tokio::select! {
            () = &mut watcher => return,
            Some(event) = own.recv() => {
                is_read |= matches!(event, Event::Content(_));
                event
            }
            Some(event) = file.recv(), if !is_read => event,
        };
        if events.send(event).await.is_err() {
            break;
        }
    }
    if let Some(reader) = reader {
        reader.abort();
    }
}

async fn watch(place: Place, events: mpsc::Sender<Event>) {
    let mut retry = RETRY.0;
    let mut last = None;
    while !events.is_closed() {
        let failed = match follow_once(&place, &events, &mut last).await {
            Ok(()) => {
                // Watches end; that is no failure.
                retry = RETRY.0;
                continue;
            }
            Err(error) => error,
        };
        let told = Event::Unreadable(format!(
            "{}: grant the service account get, list and watch on it, and see that the API server can be reached",
            chain(&failed)
        ));
        if report(&events, told, &mut last).await.is_err() {
            return;
        }
        time::sleep(retry).await;
        retry = (retry * 2).min(RETRY.1);
    }
}

/// Reads it once and watches it for a while. The role may name it (`resourceNames`): all that is asked is of this one name.
async fn follow_once(
    place: &Place,
    events: &mpsc::Sender<Event>,
    last: &mut Option<Event>,
) -> Result<(), kube::Error> {
    let api: Api<ConfigMap> = Api::namespaced(place.client.clone(), &place.namespace);
    let only = format!("metadata.name={}", place.name);
    let list = api.list(&ListParams::default().fields(&only)).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    if report(events, content(place, list.items.first()), last).await.is_err() {
        return Ok(());
    }
    let params = WatchParams::default().fields(&only).timeout(LASTS);
    loop {
        let stream = api.watch(&params, &version).await?;
        pin_mut!(stream);
        let limit = Duration::from_secs(u64::from(LASTS) + 10);
        while let Ok(Some(event)) = time::timeout(limit, stream.next()).await {
            let now = match event? {
                WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                    version = map.metadata.resource_version.clone().unwrap_or_default();
                    content(place, Some(&map))
                }
                WatchEvent::Deleted(map) => {
                    version = map.metadata.resource_version.unwrap_or_default();
                    content(place, None)
                }
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(error) if error.code == GONE => return Ok(()),
                WatchEvent::Error(error) => return Err(kube::Error::Api(error)),
            };
            if report(events, now, last).await.is_err() {
                return Ok(());
            }
        }
    }
}

fn content(place: &Place, map: Option<&ConfigMap>) -> Event {
    let Some(map) = map else {
        return Event::Unreadable(format!("{place} does not exist: create it"));
    };
    let text = map.data.as_ref().and_then(|data| data.get(KEY));
    text.map_or_else(
        || Event::Unreadable(format!("{place} has no key {KEY}: put the rules there")),
        |text| Event::Content(text.clone()),
    )
}

/// Tells what is new.
async fn report(
    events: &mpsc::Sender<Event>,
    event: Event,
    last: &mut Option<Event>,
) -> Result<(), mpsc::error::SendError<Event>> {
    if last.as_ref() == Some(&event) {
        return Ok(());
    }
    *last = Some(event.clone());
    events.send(event).await
}
