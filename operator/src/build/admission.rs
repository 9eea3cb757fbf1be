//! What keeps the Services and Ingresses of a namespace from ProxyGroups that its ProxyGroupPolicies do not allow: policies of
//! the API server itself, which refuses such an object as it is written.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec,
        ValidatingAdmissionPolicySpec, Validation, Variable,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

use crate::label::{self, EXPOSE, LOAD_BALANCER_CLASS, PROXY_GROUP};

/// Kubernetes' label of a namespace with its name.
const NAMESPACE_NAME: &str = "kubernetes.io/metadata.name";

/// A way through a ProxyGroup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// From the tailnet into the cluster: Ingresses, and Services that are exposed.
    Ingress,
    /// From the cluster into the tailnet: all other Services.
    Egress,
}

/// What the policies of a namespace allow of a way.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Allowed {
    /// The namespace.
    pub namespace: String,
    /// The way.
    pub way: Way,
    /// The ProxyGroups.
    pub groups: BTreeSet<String>,
}

impl Way {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The beginning of a policy's name; the namespace follows.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Ingress => "ts-ingress-",
            Self::Egress => "ts-egress-",
        }
    }

    /// The name of a namespace's policy and of its binding.
    pub fn name(self, namespace: &str) -> String {
        format!("{}{namespace}", self.prefix())
    }
}

impl Allowed {
    /// What is refused.
    pub fn policy(&self) -> ValidatingAdmissionPolicy {
        let annotation = |key: &str| {
            format!("has(object.metadata.annotations) && \"{key}\" in object.metadata.annotations")
        };
        let value = |key: &str| format!("object.metadata.annotations[\"{key}\"]");
        let is_exposed = format!(
            "(has(object.spec.loadBalancerClass) && object.spec.loadBalancerClass == \"{LOAD_BALANCER_CLASS}\") || ({} && {} == \"true\")",
            annotation(EXPOSE),
            value(EXPOSE),
        );
        let names: Vec<_> = self.groups.iter().map(|name| quoted(name)).collect();
        let is_allowed = format!(
            "!({}) || {} in [{}]",
            annotation(PROXY_GROUP),
            value(PROXY_GROUP),
            names.join(", ")
        );
        let variable = |name: &str, expression: &str| Variable {
            name: name.to_owned(),
            expression: expression.to_owned(),
        };
        let (expressions, ingresses) = match self.way {
            Way::Ingress => (
                vec![
                    "request.kind.kind != \"Ingress\" || variables.isAllowed",
                    "request.kind.kind != \"Service\" || !variables.isExposed || variables.isAllowed",
                ],
                Some(rule("networking.k8s.io", "*", "ingresses")),
            ),
            Way::Egress => (vec!["variables.isExposed || variables.isAllowed"], None),
        };
        let validation = |expression: &str| Validation {
            expression: expression.to_owned(),
            message: Some(self.message()),
            ..Validation::default()
        };
        ValidatingAdmissionPolicy {
            metadata: self.metadata(),
            spec: Some(ValidatingAdmissionPolicySpec {
                failure_policy: Some("Fail".into()),
                // What is going must be able to go, whatever is allowed by now.
                match_conditions: Some(vec![MatchCondition {
                    name: "is-not-being-deleted".into(),
                    expression: "!has(object.metadata.deletionTimestamp)".into(),
                }]),
                match_constraints: Some(MatchResources {
                    resource_rules: Some(
                        ingresses.into_iter().chain([rule("", "v1", "services")]).collect(),
                    ),
                    ..MatchResources::default()
                }),
                variables: Some(vec![
                    variable("isExposed", &is_exposed),
                    variable("isAllowed", &is_allowed),
                ]),
                validations: Some(expressions.into_iter().map(validation).collect()),
                ..ValidatingAdmissionPolicySpec::default()
            }),
            ..ValidatingAdmissionPolicy::default()
        }
    }

    /// Where it is refused.
    pub fn binding(&self) -> ValidatingAdmissionPolicyBinding {
        let namespace = label::labels([(NAMESPACE_NAME, self.namespace.as_str())]);
        ValidatingAdmissionPolicyBinding {
            metadata: self.metadata(),
            spec: Some(ValidatingAdmissionPolicyBindingSpec {
                policy_name: self.metadata().name,
                validation_actions: Some(vec!["Deny".into()]),
                match_resources: Some(MatchResources {
                    namespace_selector: Some(LabelSelector {
                        match_labels: Some(namespace),
                        ..LabelSelector::default()
                    }),
                    ..MatchResources::default()
                }),
                ..ValidatingAdmissionPolicyBindingSpec::default()
            }),
        }
    }

    fn metadata(&self) -> ObjectMeta {
        ObjectMeta { name: Some(self.way.name(&self.namespace)), ..ObjectMeta::default() }
    }

    fn message(&self) -> String {
        let names: Vec<_> = self.groups.iter().map(String::as_str).collect();
        let way = match self.way {
            Way::Ingress => "ingress",
            Way::Egress => "egress",
        };
        let allowed = if names.is_empty() {
            "allow none: remove the annotation".to_owned()
        } else {
            format!("allow: {}", names.join(", "))
        };
        let namespace = &self.namespace;
        format!(
            "the annotation {PROXY_GROUP} names a ProxyGroup that this namespace may not use; for {way} the ProxyGroupPolicies of namespace {namespace} {allowed}"
        )
    }
}

fn rule(group: &str, version: &str, resource: &str) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec![version.to_owned()]),
        operations: Some(vec!["CREATE".into(), "UPDATE".into()]),
        resources: Some(vec![resource.to_owned()]),
        ..NamedRuleWithOperations::default()
    }
}

/// A string of the expressions' language: JSON's are.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
