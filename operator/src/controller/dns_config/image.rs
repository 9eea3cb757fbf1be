//! The image of a nameserver, and what is started in it.

use crate::crd::dns_config::NameserverImage;

/// Upstream's nameserver, by the last part of its repository. It starts by itself and reads the same records.
const UPSTREAM: &str = "k8s-nameserver";

/// The operator's own image, as far as none is asked for, and the command in it.
pub(super) fn image(asked: Option<&NameserverImage>, own: &str) -> (String, Vec<String>) {
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let repo = asked.and_then(|image| some(&image.repo));
    let tag = asked.and_then(|image| some(&image.tag));
    let image = match (&repo, &tag) {
        (None, None) => own.to_owned(),
        (repo, tag) => {
            let (own_repo, own_tag) = split(own);
            let repo = repo.as_deref().unwrap_or(own_repo);
            format!("{repo}:{}", tag.as_deref().unwrap_or(own_tag))
        }
    };
    let name = repo.as_deref().and_then(|repo| repo.rsplit('/').next());
    let command = if name == Some(UPSTREAM) {
        Vec::new()
    } else {
        ["sluice-operator", "nameserver"].map(str::to_owned).to_vec()
    };
    (image, command)
}

/// Repository and tag. A digest is of one image only, and a port is no tag.
fn split(image: &str) -> (&str, &str) {
    let image = image.split_once('@').map_or(image, |(name, _)| name);
    match image.rsplit_once(':') {
        Some((repo, tag)) if !tag.contains('/') => (repo, tag),
        _ => (image, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_asked_for_is_the_operators_own() {
        let of = |repo: Option<&str>, tag: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            let asked = NameserverImage { repo: owned(repo), tag: owned(tag) };
            let (image, command) = image(Some(&asked), "registry:5000/sluice-operator:v1");
            format!("{image} {}", command.join(" "))
        };
        let ours = "sluice-operator nameserver";
        assert_eq!(of(None, None), format!("registry:5000/sluice-operator:v1 {ours}"));
        assert_eq!(of(None, Some("v2")), format!("registry:5000/sluice-operator:v2 {ours}"));
        assert_eq!(of(Some("mirror/op"), None), format!("mirror/op:v1 {ours}"));
        assert_eq!(
            of(Some("tailscale/k8s-nameserver"), Some("stable")),
            "tailscale/k8s-nameserver:stable "
        );
        assert_eq!(image(None, "a@sha256:00").0, "a@sha256:00");
        assert_eq!(split("registry:5000/a"), ("registry:5000/a", "latest"));
        assert_eq!(split("a:v1@sha256:00"), ("a", "v1"));
    }
}
