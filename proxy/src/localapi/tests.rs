//! The client against a tailscaled that is not there, silent, refusing, cut off or endless. `tests/localapi.rs` has the
//! real one.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    task::JoinHandle,
};

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: ";

struct Server {
    _directory: tempfile::TempDir,
    listener: UnixListener,
}

fn server() -> (LocalApi, Server) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("tailscaled.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    (LocalApi::new(socket), Server { _directory: directory, listener })
}

impl Server {
    /// The next connection, and the request on it.
    async fn accept(&self) -> (UnixStream, String) {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut request = Vec::new();
        loop {
            stream.read_buf(&mut request).await.unwrap();
            let text = String::from_utf8_lossy(&request);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return (stream, text.into_owned());
            }
        }
    }

    /// Answers one request with these bytes and closes the connection; gives the request.
    fn answer(self, answer: impl Into<String>) -> JoinHandle<String> {
        let answer = answer.into();
        tokio::spawn(async move {
            let (mut stream, request) = self.accept().await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            request
        })
    }

    fn body(self, body: &str) -> JoinHandle<String> {
        self.answer(format!("{OK}{}\r\n\r\n{body}", body.len()))
    }
}

#[tokio::test]
async fn nobody_there_is_told_apart_from_somebody_silent() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let error = LocalApi::new(&socket).prefs().await.unwrap_err();
    assert!(matches!(&error, Error::Absent { .. }), "{error}");
    assert!(error.to_string().contains(socket.to_str().unwrap()), "{error}");
    // One that is left of a tailscaled that was killed.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let error = LocalApi::new(&socket).watch(Watch::INITIAL_STATE).await.unwrap_err();
    assert!(matches!(error, Error::Absent { .. }), "{error}");

    let (api, _server) = server();
    let api = api.with_patience(Duration::from_millis(20));
    let error = api.status(true).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { call, .. } if call == "GET status"), "{error}");
    let error = api.watch(Watch::INITIAL_STATE).await.unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }), "{error}");
}

