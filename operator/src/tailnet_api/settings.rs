//! How a tailnet's control server is reached and with what: the kind of server follows from the kind of credentials.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use secrecy::SecretString;

use super::{TailnetApi, headscale::Headscale, http::Http, tailscale::Tailscale};

/// Where Tailscale's control server is; its API answers there too.
pub const TAILSCALE: &str = "https://controlplane.tailscale.com";

/// Where the operator's own identity token is mounted, for workload identity.
pub const IDENTITY_TOKEN: &str = "/var/run/secrets/tailscale/serviceaccount/token";

/// A control server and the credentials for it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `http://` or `https://`; empty is Tailscale's.
    pub login_server: String,
    /// Who asks.
    pub credentials: Credentials,
    /// A file of certificates (PEM) of authorities to trust beside the system's.
    pub authorities: Option<PathBuf>,
    /// How long to go on.
    pub patience: Patience,
}

/// Who asks, and so whom.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// Tailscale, as an OAuth client.
    OAuth {
        /// The client's id.
        id: Source,
        /// The client's secret.
        secret: Source,
    },
    /// Tailscale, as a federated identity: a token of the cluster's is exchanged for one of the tailnet's.
    WorkloadIdentity {
        /// The client id of the federated identity.
        id: String,
        /// The cluster's token; read at every exchange.
        token: Source,
    },
    /// Headscale 0.26 or later, by its v1 API. (A server that speaks Tailscale's v2 API is asked like Tailscale.)
    Headscale {
        /// An API key; read at every call.
        api_key: Source,
        /// The name of the user that untagged keys belong to; tagged ones need none from 0.28 on.
        user: Option<String>,
    },
}

/// Where a secret comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// It was read already.
    Text(SecretString),
    /// A file, read again each time: mounted Secrets and projected tokens change.
    File(PathBuf),
    /// Something that makes one when asked.
    Made(Arc<dyn Mint>),
}

/// Makes tokens, as a Kubernetes `TokenRequest` does.
#[async_trait::async_trait]
pub trait Mint: fmt::Debug + Send + Sync {
    /// A fresh token, or what was wrong; the text holds no secret.
    async fn mint(&self) -> Result<SecretString, String>;
}

/// How long one call may take, and how it is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a whole call: token, request, repetitions and the pauses between them.
    pub call: Duration,
    /// The pause before the first repetition; each further one is twice as long, each with up to as much again at random.
    pub first_pause: Duration,
    /// The longest pause within a call. A server that asks for more gets it from the caller ([`super::Retry::After`]).
    pub longest_pause: Duration,
    /// How often a request is repeated at most.
    pub repetitions: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            call: Duration::from_mins(1),
            first_pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(5),
            repetitions: 3,
        }
    }
}

/// Why no client could be made of the settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The login server is no address.
    #[error("login server {0:?}: write https://HOST or http://HOST, without user or query")]
    Address(String),
    /// The file of authorities could not be used.
    #[error("authorities in {path}: {problem}: give a file of PEM certificates")]
    Authorities {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// TLS could not be set up.
    #[error("TLS")]
    Tls(#[from] rustls::Error),
    /// Neither kind of credentials is complete.
    #[error(
        "no credentials: set CLIENT_ID_FILE and CLIENT_SECRET_FILE (OAuth client), CLIENT_ID (workload identity) or HEADSCALE_API_KEY_FILE (Headscale)"
    )]
    NoCredentials,
    /// Credentials of two control servers.
    #[error(
        "{0} and HEADSCALE_API_KEY_FILE are both set: unset one, they belong to different servers"
    )]
    Ambiguous(&'static str),
}

impl Settings {
    /// The operator's own, from environment variables as upstream has them (`OPERATOR_LOGIN_SERVER`, `CLIENT_ID`,
    /// `CLIENT_ID_FILE`, `CLIENT_SECRET_FILE`) and two of ours for Headscale (`HEADSCALE_API_KEY_FILE`,
    /// `HEADSCALE_USER`). Empty is unset. Authorities: the system's, or those that `SSL_CERT_FILE` names.
    pub fn from_variables(read: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let set = |name: &str| read(name).filter(|value| !value.is_empty());
        let file = |name: &str| set(name).map(|path| Source::File(path.into()));
        let tailscale = match (set("CLIENT_ID"), file("CLIENT_ID_FILE"), file("CLIENT_SECRET_FILE"))
        {
            (Some(id), ..) => {
                let token = Source::File(IDENTITY_TOKEN.into());
                Some(("CLIENT_ID", Credentials::WorkloadIdentity { id, token }))
            }
            (None, Some(id), Some(secret)) => {
                Some(("CLIENT_ID_FILE", Credentials::OAuth { id, secret }))
            }
            _ => None,
        };
        let credentials = match (tailscale, file("HEADSCALE_API_KEY_FILE")) {
            (Some((name, _)), Some(_)) => return Err(SettingsError::Ambiguous(name)),
            (Some((_, credentials)), None) => credentials,
            (None, Some(api_key)) => {
                Credentials::Headscale { api_key, user: set("HEADSCALE_USER") }
            }
            (None, None) => return Err(SettingsError::NoCredentials),
        };
        let login_server = set("OPERATOR_LOGIN_SERVER").unwrap_or_default();
        Ok(Self { login_server, credentials, authorities: None, patience: Patience::default() })
    }

