//! The kernel's one table of connections, made big enough for every lane, and put back at the end.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};

const DIRECTORY: &str = "/proc/sys/net/netfilter";
const WANTED: [(&str, u64); 2] = [("nf_conntrack_buckets", 1 << 21), ("nf_conntrack_max", 8 << 20)];

/// What is to be put back.
pub struct Raised {
    before: Vec<(PathBuf, String)>,
}

/// Raises the limits; they belong to the whole machine.
pub fn raise() -> Result<Raised> {
    let mut raised = Raised { before: Vec::new() };
    for (name, wanted) in WANTED {
        let path = PathBuf::from(DIRECTORY).join(name);
        let before =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        if before.trim().parse::<u64>().is_ok_and(|has| has >= wanted) {
            continue;
        }
        fs::write(&path, wanted.to_string()).with_context(|| {
            format!("raising {}: run in the machine's own network namespace", path.display())
        })?;
        raised.before.push((path, before));
    }
    Ok(raised)
}

impl Drop for Raised {
    fn drop(&mut self) {
        for (path, before) in &self.before {
            if let Err(error) = fs::write(path, before.trim()) {
                eprintln!("putting back {}: {error}", path.display());
            }
        }
    }
}
