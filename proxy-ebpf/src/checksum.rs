//! Internet checksum arithmetic (RFC 1071, RFC 1624 equation 3).
//!
//! Words are used as they lie in memory: the ones' complement sum does not depend on byte order as long as all
//! words are read alike and the result is stored the same way, so nothing here is ever swapped.

/// Folds a sum to 32 bits, keeping it equal modulo 2^16 - 1.
#[inline(always)]
pub(crate) const fn fold32(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum as u32
}

/// Folds a sum to 16 bits.
#[inline(always)]
pub(crate) const fn fold16(sum: u64) -> u16 {
    let sum = fold32(sum) as u64;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The difference that replacing `old` by `new` makes.
#[inline(always)]
pub(crate) const fn replace(old: u32, new: u32) -> u64 {
    (!old) as u64 + new as u64
}

/// The checksum field `old` after a difference has been added to what it covers.
#[inline(always)]
pub(crate) const fn apply(old: u16, difference: u64) -> u16 {
    !fold16((!old) as u64 + difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(words: &[u16]) -> u16 {
        !fold16(words.iter().map(|w| u64::from(*w)).sum())
    }

    #[test]
    fn incremental_update_equals_recomputation() {
        let mut words = [0x4500_u16, 0x1234, 0xffff, 0x0000, 0x8001, 0x7ffe];
        for (index, new) in [(0, 0u16), (1, 0xffff), (2, 1), (3, 0xfffe), (4, 0), (5, 0x1234)] {
            let old_sum = full(&words);
            let difference = u64::from(!words[index]) + u64::from(new);
            words[index] = new;
            assert_eq!(apply(old_sum, difference), full(&words), "word {index} -> {new:#x}");
        }
    }

    #[test]
    fn folding_keeps_the_value_modulo_ffff() {
        for sum in [0u64, 1, 0xffff, 0x1_0000, 0xffff_ffff, 0x1_ffff_ffff, u64::MAX >> 8] {
            assert_eq!(u64::from(fold32(sum)) % 0xffff, sum % 0xffff);
            assert_eq!(u64::from(fold16(sum)) % 0xffff, sum % 0xffff);
        }
    }
}
