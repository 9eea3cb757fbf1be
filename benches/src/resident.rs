//! How much memory the agent takes: the real program, 1000 ports, 64 k live flows. Maps are the kernel's and are not
//! in it; pages of the program's file that are in memory are.

use std::{
    env,
    fmt::Write,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use proxy_rules::Protocol;

use crate::{
    generator::{self, BACKEND_PORT, FIRST_PORT, Generator, Limit, Workload},
    kernel::Kernel,
    pairs,
    rig::{Entry, Lane, Rig},
    rung::Rung,
    usage,
};

const PORTS: u16 = 1000;
const FLOWS: u32 = 1 << 16;
/// How long the agent may take to be in force, and how often it then looks after that many flows before it is judged.
const PATIENCE: Duration = Duration::from_secs(20);
const TURNS: Duration = Duration::from_secs(3);

/// Megabytes (10^6) resident, at the end of some turns of its regular work.
#[expect(clippy::disallowed_methods, reason = "the agent's regular work announces nothing")]
pub fn measure() -> Result<f64> {
    let program = env::var_os("SLUICE_PROXY").context("SLUICE_PROXY names the agent's program")?;
    let rig = Rig::new(1, Entry::Frames)?;
    let lane = rig.lanes.first().context("a rig without lanes")?;
    let directory = env::temp_dir().join(format!("sluice-resident-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let rules = directory.join("rules.yaml");
    fs::write(&rules, rules_file(lane)?)?;
    let log = fs::File::create(directory.join("log"))?;
    let mut command = Command::new(&program);
    command.arg("run").arg("--config").arg(&rules);
    command.arg("--socket").arg(directory.join("socket")).args(["--admin", "127.0.0.1:0"]);
    command.stdout(Stdio::null()).stderr(log);
    let agent = lane.router.run(|| {
        let child = command.spawn();
        Ok(Agent(child.with_context(|| format!("starting {}", program.display()))?))
    })?;
    wait_until_in_force(&directory.join("log"))?;

    let mut sink = Kernel::load()?;
    sink.configure(generator::counting())?;
    sink.attach_xdp("bench_sink", &rig.receiver, &lane.receiver_device())?;
    let workload = Workload { flows: FLOWS, ports: PORTS };
    let limit = Limit::Packets(2 * u64::from(FLOWS));
    let path = Rung::SluiceTc.path();
    Generator::new()?.run(&rig, lane, path, workload, limit, &sink)?;
    let halves = pairs::newest_flow_table()?.keys().count();
    ensure!(halves == 2 * FLOWS as usize, "{halves} halves of {FLOWS} flows are in the table");
    thread::sleep(TURNS);
    let megabytes = usage::memory(&[agent.0.id()])?;
    drop(agent);
    fs::remove_dir_all(&directory)?;
    Ok(megabytes)
}

/// The source is kept, as on every rung: one address has no 65 536 ports to masquerade so many flows.
fn rules_file(lane: &Lane) -> Result<String> {
    let protocol = Protocol::Udp;
    let mut text = format!(
        "apiVersion: sluice.dev/v1\n\
         kind: ProxyRules\n\
         settings:\n  dataPath: [ebpf]\n  interfaces: {{ tailnet: [tn0], cluster: [cl0] }}\n\
         ingress:\n  - name: web\n    snat: keep\n    frontends: [{}]\n    backends: [{{ address: {} }}]\n    ports:\n",
        lane.frontend(),
        lane.backend()
    );
    for port in FIRST_PORT..FIRST_PORT + PORTS {
        writeln!(
            text,
            "      - {{ protocol: {protocol}, port: {port}, targetPort: {BACKEND_PORT} }}"
        )?;
    }
    Ok(text)
}

#[expect(clippy::disallowed_methods, reason = "a file that grows announces nothing")]
fn wait_until_in_force(log: &Path) -> Result<()> {
    let started = Instant::now();
    loop {
        let text = fs::read_to_string(log)?;
        if text.contains("in force") {
            return Ok(());
        }
        ensure!(started.elapsed() < PATIENCE, "the agent is not in force:\n{text}");
        thread::sleep(Duration::from_millis(50));
    }
}

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
