//! The cluster's DNS domain, as a pod sees it.

/// From this pod's resolv.conf; `cluster.local` if that does not tell.
pub fn cluster_domain(namespace: &str) -> String {
    let file = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    from_search(&file, namespace).unwrap_or_else(|| "cluster.local".to_owned())
}

/// The kubelet writes the search domains `NAMESPACE.svc.X`, `svc.X` and `X`, in that order.
fn from_search(file: &str, namespace: &str) -> Option<String> {
    // The last line of its kind counts.
    let line = file.lines().rev().find_map(|line| line.trim_start().strip_prefix("search"))?;
    let mut domains = line.split_whitespace().map(|domain| domain.trim_end_matches('.'));
    let (in_namespace, of_services, cluster) = (domains.next()?, domains.next()?, domains.next()?);
    let fits = in_namespace.eq_ignore_ascii_case(&format!("{namespace}.svc.{cluster}"))
        && of_services.eq_ignore_ascii_case(&format!("svc.{cluster}"));
    fits.then(|| cluster.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::from_search;

    #[test]
    fn the_domain_is_taken_only_from_a_pods_search_domains() {
        let of = |file: &str| from_search(file, "tailscale");
        let pod =
            "nameserver 10.96.0.10\nsearch tailscale.svc.k8s.corp svc.k8s.corp k8s.corp lan\n";
        assert_eq!(of(pod).as_deref(), Some("k8s.corp"));
        let dots = "search tailscale.svc.k8s.corp. svc.k8s.corp. K8s.corp.";
        assert_eq!(of(dots).as_deref(), Some("k8s.corp"));
        for other in ["", "search lan", "search default.svc.a.b svc.a.b a.b", "search a b c"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
