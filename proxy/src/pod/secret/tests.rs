//! The loop with an API server in memory, on a clock that runs by itself: pauses cost nothing.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http_body_util::BodyExt as _;
use hyper::{Request, Response};
use k8s_openapi::ByteString;
use kube::client::Body;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::*;

const DEADLINE: Duration = Duration::from_mins(10);

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Serves,
    Answers(u16),
    Silent,
    Gone,
}

/// One Secret, what was asked of it, and what the caller may do.
struct Server {
    data: Option<BTreeMap<String, String>>,
    mood: Mood,
    allowed: Vec<&'static str>,
    /// Requests that change or read the Secret: method, and the body of a change.
    requests: Vec<(String, Value)>,
}

#[derive(Clone)]
struct Fake(Arc<Mutex<Server>>);

impl Fake {
    fn new(content: Option<&[(&str, &str)]>) -> Self {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        Self(Arc::new(Mutex::new(Server {
            data: content.map(|content| content.iter().map(owned).collect()),
            mood: Mood::Serves,
            allowed: vec!["get", "update", "patch", "create"],
            requests: Vec::new(),
        })))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Server) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    fn mood(&self, mood: Mood) {
        self.with(|server| server.mood = mood);
    }

    /// The content as text.
    fn content(&self) -> String {
        self.with(|server| {
            let data = server.data.clone().unwrap_or_default();
            data.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        })
    }

    /// Changes since the last call.
    fn changes(&self) -> Vec<(String, Value)> {
        self.with(|server| {
            std::mem::take(&mut server.requests).into_iter().filter(|(m, _)| m != "GET").collect()
        })
    }

    fn start(&self, desired: Desired) -> StateSecret {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                fake.answer(head.method.as_str(), head.uri.path(), &body).await
            }
        });
        let client = Client::new(service, "tenant");
        StateSecret::start(client, "tenant".to_owned(), "state".to_owned(), desired)
    }

    async fn answer(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Response<Body>, tower::BoxError> {
        let mood = self.with(|server| server.mood);
        match mood {
            Mood::Serves => {}
            Mood::Answers(code) => return Ok(failure(code, "as told")?),
            Mood::Silent => match std::future::pending::<Infallible>().await {},
            Mood::Gone => return Err("connection refused".into()),
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if path.ends_with("/selfsubjectaccessreviews") {
            if self.with(|server| server.allowed.is_empty()) {
                return Ok(failure(403, "you may not ask")?);
            }
            let verb = body["spec"]["resourceAttributes"]["verb"].as_str().unwrap().to_owned();
            let allowed = self.with(|server| server.allowed.iter().any(|known| *known == verb));
            let mut answer = body;
            answer["status"] = json!({ "allowed": allowed });
            return Ok(respond(201, &answer)?);
        }
        let (code, data) = self.with(|server| {
            server.requests.push((method.to_owned(), body["data"].clone()));
            server.change(method, path, &body)
        });
        let Some(data) = data else { return Ok(failure(code, "as it is")?) };
        let encoded: BTreeMap<_, _> =
            data.into_iter().map(|(key, value)| (key, ByteString(value.into_bytes()))).collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "state" }, "data": encoded,
        });
        Ok(respond(code, &secret)?)
    }
}

impl Server {
    fn change(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> (u16, Option<BTreeMap<String, String>>) {
        let one = path == "/api/v1/namespaces/tenant/secrets/state";
        match (method, one, &mut self.data) {
            ("GET", true, Some(data)) => (200, Some(data.clone())),
            ("GET" | "PATCH", true, None) => (404, None),
            ("PATCH", true, Some(data)) => {
                for (key, value) in body["data"].as_object().unwrap() {
                    match decode(value) {
                        Some(value) => drop(data.insert(key.clone(), value)),
                        None => drop(data.remove(key)),
                    }
                }
                (200, Some(data.clone()))
            }
            ("POST", false, None) => {
                let given = body["data"].as_object().unwrap().iter();
                let data = given.map(|(key, value)| (key.clone(), decode(value).unwrap()));
                self.data = Some(data.collect());
                (201, self.data.clone())
            }
            _ => (405, None),
        }
    }
}

/// The text behind a value in base64; null has none.
fn decode(value: &Value) -> Option<String> {
    let bytes: Option<ByteString> = serde_json::from_value(value.clone()).unwrap();
    bytes.map(|ByteString(bytes)| String::from_utf8(bytes).unwrap())
}

fn respond(code: u16, body: &Value) -> Result<Response<Body>, hyper::http::Error> {
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes()))
}

