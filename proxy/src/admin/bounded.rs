//! A listener that anybody in the cluster may reach: so many connections at once, and none that says nothing for long. Without
//! that, whoever opens connections and keeps them takes the descriptors that metrics, health and the data path need.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Connections at once: scrapers, probes and an operator or two need a handful. Others wait in the kernel's queue.
const MOST: usize = 128;
/// How long a connection may be silent. A scraper's interval is often a minute, and a new connection costs it nothing.
const SILENCE: Duration = Duration::from_secs(20);
/// How long one may wait for its answer: tailscaled's profiles take half a minute.
const ANSWER: Duration = Duration::from_secs(75);

/// A listener with these bounds.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    silence: Duration,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self { listener, permits: Arc::new(Semaphore::new(MOST)), silence: SILENCE }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        // It is closed by nobody.
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let end = Box::pin(sleep(self.silence));
        (Connection { stream, silence: self.silence, end, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Bounded>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// A connection that ends when nothing has come or gone for a while.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    silence: Duration,
    end: Pin<Box<Sleep>>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Connection {
    /// What an attempt came to; while it waits, time passes.
    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        attempt: Poll<io::Result<T>>,
        patience: Duration,
    ) -> Poll<io::Result<T>> {
        if attempt.is_ready() {
            self.end.as_mut().reset(Instant::now() + patience);
            return attempt;
        }
        ready!(self.end.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let attempt = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.timed(context, attempt, ANSWER)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let attempt = Pin::new(&mut self.stream).poll_write(context, bytes);
        let silence = self.silence;
        self.timed(context, attempt, silence)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::{Router, routing::get};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::timeout,
    };

    use super::*;

    /// More silent connections than are served at once, and one that asks.
    #[tokio::test]
    async fn who_says_nothing_makes_room_for_who_asks() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bounded = Bounded {
            permits: Arc::new(Semaphore::new(2)),
            silence: Duration::from_millis(50),
            listener,
        };
        let router = Router::new().route("/healthz", get(|| async { "ok" }));
        let server = tokio::spawn(axum::serve(bounded, router).into_future());
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut asking = TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        asking.write_all(request).await.unwrap();
        let mut answer = String::new();
        let read = timeout(Duration::from_secs(10), asking.read_to_string(&mut answer));
        read.await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        server.abort();
    }
}
