//! The file of records, read again whenever it changes: written in place, renamed over, or a mounted ConfigMap whose
//! `..data` is swapped. The swap is a rename beside the file, so its directory is all that has to be watched.

use std::{io, path::Path, sync::Arc};

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::sync::watch;

use super::records::Records;

/// A ConfigMap holds one MiB.
const LIMIT: u64 = 4 << 20;

/// Reads until it cannot be watched any more. What cannot be read changes nothing, and is told once.
pub(super) async fn follow(
    file: &Path,
    records: &watch::Sender<Option<Arc<Records>>>,
) -> io::Result<()> {
    let inotify = Inotify::init()?;
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::CREATE | WatchMask::DELETE;
    inotify.watches().add(parent.unwrap_or(Path::new(".")), mask)?;
    let mut changes = inotify.into_event_stream(vec![0; 4096])?;
    let mut told = None;
    loop {
        // Only after the watch is in place: a change between the two is seen by one of them.
        let problem = match load(file) {
            Ok((found, skipped)) => {
                let is_news = records.borrow().as_deref() != Some(&found);
                if is_news {
                    tracing::info!(names = found.len(), "records read");
                    records.send_replace(Some(Arc::new(found)));
                }
                (!skipped.is_empty()).then(|| format!("left out: {}", skipped.join("; ")))
            }
            Err(problem) => Some(problem),
        };
        if problem != told {
            if let Some(problem) = &problem {
                let kept = records.borrow().as_ref().map_or(0, |records| records.len());
                tracing::warn!(file = %file.display(), problem, kept, "bad records");
            }
            told = problem;
        }
        match changes.next().await {
            Some(change) => drop(change?),
            None => return Ok(()),
        }
    }
}

fn load(file: &Path) -> Result<(Records, Vec<String>), String> {
    let size = std::fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > LIMIT {
        return Err(format!("it has {size} bytes, at most {LIMIT} are read"));
    }
    let text = std::fs::read(file).map_err(|error| error.to_string())?;
    Records::read(&text).map_err(|error| error.to_string())
}
