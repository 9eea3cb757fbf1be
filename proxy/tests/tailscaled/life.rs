//! Starts, ends by itself and as asked, and what is left.

use std::os::unix::net::UnixStream;

use proxy::tailscaled::{Cause, NotUp, StartError};

use super::*;

#[test]
fn it_starts_takes_connections_and_stops_in_order() {
    if skipped() {
        return;
    }
    let place = Place::new();
    place.run(async || {
        let tailscaled = Tailscaled::start(place.plan(&[])).unwrap();
        tailscaled.up(PATIENCE).await.unwrap();
        // The `tailscale` program finds it without being told where.
        UnixStream::connect(place.path("var/run/tailscale/tailscaled.sock")).unwrap();
        assert!(matches!(Tailscaled::start(place.plan(&[])), Err(StartError::SocketInUse { .. })));
        let leader = pid(tailscaled.state().borrow().pid.unwrap());
        assert_eq!(nix::unistd::getpgid(Some(leader)), Ok(leader), "not in a group of its own");
        let exit = tailscaled.stop(PATIENCE).await.unwrap();
        assert!(exit.status.unwrap().success() && !exit.killed, "{exit}");
        assert!(!exists(leader));
        let state = tailscaled.state().borrow().clone();
        assert_eq!((state.phase, state.pid, state.restarts), (Phase::Stopped, None, 0));
        // To stop what has stopped is no error.
        assert!(tailscaled.stop(PATIENCE).await.is_some());
        assert!(matches!(tailscaled.up(PATIENCE).await, Err(NotUp::Stopped)));
    });
}

#[test]
fn killed_it_is_started_again_and_counted() {
    if skipped() {
        return;
    }
    let place = Place::new();
    place.run(async || {
        let tailscaled = Tailscaled::start(place.plan(&[])).unwrap();
        let mut processes = vec![wait_up(&tailscaled, 0).await.pid.unwrap()];
        for restarts in 1..=2 {
            kill(pid(*processes.last().unwrap()));
            let state = wait_up(&tailscaled, restarts).await;
            let exit = state.last_exit.unwrap();
            assert_eq!(exit.cause(), Cause::Signal(9));
            assert!(!exit.said.is_empty() && !exit.killed, "{exit}");
            processes.push(state.pid.unwrap());
        }
        tailscaled.stop(PATIENCE).await.unwrap();
        processes.sort_unstable();
        processes.dedup();
        assert_eq!(processes.len(), 3);
        assert!(!processes.into_iter().any(|process| exists(pid(process))));
    });
}

#[test]
fn a_wrong_argument_is_told_in_its_own_words() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let plan = place.plan(&[("TS_TAILSCALED_EXTRA_ARGS", "--nonsense=1")]);
    place.run(async || {
        let tailscaled = Tailscaled::start(plan).unwrap();
        let error = tailscaled.up(PATIENCE).await.unwrap_err();
        assert!(matches!(error, NotUp::Arguments { .. }), "{error}");
        let text = error.to_string();
        for word in ["flag provided but not defined: -nonsense", "TS_TAILSCALED_EXTRA_ARGS"] {
            assert!(text.contains(word), "{text}");
        }
        tailscaled.stop(PATIENCE).await;
    });
}

#[test]
fn a_missing_program_is_named_and_tried_again() {
    if skipped() {
        return;
    }
    let mut place = Place::new();
    let real = place.programs.tailscaled.clone();
    place.programs.tailscaled = place.path("tailscaled");
    place.run(async || {
        let tailscaled = Tailscaled::start(place.plan(&[])).unwrap();
        let error = tailscaled.up(Duration::from_millis(50)).await.unwrap_err().to_string();
        let program = place.programs.tailscaled.display().to_string();
        assert!(error.contains(&program) && error.contains("into the image"), "{error}");
        std::os::unix::fs::symlink(real, &place.programs.tailscaled).unwrap();
        tailscaled.up(PATIENCE).await.unwrap();
        tailscaled.stop(PATIENCE).await;
    });
}

/// Neither a process that does not listen nor what it started is left.
#[test]
fn what_does_not_end_in_time_is_killed_with_its_group() {
    if skipped() {
        return;
    }
    let mut place = Place::new();
    let (child, ready) = (place.path("child"), place.path("ready"));
    place.programs.tailscaled = place.script(
        "stubborn",
        &format!(
            "trap '' TERM\nsleep 1000 &\necho $! > {}\necho $$ > {}\nwait\nwait\nsleep 1000",
            child.display(),
            ready.display()
        ),
    );
    place.run(async || {
        let tailscaled = Tailscaled::start(place.plan(&[])).unwrap();
        let (leader, child) = (wait_number(&ready), wait_number(&child));
        let exit = tailscaled.stop(Duration::from_millis(100)).await.unwrap();
        assert!(exit.killed, "{exit}");
        assert!(!exists(leader));
        wait_gone(child);
    });
}

#[test]
fn dropped_it_leaves_nothing_behind() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let leader = place.run(async || {
        let tailscaled = Tailscaled::start(place.plan(&[])).unwrap();
        let leader = pid(wait_up(&tailscaled, 0).await.pid.unwrap());
        assert!(exists(leader));
        leader
    });
    // The runtime has ended with its reaper: the kernel tells the number until somebody waits for the zombie.
    let gone = || match nix::sys::wait::waitpid(leader, Some(nix::sys::wait::WaitPidFlag::WNOHANG))
    {
        Ok(status) => status.pid() == Some(leader),
        Err(Errno::ECHILD) => true,
        Err(error) => panic!("{error}"),
    };
    poll_until(DEADLINE, "tailscaled is gone", gone).unwrap();
}
