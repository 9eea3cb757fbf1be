//! Small changes to stored inputs, repeatable: no clock, no randomness of the machine.

/// Bytes that mean something somewhere: bounds of numbers, syntax of YAML and JSON, versions of IP.
const TELLING: &[u8] = &[0, 1, 2, 4, 0x14, 0x45, 0x60, 0x7f, 0x80, 0xfe, 0xff, b'\n', b' ', b':'];
const SYNTAX: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"'",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"!!binary ",
    b"\xff\xfe",
    b"null",
    b"-1",
    b"1e999",
    b"18446744073709551616",
    b"::ffff:1.2.3.4",
    b"0.0.0.0/0",
    b"~",
    b"\xe2\x80\xae",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff",
];

/// Makes mutants.
pub(crate) struct Mutator<'a> {
    entries: Vec<&'a [u8]>,
    state: u64,
}

impl<'a> Mutator<'a> {
    pub(crate) const fn new(entries: Vec<&'a [u8]>) -> Self {
        Self { entries, state: 0x5107_ce00 }
    }

    /// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
    const fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, or 0.
    const fn below(&mut self, limit: usize) -> usize {
        if limit == 0 { 0 } else { (self.number() % limit as u64) as usize }
    }

    /// A stretch of at most `longest`.
    fn stretch(&mut self, len: usize, longest: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        start..start + self.below((len - start).min(longest) + 1)
    }

    /// The next mutant of an entry: a few changes, or many.
    pub(crate) fn next(&mut self, entry: usize) -> Vec<u8> {
        let mut bytes = self.entries[entry].to_vec();
        let changes = if self.below(8) == 0 { 16 } else { 1 + self.below(4) };
        for _ in 0..changes {
            self.change(&mut bytes);
        }
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        match self.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = TELLING[self.below(TELLING.len())],
            2 if !bytes.is_empty() => bytes[at] = bytes[at].wrapping_add(self.number() as u8 % 3),
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(self.stretch(bytes.len(), 32))),
            5 => {
                let word = SYNTAX[self.below(SYNTAX.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            6 => {
                let again = bytes[self.stretch(bytes.len(), 64)].to_vec();
                bytes.splice(at..at, again);
            }
            7 => {
                let number = self.number().to_le_bytes();
                bytes.splice(at..at, number[..=self.below(7)].iter().copied());
            }
            _ => {
                let other = self.below(self.entries.len());
                let other = self.entries[other];
                let from = self.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
}
