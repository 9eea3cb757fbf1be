//! From a `Tailnet` resource to a client that is known to work: the Secret's content, a service account's tokens, a probe.

use std::{collections::BTreeMap, fmt, sync::Arc};

use async_trait::async_trait;
use futures::future::join3;
use k8s_openapi::{
    ByteString,
    api::{
        authentication::v1::{TokenRequest, TokenRequestSpec},
        core::v1::{Secret, ServiceAccount},
    },
};
use kube::{Api, Client, api::PostParams};
use secrecy::SecretString;

use super::{Credentials, Error, Failure, Mint, Source, TailnetApi};

/// The operator's service account: what stands for a federated identity.
#[derive(Clone)]
pub struct Identity {
    /// Asks the API server for tokens.
    pub client: Client,
    /// The operator's namespace.
    pub namespace: String,
    /// The account's name (`OPERATOR_SERVICE_ACCOUNT_NAME`).
    pub account: String,
}

/// Why a Secret gives no credentials. The texts hold nothing of it but names of fields.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SecretError {
    /// It has no fields.
    #[error(
        "Secret {0:?} is empty: add client_id with client_secret or audience, or api_key for Headscale"
    )]
    Empty(String),
    /// It does not say which client.
    #[error("Secret {0:?} has no client_id: add it, or api_key for Headscale")]
    NoClient(String),
    /// It does not say how the client shows who it is.
    #[error(
        "Secret {0:?} has neither client_secret nor audience: add the one that belongs to the client_id"
    )]
    NoProof(String),
    /// It is of two control servers.
    #[error(
        "Secret {0:?} has both client_id and api_key: remove one, they belong to different servers"
    )]
    Ambiguous(String),
    /// A field is no text.
    #[error("Secret {secret:?}, field {field}: it is no UTF-8 text")]
    NoText {
        /// The Secret.
        secret: String,
        /// The field.
        field: &'static str,
    },
}

/// What a control server refused of the three lists that controllers need.
#[derive(Clone, Debug)]
pub struct ProbeError(pub Vec<Error>);

impl fmt::Display for ProbeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        formatter.write_str(&texts.join("\n"))
    }
}

impl std::error::Error for ProbeError {}

/// What a Secret's fields mean: `client_id` with `audience` is workload identity by tokens of the operator's account,
/// with `client_secret` an OAuth client (`audience` wins, as upstream), `api_key` alone (and `user`) is Headscale.
pub fn credentials(secret: &Secret, identity: &Identity) -> Result<Credentials, SecretError> {
    let name = || secret.metadata.name.clone().unwrap_or_default();
    let field = |field: &'static str| -> Result<Option<String>, SecretError> {
        let value = secret.data.as_ref().and_then(|data| data.get(field));
        let text = value.map(|ByteString(bytes)| std::str::from_utf8(bytes)).transpose();
        let text = text.map_err(|_| SecretError::NoText { secret: name(), field })?;
        Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()))
    };
    if secret.data.as_ref().is_none_or(BTreeMap::is_empty) {
        return Err(SecretError::Empty(name()));
    }
    let text = |text: String| Source::Text(text.into());
    match (field("client_id")?, field("api_key")?) {
        (Some(_), Some(_)) => Err(SecretError::Ambiguous(name())),
        (None, Some(key)) => {
            Ok(Credentials::Headscale { api_key: text(key), user: field("user")? })
        }
        (None, None) => Err(SecretError::NoClient(name())),
        (Some(id), None) => match (field("audience")?, field("client_secret")?) {
            (Some(audience), _) => {
                let token = Source::Made(Arc::new(Token { identity: identity.clone(), audience }));
                Ok(Credentials::WorkloadIdentity { id, token })
            }
            (None, Some(secret)) => Ok(Credentials::OAuth { id: text(id), secret: text(secret) }),
            (None, None) => Err(SecretError::NoProof(name())),
        },
    }
}

