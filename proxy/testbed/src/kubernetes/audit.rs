//! What the API server was asked, from its audit log.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{Account, ApiServer};

/// The log's name in the server's directory.
pub(super) const LOG: &str = "audit.log";

/// Who asked for what, without any content, once it is answered: about Secrets, and all that an operator asked.
pub(super) const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ['system:serviceaccount:tailscale:operator']}
- {level: Metadata, resources: [{group: '', resources: [secrets]}]}
";

/// The account whose requests are all in the log: namespace and name.
pub const OPERATOR: (&str, &str) = ("tailscale", "operator");

/// A request for a Secret that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The verb of a Role's rule that it needs: `get`, `patch`, ..
    pub verb: String,
    /// The Secret's name.
    pub name: String,
    /// The HTTP status of the answer.
    pub code: u64,
    /// The program, as it calls itself.
    pub agent: String,
}

impl ApiServer {
    /// What an account has asked about Secrets, in the order of the answers.
    pub fn asked(&self, account: &Account) -> Result<Vec<Asked>> {
        let mut asked = Vec::new();
        self.read_log(account, |entry| {
            let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default();
            if text("/objectRef/resource") == "secrets" {
                asked.push(Asked {
                    verb: text("/verb").to_owned(),
                    name: text("/objectRef/name").to_owned(),
                    code: entry
                        .pointer("/responseStatus/code")
                        .and_then(Value::as_u64)
                        .unwrap_or(0),
                    agent: text("/userAgent").to_owned(),
                });
            }
        })?;
        Ok(asked)
    }

    /// How often an account has asked for what so far, as `patch services`. Of watches only those that have ended are known.
    /// Everything is in the log for [`OPERATOR`] only.
    pub fn requests(&self, account: &Account) -> Result<BTreeMap<String, usize>> {
        let mut requests = BTreeMap::new();
        self.read_log(account, |entry| {
            let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default();
            let what = match text("/objectRef/resource") {
                "" => text("/requestURI").split('?').next().unwrap_or_default(),
                resource => resource,
            };
            let status = if text("/objectRef/subresource").is_empty() { "" } else { "/" };
            let what =
                format!("{} {what}{status}{}", text("/verb"), text("/objectRef/subresource"));
            *requests.entry(what).or_default() += 1;
        })?;
        Ok(requests)
    }

    fn read_log(&self, account: &Account, mut each: impl FnMut(&Value)) -> Result<()> {
        let file = self.directory.path().join(LOG);
        let log = std::fs::read_to_string(&file)
            .with_context(|| format!("read the audit log {}", file.display()))?;
        let user = format!("system:serviceaccount:{}:{}", account.namespace, account.name);
        // The last line may still be written.
        for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let entry: Value = serde_json::from_str(line).context("a line of the audit log")?;
            if entry.pointer("/user/username").and_then(Value::as_str) == Some(user.as_str()) {
                each(&entry);
            }
        }
        Ok(())
    }
}
