//! Who may connect, how many at once, with which privileges, and that nothing is left behind.

use std::{
    env, fs,
    io::Read,
    net::SocketAddr,
    os::{fd::AsRawFd, unix::process::CommandExt},
    process::Command,
    thread,
};

use nix::{
    sys::resource::{Resource, setrlimit},
    unistd::geteuid,
};
use proxy::data_path::{DataPath, userspace::UserspacePath};
use proxy_rules::{DropReason, Protocol, RuleTable, Settings, Side};

use crate::support::*;

#[test]
fn only_listed_sources_are_served() {
    let (tcp, udp, front) = (Echo::tcp(local()), Echo::udp(local(), b""), frontend());
    let (friend, stranger) = (local(), local());
    let mut rules =
        [rule(Protocol::Tcp, front, &[tcp.address]), rule(Protocol::Udp, front, &[udp.address])];
    for rule in &mut rules {
        rule.matches.src = vec![friend.into()];
    }
    let path = path(rules.clone());
    echoes(&mut connect_from(friend, front), b"hello");
    assert_reset(&mut connect_from(stranger, front));
    assert_eq!(drops(&path, DropReason::Rejected), 1);

    let [known, unknown] = [friend, stranger].map(|address| {
        let socket = std::net::UdpSocket::bind((address, 0)).unwrap();
        socket.connect(front).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        socket
    });
    unknown.send(b"let me in").unwrap();
    assert_eq!(ask(&known, b"hello"), b"hello");
    assert_eq!(drops(&path, DropReason::Rejected), 2);
    for rule in &rules {
        assert_eq!(count(&path, rule).flows, 1);
    }
    assert_eq!(tcp.accepted(), 1);
}

#[test]
fn the_most_specific_rule_whose_sources_match_decides() {
    let (one, two, front) = (Echo::tcp(local()), Echo::tcp(local()), frontend());
    let friend = local();
    let mut special = rule(Protocol::Tcp, front, &[one.address]);
    special.id = proxy_rules::RuleId::new("special");
    special.matches.src = vec![friend.into()];
    let _path = path([rule(Protocol::Tcp, front, &[two.address]), special]);
    echoes(&mut connect_from(friend, front), b"x");
    echoes(&mut connect(front), b"x");
    echoes(&mut connect(front), b"x");
    assert_eq!((one.accepted(), two.accepted()), (1, 2));
}

#[test]
fn protected_sources_must_not_come_from_the_cluster_side() {
    let (echo, [front, tailnet], spoofed) =
        (Echo::tcp(local()), [(); 2].map(|()| frontend()), local());
    let mut from_tailnet = rule(Protocol::Tcp, tailnet, &[echo.address]);
    from_tailnet.from = Side::Tailnet;
    let settings = Settings { protected: vec![spoofed.into()], ..Settings::default() };
    let rules = vec![rule(Protocol::Tcp, front, &[echo.address]), from_tailnet];
    let mut path = UserspacePath::new().unwrap();
    path.apply(&RuleTable::new(rules, settings)).unwrap();
    assert_reset(&mut connect_from(spoofed, front));
    assert_eq!(drops(&path, DropReason::SpoofedSource), 1);
    echoes(&mut connect_from(spoofed, tailnet), b"its own side");
}

#[test]
fn a_full_flow_table_refuses_new_flows_and_keeps_old_ones() {
    let (tcp, udp, front) = (Echo::tcp(local()), Echo::udp(local(), b""), frontend());
    let rules =
        [rule(Protocol::Tcp, front, &[tcp.address]), rule(Protocol::Udp, front, &[udp.address])];
    let settings = Settings { max_flows: 2, ..Settings::default() };
    let mut path = UserspacePath::new().unwrap();
    path.apply(&RuleTable::new(rules.to_vec(), settings)).unwrap();
    let (mut client, session) = (connect(front), udp_client(front));
    echoes(&mut client, b"x");
    ask(&session, b"y");

    assert_refused(front);
    udp_client(front).send(b"one too many").unwrap();
    eventually("both are counted", || drops(&path, DropReason::FlowTableFull) == 2);
    echoes(&mut client, b"x");
    assert_eq!(ask(&session, b"y"), b"y");
    let snapshot = path.counters().unwrap();
    assert_eq!((snapshot.live_flows, snapshot.max_flows), (Some(2), Some(2)));

    drop(client);
    eventually("there is room again", || path.counters().unwrap().live_flows == Some(1));
    echoes(&mut connect(front), b"x");
}

/// Runs one test of this binary in a process of its own.
fn alone(test: &str, change: impl FnOnce(&mut Command)) {
    // Through the descriptor, since another user may not be able to walk to the file.
    let binary = fs::File::open("/proc/self/exe").unwrap();
    let mut command = Command::new(format!("/proc/self/fd/{}", binary.as_raw_fd()));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, "1");
    change(&mut command);
    let output = command.output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}{err}");
}

const ALONE: &str = "SLUICE_TEST_ALONE";

