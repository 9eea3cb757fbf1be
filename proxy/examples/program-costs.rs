//! What each kernel program costs on this kernel, as JSON: `cargo xtask build-ebpf` shows it. Needs root.

use std::io::Write as _;

use proxy::data_path::ebpf::load;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let costs: Vec<_> = load::costs()?
        .into_iter()
        .map(|cost| {
            serde_json::json!({
                "name": cost.name,
                "verified": cost.verified,
                "jited": cost.jited,
            })
        })
        .collect();
    writeln!(std::io::stdout(), "{}", serde_json::Value::from(costs))?;
    Ok(())
}
