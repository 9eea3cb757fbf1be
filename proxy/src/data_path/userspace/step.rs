//! Reading a message of unknown length from a stream without taking a byte that follows it.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    time::timeout,
};

/// What the bytes so far are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// A beginning: it takes this many bytes more at least, never 0.
    More(usize),
    /// The whole message.
    Done(T),
    /// No such message.
    Bad(&'static str),
}

/// Reads until `parse` is satisfied.
pub(super) async fn read<T>(
    from: &mut (impl AsyncRead + Unpin),
    patience: Duration,
    parse: impl Fn(&[u8]) -> Step<T>,
) -> io::Result<T> {
    let work = async {
        let mut seen = Vec::new();
        loop {
            let more = match parse(&seen) {
                Step::Done(message) => return Ok(message),
                Step::Bad(why) => return Err(io::Error::new(io::ErrorKind::InvalidData, why)),
                Step::More(more) => more,
            };
            let old = seen.len();
            seen.resize(old + more, 0);
            from.read_exact(seen.get_mut(old..).unwrap_or_default()).await?;
        }
    };
    timeout(patience, work).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The next bytes of a message, or how many are missing.
pub(super) fn take<'a, T>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Step<T>> {
    match bytes.split_at_checked(count) {
        Some((taken, rest)) => {
            *bytes = rest;
            Ok(taken)
        }
        None => Err(Step::More(count - bytes.len())),
    }
}
