//! Objects as files, without what differs from run to run.

use std::path::Path;

use serde_json::{Value, json};

/// Compares with a file, or writes it.
pub(crate) fn check(objects: &[Value], file: &str) {
    let documents: Vec<String> =
        objects.iter().map(|object| serde_saphyr::to_string(object).unwrap()).collect();
    let found = documents.join("---\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ha/golden").join(file);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == found, "{}: run with UPDATE_GOLDEN=1 and review\n{found}", path.display());
}

/// An object without what the API server makes of it.
pub(crate) fn plain(object: &impl serde::Serialize) -> Value {
    let mut object = serde_json::to_value(object).unwrap();
    let metadata = object["metadata"].take();
    object["metadata"] = json!({ "name": metadata["name"], "labels": metadata["labels"] });
    object
}
