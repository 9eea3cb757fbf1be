//! The files (and a ConfigMap) that say what is forwarded, into one document: each is watched, and one that cannot be read or makes no sense
//! leaves what it said before in force.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use proxy_rules::{
    config::{Document, Settings},
    validate,
};
use tokio::sync::{mpsc, watch};

use super::{
    config_map::{self, Place},
    drain,
    state::Pod,
    upstream::{EgressServices, FileError, IngressConfig},
};
use crate::config_watch::{self, Event};

/// What is configured, for those who report what of it is installed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    /// The egress group's Services.
    pub egress: Option<EgressServices>,
    /// The ingress group's Services.
    pub ingress: Option<IngressConfig>,
}

/// Which files there are.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Directory of the egress group's files.
    pub egress: Option<PathBuf>,
    /// The ingress group's file.
    pub ingress: Option<PathBuf>,
    /// Rules with words and names ([`super::resolve`]): a file.
    pub rules: Option<PathBuf>,
    /// Or a ConfigMap, of which the file is a mounted copy.
    pub rules_map: Option<Place>,
    /// TCP ports that the pod itself serves, and no Service may have.
    pub own_ports: Vec<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Egress,
    Ingress,
    Rules,
}

/// Keeps `document` (what does not come from files) plus the files' entries in `out`, until nobody reads it.
pub async fn follow(
    base: Document,
    sources: Sources,
    pod: Arc<Pod>,
    files: watch::Sender<Files>,
    out: watch::Sender<Document>,
) {
    let (events, mut incoming) = mpsc::channel(4);
    let mut again = Vec::new();
    let forward = |which, name: String| {
        let (sender, mut receiver) = mpsc::channel(1);
        let events = events.clone();
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if events.send((which, name.clone(), event)).await.is_err() {
                    return;
                }
            }
        });
        sender
    };
    let rules = sources.rules.clone().filter(|_| sources.rules_map.is_none());
    let paths = [
        (Which::Egress, sources.egress.as_ref().map(|directory| directory.join(drain::SERVICES))),
        (Which::Ingress, sources.ingress.clone()),
        (Which::Rules, rules),
    ];
    for (which, path) in paths {
        let Some(path) = path else { continue };
        let (ask, asked) = mpsc::channel(1);
        // Kept: a watcher whose asker is gone ends.
        again.push(ask);
        let sender = forward(which, path.display().to_string());
        tokio::spawn(config_watch::watch(path, sender, asked));
    }
    if let Some(place) = sources.rules_map.clone() {
        let sender = forward(Which::Rules, place.to_string());
        tokio::spawn(config_map::follow(place, sources.rules.clone(), sender));
    }
    drop(events);
    let mut documents = BTreeMap::<Which, Document>::new();
    let mut errors = BTreeMap::<Which, Vec<String>>::new();
    loop {
        out.send_replace(documents.values().fold(base.clone(), merge));
        pod.troubles().files = errors.values().flatten().cloned().collect();
        let (which, name, event) = tokio::select! {
            event = incoming.recv() => match event {
                Some(event) => event,
                // No files at all: the document stays as it is.
                None => return out.closed().await,
            },
            () = out.closed() => return,
        };
        // Some say themselves what they are of.
        let named = |error: String| {
            if error.starts_with(&name) { error } else { format!("{name}: {error}") }
        };
        match read(which, event, &sources.own_ports, &files) {
            Ok((new, odd)) => {
                documents.insert(which, new);
                let odd: Vec<_> = odd.into_iter().map(named).collect();
                for error in &odd {
                    tracing::error!("{error}");
                }
                errors.insert(which, odd);
            }
            Err(error) => {
                let error = named(error);
                tracing::error!("{error}: what it said before stays in force");
                errors.insert(which, vec![error]);
            }
        }
    }
}

/// Adds entries. Settings that are not the defaults take the place of those before, but for devices and protected sources
/// that are not named: the pod knows its own.
fn merge(mut document: Document, more: &Document) -> Document {
    document.ingress.extend(more.ingress.iter().cloned());
    document.egress.extend(more.egress.iter().cloned());
    document.routes.extend(more.routes.iter().cloned());
    document.deny.extend(more.deny.iter().cloned());
    if more.settings != Settings::default() {
        let before = std::mem::replace(&mut document.settings, more.settings.clone());
        let now = &mut document.settings;
        if now.interfaces.tailnet.is_empty() {
            now.interfaces.tailnet = before.interfaces.tailnet;
        }
        if now.interfaces.cluster.is_empty() {
            now.interfaces.cluster = before.interfaces.cluster;
        }
        if now.protected_sources.is_empty() {
            now.protected_sources = before.protected_sources;
        }
    }
    document
}

fn read(
    which: Which,
    event: Event,
    own_ports: &[u16],
    files: &watch::Sender<Files>,
) -> Result<(Document, Vec<String>), String> {
    let text = match event {
        Event::Content(text) => text,
        Event::Unreadable(why) => return Err(why),
    };
    let texts = |errors: Vec<FileError>| errors.iter().map(ToString::to_string).collect();
    // An empty file is what the operator makes before there is anything to say.
    let text = match which {
        Which::Egress | Which::Ingress if text.trim().is_empty() => "{}".to_owned(),
        _ => text,
    };
    match which {
        Which::Rules => match validate::parse(&text) {
            Ok(document) => Ok((document, Vec::new())),
            Err(errors) => {
                Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
            }
        },
        Which::Egress => {
            let file: EgressServices = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let (egress, errors) = file.services(own_ports);
            files.send_modify(|files| files.egress = Some(file));
            Ok((Document { egress, ..Document::default() }, texts(errors)))
        }
        Which::Ingress => {
            let file: IngressConfig = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let (ingress, errors) = file.services();
            files.send_modify(|files| files.ingress = Some(file));
            Ok((Document { ingress, ..Document::default() }, texts(errors)))
        }
    }
}