    /// A client for them. Nothing is asked yet.
    pub fn connect(self) -> Result<Arc<dyn TailnetApi>, SettingsError> {
        let Self { login_server, credentials, authorities, patience } = self;
        let server = if login_server.is_empty() { TAILSCALE } else { &login_server };
        let http = Http::new(server, authorities.as_deref(), patience)?;
        Ok(match credentials {
            Credentials::OAuth { .. } | Credentials::WorkloadIdentity { .. } => {
                Arc::new(Tailscale::new(http, credentials))
            }
            Credentials::Headscale { api_key, user } => {
                Arc::new(Headscale::new(http, api_key, user))
            }
        })
    }
}

impl Source {
    /// The secret as it is now, without white space around it. The error holds none of it.
    pub(super) async fn read(&self) -> Result<SecretString, String> {
        let secret = match self {
            Self::Text(secret) => secret.clone(),
            // Small files in memory: waiting for a thread would take longer than reading.
            Self::File(path) => match std::fs::read_to_string(path) {
                Ok(text) if !text.trim().is_empty() => SecretString::from(text.trim()),
                Ok(_) => return Err(format!("{} is empty", path.display())),
                Err(error) => return Err(format!("{}: {error}", path.display())),
            },
            Self::Made(mint) => mint.mint().await?,
        };
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::{Credentials, Settings, SettingsError, Source, TAILSCALE};
    use crate::tailnet_api::ControlServer;

    fn of(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Settings::from_variables(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_variables_decide_the_control_server() {
        let oauth = of(&[("CLIENT_ID_FILE", "/id"), ("CLIENT_SECRET_FILE", "/secret")]).unwrap();
        assert!(matches!(oauth.credentials, Credentials::OAuth { .. }));
        let api = oauth.connect().unwrap();
        assert_eq!(api.login_server(), TAILSCALE);
        assert_eq!(api.control_server(), ControlServer::Tailscale);

        let identity = of(&[("CLIENT_ID", "kMine"), ("CLIENT_ID_FILE", "/id")]).unwrap();
        assert!(
            matches!(identity.credentials, Credentials::WorkloadIdentity { id, .. } if id == "kMine")
        );

        let variables =
            [("HEADSCALE_API_KEY_FILE", "/key"), ("OPERATOR_LOGIN_SERVER", "http://head.example/")];
        let api = of(&variables).unwrap().connect().unwrap();
        assert_eq!(api.control_server(), ControlServer::Headscale);
        assert_eq!(api.login_server(), "http://head.example", "one slash is taken off");
    }

    #[test]
    fn incomplete_or_contradicting_variables_name_themselves() {
        let missing = of(&[("CLIENT_ID_FILE", "/id"), ("CLIENT_SECRET_FILE", "")]).unwrap_err();
        assert!(missing.to_string().contains("CLIENT_SECRET_FILE"), "{missing}");
        let both = of(&[("CLIENT_ID", "k"), ("HEADSCALE_API_KEY_FILE", "/key")]).unwrap_err();
        assert!(both.to_string().contains("CLIENT_ID and HEADSCALE_API_KEY_FILE"), "{both}");
        for bad in
            ["control.example", "ftp://a", "https://user:pass@a", "https://a/?q=1", "https://"]
        {
            let variables = [("CLIENT_ID", "k"), ("OPERATOR_LOGIN_SERVER", bad)];
            let refused = of(&variables).unwrap().connect().unwrap_err();
            assert!(matches!(refused, SettingsError::Address(_)), "{bad}: {refused}");
        }
    }

    #[tokio::test]
    async fn secrets_are_read_without_white_space_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let source = Source::File(path.clone());
        assert!(source.read().await.unwrap_err().contains("secret"));
        std::fs::write(&path, " \n").unwrap();
        assert!(source.read().await.unwrap_err().contains("is empty"));
        std::fs::write(&path, "hidden\n").unwrap();
        let read = source.read().await.unwrap();
        assert_eq!(secrecy::ExposeSecret::expose_secret(&read), "hidden");
        assert!(!format!("{:?}", Source::Text(read)).contains("hidden"));
    }
}
