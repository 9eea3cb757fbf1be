//! What a nested cargo must not inherit.

use std::{env, process::Command};

/// Settings of the user's that a nested cargo should keep (where things are stored, how they are fetched and shown).
const KEPT: [&str; 6] =
    ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_TERM_"];

/// Removes from `command` what an outer cargo (as `cargo run`, build script or clippy) told its children: compiler,
/// wrapper and flags for the host, the toolchain choice, the jobserver, the package at hand.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_inherited) {
            command.env_remove(name);
        }
    }
}

fn is_inherited(name: &str) -> bool {
    if KEPT.iter().any(|kept| name.starts_with(kept)) {
        return false;
    }
    name.starts_with("CARGO")
        || name.starts_with("RUSTC")
        || name.starts_with("__CARGO")
        || matches!(
            name,
            "RUSTFLAGS"
                | "RUSTDOC"
                | "RUSTDOCFLAGS"
                | "RUSTUP_TOOLCHAIN"
                | "CLIPPY_ARGS"
                | "MAKEFLAGS"
                | "MFLAGS"
                | "TARGET"
                | "HOST"
                | "OUT_DIR"
                | "PROFILE"
                | "OPT_LEVEL"
                | "DEBUG"
                | "NUM_JOBS"
        )
}

#[cfg(test)]
mod tests {
    use super::is_inherited;

    #[test]
    fn the_outer_cargos_choices_are_removed_and_the_users_are_kept() {
        for name in ["RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "RUSTUP_TOOLCHAIN"] {
            assert!(is_inherited(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_X_INDEX", "PATH", "HOME"]
        {
            assert!(!is_inherited(name), "{name}");
        }
    }
}
