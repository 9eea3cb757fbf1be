//! The tasks that the README tells people to run and that nothing else runs.
#![expect(clippy::expect_used, reason = "test")]

use std::process::{Command, Output};

fn xtask(arguments: &[&str]) -> Output {
    let output =
        Command::new(env!("CARGO_BIN_EXE_xtask")).args(arguments).output().expect("xtask starts");
    assert!(
        output.status.success(),
        "{arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

#[test]
fn every_task_explains_itself() {
    for task in
        ["setup", "build-ebpf", "check", "test", "demo", "bench", "generate", "images", "faults"]
    {
        let help = xtask(&[task, "--help"]).stdout;
        assert!(help.len() > 100, "{task}");
    }
}

#[test]
fn building_the_kernel_programs_names_the_toolchain_and_every_entry_point() {
    let text = String::from_utf8_lossy(&xtask(&["build-ebpf"]).stdout).into_owned();
    for part in ["toolchain: ", "sl_tc_l2_tn", "sl_tc_l3_cl", "sl_xdp_tn"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn making_images_can_be_looked_at_first() {
    let text = String::from_utf8_lossy(&xtask(&["images", "--dry-run"]).stdout).into_owned();
    for part in [
        "cargo build --package operator --bin sluice-operator --release",
        "/tailscaled and its libraries",
        "oci-archive:",
        "sluice-proxy.tar:sluice-proxy:0.1.0",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}
