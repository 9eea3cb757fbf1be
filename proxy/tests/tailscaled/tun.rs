//! The TUN device: made, usable, or why not.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use caps::{CapSet, Capability};
use nix::mount::{MsFlags, mount};
use proxy::tailscaled::{Cause, Why, tun::ensure};

use super::*;

/// Why there is none, in this environment of one thread.
fn why(prepare: impl FnOnce(&Path) + Send + 'static) -> (Why, String) {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().to_owned();
    // A thread has capabilities and mounts of its own, if it wants to.
    let thread = std::thread::spawn(move || {
        prepare(&path);
        ensure(&path).unwrap_err()
    });
    let error = thread.join().unwrap();
    (error.why, error.to_string())
}

fn drop_capability(capability: Capability) {
    caps::drop(None, CapSet::Effective, capability).unwrap();
}

#[test]
fn the_device_node_is_made_where_it_is_missing() {
    if skipped() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let node = ensure(root.path()).unwrap();
        assert_eq!(node, root.path().join("dev/net/tun"));
        let metadata = node.metadata().unwrap();
        assert!(metadata.file_type().is_char_device());
        assert_eq!(metadata.rdev(), nix::sys::stat::makedev(10, 200));
    }
}

#[test]
fn each_reason_is_told_apart() {
    if skipped() {
        return;
    }
    let (reason, text) = why(|_| drop_capability(Capability::CAP_MKNOD));
    assert_eq!(reason, Why::CannotMake, "{text}");
    assert!(text.contains("MKNOD") && text.contains("TS_USERSPACE"), "{text}");
    let (reason, text) = why(|_| drop_capability(Capability::CAP_NET_ADMIN));
    assert_eq!(reason, Why::NoNetAdmin, "{text}");
    let (reason, text) = why(|root| {
        std::fs::create_dir_all(root.join("dev/net")).unwrap();
        std::fs::write(root.join("dev/net/tun"), "").unwrap();
    });
    assert_eq!(reason, Why::NotADevice, "{text}");
    let (reason, text) = why(|root| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(none, root, Some("tmpfs"), MsFlags::MS_NODEV, none).unwrap();
    });
    assert_eq!(reason, Why::Forbidden, "{text}");
}

/// A device cgroup of one thread that denies the driver (version 1, which the machine has; it goes by threads).
#[test]
fn a_device_rule_that_denies_the_driver_is_named() {
    if skipped() {
        return;
    }
    let name = format!("/sys/fs/cgroup/devices/sluice-tun-{}", std::process::id());
    let group = PathBuf::from(name);
    std::fs::create_dir(&group).unwrap();
    std::fs::write(group.join("devices.deny"), "c 10:200 rwm").unwrap();
    let existing = tempfile::tempdir().unwrap();
    ensure(existing.path()).unwrap();
    let (tasks, node) = (group.join("tasks"), existing.path().to_owned());
    let (making, opening) = std::thread::spawn(move || {
        std::fs::write(tasks, nix::unistd::gettid().to_string()).unwrap();
        let fresh = tempfile::tempdir().unwrap();
        (ensure(fresh.path()).unwrap_err(), ensure(&node).unwrap_err())
    })
    .join()
    .unwrap();
    // A thread that has ended leaves its group a moment later.
    poll_until(DEADLINE, "the group can be removed", || std::fs::remove_dir(&group).is_ok())
        .unwrap();
    for error in [making, opening] {
        assert_eq!(error.why, Why::Denied, "{error}");
        assert!(error.to_string().contains("10:200"), "{error}");
    }
}

/// With a device the kernel's TUN is used; without one `tailscaled` ends, and the cause is told.
#[test]
fn the_kernels_device_is_used_where_there_is_one() {
    if skipped() {
        return;
    }
    let place = Place::new();
    let plan = place.plan(&[("TS_USERSPACE", "false")]);
    place.run(async || {
        // It looks after the file of name servers, which must not be the machine's.
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let own = place.path("resolv.conf");
        std::fs::write(&own, "").unwrap();
        mount(Some(&own), "/etc/resolv.conf", none, MsFlags::MS_BIND, none).unwrap();

        let tailscaled = Tailscaled::start(plan.clone()).unwrap();
        tailscaled.up(PATIENCE).await.unwrap();
        let has_device = || link_exists("tailscale0");
        poll_until(PATIENCE, "the device is there", has_device).unwrap();
        tailscaled.stop(PATIENCE).await;
        assert!(!link_exists("tailscale0"));

        mount(Some("/dev/null"), "/dev/net/tun", none, MsFlags::MS_BIND, none).unwrap();
        let tailscaled = Tailscaled::start(plan).unwrap();
        let state = wait_for(&tailscaled, "an end", |state| state.last_exit.is_some()).await;
        let exit = state.last_exit.unwrap();
        assert_eq!(exit.cause(), Cause::Tun, "{exit}");
        tailscaled.stop(PATIENCE).await;
    });
}

/// Whether this thread's namespace has the device.
fn link_exists(name: &str) -> bool {
    nix::net::if_::if_nametoindex(name).is_ok()
}
