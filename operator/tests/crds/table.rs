//! The cases, by their numbers in the catalogue of the contract; from 34 on our own.

/// An object, or a change to one.
pub(crate) struct Case {
    /// Its number.
    pub(crate) number: u8,
    /// The kind.
    pub(crate) kind: &'static str,
    /// The spec, as YAML; with `before`, what of it is changed.
    pub(crate) spec: &'static str,
    /// The spec before the change; without it the object is new.
    pub(crate) before: Option<&'static str>,
    /// The field that the refusal names; without it the object is accepted.
    pub(crate) refused: Option<&'static str>,
}

const fn accept(number: u8, kind: &'static str, spec: &'static str) -> Case {
    Case { number, kind, spec, before: None, refused: None }
}

const fn refuse(number: u8, kind: &'static str, spec: &'static str, field: &'static str) -> Case {
    Case { number, kind, spec, before: None, refused: Some(field) }
}

impl Case {
    const fn after(self, before: &'static str) -> Self {
        Self { before: Some(before), ..self }
    }
}

const CONNECTOR: &str = "Connector";
const CLASS: &str = "ProxyClass";
const GROUP: &str = "ProxyGroup";
const POLICY: &str = "ProxyGroupPolicy";
const RECORDER: &str = "Recorder";
const TAILNET: &str = "Tailnet";
const RELAY: &str = "PeerRelay";
const DNS: &str = "DNSConfig";

