//! Whether the processor runs the guest itself, found out by letting it.

use std::{fmt, fs, fs::File, path::Path, process::Command};

use super::image::Image;
use crate::test::{Binary, bounded};

/// A kernel that starts at all says so at once; one that does not start says nothing and never ends.
const PROBE_SECONDS: u32 = 8;

/// How the guest's instructions are carried out.
#[derive(Debug)]
pub(crate) enum Accelerator {
    /// By the processor.
    Kvm,
    /// By qemu, for this reason.
    Emulation(String),
}

impl Accelerator {
    /// KVM where it really runs this kernel. That it opens says little: inside a virtual machine it may refuse a setting of
    /// the processor, run guests of a special kind only, or start and hang.
    pub(crate) fn find(image: &Image) -> Self {
        if let Err(error) = File::options().read(true).write(true).open("/dev/kvm") {
            return Self::Emulation(format!("/dev/kvm: {error}"));
        }
        let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if !processor.split_whitespace().any(|flag| matches!(flag, "vmx" | "svm")) {
            return Self::Emulation(
                "/dev/kvm is there, the processor has neither vmx nor svm".into(),
            );
        }
        let mut command = bounded(PROBE_SECONDS, Path::new("qemu-system-x86_64"));
        Self::Kvm.choose(&mut command);
        command.args(["-m", "512", "-nographic", "-no-reboot", "-nic", "none"]);
        command.arg("-kernel").arg(image.kernel());
        // Without a file system it panics, which ends the machine.
        command.args(["-append", "console=ttyS0 panic=-1"]);
        match command.output() {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("Linux version") => {
                Self::Kvm
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.trim().lines().last().unwrap_or("the kernel does not start");
                Self::Emulation(format!("KVM does not run it: {last}"))
            }
            Err(error) => Self::Emulation(format!("KVM was not tried: {error}")),
        }
    }

    pub(super) fn choose(&self, command: &mut Command) {
        match self {
            Self::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
            Self::Emulation(_) => command.args(["-accel", "tcg,thread=multi"]),
        };
    }

    /// What the kernel is told at boot.
    pub(super) fn kernel_arguments(&self) -> String {
        let mut arguments = "console=ttyS0 panic=-1 quiet loglevel=3".to_owned();
        if matches!(self, Self::Emulation(_)) {
            // No secret is kept in there, and both cost a third of the time.
            arguments += " mitigations=off init_on_alloc=0";
        }
        arguments
    }

    /// What of a test binary runs there: names that contain one of these; all, if there are none.
    pub(super) fn filter(&self, binary: &Binary) -> &'static [&'static str] {
        match self {
            Self::Kvm => &[],
            Self::Emulation(_) => binary.quick,
        }
    }

    /// How long a test binary may take in the guest.
    pub(super) fn limit_seconds(&self) -> u32 {
        match self {
            Self::Kvm => 90,
            Self::Emulation(_) => 600,
        }
    }

    /// By how much time limits grow and random tests shrink there (`SLUICE_SLOW`).
    pub(super) fn slowness(&self) -> u32 {
        match self {
            Self::Kvm => 1,
            Self::Emulation(_) => 20,
        }
    }
}

impl fmt::Display for Accelerator {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kvm => formatter.write_str("runs on KVM"),
            Self::Emulation(reason) => write!(formatter, "emulated ({reason})"),
        }
    }
}
