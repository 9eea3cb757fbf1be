//! `tailscaled`'s socket: prepared, waited for, and linked to where the `tailscale` program looks.

use std::{
    fs, io,
    os::unix::{fs::FileTypeExt as _, net::UnixStream},
    path::Path,
    time::Duration,
};

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use tokio::time;

use super::StartError;

/// A socket takes connections a moment after its file appears, which announces nothing.
const RETRY: Duration = Duration::from_millis(10);

/// Makes the directory, and removes a socket that nobody listens at: its presence is to mean something.
pub(super) fn prepare(socket: &Path) -> Result<(), StartError> {
    let failed = |source| StartError::Socket { socket: socket.to_owned(), source };
    fs::create_dir_all(parent(socket)).map_err(failed)?;
    if UnixStream::connect(socket).is_ok() {
        return Err(StartError::SocketInUse { socket: socket.to_owned() });
    }
    remove_stale(socket).map_err(failed)
}

/// Removes what an ended `tailscaled` left.
pub(super) fn remove_stale(socket: &Path) -> io::Result<()> {
    match fs::symlink_metadata(socket) {
        Ok(metadata) if metadata.file_type().is_socket() => fs::remove_file(socket),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "is not a socket: remove it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Waits until it takes connections.
pub(super) async fn appears(socket: &Path) -> io::Result<()> {
    let inotify = Inotify::init()?;
    inotify.watches().add(parent(socket), WatchMask::CREATE | WatchMask::MOVED_TO)?;
    let mut events = inotify.into_event_stream(vec![0; 4096])?;
    // Only after the watch is in place: it may have appeared before.
    while !socket.exists() {
        match events.next().await {
            Some(event) => drop(event?),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
    while tokio::net::UnixStream::connect(socket).await.is_err() {
        time::sleep(RETRY).await;
    }
    Ok(())
}

/// Makes `link` lead to the socket, best effort: a `tailscale` started in the pod by hand then needs no `--socket`.
pub(super) fn link(link: &Path, socket: &Path) {
    let outcome = (|| {
        if fs::read_link(link).is_ok_and(|target| target == socket) {
            return Ok(());
        }
        fs::create_dir_all(parent(link))?;
        match fs::symlink_metadata(link) {
            Ok(metadata) if metadata.file_type().is_symlink() => fs::remove_file(link)?,
            Ok(_) => return Err(io::Error::from(io::ErrorKind::AlreadyExists)),
            Err(_) => {}
        }
        std::os::unix::fs::symlink(socket, link)
    })();
    if let Err(error) = outcome {
        tracing::debug!(%error, link = %link.display(), "linking tailscaled's socket");
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_is_seen_when_it_takes_connections() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a/socket");
        prepare(&socket).unwrap();
        let path = socket.clone();
        let waiting = tokio::spawn(async move { appears(&path).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        let listener = UnixListener::bind(&socket).unwrap();
        waiting.await.unwrap().unwrap();
        // Another one must not be pushed aside.
        assert!(matches!(prepare(&socket), Err(StartError::SocketInUse { .. })));
        drop(listener);
        prepare(&socket).unwrap();
        assert!(!socket.exists());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "mine").unwrap();
        assert!(matches!(prepare(&file), Err(StartError::Socket { .. })));
        link(&file, Path::new("/nowhere"));
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
    }

    #[test]
    fn a_link_is_renewed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/link");
        for target in ["/one", "/two", "/two"] {
            link(&path, Path::new(target));
            assert_eq!(fs::read_link(&path).unwrap(), Path::new(target));
        }
    }
}