/// Every case.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    accept(1, CONNECTOR, "{subnetRouter: {advertiseRoutes: [10.0.0.0/8]}}"),
    accept(1, CONNECTOR, "{subnetRouter: {advertiseRoutes: [10.0.0.0/8, 'fd7a:115c:a1e0:b1a:0:7:a00:0/104']}}"),
    accept(2, CONNECTOR, "{exitNode: true}"),
    accept(2, CONNECTOR, "{exitNode: true, subnetRouter: {advertiseRoutes: [10.0.0.0/8]}}"),
    refuse(3, CONNECTOR, "{exitNode: false}", "spec"),
    refuse(3, CONNECTOR, "{}", "spec"),
    accept(4, CONNECTOR, "{appConnector: {}}"),
    refuse(5, CONNECTOR, "{appConnector: {}, exitNode: true}", "spec.appConnector"),
    refuse(5, CONNECTOR, "{appConnector: {}, subnetRouter: {advertiseRoutes: [10.0.0.0/8]}}", "spec.appConnector"),
    accept(6, CONNECTOR, "{appConnector: {}, exitNode: false}"),
    refuse(7, CONNECTOR, "{appConnector: {routes: []}}", "spec.appConnector.routes"),
    refuse(7, CONNECTOR, "{subnetRouter: {advertiseRoutes: []}}", "spec.subnetRouter.advertiseRoutes"),
    refuse(7, CONNECTOR, "{subnetRouter: {}}", "spec.subnetRouter.advertiseRoutes"),
    refuse(8, CONNECTOR, "{subnetRouter: {advertiseRoutes: [10.0.0.1]}}", "spec.subnetRouter.advertiseRoutes[0]"),
    refuse(8, CONNECTOR, "{appConnector: {routes: [10.0.0.0/8, here]}}", "spec.appConnector.routes[1]"),
    accept(8, CONNECTOR, "{subnetRouter: {advertiseRoutes: [10.0.0.1/8]}}"),
    refuse(9, CONNECTOR, "{exitNode: true, hostname: a}", "spec.hostname"),
    refuse(9, CONNECTOR, "{exitNode: true, hostname: -ab}", "spec.hostname"),
    refuse(9, CONNECTOR, "{exitNode: true, hostname: ab-}", "spec.hostname"),
    refuse(9, CONNECTOR, "{exitNode: true, hostnamePrefix: -a}", "spec.hostnamePrefix"),
    accept(9, CONNECTOR, "{exitNode: true, hostnamePrefix: a}"),
    accept(10, CONNECTOR, "{exitNode: true, hostname: x1, replicas: 1}"),
    refuse(10, CONNECTOR, "{exitNode: true, hostname: x1, replicas: 2}", "spec.hostname"),
    refuse(10, CONNECTOR, "{exitNode: true, hostname: x1, hostnamePrefix: x}", "spec.hostnamePrefix"),
    refuse(11, CONNECTOR, "{exitNode: true, tags: ['tag:1x']}", "spec.tags[0]"),
    refuse(11, CONNECTOR, "{exitNode: true, tags: ['tag:k8s', k8s]}", "spec.tags[1]"),
    accept(11, CONNECTOR, "{exitNode: true, tags: ['tag:k8s', 'tag:A-1']}"),
    refuse(12, CONNECTOR, "{tailnet: b}", "spec.tailnet").after("{exitNode: true, tailnet: a}"),
    accept(12, CONNECTOR, "{tailnet: a}").after("{exitNode: true}"),
    accept(12, CONNECTOR, "{replicas: 2}").after("{exitNode: true, tailnet: a}"),
    refuse(12, GROUP, "{tailnet: b}", "spec.tailnet").after("{type: egress, tailnet: a}"),
    accept(12, GROUP, "{tailnet: a}").after("{type: egress}"),
    refuse(12, RECORDER, "{tailnet: b}", "spec.tailnet").after("{tailnet: a}"),
    accept(12, RECORDER, "{tailnet: a}").after("{}"),
    refuse(12, RELAY, "{tailnet: b}", "spec.tailnet").after("{tailnet: a}"),
    accept(12, RELAY, "{tailnet: a}").after("{}"),
    accept(12, RELAY, "{tailnet: null}").after("{tailnet: a}"),
    refuse(13, CLASS, "{metrics: {enable: false, serviceMonitor: {enable: true}}}", "spec.metrics.serviceMonitor.enable"),
    accept(13, CLASS, "{metrics: {enable: false, serviceMonitor: {enable: false}}}"),
    accept(13, CLASS, "{metrics: {enable: true, serviceMonitor: {enable: true, labels: {a: b}}}}"),
    refuse(14, CLASS, "{metrics: {}}", "spec.metrics.enable"),
    refuse(14, CLASS, "{metrics: {enable: true, serviceMonitor: {}}}", "spec.metrics.serviceMonitor.enable"),
    refuse(15, CLASS, "{statefulSet: {pod: {labels: {a: a234567890123456789012345678901234567890123456789012345678901234}}}}", "spec.statefulSet.pod.labels.a"),
    refuse(15, CLASS, "{statefulSet: {pod: {labels: {a: b/c}}}}", "spec.statefulSet.pod.labels.a"),
    refuse(15, CLASS, "{statefulSet: {labels: {a: b/c}}}", "spec.statefulSet.labels.a"),
    refuse(15, CLASS, "{metrics: {enable: true, serviceMonitor: {enable: true, labels: {a: b/c}}}}", "spec.metrics.serviceMonitor.labels.a"),
    accept(15, CLASS, "{statefulSet: {pod: {labels: {'-a-/-': b, empty: ''}}}}"),
    refuse(16, CLASS, "{statefulSet: {pod: {tailscaleContainer: {env: [{name: 1A}]}}}}", "spec.statefulSet.pod.tailscaleContainer.env[0].name"),
    refuse(16, CLASS, "{statefulSet: {pod: {tailscaleInitContainer: {env: [{value: a}]}}}}", "spec.statefulSet.pod.tailscaleInitContainer.env[0].name"),
    accept(16, CLASS, "{statefulSet: {pod: {tailscaleContainer: {env: [{name: A}]}}}}"),
    refuse(17, CLASS, "{staticEndpoints: {}}", "spec.staticEndpoints.nodePort"),
    refuse(17, CLASS, "{staticEndpoints: {nodePort: {}}}", "spec.staticEndpoints.nodePort.ports"),
    refuse(17, CLASS, "{staticEndpoints: {nodePort: {ports: []}}}", "spec.staticEndpoints.nodePort.ports"),
    refuse(17, CLASS, "{staticEndpoints: {nodePort: {ports: [{endPort: 30010}]}}}", "spec.staticEndpoints.nodePort.ports[0].port"),
    accept(17, CLASS, "{staticEndpoints: {nodePort: {ports: [{port: 30000, endPort: 30010}, {port: -1}, {port: 3000000000}], selector: {a: b}}}}"),
    refuse(18, CLASS, "{statefulSet: {pod: {dnsPolicy: Foo}}}", "spec.statefulSet.pod.dnsPolicy"),
    refuse(18, CLASS, "{statefulSet: {pod: {tailscaleContainer: {imagePullPolicy: always}}}}", "spec.statefulSet.pod.tailscaleContainer.imagePullPolicy"),
    accept(18, CLASS, "{statefulSet: {pod: {dnsPolicy: None, tailscaleContainer: {imagePullPolicy: Always}}}}"),
    accept(19, CLASS, "{}"),
    refuse(20, GROUP, "{}", "spec.type"),
    refuse(20, GROUP, "{type: foo}", "spec.type"),
    refuse(20, GROUP, "{type: ingress}", "spec.type").after("{type: egress}"),
    accept(20, GROUP, "{type: kube-apiserver}"),
    refuse(21, GROUP, "{type: egress, replicas: -1}", "spec.replicas"),
    accept(21, GROUP, "{type: egress, replicas: 0}"),
    accept(22, GROUP, "{type: egress, kubeAPIServer: {mode: noauth}}"),
    accept(23, GROUP, "{type: kube-apiserver, kubeAPIServer: {hostname: a, mode: auth}}"),
    refuse(23, GROUP, "{type: kube-apiserver, kubeAPIServer: {hostname: a-}}", "spec.kubeAPIServer.hostname"),
    refuse(23, GROUP, "{type: kube-apiserver, kubeAPIServer: {mode: none}}", "spec.kubeAPIServer.mode"),
    accept(24, POLICY, "{}"),
    accept(24, POLICY, "{ingress: [a], egress: []}"),
    accept(25, RECORDER, "{}"),
    refuse(26, RECORDER, "{replicas: 2}", "spec.replicas"),
    refuse(26, RECORDER, "{replicas: 2, storage: {}}", "spec.replicas"),
    accept(26, RECORDER, "{replicas: 2, storage: {s3: {}}}"),
    accept(27, RECORDER, "{statefulSet: {pod: {serviceAccount: {name: a.b-c}}}}"),
    refuse(27, RECORDER, "{statefulSet: {pod: {serviceAccount: {name: A}}}}", "spec.statefulSet.pod.serviceAccount.name"),
    refuse(28, TAILNET, "{}", "spec.credentials"),
    refuse(28, TAILNET, "{credentials: {}}", "spec.credentials.secretName"),
    accept(28, TAILNET, "{credentials: {secretName: a}, loginUrl: 'https://control.example'}"),
    accept(29, RELAY, "{}"),
    refuse(30, RELAY, "{replicas: 2, aws: {elasticIPs: [{allocationID: eipalloc-1, subnetID: subnet-1}]}}", "spec.aws.elasticIPs"),
    accept(30, RELAY, "{replicas: 2, aws: {elasticIPs: [{allocationID: eipalloc-1, subnetID: subnet-1}, \
        {allocationID: eipalloc-2, subnetID: subnet-2}, {allocationID: eipalloc-3, subnetID: subnet-3}]}}"),
    refuse(31, RELAY, "{aws: {}}", "spec.aws.elasticIPs"),
    refuse(31, RELAY, "{aws: {elasticIPs: []}}", "spec.aws.elasticIPs"),
    refuse(31, RELAY, "{aws: {elasticIPs: [{allocationID: eipalloc-XYZ, subnetID: subnet-1}]}}", "spec.aws.elasticIPs[0].allocationID"),
    refuse(31, RELAY, "{aws: {elasticIPs: [{allocationID: eipalloc-1}]}}", "spec.aws.elasticIPs[0].subnetID"),
    refuse(32, DNS, "{}", "spec.nameserver"),
    accept(32, DNS, "{nameserver: {}}"),
    refuse(32, DNS, "{nameserver: {replicas: -1}}", "spec.nameserver.replicas"),

    // Quantities are numbers or text, and text has a form.
    accept(34, CLASS, "{statefulSet: {pod: {tailscaleContainer: {resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 100m}}}}}}"),
    refuse(34, CLASS, "{statefulSet: {pod: {tailscaleContainer: {resources: {limits: {cpu: 1 core}}}}}}", "spec.statefulSet.pod.tailscaleContainer.resources.limits.cpu"),
    refuse(34, RECORDER, "{statefulSet: {pod: {container: {resources: {requests: {memory: []}}}}}}", "spec.statefulSet.pod.container.resources.requests.memory"),
    // Numbers that no field of a pod could hold.
    refuse(35, CONNECTOR, "{exitNode: true, replicas: 3000000000}", "spec.replicas"),
    refuse(35, CLASS, "{statefulSet: {pod: {topologySpreadConstraints: [{maxSkew: 3000000000, topologyKey: a, whenUnsatisfiable: b}]}}}",
        "spec.statefulSet.pod.topologySpreadConstraints[0].maxSkew"),
    refuse(35, CLASS, "{staticEndpoints: {nodePort: {ports: [{port: 10000000000000000000}]}}}", "spec.staticEndpoints.nodePort.ports[0].port"),
    refuse(35, CLASS, "{statefulSet: {pod: {securityContext: {runAsUser: 1.0e+30}}}}", "spec.statefulSet.pod.securityContext.runAsUser"),
    accept(35, CLASS, "{statefulSet: {pod: {securityContext: {runAsUser: 2.0}}}}"),
    // What nobody has said is said by leaving it out, in Helm charts by null.
    accept(36, CONNECTOR, "{exitNode: true, tags: null, hostname: null, subnetRouter: null}"),
    accept(36, CLASS, "{statefulSet: {labels: null, pod: {tolerations: null, affinity: null, imagePullSecrets: null}}}"),
    accept(36, RECORDER, "{replicas: null}"),
    // Our own fields.
    accept(37, CLASS, "{dataPath: {mode: ebpf, xdp: native, backends: clusterIP, proxyProtocol: true, maxFlows: 1048576}}"),
    accept(37, CLASS, "{dataPath: {}}"),
    refuse(37, CLASS, "{dataPath: {mode: iptables}}", "spec.dataPath.mode"),
    refuse(37, CLASS, "{dataPath: {xdp: on}}", "spec.dataPath.xdp"),
    refuse(37, CLASS, "{dataPath: {backends: pods}}", "spec.dataPath.backends"),
    refuse(37, CLASS, "{dataPath: {maxFlows: 1}}", "spec.dataPath.maxFlows"),
];
