//! Which source files the compiler sees: from each crate root along its `mod` lines. A file that no line names is
//! dutifully edited for years and never compiled.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use crate::tree::{files, root};

/// Every file reached from a crate root, relative to the root of the checkout.
pub(crate) fn compiled() -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for (path, _) in files(".rs") {
        if is_crate_root(&path) {
            follow(Path::new(&path), true, &mut seen);
        }
    }
    seen
}

/// cargo finds these by their place: the folder is a package's.
fn is_crate_root(path: &str) -> bool {
    let path = Path::new(path);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return false;
    };
    let folder = parent.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let package = |folder: Option<&Path>| {
        folder.is_some_and(|folder| root().join(folder).join("Cargo.toml").is_file())
    };
    match folder {
        "src" => matches!(name, "lib.rs" | "main.rs") && package(parent.parent()),
        "bin" => package(parent.parent().and_then(Path::parent)),
        "tests" | "benches" | "examples" | "fuzz_targets" => package(parent.parent()),
        _ => name == "build.rs" && package(Some(parent)) || package(Some(parent)),
    }
}

fn follow(path: &Path, is_root: bool, seen: &mut BTreeSet<String>) {
    if !seen.insert(path.to_string_lossy().into_owned()) {
        return;
    }
    let Ok(text) = std::fs::read_to_string(root().join(path)) else { return };
    let parent = path.parent().unwrap_or(Path::new(""));
    let children = if is_root { parent.to_owned() } else { path.with_extension("") };
    let mut named: Option<PathBuf> = None;
    for line in text.lines().map(str::trim) {
        if let Some(file) =
            line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"))
        {
            named = Some(normal(&parent.join(file)));
            continue;
        }
        let Some(name) = module(line) else {
            // Other attributes may stand between.
            if !line.starts_with('#') {
                named = None;
            }
            continue;
        };
        let child = named.take().unwrap_or_else(|| children.join(format!("{name}.rs")));
        if root().join(&child).is_file() {
            follow(&child, false, seen);
        }
    }
}

/// The name in `pub(crate) mod name;`.
fn module(line: &str) -> Option<&str> {
    let name = line.strip_suffix(';')?;
    let (before, name) = name.rsplit_once("mod ").unwrap_or(("-", name));
    let visible = before.is_empty() || before.starts_with("pub");
    (visible && name.chars().all(|c| c.is_alphanumeric() || c == '_')).then_some(name)
}

/// Without `..`, so that a file has one name.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}
