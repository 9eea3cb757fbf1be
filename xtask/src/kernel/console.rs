//! The emulated machine: started, and listened to while it runs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context as _, Result};

use super::{accelerator::Accelerator, image::Image, report::Report};
use crate::{
    step,
    test::{Binary, Tally, bounded},
    workspace,
};

/// For booting. Every test binary has its own limit in the guest; this one is for a guest that hangs.
const BOOT_SECONDS: u32 = 120;

/// Runs the machine to its end, and once more if its kernel panicked: an emulated 6.12 did so once in about a hundred runs of
/// these tests, and the trace was lost. The trace is told beside the result now; a second panic is a failure.
pub(crate) fn run(
    kernel: &str,
    accelerator: &Accelerator,
    image: &Image,
    archive: &Path,
    binaries: &[&Binary],
) -> Result<Tally> {
    let first = boot(kernel, accelerator, image, archive, binaries)?;
    let log = log_path(kernel);
    let Some(panic) = panic_in(&fs::read_to_string(&log).unwrap_or_default()) else {
        return Ok(first);
    };
    let kept = log.with_extension("panic.log");
    fs::copy(&log, &kept).with_context(|| format!("cannot write {}", kept.display()))?;
    println!("the machine's kernel panicked and is booted again; its log is {}", kept.display());
    let mut second = boot(kernel, accelerator, image, archive, binaries)?;
    second.notes.push(format!("kernel {kernel}: panicked once and was booted again:\n{panic}"));
    Ok(second)
}

fn log_path(kernel: &str) -> PathBuf {
    workspace::target_dir().join("xtask-logs").join(format!("kernel-{kernel}.log"))
}

/// What a kernel said of its panic: from the first line of the report on.
fn panic_in(log: &str) -> Option<String> {
    const STARTS: [&str; 6] =
        ["BUG: ", "kernel BUG at", "Oops: ", "general protection", "invalid opcode", "watchdog: "];
    let lines: Vec<&str> = log.lines().collect();
    let panic = lines.iter().position(|line| line.contains("Kernel panic - not syncing"))?;
    let start = lines
        .iter()
        .take(panic)
        .position(|line| STARTS.iter().any(|start| line.contains(start)))
        .unwrap_or(panic);
    Some(lines.get(start..).unwrap_or_default().join("\n"))
}

/// Shows each test as it ends, and adds up what became of them.
fn boot(
    kernel: &str,
    accelerator: &Accelerator,
    image: &Image,
    archive: &Path,
    binaries: &[&Binary],
) -> Result<Tally> {
    let path = log_path(kernel);
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let mut log =
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    println!("kernel {kernel}: {accelerator}; log {}", path.display());

    let tests: Result<Vec<BTreeSet<String>>> =
        binaries.iter().map(|binary| binary.tests(accelerator.filter(binary))).collect();
    let tests = tests?;
    let start = Instant::now();
    let limit = BOOT_SECONDS + accelerator.limit_seconds() * binaries.len() as u32;
    let mut command = bounded(limit, Path::new("qemu-system-x86_64"));
    accelerator.choose(&mut command);
    command.args(["-smp", "2", "-m", "3072", "-nographic", "-no-reboot", "-nic", "none"]);
    command.arg("-kernel").arg(image.kernel()).arg("-initrd").arg(archive);
    command.args(["-append", &accelerator.kernel_arguments()]);
    // Both streams into one pipe: what qemu itself has to say belongs to the log.
    let (reader, writer) = std::io::pipe()?;
    let mut machine = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .context("cannot start `timeout`")?;
    // It holds the pipe's other ends, which would keep the loop below waiting for ever.
    drop(command);

    let progress = step::spinner(&format!("kernel {kernel}: boot"));
    let mut report = Report::new(kernel, binaries, tests);
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        log.write_all(&bytes)?;
        // Tests print whatever bytes they met.
        if let Some(said) = report.read(String::from_utf8_lossy(&bytes).trim_end()) {
            let at = step::seconds(start.elapsed());
            progress.set_message(format!("kernel {kernel}: {said}"));
            if progress.is_hidden() || said.contains("FAILED") {
                progress.suspend(|| println!("       {at:>7} {said}"));
            }
        }
        bytes.clear();
    }
    let status = machine.wait()?;
    progress.finish_and_clear();
    let tally = report.finish();
    let mark = if tally.failed == 0 { "ok    " } else { "FAILED" };
    println!("{mark} {:>7} kernel {kernel}: {tally}", step::seconds(start.elapsed()));
    if tally.failed > 0 {
        println!("the machine ended with {status}; it said:");
        let said = fs::read_to_string(&path).unwrap_or_default();
        println!("{}", panic_in(&said).as_deref().unwrap_or_else(|| said.trim_end()));
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::panic_in;

    #[test]
    fn a_panic_is_told_from_the_first_line_of_its_report() {
        let log = "test a ... ok\n[ 1.0] Oops: invalid opcode: 0000 [#1]\n[ 1.1] RIP: 0010:f+0x1\n\
                   [ 1.2] Kernel panic - not syncing: Fatal exception in interrupt\n";
        let told = panic_in(log).unwrap();
        assert!(
            told.starts_with("[ 1.0] Oops") && told.contains("RIP") && !told.contains("test a")
        );
        assert_eq!(panic_in("test b ... FAILED\nBUG: said by a test\n"), None);
    }
}
