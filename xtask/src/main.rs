//! The project's one front door: `cargo xtask <task>`, one file a task.
#![expect(clippy::print_stdout, reason = "a command-line tool talks on its standard output")]

use std::process::ExitCode;

use clap::Parser;

mod bench;
mod build_ebpf;
mod check;
mod demo;
mod faults;
mod generate;
mod images;
mod kernel;
mod setup;
mod step;
mod test;
mod testbed;
mod workspace;

/// Sets up, builds, checks, tests, demonstrates and measures Sluice.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
enum Task {
    Setup(setup::Args),
    BuildEbpf(build_ebpf::Args),
    Check(check::Args),
    Test(test::Args),
    Testbed(testbed::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    Generate(generate::Args),
    Images(images::Args),
    Faults(faults::Args),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Setup(args) => setup::run(&args),
        Task::BuildEbpf(args) => build_ebpf::run(&args),
        Task::Check(args) => check::run(&args),
        Task::Test(args) => test::run(&args),
        Task::Testbed(args) => testbed::run(&args),
        Task::Demo(args) => demo::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Generate(args) => generate::run(&args),
        Task::Images(args) => images::run(&args),
        Task::Faults(args) => faults::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
