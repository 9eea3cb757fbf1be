//! Copies a connection both ways.
//!
//! Memory does not grow with the number of connections: a worker thread has one buffer, and a connection owns bytes
//! only while its peer does not take them. Back-pressure is the kernel's: nothing is read while something is unwritten.

use std::{cell::RefCell, io, net::Shutdown, pin::pin};

use socket2::SockRef;
use tokio::{io::Interest, net::TcpStream, select, task::coop::consume_budget};

use crate::data_path::userspace::count::{Direction, Tally};

/// One read: large enough that system calls cost little, small enough to stay in the second-level cache.
const BUFFER: usize = 256 << 10;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER].into_boxed_slice());
}

/// Carries bytes until both sides have ended their direction (`Ok`), or one has failed or was reset.
pub(super) async fn relay(
    client: &TcpStream,
    backend: &TcpStream,
    tally: &Tally,
) -> io::Result<()> {
    let mut original = pin!(pump(client, backend, |n| tally.packet(Direction::Original, n)));
    let mut reply = pin!(pump(backend, client, |n| tally.packet(Direction::Reply, n)));
    // A side that has ended its direction is read no more: only its error queue tells of a reset.
    select! {
        ended = &mut original => {
            ended?;
            select! { ended = reply => ended, error = failure(client) => Err(error) }
        }
        ended = &mut reply => {
            ended?;
            select! { ended = original => ended, error = failure(backend) => Err(error) }
        }
    }
}

/// What one attempt to move bytes came to.
enum Moved {
    /// Everything that was read is written.
    All,
    /// These bytes were read and not taken.
    Rest(Box<[u8]>),
    /// The source has ended its direction.
    End,
}

async fn pump(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<()> {
    loop {
        // A source that is always readable must leave room for the other direction and for removal.
        consume_budget().await;
        from.readable().await?;
        match move_some(from, to, &count) {
            Ok(Moved::All) => {}
            Ok(Moved::Rest(rest)) => flush(&rest, from, to).await?,
            Ok(Moved::End) => return SockRef::from(to).shutdown(Shutdown::Write),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

fn move_some(from: &TcpStream, to: &TcpStream, count: impl Fn(u64)) -> io::Result<Moved> {
    SCRATCH.with_borrow_mut(|buffer| {
        let length = from.try_read(buffer)?;
        if length == 0 {
            return Ok(Moved::End);
        }
        count(length as u64);
        let read = buffer.get(..length).unwrap_or_default();
        let written = match to.try_write(read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            result => result?,
        };
        Ok(match read.get(written..) {
            Some(rest) if !rest.is_empty() => Moved::Rest(rest.into()),
            _ => Moved::All,
        })
    })
}

/// Writes what is left, unless the side it came from is reset meanwhile: a peer that never reads must not keep alive
/// a connection that its other end has abandoned.
async fn flush(mut rest: &[u8], from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    while !rest.is_empty() {
        select! {
            writable = to.writable() => writable?,
            error = failure(from) => return Err(error),
        }
        match to.try_write(rest) {
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Resolves when the socket has failed, for instance by a reset.
async fn failure(stream: &TcpStream) -> io::Error {
    match stream.ready(Interest::ERROR).await {
        Ok(_) => match stream.take_error() {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => io::ErrorKind::ConnectionReset.into(),
        },
        Err(error) => error,
    }
}
