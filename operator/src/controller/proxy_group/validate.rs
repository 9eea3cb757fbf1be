//! Whether what a ProxyGroup asks for can be done.

use kube::ResourceExt as _;

use super::replicas;
use crate::{
    crd::{
        ProxyGroup,
        proxy_class::ProxyClassSpec,
        proxy_group::{KubeApiServerMode, ProxyGroupType},
    },
    name::Hostname,
};

/// The ServiceAccount of ProxyGroups that say to the API server who their callers are.
pub(super) const AUTH_ACCOUNT: &str = "kube-apiserver-auth-proxy";
/// Room for what Kubernetes adds to the name of a StatefulSet in a label of its pods.
const LONGEST_NAME: usize = 52;

/// All that is wrong with it, if anything is.
pub(super) fn violations(group: &ProxyGroup, class: Option<&ProxyClassSpec>) -> Option<String> {
    let mut wrong = Vec::new();
    let name = group.name_any();
    if name.len() > LONGEST_NAME || name.contains('.') {
        wrong.push(format!(
            "metadata.name: `{name}` is the name of pods and Services, make the ProxyGroup anew with \
             {LONGEST_NAME} letters at most and no dots"
        ));
    } else if name == AUTH_ACCOUNT && !is_auth(group) {
        wrong.push(format!(
            "metadata.name: `{AUTH_ACCOUNT}` is the ServiceAccount of ProxyGroups that authenticate, use another one"
        ));
    }
    if let Some(last) = hostnames(group).last()
        && let Err(error) = Hostname::new(last)
        && wrong.is_empty()
    {
        wrong.push(format!("spec.hostnamePrefix: with the replica's number {error}"));
    }
    if group.spec.type_ != ProxyGroupType::KubeApiserver
        && let Some(image) = class.and_then(image).filter(|image| is_of(image, "k8s-proxy"))
    {
        wrong.push(format!(
            "ProxyClass, spec.statefulSet.pod.tailscaleContainer.image: `{image}` is for ProxyGroups of type \
             kube-apiserver, use another class"
        ));
    }
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

/// The names of the replicas in the tailnet.
pub(super) fn hostnames(group: &ProxyGroup) -> Vec<String> {
    let prefix = group.spec.hostname_prefix.clone().filter(|prefix| !prefix.is_empty());
    let prefix = prefix.unwrap_or_else(|| group.name_any());
    (0..replicas(group)).map(|ordinal| format!("{prefix}-{ordinal}")).collect()
}

fn is_auth(group: &ProxyGroup) -> bool {
    let mode = group.spec.kube_api_server.as_ref().and_then(|server| server.mode);
    group.spec.type_ == ProxyGroupType::KubeApiserver
        && mode.unwrap_or_default() == KubeApiServerMode::Auth
}

fn image(class: &ProxyClassSpec) -> Option<&str> {
    let pod = class.stateful_set.as_ref()?.pod.as_ref()?;
    pod.tailscale_container.as_ref()?.container.image.as_deref()
}

/// Whether an image's repository has this last part, whatever its tag or digest.
fn is_of(image: &str, name: &str) -> bool {
    let path = image.split('@').next().unwrap_or_default();
    let last = path.rsplit('/').next().unwrap_or_default();
    last.split(':').next() == Some(name)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::needless_pass_by_value, reason = "tests give literals")]

    use serde_json::{Value, json};

    use super::*;

    fn wrong(name: &str, spec: Value, class: Value) -> String {
        let group: ProxyGroup = serde_json::from_value(json!({
            "apiVersion": "tailscale.com/v1alpha1", "kind": "ProxyGroup",
            "metadata": { "name": name }, "spec": spec,
        }))
        .unwrap();
        let class: ProxyClassSpec = serde_json::from_value(class).unwrap();
        violations(&group, Some(&class)).unwrap_or_default()
    }

    #[test]
    fn names_must_fit_and_images_must_be_of_the_type() {
        let egress = || json!({ "type": "egress" });
        let image = |image: &str| json!({ "statefulSet": { "pod": { "tailscaleContainer": { "image": image } } } });
        assert_eq!(wrong("pg", egress(), json!({})), "");
        assert_eq!(wrong(&"n".repeat(52), egress(), json!({})), "");
        for name in ["n".repeat(53), "a.b".into()] {
            assert!(wrong(&name, egress(), json!({})).contains("make the ProxyGroup anew"));
        }
        assert!(wrong(AUTH_ACCOUNT, egress(), json!({})).contains("use another one"));
        let long = json!({ "type": "ingress", "hostnamePrefix": "p".repeat(62) });
        assert!(wrong("pg", long, json!({})).starts_with("spec.hostnamePrefix: with"));
        for (name, is_wrong) in [
            ("ghcr.io/tailscale/k8s-proxy:v1", true),
            ("k8s-proxy@sha256:00", true),
            ("host:5000/k8s-proxy", true),
            ("tailscale/tailscale:k8s-proxy", false),
            ("my-k8s-proxy", false),
        ] {
            assert_eq!(!wrong("pg", egress(), image(name)).is_empty(), is_wrong, "{name}");
        }
        // What is wrong is told at once.
        let both = wrong("a.b", egress(), image("k8s-proxy"));
        assert!(both.contains("metadata.name") && both.contains("ProxyClass"), "{both}");
    }
}