fn failure(code: u16, message: &str) -> Result<Response<Body>, hyper::http::Error> {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
        "reason": if code == 404 { "NotFound" } else { "Test" }, "message": message,
    });
    respond(code, &status)
}

fn at_start() -> Desired {
    Desired::at_start(Some("uid"), 142, None)
}

async fn failure_of(secret: &StateSecret) -> Failure {
    let mut status = secret.status();
    let failed = status.wait_for(|status| status.failure.is_some());
    time::timeout(DEADLINE, failed).await.unwrap().unwrap().failure.clone().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_start_is_one_change_and_none_where_all_is_said() {
    let fake =
        Fake::new(Some(&[("device_id", "n1"), ("https_endpoint", "a"), ("_machinekey", "m")]));
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    assert_eq!(fake.content(), "_machinekey=m device_id=n1 pod_uid=uid tailscale_capver=142");
    assert_eq!(fake.changes().len(), 1);
    drop(secret);
    let again = fake.start(at_start());
    assert!(again.says(1, DEADLINE).await);
    assert_eq!(again.status().borrow().writes, 0);
    assert!(fake.changes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_wanted_meanwhile_is_written_at_once_and_the_same_not_again() {
    let fake = Fake::new(Some(&[]));
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    fake.changes();
    for number in 0..100 {
        secret.want(|desired| desired.set(Key::DeviceId, format!("n{number}")));
    }
    let last = secret.want(|desired| desired.set(Key::DeviceFqdn, "a.ts.net."));
    assert!(secret.says(last, DEADLINE).await);
    assert!(fake.content().contains("device_fqdn=a.ts.net. device_id=n99"), "{}", fake.content());
    assert_eq!(fake.changes().len(), 1);
    assert_eq!(secret.want(|desired| desired.set(Key::DeviceId, "n99")), last);
    assert!(secret.says(last, Duration::ZERO).await);
    assert!(fake.changes().is_empty());
}

/// Down, slow, refusing: nobody waits, the reason is told, and when it is over the latest is written.
#[tokio::test(start_paused = true)]
async fn every_trouble_is_told_and_outlived() {
    let fake = Fake::new(Some(&[]));
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    for (round, (mood, words)) in [
        (Mood::Answers(503), "writing state Secret tenant/state: the API server answered 503"),
        (Mood::Answers(403), "refused: as told: grant the service account get, update and patch"),
        (Mood::Gone, "connection refused"),
        (Mood::Silent, "no answer of the API server's within 10s"),
    ]
    .into_iter()
    .enumerate()
    {
        fake.mood(mood);
        let began = std::time::Instant::now();
        let revision = secret.want(|desired| desired.set(Key::DeviceId, round.to_string()));
        assert!(began.elapsed() < Duration::from_secs(1));
        let failure = failure_of(&secret).await;
        assert!(failure.message.contains(words), "{mood:?}: {}", failure.message);
        assert!(!secret.says(revision, Duration::from_mins(2)).await);
        let later = secret.status().borrow().failure.clone().unwrap();
        assert!(later.attempts >= 4 && later.since == failure.since, "{mood:?}: {later:?}");
        fake.mood(Mood::Serves);
        assert!(secret.says(revision, DEADLINE).await);
        assert_eq!(secret.status().borrow().failure, None);
        assert!(fake.content().contains(&format!("device_id={round} ")), "{}", fake.content());
    }
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_not_there_is_made_if_that_is_allowed() {
    let fake = Fake::new(None);
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    assert_eq!(fake.content(), "pod_uid=uid tailscale_capver=142");
    let opened = secret.opened(DEADLINE).await.unwrap();
    assert!(!opened.exists && opened.unusable().is_none());

    let fake = Fake::new(None);
    fake.with(|server| server.allowed = vec!["get", "update", "patch"]);
    let secret = fake.start(at_start());
    assert!(failure_of(&secret).await.message.contains("`create`"));
    assert_eq!(secret.opened(DEADLINE).await.unwrap().unusable(), Some(Unusable::Absent));
    // Somebody makes it, as `tailscaled` may.
    fake.with(|server| server.data = Some(BTreeMap::new()));
    assert!(secret.says(1, DEADLINE).await);
}

#[tokio::test(start_paused = true)]
async fn missing_rights_are_told_and_looked_up_again() {
    let fake = Fake::new(Some(&[("authkey", "tskey-1")]));
    fake.with(|server| server.allowed = vec!["get", "update"]);
    let secret = fake.start(at_start());
    let failure = failure_of(&secret).await;
    assert!(failure.message.contains("grant the service account `patch`"), "{}", failure.message);
    let opened = secret.opened(DEADLINE).await.unwrap();
    assert_eq!(opened.unusable(), Some(Unusable::AuthKeyStays));
    assert_eq!(opened.auth_key.as_ref().unwrap().expose_secret(), "tskey-1");
    assert!(!format!("{opened:?}").contains("tskey"), "{opened:?}");
    fake.with(|server| server.allowed.push("patch"));
    let revision = secret.want(|desired| desired.remove(Key::AuthKey));
    assert!(secret.says(revision, DEADLINE).await);
    assert!(!fake.content().contains("authkey"));
}

#[tokio::test(start_paused = true)]
async fn who_may_not_ask_finds_out_by_trying() {
    let fake = Fake::new(Some(&[]));
    fake.with(|server| server.allowed.clear());
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    assert_eq!(fake.content(), "pod_uid=uid tailscale_capver=142");
}

#[tokio::test(start_paused = true)]
async fn what_others_change_is_set_right_after_a_while() {
    let fake = Fake::new(Some(&[]));
    let secret = fake.start(at_start());
    assert!(secret.says(1, DEADLINE).await);
    fake.with(|server| server.data = Some(BTreeMap::new()));
    let mut status = secret.status();
    let again = status.wait_for(|status| status.writes == 2);
    time::timeout(Duration::from_mins(11), again).await.unwrap().unwrap();
    assert_eq!(fake.content(), "pod_uid=uid tailscale_capver=142");
}

#[tokio::test(start_paused = true)]
async fn state_that_is_not_whole_is_waited_for() {
    let whole = ["_current-profile", "_profiles", "_machinekey", "profile-1"];
    let fake = Fake::new(Some(&[("_machinekey", "m")]));
    let secret = fake.start(Desired::default());
    assert!(!secret.consistent(Duration::from_secs(20)).await);
    let (wait, ()) = tokio::join!(secret.consistent(Duration::from_secs(20)), async {
        time::sleep(Duration::from_secs(5)).await;
        let all = whole.map(|key| (key.to_owned(), "profile-1".to_owned()));
        fake.with(|server| server.data = Some(all.into()));
    });
    assert!(wait);
    fake.mood(Mood::Gone);
    assert!(!secret.consistent(Duration::from_secs(20)).await);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_node_leaves_nothing_of_itself() {
    let fake = Fake::new(Some(&[
        ("_current-profile", "profile-1"),
        ("_profiles", "x"),
        ("_machinekey", "x"),
        ("profile-1", "x"),
        ("device_id", "n1"),
        ("reissue_authkey", "k"),
        ("acme-account.key.pem", "x"),
    ]));
    let secret = fake.start(at_start());
    secret.want(|desired| desired.set(Key::DeviceId, "n1"));
    assert!(secret.says(2, DEADLINE).await);
    secret.forget_node().await.unwrap();
    assert!(secret.says(3, DEADLINE).await);
    assert_eq!(fake.content(), "acme-account.key.pem=x pod_uid=uid tailscale_capver=142");
}
