//! The programs that people use: `kubectl sluice top`, which asks the API server, and `sluice-operator top`.

use k8s_openapi::api::rbac::v1::PolicyRule;
use proxy_testbed::kubernetes::{ADDRESS, rule};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    bed::{Bed, NAMESPACE, PROGRAM, in_cluster, wait_until},
    proxies::{Proxy, make_connector, run_pod},
};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-sluice");

async fn run(bed: &Bed<'_>, program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(["top", "--once", "--interval", "1", "--namespace", NAMESPACE])
        .args(arguments)
        .env_clear()
        .env("KUBECONFIG", bed.file("person"))
        .output()
        .await
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn what_proxies_carry_is_seen_live() {
    kernel_or_skip!();
    in_cluster(async |bed| {
        make_connector(&bed.client, "routes").await;
        let proxy = Proxy::start(&bed.client, "routes", 0).await;
        let person = bed.server.account(NAMESPACE, "person").unwrap();
        let leases = PolicyRule {
            api_groups: Some(vec!["coordination.k8s.io".into()]),
            ..rule("leases", &["sluice-operator"], &["get"])
        };
        bed.server.allow(&person, &[leases, rule("pods/proxy", &[], &["get"])]).unwrap();
        bed.write_config("person", &person);
        let nobody = wait_refused(bed).await;
        assert!(
            nobody.contains("nobody holds the Lease sluice-operator in namespace tailscale"),
            "{nobody}"
        );

        let operator = bed.start_at("operator-0", (ADDRESS, 9002).into());
        wait_until("it leads", async || operator.leads().await).await;
        let ip = ADDRESS.to_string();
        run_pod(&bed.client, "operator-0", &json!({}), &ip).await;

        // By the API server, and by whoever is in the pod.
        let lines = run(bed, PLUGIN, &["--json"]).await.unwrap();
        let line: Value = serde_json::from_str(lines.trim()).unwrap();
        assert_eq!(
            (&line["kind"], &line["name"], &line["mode"]),
            (&json!("connector"), &json!("routes"), &json!("userspace"))
        );
        assert_eq!((&line["port"], &line["flows"]), (&json!("8443"), &json!(1)));
        assert_eq!(line["original_packets_per_second"], json!(0.0));
        let table = run(bed, PROGRAM, &["--operator", &format!("{ip}:9002")]).await.unwrap();
        let heads: Vec<_> = table.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(
            heads[..7],
            ["KIND", "OBJECT", "MODE", "RULE", "FROM", "PROTO", "PORT"],
            "{table}"
        );
        assert!(table.contains("default/web"), "{table}");

        proxy.carried(1001);
        let all = operator.asks("/metrics").await;
        let series = "sluice_forwarded_packets_total{kind=\"connector\",namespace=\"\",name=\"routes\",rule=\"default/web\",\
            from=\"tailnet\",protocol=\"tcp\",port=\"8443\",direction=\"original\"}";
        wait_until("the metrics follow", async || {
            operator.asks("/metrics").await.contains(&format!("{series} 1001\n"))
        })
        .await;
        assert!(all.contains("sluice_proxies{kind=\"connector\",namespace=\"\",name=\"routes\",mode=\"userspace\"} 1"), "{all}");

        drop(proxy);
        wait_until("what is wrong is shown", async || {
            let table = run(bed, PLUGIN, &[]).await.unwrap();
            table.contains("connector routes: routes-0: connect to 127.0.1.1:9002: ")
        })
        .await;

        // Another replica does not read proxies, and says so.
        let second = bed.start("second", 9003);
        second.wait_ready().await;
        let answer = second.asks("/v1/counters").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("the Lease sluice-operator"),
            "{answer}"
        );
        assert!(!second.asks("/metrics").await.contains("sluice_forwarded_packets_total"));
    });
}

/// Rights hold a moment after they were given.
async fn wait_refused(bed: &Bed<'_>) -> String {
    let mut said = String::new();
    wait_until("it is told that nobody reconciles", async || {
        said = run(bed, PLUGIN, &[]).await.unwrap_err();
        !said.contains("forbidden")
    })
    .await;
    said
}
