//! The rules file as a stream of contents: atomic renames, Kubernetes' symlink swaps (`..data`) and writes in place
//! are all noticed, whichever directory holds the real file.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt;
use inotify::{Inotify, WatchMask};
use proxy_rules::validate::MAX_BYTES;
use tokio::{sync::mpsc, time};

/// How long a burst of events may go on before the file is read.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// What became of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its content, which differs from the one before, or is wanted again.
    Content(String),
    /// It cannot be read.
    Unreadable(String),
}

/// Watches until the receiver is gone. A message on `again` has the file read and reported even if it is unchanged.
pub async fn watch(
    file: PathBuf,
    events: mpsc::Sender<Event>,
    mut again: mpsc::Receiver<()>,
) -> io::Result<()> {
    let inotify = Inotify::init()?;
    let mut watches = inotify.watches();
    let mut add = move |directory: &Path| {
        let mask = WatchMask::CREATE
            | WatchMask::MOVED_TO
            | WatchMask::CLOSE_WRITE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MODIFY;
        watches.add(directory, mask)
    };
    add(parent(&file))?;
    let mut stream = inotify.into_event_stream(vec![0; 4096])?;
    let mut last = None;
    loop {
        // A swap may lead to another directory; to watch one again changes nothing.
        if let Ok(real) = std::fs::canonicalize(&file)
            && let Err(error) = add(parent(&real))
        {
            tracing::warn!(%error, file = %real.display(), "watching the rules file's directory");
        }
        // Only after the watch is in place: a change between the two is seen by one of them.
        let event = read(&file);
        if last.as_ref() != Some(&event) {
            last = Some(event.clone());
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
        tokio::select! {
            event = stream.next() => match event {
                Some(event) => { event?; }
                None => return Ok(()),
            },
            asked = again.recv() => match asked {
                Some(()) => last = None,
                None => return Ok(()),
            },
        }
        let burst = async { while let Some(Ok(_)) = stream.next().await {} };
        let _ = time::timeout(DEBOUNCE, burst).await;
    }
}

fn parent(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn read(file: &Path) -> Event {
    let size = std::fs::metadata(file).and_then(|metadata| {
        // To open a pipe would wait for its other end, and everything else with it.
        if metadata.is_file() {
            Ok(metadata.len())
        } else {
            Err(io::Error::other("not a regular file"))
        }
    });
    match size {
        Ok(size) if size > MAX_BYTES as u64 => {
            Event::Unreadable(format!("{}: {size} bytes, at most {MAX_BYTES}", file.display()))
        }
        Ok(_) => match std::fs::read_to_string(file) {
            Ok(text) => Event::Content(text),
            Err(error) => Event::Unreadable(format!("{}: {error}", file.display())),
        },
        Err(error) => Event::Unreadable(format!("{}: {error}", file.display())),
    }
}
