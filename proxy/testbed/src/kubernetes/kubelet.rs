//! What the kubelet does with a pod of a StatefulSet, as far as a proxy depends on it: identity, environment, Secrets and
//! ConfigMaps as files, capabilities. The container's image is the machine.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ConfigMap, Container, EnvVar, KeyToPath, Pod, PodSpec, Secret},
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use super::ApiServer;
use crate::{
    Daemon,
    tailnet::{Cluster, Tailnet, Underlay},
};

/// A running pod. Its container is killed when dropped; its object stays.
#[derive(Debug)]
pub struct RunningPod {
    // Ends before its files.
    daemon: Daemon,
    /// Its place, with its `/run`, `/etc` and `/tmp`.
    pub underlay: Underlay,
    /// Its addresses in the cluster, IPv4 first.
    pub addresses: [IpAddr; 2],
    etc: PathBuf,
    spec: PodSpec,
    namespace: String,
}

impl ApiServer {
    /// Makes a pod of the set's template and runs its one container, of which `program` is what the image would hold. The
    /// container has the capabilities that its security context adds, and no others; one that is privileged is refused.
    pub fn run_pod(
        &self,
        tailnet: &Tailnet,
        cluster: &Cluster,
        set: &StatefulSet,
        ordinal: usize,
        program: &Path,
    ) -> Result<RunningPod> {
        let name = format!("{}-{ordinal}", set.name_any());
        let namespace = set.namespace().context("a StatefulSet without a namespace")?;
        let template = &set.spec.as_ref().context("a StatefulSet without a spec")?.template;
        let spec = template.spec.clone().context("a template without a spec")?;
        let mut underlay = tailnet.underlay(&name)?;
        let addresses = cluster.attach(&underlay.namespace)?;
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let uid = self.make_pod(&name, &namespace, &labels.unwrap_or_default(), &spec)?;
        let account = spec.service_account_name.as_deref().context("no service account")?;
        self.furnish(&mut underlay, &self.account(&namespace, account)?, &uid)?;
        let etc = underlay.private("/etc")?;
        // Below the pod's own /tmp it would not be seen.
        std::fs::copy(tailnet.authority(), etc.join("authority.pem"))?;
        underlay.set("SSL_CERT_FILE", "/etc/authority.pem");
        underlay.private("/tmp")?;
        let facts = facts(&name, &namespace, &uid, addresses);
        let container = spec.containers.first().context("no container")?;
        for (name, value) in environment(container, &facts)? {
            underlay.set(&name, value);
        }
        let mut command = underlay.command("setpriv")?;
        command.args(capabilities(container)?).arg(program);
        let all = container.command.iter().chain(&container.args).flatten();
        command.args(all.skip(1));
        let files = Files { server: self, etc: &etc, spec: &spec, namespace: &namespace };
        files.write()?;
        let daemon = underlay.start(command, "container")?;
        Ok(RunningPod { daemon, underlay, addresses, etc, spec, namespace })
    }

    fn make_pod(
        &self,
        name: &str,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        spec: &PodSpec,
    ) -> Result<String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels }, "spec": spec,
        }))?;
        self.admin(async |client| {
            let pods: Api<Pod> = Api::namespaced(client, namespace);
            let made = pods.create(&PostParams::default(), &pod).await?;
            made.uid().context("a pod without a UID")
        })
        .with_context(|| format!("make pod {name}"))
    }
}

impl RunningPod {
    /// Brings the files of Secrets and ConfigMaps up to date, as the kubelet does within a minute.
    pub fn sync(&self, server: &ApiServer) -> Result<()> {
        let files = Files { server, etc: &self.etc, spec: &self.spec, namespace: &self.namespace };
        files.write()
    }

    /// What the container has printed.
    pub fn log(&self) -> String {
        self.daemon.log()
    }
}

/// What variables may refer to.
fn facts(
    name: &str,
    namespace: &str,
    uid: &str,
    addresses: [IpAddr; 2],
) -> BTreeMap<&'static str, String> {
    let [v4, v6] = addresses;
    BTreeMap::from([
        ("metadata.name", name.to_owned()),
        ("metadata.namespace", namespace.to_owned()),
        ("metadata.uid", uid.to_owned()),
        ("status.podIP", v4.to_string()),
        ("status.podIPs", format!("{v4},{v6}")),
    ])
}

/// The container's variables, in order: later ones may use earlier ones as `$(NAME)`.
fn environment(
    container: &Container,
    facts: &BTreeMap<&'static str, String>,
) -> Result<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for EnvVar { name, value, value_from } in container.env.iter().flatten() {
        let field = value_from.as_ref().and_then(|from| from.field_ref.as_ref());
        let value = match (value, field) {
            (_, Some(field)) => {
                let path = field.field_path.as_str();
                facts
                    .get(path)
                    .with_context(|| format!("{name}: {path} is not known here"))?
                    .clone()
            }
            (Some(value), None) => all.iter().fold(value.clone(), |value, (name, known)| {
                value.replace(&format!("$({name})"), known)
            }),
            (None, None) if value_from.is_some() => {
                bail!("{name}: such a source is not known here")
            }
            (None, None) => String::new(),
        };
        all.push((name.clone(), value));
    }
    Ok(all)
}

