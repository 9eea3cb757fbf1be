//! What the verifier must walk: growth is a reviewed number, not a surprise on an older kernel.

use proxy::data_path::ebpf::load;

/// Instructions walked, by kind of program; the kernel's own limit is a million.
const TC: u32 = 160_000;
const XDP: u32 = 8_000;

#[test]
fn every_program_loads_within_the_verifier_budget() {
    kernel_or_skip!();
    let costs = load::costs().expect("every program loads");
    assert_eq!(costs.len(), 6, "{costs:?}");
    for cost in costs {
        let limit = if cost.name.starts_with("sl_xdp") { XDP } else { TC };
        println!("{:<12} {:>7} of {limit} instructions walked", cost.name, cost.verified);
        assert!((1..=limit).contains(&cost.verified), "{cost:?}");
    }
}