/// Whether the credentials may do what controllers do: list devices, keys and, where there are any, Services. All that is
/// refused is told at once.
pub async fn probe(api: &dyn TailnetApi) -> Result<(), ProbeError> {
    let (devices, keys, services) = join3(api.devices(), api.keys(), api.vip_services()).await;
    let errors = [devices.err(), keys.err(), services.err()];
    let lacking = |error: &Error| matches!(error.failure, Failure::Unsupported(_));
    let errors: Vec<_> = errors.into_iter().flatten().filter(|error| !lacking(error)).collect();
    if errors.is_empty() { Ok(()) } else { Err(ProbeError(errors)) }
}

/// Tokens of the account for one audience.
#[derive(Debug)]
struct Token {
    identity: Identity,
    audience: String,
}

impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, account, .. } = self;
        write!(formatter, "{namespace}/{account}")
    }
}

#[async_trait]
impl Mint for Token {
    async fn mint(&self) -> Result<SecretString, String> {
        let Identity { client, namespace, account } = &self.identity;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![self.audience.clone()],
                ..TokenRequestSpec::default()
            },
            ..TokenRequest::default()
        };
        let wrong =
            |problem: String| format!("token of ServiceAccount {namespace}/{account}: {problem}");
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await;
        let made = made.map_err(|error| wrong(error.to_string()))?;
        let status = made.status.ok_or_else(|| wrong("an answer without it".to_owned()))?;
        Ok(status.token.into())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, api::core::v1::Secret};
    use kube::{Client, Config};

    use super::{Identity, SecretError, credentials, probe};
    use crate::tailnet_api::{
        Credentials, Failure, Feature,
        fake::{Call, FakeTailnet},
    };

    fn of(fields: &[(&str, &[u8])]) -> Result<Credentials, SecretError> {
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let identity =
            Identity { client, namespace: "tailscale".into(), account: "operator".into() };
        let data =
            fields.iter().map(|(name, value)| ((*name).to_owned(), ByteString(value.to_vec())));
        let mut secret = Secret { data: Some(data.collect()), ..Secret::default() };
        secret.metadata.name = Some("access".to_owned());
        credentials(&secret, &identity)
    }

    #[tokio::test]
    async fn fields_decide_the_kind() {
        let oauth = of(&[("client_id", b"k1"), ("client_secret", b"hidden\n")]).unwrap();
        assert!(matches!(oauth, Credentials::OAuth { .. }));
        assert!(!format!("{oauth:?}").contains("hidden"));
        let both =
            of(&[("client_id", b"k1"), ("client_secret", b"s"), ("audience", b"a")]).unwrap();
        assert!(matches!(both, Credentials::WorkloadIdentity { .. }), "audience wins");
        let headscale = of(&[("api_key", b"hidden"), ("user", b"ops")]).unwrap();
        assert!(
            matches!(&headscale, Credentials::Headscale { user: Some(user), .. } if user == "ops")
        );
    }

    #[tokio::test]
    async fn incomplete_secrets_name_themselves_and_the_field() {
        let name = || "access".to_owned();
        for (fields, error) in [
            (&[][..], SecretError::Empty(name())),
            (&[("client_secret", &b"s"[..])], SecretError::NoClient(name())),
            (&[("client_id", b"k"), ("client_secret", b" ")], SecretError::NoProof(name())),
            (&[("client_id", b"k"), ("api_key", b"k")], SecretError::Ambiguous(name())),
            (&[("client_id", b"\xff")], SecretError::NoText { secret: name(), field: "client_id" }),
        ] {
            assert_eq!(of(fields).unwrap_err(), error);
            assert!(error.to_string().contains("\"access\""), "{error}");
        }
    }

    #[tokio::test]
    async fn a_probe_tells_all_that_is_refused_and_not_what_the_server_lacks() {
        let tailnet = FakeTailnet::new("https://fake.example");
        probe(&tailnet).await.unwrap();
        tailnet.fail(Call::VipServices, [Failure::Unsupported(Feature::VipServices)]);
        probe(&tailnet).await.unwrap();
        for call in [Call::Devices, Call::VipServices] {
            tailnet.fail(call, [Failure::Forbidden("scope".into())]);
        }
        let refused = probe(&tailnet).await.unwrap_err();
        assert_eq!(refused.0.len(), 2);
        let text = refused.to_string();
        assert!(text.contains("Devices at") && text.contains("VipServices at"), "{text}");
    }
}
