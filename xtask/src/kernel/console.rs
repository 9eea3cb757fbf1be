//! The emulated machine and what it says on its serial line.

use std::{path::Path, process::Command};

use super::image::Image;
use crate::test::{Binary, Tally, bounded};

/// Emulation without hardware support is slow, yet a hang must end.
const LIMIT_SECONDS: u32 = 1200;

/// The machine, ready to run.
pub(crate) fn machine(image: &Image, archive: &Path) -> Command {
    let mut command = bounded(LIMIT_SECONDS, Path::new("qemu-system-x86_64"));
    // Not KVM even where it is offered: inside a virtual machine it may start and then fail on an instruction, and
    // emulation is the same everywhere.
    command.args(["-accel", "tcg,thread=multi"]);
    command.args(["-smp", "2", "-m", "3072", "-nographic", "-no-reboot", "-nic", "none"]);
    command.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(archive);
    command.args(["-append", "console=ttyS0 panic=-1 quiet loglevel=3"]);
    command
}

/// Adds up the results between the marks of each test. One without an end mark (a panic of the kernel, the time limit)
/// is a failure.
pub(crate) fn read(kernel: &str, binaries: &[&Binary], output: &str) -> Tally {
    let mut total = Tally::default();
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    for (index, binary) in binaries.iter().enumerate() {
        let label = format!("kernel {kernel}: {}", binary.label());
        let begin = format!("::begin {index}");
        let end = format!("::end {index} ");
        let mut tally = Tally::default();
        let mut status = None;
        for line in lines.iter().skip_while(|line| **line != begin).skip(1) {
            // A test's unfinished last line may stand before the mark.
            if let Some((_, code)) = line.split_once(&end) {
                status = Some(code.to_owned());
                break;
            }
            tally.read_line(&label, line);
        }
        match status.as_deref() {
            Some("0") => {}
            Some(code) if tally.failed == 0 => tally.fail(format!("{label}: ended with {code}")),
            Some(_) => {}
            None => tally.fail(format!("{label}: did not end")),
        }
        total.add(tally);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::test::{Binary, Tier};

    fn binary(name: &str) -> Binary {
        Binary {
            package: "proxy".into(),
            name: name.into(),
            tier: Tier::Packet,
            guest: true,
            executable: "/t".into(),
            directory: "/".into(),
        }
    }

    #[test]
    fn results_are_read_between_the_marks_and_a_silent_death_is_a_failure() {
        let binaries = [binary("packet"), binary("namespace")];
        let binaries: Vec<_> = binaries.iter().collect();
        let output = "6.1.0\r\n::begin 0\r\ntest a ... ok\r\n\
                      test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured\r\n::end 0 0\r\n\
                      ::begin 1\r\nKernel panic\r\n";
        let tally = read("6.1", &binaries, output);
        assert_eq!((tally.passed, tally.failed), (5, 1));
        assert_eq!(tally.failures, ["kernel 6.1: proxy namespace: did not end"]);
    }
}
