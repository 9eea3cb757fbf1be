//! The tailnet benchmark, run once, as short as can be: that it measures, not what.
#![cfg(test)]

use std::{path::Path, process::Command};

use serde_json::Value;

/// Built beside the benchmark's program by whoever builds the workspace.
fn product(benchmark: &str) -> String {
    let program = Path::new(benchmark).with_file_name("sluice-proxy");
    assert!(
        program.is_file(),
        "{} is not built: run `cargo build --package proxy`",
        program.display()
    );
    program.display().to_string()
}

#[test]
fn every_measure_of_every_way_has_a_number_of_each_round() {
    if std::env::var_os("SKIP_KERNEL_TESTS").is_some_and(|value| value == "1") {
        eprintln!("skipped: SKIP_KERNEL_TESTS=1");
        return;
    }
    let benchmark = env!("CARGO_BIN_EXE_tailnet");
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("run.json");
    let output = Command::new(benchmark)
        .args(["--rounds", "1", "--seconds", "0.1", "--json"])
        .arg(&json)
        .args(["--rung", "direct", "--rung", "upstream-nft", "--rung", "sluice-ebpf"])
        .env("SLUICE_PROXY", product(benchmark))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["| ingress ", "| egress ", "Sluice eBPF", "G17c"] {
        assert!(printed.contains(part), "{part} is not in\n{printed}");
    }

    let run: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let series = run["series"].as_array().unwrap();
    // Ten of traffic and the machine's two costs; two roles with these and what is of a pod: four costs, memory, start.
    let of = |way: &str| series.iter().filter(|one| one["way"] == way).count();
    assert_eq!([of("direct"), of("upstream-nft"), of("sluice-ebpf")], [12, 38, 38]);
    for one in series {
        let values = one["values"].as_array().unwrap();
        assert_eq!(values.len(), 1, "{one}");
        let value = values[0].as_f64().unwrap();
        // An agent may be idle while others carry, and nothing need be lost.
        let may_be_nothing =
            ["cpu1-agent", "cpu8-agent", "cpu1-machine", "cpu8-machine", "udp-lost"];
        let least = may_be_nothing.iter().any(|name| one["measure"] == *name);
        assert!(value > 0.0 || least && value >= 0.0, "{one}");
    }
    let goals = run["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 16);
    assert!(goals.iter().all(|goal| goal["value"].is_f64()), "{goals:?}");
}