#[tokio::test]
async fn an_answer_is_bounded_and_whole_or_an_error() {
    let (api, server) = server();
    server.body(r#"["a.ts.net"]"#);
    let error = api.with_limit(11).cert_domains().await.unwrap_err();
    assert!(matches!(error, Error::TooLong { limit: 11, .. }), "{error}");

    let (api, server) = self::server();
    server.answer(format!("{OK}100\r\n\r\n[\"a.ts"));
    let error = api.cert_domains().await.unwrap_err();
    assert!(matches!(&error, Error::Broken { call, .. } if call == "GET cert-domains"), "{error}");

    let (api, server) = self::server();
    server.body(r#"{"ExtraRecords":[{"Name":"a"},{"Name":1}]}"#);
    let error = api.dns_config().await.unwrap_err();
    assert!(error.to_string().contains("ExtraRecords[1].Name"), "{error}");
}

#[tokio::test]
async fn refusals_say_what_tailscaled_says() {
    let (api, server) = server();
    server.answer("HTTP/1.1 503 Unavailable\r\ncontent-length: 10\r\n\r\nno netmap\n");
    let error = api.dns_config().await.unwrap_err();
    assert!(
        matches!(&error, Error::Status { code: 503, text, .. } if text == "no netmap"),
        "{error}"
    );

    let (api, server) = self::server();
    let long = "x".repeat(1 << 20);
    server.answer(format!("HTTP/1.1 500 E\r\ncontent-length: {}\r\n\r\n{long}", long.len()));
    let error = api.logout().await.unwrap_err();
    assert!(matches!(&error, Error::Status { text, .. } if text.len() < 2000), "{error}");

    let (api, server) = self::server();
    server.answer("HTTP/1.1 429 Too Many\r\nretry-after: 3600\r\ncontent-length: 5\r\n\r\nslow\n");
    let error =
        api.cert_pair("a.ts.net", Duration::ZERO, Duration::from_secs(5)).await.unwrap_err();
    let hour = Some(Duration::from_hours(1));
    assert!(matches!(error, Error::RateLimited { retry_after, .. } if retry_after == hour));

    let (api, server) = self::server();
    server.body("");
    let error = api.reload_config().await.unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "an empty answer means an error: {error}");
}

#[tokio::test]
async fn what_is_asked_is_what_tailscaled_understands() {
    let (api, server) = server();
    let request = server.body("{}");
    let change = PrefsChange { hostname: Some("a".to_owned()), ..PrefsChange::default() };
    api.edit_prefs(&change).await.unwrap();
    let request = request.await.unwrap();
    assert!(request.starts_with("PATCH /localapi/v0/prefs HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nhost: local-tailscaled.sock\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n{\"Hostname\":\"a\",\"HostnameSet\":true}"), "{request}");

    let (api, server) = self::server();
    let request = server.body("");
    api.set_serve_config(&ServeConfig::default(), Some(&ETag("abc".to_owned()))).await.unwrap();
    let request = request.await.unwrap();
    assert!(request.starts_with("POST /localapi/v0/serve-config HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("\r\nif-match: abc\r\n") && request.ends_with("\r\n\r\n{}"));

    let (api, server) = self::server();
    let request = server.answer("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(api.whois("[fd7a::1]:80".parse().unwrap()).await.unwrap(), None);
    let request = request.await.unwrap();
    assert!(
        request.starts_with("GET /localapi/v0/whois?addr=%5Bfd7a%3A%3A1%5D%3A80 "),
        "{request}"
    );

    let (api, server) = self::server();
    let request = server.body("not PEM");
    let half = Duration::from_mins(30);
    assert!(api.cert_pair("../x?y", half, half).await.is_err());
    let request = request.await.unwrap();
    let expected = "GET /localapi/v0/cert/..%2Fx%3Fy?type=pair&min_validity=1800s ";
    assert!(request.starts_with(expected), "{request}");
}

/// A watch whose stream the test writes.
async fn watch(limit: usize) -> (Bus, UnixStream) {
    let (api, server) = server();
    let api = api.with_limit(limit);
    let accept = async {
        let (mut stream, request) = server.accept().await;
        assert!(request.starts_with("GET /localapi/v0/watch-ipn-bus?mask=20480 "), "{request}");
        // Without a length: the body ends with the connection.
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        stream
    };
    let (bus, stream) =
        tokio::join!(api.watch(Watch::INITIAL_STATUS | Watch::PEER_CHANGES), accept);
    (bus.unwrap(), stream)
}

#[tokio::test]
async fn a_wait_that_is_given_up_loses_nothing() {
    let (mut bus, mut stream) = watch(100).await;
    for piece in [&b"{\"Stat"[..], b"e\":", b"6"] {
        stream.write_all(piece).await.unwrap();
        // The piece is there, but no line is: the wait is given up with a part of the line read.
        let wait = tokio::time::timeout(Duration::from_millis(20), bus.next());
        assert!(wait.await.is_err(), "a message before its end");
    }
    stream.write_all(b"}\n\n{\"PeersRemoved\":[1]}\n").await.unwrap();
    assert_eq!(bus.next().await.unwrap().unwrap().state, Some(State::Running));
    assert_eq!(bus.next().await.unwrap().unwrap().peers_removed, [NodeId(1)]);
}

#[tokio::test]
async fn the_end_of_tailscaled_is_the_end_of_the_watch() {
    let (mut bus, mut stream) = watch(100).await;
    stream.write_all(b"{\"State\":2}\n{\"State\":").await.unwrap();
    drop(stream);
    assert_eq!(bus.next().await.unwrap().unwrap().state, Some(State::NeedsLogin));
    for _ in 0..2 {
        assert_eq!(bus.next().await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_read_does_not_stop_the_watch_but_one_without_end_does() {
    let (mut bus, mut stream) = watch(30).await;
    stream.write_all(b"{\"State\":\"up\"}\n{\"State\":6}\n").await.unwrap();
    let error = bus.next().await.unwrap_err();
    assert!(matches!(&error, Error::Parse { problem, .. } if problem.path == "State"), "{error}");
    assert_eq!(bus.next().await.unwrap().unwrap().state, Some(State::Running));
    stream.write_all(&[b' '; 31]).await.unwrap();
    let error = bus.next().await.unwrap_err();
    assert!(matches!(error, Error::TooLong { limit: 30, .. }), "{error}");
    assert_eq!(bus.next().await.unwrap(), None);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "the connection is given up");
}

#[tokio::test]
async fn a_watch_that_is_dropped_is_given_up() {
    let (bus, mut stream) = watch(30).await;
    drop(bus);
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}
