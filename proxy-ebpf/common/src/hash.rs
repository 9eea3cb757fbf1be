//! The hash that chooses backends and starts the search for a source port.

use crate::FlowKey;

const fn mix(state: u32, word: [u8; 4]) -> u32 {
    (state ^ u32::from_be_bytes(word)).wrapping_mul(0x9e37_79b1).rotate_left(15)
}

const fn mix_address(mut state: u32, address: &[u8; 16]) -> u32 {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *address;
    state = mix(state, [a, b, c, d]);
    state = mix(state, [e, f, g, h]);
    state = mix(state, [i, j, k, l]);
    mix(state, [m, n, o, p])
}

/// Hashes a tuple: the source address alone (`client_only`, for client-IP affinity) or addresses, ports and
/// protocol. Words are read big-endian and mixed by multiply and rotate; the end is murmur3's finaliser.
#[inline(always)]
#[expect(clippy::inline_always, reason = "part of the packet path")]
pub const fn tuple_hash(key: &FlowKey, client_only: bool) -> u32 {
    let mut hash = mix_address(0, &key.src);
    if !client_only {
        hash = mix_address(hash, &key.dst);
        let ([a, b], [c, d]) = (key.src_port, key.dst_port);
        hash = mix(hash, [a, b, c, d]);
        hash = mix(hash, [0, 0, 0, key.protocol]);
    }
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}
