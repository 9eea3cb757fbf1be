//! The Secret of each replica: its configuration, and the state that tailscaled keeps beside it.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::{
    config,
    proxy::{Duty, Proxy, secret_name},
};

/// The key of the serve configuration.
pub(super) const SERVE_CONFIG: &str = "serve-config";

/// Keys that are not named here are the proxy's own, and stay.
pub(super) fn all(proxy: &Proxy) -> Vec<Secret> {
    let secret = |(ordinal, node)| {
        let mut data: BTreeMap<_, _> = config::files(proxy, node)
            .into_iter()
            .map(|(name, content)| (name.to_owned(), ByteString(content.into_bytes())))
            .collect();
        if let Duty::Serve { config, .. } = &proxy.duty {
            data.insert(SERVE_CONFIG.into(), ByteString(config.clone().into_bytes()));
        }
        Secret {
            metadata: proxy.metadata(&secret_name(&proxy.base, ordinal)),
            data: Some(data),
            ..Secret::default()
        }
    };
    proxy.nodes.iter().enumerate().map(secret).collect()
}
