//! The program as the first process of a process namespace.

use std::process::Command;

use proxy_testbed::Daemon;

use super::*;

const RULES: &str = "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: { tailnet: [lo], \
                     cluster: [lo0] }\n  dataPath: [userspace]\n  drainSeconds: 1\ningress:\n  - name: web\n    \
                     frontends: [127.0.0.1]\n    ports: [{ protocol: tcp, port: 8080 }]\n    backends: [{ address: \
                     127.0.0.2 }]\n";

/// The processes whose parent this is, with their states (`Z` is a zombie).
fn children(parent: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name may contain anything; what follows it does not.
        let Some((head, tail)) = stat.rsplit_once(") ") else { continue };
        let mut fields = tail.split(' ');
        let (state, of) = (fields.next().unwrap(), fields.next().unwrap());
        if of.parse() == Ok(parent) {
            let number = head.split(' ').next().unwrap().parse().unwrap();
            found.push((number, state.chars().next().unwrap()));
        }
    }
    found
}

#[test]
fn orphans_are_waited_for_and_signals_passed_on() {
    if skipped() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (rules, orphan) = (directory.path().join("rules.yaml"), directory.path().join("orphan"));
    std::fs::write(&rules, RULES).unwrap();
    let namespace = Namespace::new().unwrap();
    let mut command = namespace.command("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", env!("CARGO_BIN_EXE_sluice-proxy"), "run"])
        .arg("--config")
        .arg(&rules)
        .arg("--socket")
        .arg(directory.path().join("socket"));
    let mut unshare = Daemon::start(command, "proxy", directory.path()).unwrap();
    let serves = || namespace.enter(|| std::net::TcpStream::connect("127.0.0.1:9002").is_ok());
    unshare.wait_for(PATIENCE, "the proxy serves", serves).unwrap();
    let first = children(unshare.id())[0].0;
    assert_eq!(children(first).len(), 1, "the first process has the agent alone as its child");

    // Somebody's child outlives it: a shell in the namespace leaves it behind.
    let leave = format!("sleep 0.2 & echo $! > {}", orphan.display());
    let entered = Command::new("nsenter")
        .args(["--pid", "--target", &first.to_string(), "sh", "-c", &leave])
        .status()
        .unwrap();
    assert!(entered.success());
    let adopted = || children(first).len() == 2;
    poll_until(DEADLINE, "the orphan is the first process's child", adopted).unwrap();
    poll_until(DEADLINE, "the orphan is waited for", || children(first).len() == 1).unwrap();

    nix::sys::signal::kill(pid(first), Signal::SIGTERM).unwrap();
    let status = unshare.wait(PATIENCE).unwrap();
    assert!(status.success(), "{status}");
}
