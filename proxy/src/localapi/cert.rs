//! A certificate and its key, as tailscaled hands them out.

use std::fmt;

/// A certificate chain and its private key, PEM each. The key is in no `Debug` output.
#[derive(Clone, Eq, PartialEq)]
pub struct CertPair {
    /// The certificate, then those of its issuers.
    pub chain: String,
    /// The private key.
    pub key: String,
}

impl fmt::Debug for CertPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CertPair").field("chain", &self.chain).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_key_is_not_shown() {
        let pair = super::CertPair { chain: "public".into(), key: "secret".into() };
        let shown = format!("{pair:?} {pair:#?}");
        assert!(shown.contains("public") && !shown.contains("secret"), "{shown}");
    }
}
