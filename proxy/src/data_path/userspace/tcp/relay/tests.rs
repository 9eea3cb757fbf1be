//! Time-outs, on a clock that stands still while bytes move and jumps while nothing does.

use std::{io::ErrorKind, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::{advance, pause, resume},
};

use super::*;

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn a_half_closed_connection_ends_two_minutes_after_its_last_byte() {
    let ((mut client, near), (far, mut backend)) = (pair().await, pair().await);
    let tally = Tally::default();
    let peers = async {
        client.shutdown().await.unwrap();
        assert_eq!(backend.read(&mut [0; 1]).await.unwrap(), 0);
        for _ in 0..3 {
            pause();
            advance(Duration::from_secs(100)).await;
            resume();
            backend.write_all(b"still here").await.unwrap();
            client.read_exact(&mut [0; 10]).await.unwrap();
        }
        pause();
        Instant::now()
    };
    let (relayed, last) = tokio::join!(relay(&near, &far, &tally, None), peers);
    assert_eq!(relayed.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(last.elapsed().as_secs_f64().round() as u64, 120);
    assert_eq!(tally.count().reply_bytes, 30);
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_after_five_days() {
    resume();
    let ((_client, near), (far, _backend)) = (pair().await, pair().await);
    pause();
    let started = Instant::now();
    let relayed = relay(&near, &far, &Tally::default(), None).await;
    assert_eq!(relayed.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(started.elapsed().as_secs(), 5 * 24 * 3600);
}

/// Who is told of the end would end the other direction: so it is told when that has been silent.
#[tokio::test]
async fn a_held_end_is_told_when_the_backend_has_been_silent() {
    let ((mut client, near), (far, mut backend)) = (pair().await, pair().await);
    let tally = Tally::default();
    let hold = Duration::from_millis(300);
    let peers = async {
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        backend.read_exact(&mut [0; 8]).await.unwrap();
        let ended = tokio::time::timeout(hold / 3, backend.read(&mut [0; 1])).await;
        assert!(ended.is_err(), "told at once");
        let answered = Instant::now();
        backend.write_all(b"answer").await.unwrap();
        client.read_exact(&mut [0; 6]).await.unwrap();
        assert_eq!(backend.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(
            answered.elapsed() >= hold.saturating_sub(Duration::from_millis(2)),
            "not held for long enough"
        );
        drop(backend);
    };
    let (relayed, ()) = tokio::join!(relay(&near, &far, &tally, Some(hold)), peers);
    relayed.unwrap();
}
