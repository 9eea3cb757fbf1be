//! What a Recorder asks for, all errors at once.

use kube::ResourceExt as _;

use crate::{controller::proxy_class::metadata, crd::Recorder};

/// Room for the number of a replica, and for the hash that Kubernetes labels pods with, in 63 characters.
const NAME_LIMIT: usize = 52;

/// Everything that is wrong, each with field and remedy.
pub(super) fn violations(recorder: &Recorder) -> Option<String> {
    let spec = &recorder.spec;
    let mut wrong = Vec::new();
    let name = recorder.name_any();
    if name.len() > NAME_LIMIT {
        wrong.push(format!(
            "metadata.name: has {} characters, make a Recorder with a name of {NAME_LIMIT} at most",
            name.len()
        ));
    }
    let s3 = spec.storage.as_ref().and_then(|storage| storage.s3.as_ref());
    if s3.is_none() && spec.enable_ui != Some(true) {
        wrong.push("spec: nobody could see the recordings, set enableUI or storage.s3".to_owned());
    }
    if s3.is_none() && spec.replicas > 1 {
        wrong.push("spec.replicas: replicas share no disk, set storage.s3".to_owned());
    }
    let pod = spec.stateful_set.as_ref().and_then(|set| set.pod.as_ref());
    if let Some(account) = pod.and_then(|pod| pod.service_account.as_ref()) {
        let field = "spec.statefulSet.pod.serviceAccount.annotations";
        metadata::annotations(field, &account.annotations, &mut wrong);
    }
    (!wrong.is_empty()).then(|| wrong.join("; "))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(name: &str, spec: &Value) -> String {
        let recorder = serde_json::from_value(json!({
            "apiVersion": "tailscale.com/v1alpha1", "kind": "Recorder",
            "metadata": { "name": name }, "spec": spec,
        }));
        violations(&recorder.unwrap()).unwrap_or_default()
    }

    #[test]
    fn all_that_is_wrong_is_said_with_field_and_remedy() {
        assert_eq!(of("r", &json!({ "enableUI": true })), "");
        assert_eq!(of("r", &json!({ "replicas": 2, "storage": { "s3": {} } })), "");
        let account = json!({ "serviceAccount": { "annotations": { "a key": "" } } });
        let spec = json!({ "replicas": 2, "statefulSet": { "pod": account } });
        let said = of(&"r".repeat(53), &spec);
        for part in
            ["metadata.name: has 53", "set enableUI", "spec.replicas", "`a key` is not a key"]
        {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
}
