//! `build-ebpf`: builds the kernel programs and shows how large they are, and what this kernel's verifier makes of them.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use comfy_table::{Cell, CellAlignment, Table, presets::UTF8_HORIZONTAL_ONLY};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SectionKind, SymbolKind};
use proxy_ebpf_build::{Toolchain, build_with};

use crate::{setup, step, workspace};

/// Builds the kernel programs, saying with which toolchain, and prints their sizes and what it costs to load them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Copy the object there.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// One BPF instruction.
const INSTRUCTION_BYTES: u64 = 8;

/// What loading a program costs.
#[derive(serde::Deserialize)]
struct Cost {
    name: String,
    /// Instructions that the verifier walked.
    verified: u64,
    /// Bytes of machine code.
    jited: u64,
}

struct Program {
    name: String,
    section: String,
    instructions: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let toolchain = Toolchain::find()
        .context("no toolchain can build the kernel programs; run `cargo xtask setup`")?;
    println!("toolchain: {toolchain}");
    let (finished, object) = step::call("build the kernel programs", || {
        Ok(build_with(toolchain, workspace::root(), &workspace::ebpf_target_dir())?)
    });
    let object = object.context(finished.output)?;

    let bytes =
        fs::read(&object.path).with_context(|| format!("cannot read {}", object.path.display()))?;
    let costs = match costs() {
        Ok(costs) => costs,
        Err(reason) => {
            println!("not loaded, so nothing is said of the verifier: {reason:#}");
            Vec::new()
        }
    };
    print_sizes(&programs(&bytes)?, &costs);
    println!("object: {} ({} KiB)", object.path.display(), bytes.len().div_ceil(1024));
    if let Some(output) = &args.output {
        fs::copy(&object.path, output)
            .with_context(|| format!("cannot copy the object to {}", output.display()))?;
    }
    Ok(())
}

/// Loads each program once, through the crate that ships.
fn costs() -> Result<Vec<Cost>> {
    if !setup::is_root() {
        bail!("loading needs root");
    }
    let mut command = workspace::cargo("run");
    command.args(["--quiet", "--package", "proxy", "--example", "program-costs"]);
    let finished = step::run("load them", &mut command)?;
    let line = finished.output.lines().rfind(|line| line.starts_with('['));
    serde_json::from_str(line.context("nothing was printed")?)
        .context("what was printed is not JSON")
}

/// The functions of the object: entry points have a section named after their hook, the rest are called by them.
fn programs(bytes: &[u8]) -> Result<Vec<Program>> {
    let file = object::File::parse(bytes).context("the built object is not an ELF file")?;
    let mut programs = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
        let Some(section) = symbol.section_index() else { continue };
        let section = file.section_by_index(section)?;
        if section.kind() != SectionKind::Text || symbol.size() == 0 {
            continue;
        }
        programs.push(Program {
            name: symbol.name()?.to_owned(),
            section: section.name()?.to_owned(),
            instructions: symbol.size() / INSTRUCTION_BYTES,
        });
    }
    programs.sort_by(|a, b| (&a.section, &a.name).cmp(&(&b.section, &b.name)));
    Ok(programs)
}

fn print_sizes(programs: &[Program], costs: &[Cost]) {
    let (called, entries): (Vec<_>, Vec<_>) =
        programs.iter().partition(|program| program.section == ".text");
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header([
        "program",
        "hook",
        "instructions",
        "verified",
        "machine code",
    ]);
    let number = |count: u64| Cell::new(count).set_alignment(CellAlignment::Right);
    for program in &entries {
        let cost = costs.iter().find(|cost| cost.name == program.name);
        table.add_row([
            Cell::new(&program.name),
            Cell::new(&program.section),
            number(program.instructions),
            cost.map_or_else(|| Cell::new("-"), |cost| number(cost.verified)),
            cost.map_or_else(|| Cell::new("-"), |cost| number(cost.jited)),
        ]);
    }
    if !called.is_empty() {
        table.add_row([
            Cell::new(format!("{} functions", called.len())),
            Cell::new("called"),
            number(called.iter().map(|program| program.instructions).sum()),
        ]);
    }
    println!("{table}");
}
