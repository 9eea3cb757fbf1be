//! The emulated machine: started, and listened to while it runs.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
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

/// Runs the machine to its end, shows each test as it ends, and adds up what became of them.
pub(crate) fn run(
    kernel: &str,
    accelerator: &Accelerator,
    image: &Image,
    archive: &Path,
    binaries: &[&Binary],
) -> Result<Tally> {
    let directory = workspace::target_dir().join("xtask-logs");
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("kernel-{kernel}.log"));
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
        println!("{}", fs::read_to_string(&path).unwrap_or_default().trim_end());
    }
    Ok(tally)
}
