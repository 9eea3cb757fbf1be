//! The real binary: exit codes, files that change under it, signals. User space on loopback: no capability is needed.
#![cfg(test)]

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

const DEADLINE: Duration = Duration::from_secs(20);

fn proxy(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sluice-proxy")).args(arguments).output().unwrap()
}

fn check(text: &str) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml");
    std::fs::write(&file, text).unwrap();
    let output = proxy(&["check", file.to_str().unwrap()]);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

const HEAD: &str = "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: \
                    { tailnet: [tailscale0], cluster: [eth0] }\n";

#[test]
fn check_names_every_error_at_once_and_exits_with_3() {
    let (code, text) = check(&format!(
        "{HEAD}  colour: blue\ningress:\n  - name: a\n    frontends: [100.64.0.1]\n    ports: [{{ protocol: tcp, port: 0 }}]\n    \
         backends: [{{ address: 192.0.2.1 }}]\n  - name: b\n    frontends: [100.64.0.2]\n    ports: [{{ protocol: tcp, port: 80 }}]\n    \
         backends: [{{ address: \"2001:db8::1\" }}]\n  - name: c\n    frontends: [100.64.0.3]\n    ports: [{{ protocol: tcp, port: 80 }}]\n    \
         backends: [{{ address: 192.0.2.1 }}]\n  - name: d\n    frontends: [100.64.0.3]\n    ports: [{{ protocol: tcp, port: 80 }}]\n    \
         backends: [{{ address: 192.0.2.1 }}]\n"
    ));
    assert_eq!(code, Some(3), "{text}");
    for place in ["settings.colour", "ingress[0].ports[0].port", "ingress[1]", "ingress[3]"] {
        assert!(text.contains(place), "{place} is not named:\n{text}");
    }
}

#[test]
fn what_is_not_text_is_an_invalid_file_also_for_machines() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules.yaml");
    std::fs::write(&file, [HEAD.as_bytes(), b"ingress:\xff"].concat()).unwrap();
    let output = proxy(&["check", "--json", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["valid"], false);
    let problem = said["errors"][0]["problem"].as_str().unwrap();
    let byte = HEAD.len() + "ingress:".len() + 1;
    assert!(problem.contains(&format!("byte {byte}")), "{problem}");
}

#[test]
fn check_names_ten_thousand_and_one_errors() {
    let mut text = format!("{HEAD}ingress:\n");
    for number in 0..10_001 {
        text += "  - name: e";
        text += &number.to_string();
        text += "\n    frontends: [100.64.0.1]\n    ports: [{ protocol: tcp, port: 0 }]\n    backends: [{ address: 192.0.2.1 }]\n";
    }
    let (code, text) = check(&text);
    assert_eq!(code, Some(3));
    // Line by line: a search of the whole text for each would take longer than the check itself.
    let named: BTreeSet<&str> = text.lines().filter_map(|line| line.split(": ").next()).collect();
    let missing = (0..10_001).find(|n| !named.contains(&*format!("ingress[{n}].ports[0].port")));
    assert_eq!(missing, None);
}

/// A running proxy, ended with its test.
struct Running {
    child: Child,
    directory: tempfile::TempDir,
}

impl Running {
    fn start(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("rules.yaml");
        std::fs::write(&file, text).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sluice-proxy"))
            .args(["run", "--admin", "127.0.0.1:0", "--config"])
            .arg(&file)
            .arg("--socket")
            .arg(directory.path().join("socket"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, directory }
    }

    fn replace(&self, text: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.directory.path().join("rules.yaml")).unwrap();
    }

    fn status(&self) -> String {
        let socket = self.directory.path().join("socket");
        let output = proxy(&["status", "--json", "--socket", socket.to_str().unwrap()]);
        String::from_utf8(output.stdout).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(Path::new(self.directory.path()).join("log")).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, running: &Running, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}\n{}", running.log());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// A server that sends one byte to every client.
fn server(byte: u8) -> u16 {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&[byte]);
        }
    });
    port
}

fn ask(port: u16) -> Option<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let mut byte = [0];
    stream.read_exact(&mut byte).ok().map(|()| byte[0])
}

#[test]
fn a_bad_change_keeps_the_rules_in_force_and_a_good_one_is_followed() {
    let (one, two) = (server(1), server(2));
    let front = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let rules = |target: u16| {
        format!(
            "apiVersion: sluice.dev/v1\nkind: ProxyRules\nsettings:\n  interfaces: {{ tailnet: [lo], cluster: \
             [lo0] }}\n  dataPath: [userspace]\n  drainSeconds: 1\ningress:\n  - name: web\n    frontends: \
             [127.0.0.1]\n    ports: [{{ protocol: tcp, port: {front}, targetPort: {target} }}]\n    backends: \
             [{{ address: 127.0.0.2 }}]\n"
        )
    };
    let mut running = Running::start(&rules(one));
    eventually("the first rules serve", &running, || ask(front) == Some(1));
    running.replace(&rules(two).replace("targetPort", "targetPrt"));
    eventually("the error is in the status", &running, || running.status().contains("targetPrt"));
    assert_eq!(ask(front), Some(1), "the old rules serve on");
    running.replace(&rules(two));
    eventually("the new rules serve", &running, || ask(front) == Some(2));

    let id = nix::unistd::Pid::from_raw(running.child.id() as i32);
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
    let deadline = Instant::now() + DEADLINE;
    let code = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status.code();
        }
        assert!(Instant::now() < deadline, "does not end\n{}", running.log());
        std::thread::park_timeout(Duration::from_millis(20));
    };
    assert_eq!(code, Some(0), "{}", running.log());
}