/// Arguments of setpriv(1).
fn capabilities(container: &Container) -> Result<Vec<String>> {
    let context = container.security_context.clone().unwrap_or_default();
    if context.privileged == Some(true) {
        bail!("container {} wants to be privileged", container.name);
    }
    let added = context.capabilities.and_then(|all| all.add).unwrap_or_default();
    let set = added.iter().fold("-all".to_owned(), |set, name| set + ",+" + &name.to_lowercase());
    let mut arguments = vec![format!("--bounding-set={set}"), "--inh-caps=-all".to_owned()];
    if context.allow_privilege_escalation == Some(false) {
        arguments.push("--no-new-privs".to_owned());
    }
    Ok(arguments)
}

/// The files that the pod's volumes have.
struct Files<'a> {
    server: &'a ApiServer,
    etc: &'a Path,
    spec: &'a PodSpec,
    namespace: &'a str,
}

impl Files<'_> {
    fn write(&self) -> Result<()> {
        let mounts = self.spec.containers.iter().flat_map(|one| one.volume_mounts.iter().flatten());
        for mount in mounts {
            let below = mount.mount_path.strip_prefix("/etc/");
            let below = below.with_context(|| format!("{} is not below /etc", mount.mount_path))?;
            let directory = self.etc.join(below);
            std::fs::create_dir_all(&directory)?;
            for (name, content) in self.volume(&mount.name)? {
                let new = directory.join(format!(".{name}.new"));
                std::fs::write(&new, content)?;
                std::fs::rename(new, directory.join(name))?;
            }
        }
        Ok(())
    }

    /// Names and contents; nothing of an object that is not there.
    fn volume(&self, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let mut volumes = self.spec.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == name);
        let volume = volume.with_context(|| format!("no volume {name}"))?;
        let (content, items) = if let Some(source) = &volume.secret {
            let secret = source.secret_name.as_deref().context("a Secret without a name")?;
            (self.secret(secret)?, source.items.as_deref())
        } else if let Some(source) = &volume.config_map {
            (self.config_map(&source.name)?, source.items.as_deref())
        } else {
            bail!("volume {name} is of a kind that is not known here");
        };
        Ok(match items {
            None => content.into_iter().collect(),
            Some(items) => items
                .iter()
                .filter_map(|KeyToPath { key, path, .. }| {
                    Some((path.clone(), content.get(key)?.clone()))
                })
                .collect(),
        })
    }

    fn secret(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        self.server.admin(async |client| {
            let secrets: Api<Secret> = Api::namespaced(client, self.namespace);
            let data = secrets.get_opt(name).await?.and_then(|secret| secret.data);
            Ok(data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect())
        })
    }

    fn config_map(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        self.server.admin(async |client| {
            let maps: Api<ConfigMap> = Api::namespaced(client, self.namespace);
            let Some(map) = maps.get_opt(name).await? else { return Ok(BTreeMap::new()) };
            let text = map.data.unwrap_or_default().into_iter();
            let text = text.map(|(key, value)| (key, value.into_bytes()));
            let binary = map.binary_data.unwrap_or_default().into_iter();
            Ok(text.chain(binary.map(|(key, value)| (key, value.0))).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_use_earlier_ones_and_facts() {
        let container: Container = serde_json::from_value(json!({ "name": "c", "env": [
            { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "AT", "value": "/etc/$(POD)/$(LATER)" },
            { "name": "LATER", "value": "x" },
        ] }))
        .unwrap();
        let facts = BTreeMap::from([("metadata.name", "p-0".to_owned())]);
        let all = environment(&container, &facts).unwrap();
        assert_eq!(all[1], ("AT".to_owned(), "/etc/p-0/$(LATER)".to_owned()));
        assert!(environment(&container, &BTreeMap::new()).is_err());
    }

    #[test]
    fn only_the_capabilities_that_are_added_are_left() {
        let container = |context| {
            serde_json::from_value(json!({ "name": "c", "securityContext": context })).unwrap()
        };
        let told = json!({ "allowPrivilegeEscalation": false,
            "capabilities": { "add": ["NET_ADMIN"], "drop": ["ALL"] } });
        let arguments = capabilities(&container(told)).unwrap();
        assert_eq!(
            arguments,
            ["--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs"]
        );
        assert!(capabilities(&container(json!({ "privileged": true }))).is_err());
    }
}
