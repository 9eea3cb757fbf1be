//! Access tokens: fetched once for all who wait, kept until shortly before they expire, fetched anew when they are
//! refused or the credentials were rotated.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use hyper::{
    Method,
    header::{CONTENT_TYPE, HeaderValue},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::{sync::Mutex, time::Instant};

use super::{
    Failure,
    http::{Ask, Http, parse},
    settings::{Credentials, Source},
};

/// How long before its end a token is no longer used; a tenth of short lives.
const MARGIN: Duration = Duration::from_mins(1);

/// What is believed of a token whose life the server does not tell. One that ends sooner is refused, and fetched anew.
const UNTOLD: u64 = 3600;

/// How access tokens are had.
#[derive(Debug)]
pub(super) struct Tokens {
    credentials: Credentials,
    held: Mutex<Held>,
    /// How many fetches have ended.
    fetches: AtomicU64,
}

#[derive(Debug, Default)]
struct Held {
    token: Option<Token>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Token {
    text: SecretString,
    until: Instant,
    /// What it was had for.
    form: Form,
}

/// The request's path and body.
#[derive(Debug)]
struct Form {
    path: &'static str,
    body: SecretString,
}

/// RFC 6749, section 5.1.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    expires_in: Option<u64>,
}

impl Tokens {
    /// For an OAuth client or a federated identity.
    pub(super) fn new(credentials: Credentials) -> Self {
        Self { credentials, held: Mutex::default(), fetches: AtomicU64::new(0) }
    }

    /// A token that is good as far as we know.
    pub(super) async fn get(&self, http: &Http) -> Result<SecretString, Failure> {
        let before = self.fetches.load(Ordering::Acquire);
        let mut held = self.held.lock().await;
        if self.fetches.load(Ordering::Acquire) != before
            && let Some(failure) = &held.failure
        {
            // Someone else has asked meanwhile: asking again at once would be told the same.
            return Err(failure.clone());
        }
        if let Some(token) = &held.token
            && Instant::now() < token.until
            && !self.rotated(token).await
        {
            return Ok(token.text.clone());
        }
        let fetched = match self.form().await {
            Ok(form) => fetch(http, form).await,
            Err(failure) => Err(failure),
        };
        self.fetches.fetch_add(1, Ordering::Release);
        match fetched {
            Ok(token) => {
                let text = token.text.clone();
                *held = Held { token: Some(token), failure: None };
                Ok(text)
            }
            Err(failure) => {
                *held = Held { token: None, failure: Some(failure.clone()) };
                Err(failure)
            }
        }
    }

    /// The server refuses this token: the next one who asks fetches another.
    pub(super) async fn refused(&self, text: &SecretString) {
        let mut held = self.held.lock().await;
        if held.token.as_ref().is_some_and(|t| t.text.expose_secret() == text.expose_secret()) {
            held.token = None;
        }
    }

    /// Whether the token belongs to credentials that are no longer those that are configured.
    async fn rotated(&self, token: &Token) -> bool {
        let rotated = match &self.credentials {
            // A Secret that cannot be read for a moment takes no good token from us.
            Credentials::OAuth { .. } => self
                .form()
                .await
                .is_ok_and(|form| form.body.expose_secret() != token.form.body.expose_secret()),
            // Identity tokens change all the time, and what they were exchanged for stays good.
            Credentials::WorkloadIdentity { .. } | Credentials::Headscale { .. } => false,
        };
        if rotated {
            tracing::info!("the OAuth client's credentials were rotated");
        }
        rotated
    }

    /// What is asked for with the credentials as they are now.
    async fn form(&self) -> Result<Form, Failure> {
        match &self.credentials {
            Credentials::OAuth { id, secret } => {
                let (id, secret) = (read(id).await?, read(secret).await?);
                let body = encode(&[
                    ("grant_type", "client_credentials"),
                    ("client_id", id.expose_secret()),
                    ("client_secret", secret.expose_secret()),
                ]);
                Ok(Form { path: "/api/v2/oauth/token", body })
            }
            Credentials::WorkloadIdentity { id, token } => {
                let jwt = read(token).await?;
                let body = encode(&[("client_id", id), ("jwt", jwt.expose_secret())]);
                Ok(Form { path: "/api/v2/oauth/token-exchange", body })
            }
            Credentials::Headscale { .. } => {
                Err(Failure::Credentials("an API key is no OAuth client".into()))
            }
        }
    }
}

async fn read(source: &Source) -> Result<SecretString, Failure> {
    source.read().await.map_err(|problem| Failure::Credentials(problem.into()))
}

/// A form's body.
fn encode(fields: &[(&str, &str)]) -> SecretString {
    let mut form = form_urlencoded::Serializer::new(String::new());
    SecretString::from(form.extend_pairs(fields).finish())
}

async fn fetch(http: &Http, form: Form) -> Result<Token, Failure> {
    let ask = Ask {
        method: Method::POST,
        path: form.path.to_owned(),
        headers: vec![(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-www-form-urlencoded"),
        )],
        body: form.body.expose_secret().to_owned().into(),
        // A token that nobody has heard of ends by itself.
        repeatable: true,
        vague: false,
    };
    let answer = http.ask(&ask, None).await.map_err(|failure| match failure {
        // RFC 6749 answers bad credentials with 400 or 401; with 403 and 404 for identities that are not there.
        Failure::Invalid(why) | Failure::Forbidden(why) => Failure::Unauthorized(why),
        Failure::NotFound => Failure::Unauthorized(format!("{} is not there", form.path).into()),
        other => other,
    })?;
    let (text, life) = granted(&answer.body)?;
    Ok(Token { text, until: Instant::now() + life - MARGIN.min(life / 10), form })
}

/// The access token of an answer and its life, a day at most.
pub(super) fn granted(text: &[u8]) -> Result<(SecretString, Duration), Failure> {
    let granted: Granted = parse(text)?;
    let life = Duration::from_secs(granted.expires_in.unwrap_or(UNTOLD).min(24 * 3600));
    Ok((granted.access_token.into(), life))
}
