//! Embeds the kernel programs. Without a toolchain for them the object is empty and the eBPF path says so.

use std::{env, fs, path::PathBuf};

fn main() {
    let workspace = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("..");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    println!("{}", proxy_ebpf_build::rerun_directives(&workspace));
    let object = match proxy_ebpf_build::build(&workspace, &out.join("bpf")) {
        Ok(object) => fs::read(object.path).unwrap_or_default(),
        Err(error @ proxy_ebpf_build::BuildError::Compile { .. }) => {
            println!("cargo::error={error}");
            Vec::new()
        }
        Err(error) => {
            println!("cargo::warning=the eBPF data path is left out: {error}");
            Vec::new()
        }
    };
    if let Err(error) = fs::write(out.join("proxy-ebpf"), object) {
        println!("cargo::error=cannot write the eBPF object: {error}");
    }
}
