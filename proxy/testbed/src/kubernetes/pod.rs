//! What the kubelet gives a pod to reach the API server by.

use std::{fs::File, io::Write as _};

use anyhow::{Context as _, Result};

use super::{ADDRESS, Account, ApiServer, NAME};
use crate::tailnet::Underlay;

/// Where programs look for their service account. Debian's /var/run is /run.
const SERVICE_ACCOUNT: &str = "secrets/kubernetes.io/serviceaccount";

impl ApiServer {
    /// Makes an underlay a pod's of that account: service-account files, names, `POD_NAME` (the underlay's name) and
    /// `POD_UID`. Its `/run` is its own from then on.
    pub fn furnish(&self, underlay: &mut Underlay, account: &Account, uid: &str) -> Result<()> {
        let directory = underlay.private("/run")?.join(SERVICE_ACCOUNT);
        std::fs::create_dir_all(&directory)?;
        std::fs::copy(self.authority(), directory.join("ca.crt"))?;
        std::fs::write(directory.join("token"), account.token())?;
        std::fs::write(directory.join("namespace"), &account.namespace)?;
        let hosts = underlay.private("/etc")?.join("hosts");
        let file = File::options().append(true).open(&hosts);
        file.and_then(|mut file| writeln!(file, "{ADDRESS} {NAME} kubernetes.default kubernetes"))
            .with_context(|| format!("add to {}", hosts.display()))?;
        let name = underlay.name.clone();
        for (variable, value) in [
            ("KUBERNETES_SERVICE_HOST", ADDRESS.to_string().as_str()),
            ("KUBERNETES_SERVICE_PORT", "443"),
            ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
            ("POD_NAME", &name),
            ("POD_UID", uid),
            ("POD_NAMESPACE", &account.namespace),
        ] {
            underlay.set(variable, value);
        }
        Ok(())
    }
}
