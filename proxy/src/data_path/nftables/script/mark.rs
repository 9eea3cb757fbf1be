//! Connection marks: the number that ties a flow to its rule, in the kernel's own connection table.
//!
//! Layout of the 32 bits: `0101 E hash`. The first four say that the mark is ours, `E` that the rule names exactly
//! one port, and the 27 bits below are a hash of what the rule matches. So a restarted process gives the same
//! rule the same mark, and flows that are in the kernel already keep their meaning. `0110` marks a group of
//! source-limited rules; it never outlives the classification of one packet.

use std::collections::{HashMap, HashSet};

/// The bits that say whose mark it is.
pub(crate) const OWNER_MASK: u32 = 0xf000_0000;
/// A rule's mark.
pub(crate) const RULE: u32 = 0x5000_0000;
/// A group's mark.
pub(crate) const GROUP: u32 = 0x6000_0000;
/// Not a mark: the name of a rule's chain, from the same hash.
pub(crate) const CHAIN: u32 = 0x7000_0000;
/// The rule names exactly one port: it goes before a local listener.
pub(crate) const EXACT_PORT: u32 = 0x0800_0000;
const HASH_MASK: u32 = 0x07ff_ffff;

/// Hands out marks. What had a mark before keeps it, whatever is added around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    known: HashMap<String, u32>,
    used: HashSet<u32>,
}

impl Marks {
    /// An allocator that prefers what `old` has given out, for as long as `keep` says so.
    pub(crate) fn following(old: &Self, keep: impl Fn(u32) -> bool) -> Self {
        let known: HashMap<_, _> = old
            .known
            .iter()
            .filter(|(_, mark)| keep(**mark))
            .map(|(k, m)| (k.clone(), *m))
            .collect();
        let used = known.values().copied().collect();
        Self { known, used }
    }

    /// The mark of a thing; `bits` are its fixed part.
    pub(crate) fn mark(&mut self, identity: String, bits: u32) -> u32 {
        if let Some(mark) = self.known.get(&identity) {
            return *mark;
        }
        let mut hash = fnv1a(identity.as_bytes());
        let mut mark = bits | (hash & HASH_MASK);
        while !self.used.insert(mark) {
            hash = hash.wrapping_add(1);
            mark = bits | (hash & HASH_MASK);
        }
        self.known.insert(identity, mark);
        mark
    }
}

/// FNV-1a, 32 bits: short, and the same on every machine and in every release, which the standard library's
/// hashers do not promise.
pub(super) fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_depends_on_the_thing_alone() {
        let mut one = Marks::default();
        let mut two = Marks::default();
        two.mark("other".into(), RULE);
        assert_eq!(one.mark("a".into(), RULE), two.mark("a".into(), RULE));
        assert_eq!(one.mark("a".into(), RULE) & OWNER_MASK, RULE);
    }

    #[test]
    fn what_had_a_mark_keeps_it_and_nothing_shares_it() {
        let mut old = Marks::default();
        let taken = old.mark("a".into(), RULE);
        // Another thing sits where `a` hashes to, as after a collision.
        old.known.insert("b".into(), taken);
        old.known.remove("a");
        let mut new = Marks::following(&old, |_| true);
        assert_ne!(new.mark("a".into(), RULE), taken);
        assert_eq!(new.mark("b".into(), RULE), taken);
    }
}
