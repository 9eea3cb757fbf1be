//! Port ranges as aligned blocks, the form of a longest-prefix key.

/// Cuts overlapping ranges into intervals in which no range begins or ends.
pub(super) fn intervals(ranges: &[(u16, u16)]) -> Vec<(u16, u16)> {
    let mut cuts: Vec<u32> =
        ranges.iter().flat_map(|(first, last)| [u32::from(*first), u32::from(*last) + 1]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2)
        .filter_map(|pair| {
            let &[start, end] = pair else { return None };
            let covered = ranges
                .iter()
                .any(|(first, last)| u32::from(*first) <= start && end - 1 <= u32::from(*last));
            covered.then_some((start as u16, (end - 1) as u16))
        })
        .collect()
}

/// Cuts an interval into the fewest aligned blocks: first port and prefix length (0 to 16 bits).
pub(super) fn aligned(first: u16, last: u16) -> Vec<(u16, u32)> {
    let mut blocks = Vec::new();
    let (mut start, end) = (u32::from(first), u32::from(last) + 1);
    while start < end {
        let by_alignment = if start == 0 { 16 } else { start.trailing_zeros().min(16) };
        let by_size = (end - start).ilog2();
        let bits = by_alignment.min(by_size);
        blocks.push((start as u16, 16 - bits));
        start += 1 << bits;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_exactly_the_interval() {
        for (first, last) in
            [(1, 65535), (80, 80), (1000, 1999), (30000, 32767), (65535, 65535), (1, 2)]
        {
            let mut covered = Vec::new();
            for (start, bits) in aligned(first, last) {
                let size = 1u32 << (16 - bits);
                assert_eq!(u32::from(start) % size, 0, "aligned");
                covered.extend(u32::from(start)..u32::from(start) + size);
            }
            let wanted: Vec<u32> = (u32::from(first)..=u32::from(last)).collect();
            assert_eq!(covered, wanted, "{first}-{last}");
        }
    }

    #[test]
    fn intervals_are_cut_where_a_range_begins_or_ends() {
        assert_eq!(intervals(&[(10, 20), (15, 30)]), [(10, 14), (15, 20), (21, 30)]);
        assert_eq!(intervals(&[(10, 20), (30, 40)]), [(10, 20), (30, 40)]);
        assert_eq!(intervals(&[(1, 65535)]), [(1, 65535)]);
    }
}
