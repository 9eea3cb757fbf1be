//! Builds the benchmark's own kernel programs and embeds them, or an empty object where the BPF toolchain is missing:
//! the benchmark then says so when it is run.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use proxy_ebpf_build::Toolchain;

const PACKAGE: &str = "benches-ebpf";

fn main() -> Result<()> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").context("run by cargo")?);
    let workspace = here.parent().context("the workspace is one level up")?;
    let out = PathBuf::from(env::var_os("OUT_DIR").context("run by cargo")?);
    for input in ["ebpf/Cargo.toml", "ebpf/src", "../Cargo.lock"] {
        println!("cargo::rerun-if-changed={input}");
    }
    let object = out.join("benches-ebpf.o");
    match Toolchain::find() {
        Ok(toolchain) => {
            fs::copy(build(&toolchain, workspace, &out)?, &object)?;
        }
        Err(missing) => {
            println!("cargo::warning=the benchmark's kernel programs are left out: {missing}");
            fs::write(&object, [])?;
        }
    }
    Ok(())
}

fn build(toolchain: &Toolchain, workspace: &Path, out: &Path) -> Result<PathBuf> {
    let target = proxy_ebpf_build::target_triple();
    let target_dir = out.join("ebpf");
    let output = proxy_ebpf_build::cargo(toolchain, "build")
        .current_dir(workspace)
        .args(["--package", PACKAGE, "--release", "--target", target, "--target-dir"])
        .arg(&target_dir)
        .output()
        .context("cargo does not start")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "building {PACKAGE} with {toolchain}:\n{errors}");
    Ok(target_dir.join(target).join("release").join(PACKAGE))
}
