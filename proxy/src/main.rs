//! The `sluice-proxy` program.

use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{CommandFactory as _, Parser as _};
use proxy::{
    args::{Args, Command},
    client::Client,
    explain::{self, Answer},
    memory,
    status::Status,
    telemetry,
};
use proxy_rules::{config, validate};
use tokio::runtime::{Builder, Runtime};

/// The configuration is not valid.
const INVALID: u8 = 3;

fn main() -> ExitCode {
    if let Some(code) = proxy::tailscaled::init::run_if_first() {
        return code;
    }
    match run(Args::parse().command) {
        Ok(code) => code,
        // Whoever reads has read enough.
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "sluice-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

fn run(command: Command) -> Result<ExitCode> {
    let mut out = std::io::stdout();
    match command {
        Command::Run(args) => {
            let level = telemetry::start(args.log_format, &args.log_level)?;
            return serve(proxy::run::run(args, level));
        }
        Command::Pod(args) => {
            let level = telemetry::start(args.log_format, &args.log_level)?;
            return serve(proxy::pod::run::run(args, level));
        }
        Command::Check { file, json } => return check(&file, json),
        Command::Status { peer, json } => {
            let client = Client::new(peer.socket, peer.admin);
            let status: Status = runtime()?.block_on(client.get("/v1/status"))?;
            if json {
                writeln!(out, "{}", serde_json::to_string_pretty(&status)?)?;
            } else {
                out.write_all(proxy::top::status(&status)?.as_bytes())?;
            }
        }
        Command::Explain { protocol, src, dst, from, config, peer, json } => {
            let question = explain::Question::of(&protocol, &src, &dst, from);
            let answer = if let Some(file) = config {
                let Ok(config) = validate::validate_bytes(&read(&file)?) else {
                    return check(&file, false);
                };
                explain::explain(&config.table, &question, None)?
            } else {
                let client = Client::new(peer.socket, peer.admin);
                let from = question.from.label();
                let path =
                    format!("/v1/explain?protocol={protocol}&src={src}&dst={dst}&from={from}");
                runtime()?.block_on(client.get::<Answer>(&path))?
            };
            if json {
                writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
            } else {
                for line in &answer.trace {
                    writeln!(out, "  {line}")?;
                }
                let rule = answer.rule.as_deref().unwrap_or("none");
                writeln!(out, "rule {rule}: {}", answer.outcome)?;
                if let Some(program) = &answer.program {
                    writeln!(out, "the loaded programs: {program}")?;
                }
            }
        }
        Command::Top { peer, interval, once, json } => {
            ensure!(interval > 0.0, "--interval {interval}: must be more than 0");
            let interval = Duration::try_from_secs_f64(interval).context("--interval")?;
            let client = Client::new(peer.socket, peer.admin);
            runtime()?.block_on(proxy::top::top(&client, interval, once, json))?;
        }
        Command::Cleanup { config, bpffs, dry_run } => {
            proxy::cleanup::cleanup(config, bpffs, dry_run)?;
        }
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "sluice-proxy", &mut out);
        }
        Command::Schema => {
            writeln!(out, "{}", serde_json::to_string_pretty(&config::schema())?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs what ends only when it is told to.
fn serve(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    memory::keep_little();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(work);
    // The HTTP interface's connections must not hold up the end.
    runtime.shutdown_background();
    outcome
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("starting the runtime")
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let most = validate::MAX_BYTES as u64;
    let mut bytes = Vec::new();
    if file == Path::new("-") {
        let mut input = std::io::stdin().take(most + 1);
        input.read_to_end(&mut bytes).context("reading standard input")?;
    } else {
        let named = || format!("reading {}", file.display());
        // To open a pipe would wait for its other end, and a device may never end.
        let is_file = std::fs::metadata(file).with_context(named)?.is_file();
        ensure!(is_file, "{}: not a regular file", file.display());
        let input = std::fs::File::open(file).with_context(named)?;
        input.take(most + 1).read_to_end(&mut bytes).with_context(named)?;
    }
    ensure!(bytes.len() as u64 <= most, "{}: more than {most} bytes", file.display());
    Ok(bytes)
}

fn check(file: &Path, json: bool) -> Result<ExitCode> {
    let outcome = validate::validate_bytes(&read(file)?);
    let mut out = std::io::BufWriter::new(std::io::stdout());
    match (&outcome, json) {
        (Ok(config), false) => {
            let table = &config.table;
            writeln!(
                out,
                "valid: {} rules, generation {}",
                table.rules().len(),
                table.generation()
            )?;
        }
        (Err(errors), false) => writeln!(out, "{errors}")?,
        (Ok(config), true) => {
            let table = &config.table;
            let (rules, generation) = (table.rules().len(), table.generation());
            let answer =
                serde_json::json!({ "valid": true, "rules": rules, "generation": generation });
            writeln!(out, "{answer}")?;
        }
        (Err(errors), true) => {
            writeln!(out, "{}", serde_json::json!({ "valid": false, "errors": errors }))?;
        }
    }
    out.flush()?;
    Ok(if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(INVALID) })
}
