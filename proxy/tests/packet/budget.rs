//! What the verifier must walk: growth is a reviewed number, not a surprise on an older kernel.

use proxy::data_path::ebpf::load;

/// Instructions walked, by kind of program; the kernel's own limit is a million.
const TC: u32 = 60_000;
const XDP: u32 = 8_000;

#[test]
fn every_program_loads_within_the_verifier_budget() {
    kernel_or_skip!();
    let costs = load::costs().expect("every program loads");
    assert_eq!(costs.len(), 6, "{costs:?}");
    for cost in costs {
        let limit = if cost.name.starts_with("sl_xdp") { XDP } else { TC };
        let limit = if prunes_well() { limit } else { 2 * limit };
        println!("{:<12} {:>7} of {limit} instructions walked", cost.name, cost.verified);
        assert!((1..=limit).contains(&cost.verified), "{cost:?}");
    }
}

/// Before 6.8 the verifier finds fewer states equal and walks more of them.
fn prunes_well() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(8))
}