#[test]
fn works_without_root_and_without_any_capability() {
    if env::var_os(ALONE).is_none() {
        return alone("limits::works_without_root_and_without_any_capability", |command| {
            if geteuid().is_root() {
                command.uid(65534).gid(65534);
            }
        });
    }
    assert!(!geteuid().is_root());
    assert!(caps::read(None, caps::CapSet::Effective).unwrap().is_empty());
    assert!(caps::read(None, caps::CapSet::Permitted).unwrap().is_empty());
    let (tcp, udp, front) = (Echo::tcp(local()), Echo::udp(local(), b""), frontend());
    let _path = path([
        rule(Protocol::Tcp, front, &[tcp.address]),
        rule(Protocol::Udp, front, &[udp.address]),
        rule(Protocol::Tcp, "192.0.2.77:8080".parse().unwrap(), &[tcp.address]),
    ]);
    echoes(&mut connect(front), b"x");
    assert_eq!(ask(&udp_client(front), b"y"), b"y");
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn ten_thousand_short_connections_leave_no_descriptor() {
    const EACH: usize = 2_500;
    if env::var_os(ALONE).is_none() {
        return alone("limits::ten_thousand_short_connections_leave_no_descriptor", |_| {});
    }
    let ((server, address), front) = (listener(local()), frontend());
    thread::spawn(move || {
        for stream in server.incoming() {
            drop(stream);
        }
    });
    let rule = rule(Protocol::Tcp, front, &[address]);
    let mut path = path([rule.clone()]);
    let serve_one = |front: SocketAddr| {
        // The backend closes at once, so that waiting ports are spread over both sides.
        assert_eq!(connect(front).read(&mut [0; 1]).unwrap(), 0);
    };
    serve_one(front);
    eventually("quiet", || path.counters().unwrap().live_flows == Some(0));
    let before = descriptors();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..EACH).for_each(|_| serve_one(front)));
        }
    });
    eventually("quiet", || path.counters().unwrap().live_flows == Some(0));
    eventually("all are closed", || descriptors() <= before);
    assert_eq!(count(&path, &rule).flows as usize, 4 * EACH + 1);
    path.remove().unwrap();
    assert!(descriptors() < before, "the listener is closed too");
}

#[test]
fn what_the_limit_of_open_files_cannot_serve_is_reset_counted_and_explained() {
    // 64 are kept back, a quarter is for pipes, one is the listener's: 7 remain, for 3 connections.
    const FILES: u64 = 96;
    if env::var_os(ALONE).is_none() {
        let test =
            "limits::what_the_limit_of_open_files_cannot_serve_is_reset_counted_and_explained";
        return alone(test, |_| {});
    }
    setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES).unwrap();
    let (echo, front) = (Echo::tcp(local()), frontend());
    let path = path([rule(Protocol::Tcp, front, &[echo.address])]);
    let mut kept: Vec<_> = (0..3).map(|_| connect(front)).collect();
    for client in &mut kept {
        echoes(client, b"x");
    }
    assert!(path.notes().is_empty(), "{:?}", path.notes());
    assert_refused(front);
    assert_eq!(drops(&path, DropReason::FlowTableFull), 1);
    let notes = path.notes();
    assert!(notes.iter().any(|note| note.contains("raise the limit of open files")), "{notes:?}");
    kept.pop();
    eventually("there is room again", || path.counters().unwrap().live_flows == Some(2));
    echoes(&mut connect(front), b"x");
}

#[test]
fn listeners_survive_that_no_descriptor_is_left() {
    const FILES: u64 = 512;
    if env::var_os(ALONE).is_none() {
        return alone("limits::listeners_survive_that_no_descriptor_is_left", |_| {});
    }
    setrlimit(Resource::RLIMIT_NOFILE, FILES, FILES).unwrap();
    let (echo, front) = (Echo::tcp(local()), frontend());
    let path = path([rule(Protocol::Tcp, front, &[echo.address])]);
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let mut all = Vec::new();
    while let Ok(file) = fs::File::open("/dev/null") {
        all.push(file);
    }
    // The kernel accepts; the process cannot.
    client.connect(&front.into()).unwrap();
    eventually("it is noted", || !path.notes().is_empty());
    assert_eq!(path.counters().unwrap().live_flows, Some(0));
    drop(all);
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    echoes(&mut client.into(), b"at last");
}

/// Forbids this process splice(2), as a container's sandbox may.
fn forbid_splice() {
    let filter = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let number = libc::SYS_splice as u32;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let mut program = [
        filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, refuse),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: both calls change this process alone; the program outlives the second, which copies it.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    assert_eq!(results, [0, 0]);
}

/// Pipes that this process has open.
fn pipes() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|link| fs::read_link(link.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("pipe:")).count()
}

/// Sends much both ways; returns how many pipes that has opened.
fn pipes_for_bulk() -> usize {
    let (echo, front) = (Echo::tcp(local()), frontend());
    let rule = rule(Protocol::Tcp, front, &[echo.address]);
    let path = path([rule.clone()]);
    let before = pipes();
    let mut client = connect(front);
    echoes(&mut client, b"small");
    assert_eq!(pipes(), before);
    for _ in 0..20 {
        echoes(&mut client, &vec![7; 1 << 20]);
    }
    let count = count(&path, &rule);
    assert_eq!((count.original_bytes, count.reply_bytes), (5 + (20 << 20), 5 + (20 << 20)));
    pipes() - before
}

#[test]
fn bulk_data_passes_through_pipes() {
    if env::var_os(ALONE).is_none() {
        return alone("limits::bulk_data_passes_through_pipes", |_| {});
    }
    assert!(pipes_for_bulk() > 0);
}

#[test]
fn where_splice_is_forbidden_bytes_are_copied() {
    if env::var_os(ALONE).is_none() {
        return alone("limits::where_splice_is_forbidden_bytes_are_copied", |_| {});
    }
    forbid_splice();
    pipes_for_bulk();
}
