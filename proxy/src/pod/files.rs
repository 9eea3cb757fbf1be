//! The files that say what is forwarded, into one document: each is watched, and one that cannot be read or makes no sense
//! leaves what it said before in force.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use proxy_rules::config::{Document, Service};
use tokio::sync::{mpsc, watch};

use super::{
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
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Egress,
    Ingress,
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
    let paths = [
        (Which::Egress, sources.egress.map(|directory| directory.join(drain::SERVICES))),
        (Which::Ingress, sources.ingress),
    ];
    for (which, path) in paths {
        let Some(path) = path else { continue };
        let (sender, mut receiver) = mpsc::channel(1);
        let (ask, asked) = mpsc::channel(1);
        // Kept: a watcher whose asker is gone ends.
        again.push(ask);
        let events = events.clone();
        tokio::spawn(config_watch::watch(path.clone(), sender, asked));
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if events.send((which, path.clone(), event)).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(events);
    let mut services = BTreeMap::<Which, Vec<Service>>::new();
    let mut errors = BTreeMap::<Which, Vec<String>>::new();
    loop {
        let mut document = base.clone();
        document.egress.extend(services.get(&Which::Egress).into_iter().flatten().cloned());
        document.ingress.extend(services.get(&Which::Ingress).into_iter().flatten().cloned());
        out.send_replace(document);
        pod.troubles().files = errors.values().flatten().cloned().collect();
        let (which, path, event) = tokio::select! {
            event = incoming.recv() => match event {
                Some(event) => event,
                // No files at all: the document stays as it is.
                None => return out.closed().await,
            },
            () = out.closed() => return,
        };
        let named = |error: String| format!("{}: {error}", path.display());
        match read(which, event, &files) {
            Ok((new, odd)) => {
                services.insert(which, new);
                let odd: Vec<_> = odd.iter().map(|error| named(error.to_string())).collect();
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

fn read(
    which: Which,
    event: Event,
    files: &watch::Sender<Files>,
) -> Result<(Vec<Service>, Vec<FileError>), String> {
    let text = match event {
        Event::Content(text) => text,
        Event::Unreadable(why) => return Err(why),
    };
    // An empty file is what the operator makes before there is anything to say.
    let text = if text.trim().is_empty() { "{}".to_owned() } else { text };
    match which {
        Which::Egress => {
            let file: EgressServices = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let read = file.services();
            files.send_modify(|files| files.egress = Some(file));
            Ok(read)
        }
        Which::Ingress => {
            let file: IngressConfig = serde_json::from_str(&text).map_err(|e| e.to_string())?;
            let read = file.services();
            files.send_modify(|files| files.ingress = Some(file));
            Ok(read)
        }
    }
}
