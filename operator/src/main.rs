//! The `sluice-operator` program.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
