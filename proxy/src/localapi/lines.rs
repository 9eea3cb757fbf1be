//! Cuts a stream into lines, in time that is linear in its length however it is cut into pieces.

use bytes::{Buf as _, Bytes, BytesMut};

/// What has come of a stream and was not yet taken.
#[derive(Debug)]
pub struct Lines {
    buffer: BytesMut,
    /// So much of the buffer holds no line break.
    scanned: usize,
    limit: usize,
}

/// A line is longer than it may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TooLong;

impl Lines {
    /// For lines of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), scanned: 0, limit }
    }

    /// Takes the next piece of the stream. Take all lines before the next piece: what is kept is then one line at most.
    pub fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole line without its line break, if it is there. After an error the stream is of no use.
    pub fn line(&mut self) -> Result<Option<Bytes>, TooLong> {
        let new = self.buffer.get(self.scanned..).unwrap_or_default();
        let end = memchr::memchr(b'\n', new).map(|at| self.scanned + at);
        self.scanned = self.buffer.len();
        if end.unwrap_or(self.scanned) > self.limit {
            return Err(TooLong);
        }
        let Some(end) = end else { return Ok(None) };
        let line = self.buffer.split_to(end).freeze();
        self.buffer.advance(1);
        self.scanned = 0;
        if self.buffer.is_empty() {
            // Else the memory of the longest line would be kept for good.
            self.buffer = BytesMut::new();
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(limit: usize, pieces: &[&[u8]]) -> Result<Vec<Bytes>, TooLong> {
        let mut lines = Lines::new(limit);
        let mut whole = Vec::new();
        for piece in pieces {
            lines.push(piece);
            while let Some(line) = lines.line()? {
                whole.push(line);
            }
        }
        Ok(whole)
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let stream = b"one\n\ntwo three\nfour";
        let expected = Ok(vec![Bytes::from("one"), Bytes::new(), Bytes::from("two three")]);
        for size in 1..=stream.len() {
            let pieces: Vec<_> = stream.chunks(size).collect();
            assert_eq!(all(9, &pieces), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_line_is_bounded_with_and_without_its_end() {
        assert_eq!(all(3, &[b"abc\n"]), Ok(vec![Bytes::from("abc")]));
        assert_eq!(all(3, &[b"abcd\n"]), Err(TooLong));
        assert_eq!(all(3, &[b"ab", b"cd"]), Err(TooLong));
    }

    #[test]
    fn a_long_line_in_small_pieces_takes_linear_time_and_leaves_no_memory() {
        let mut lines = Lines::new(1 << 24);
        let mut looked_at = 0;
        for _ in 0..1 << 14 {
            lines.push(&[b'x'; 1 << 10]);
            looked_at += lines.buffer.len() - lines.scanned;
            assert_eq!(lines.line(), Ok(None));
        }
        assert_eq!(looked_at, 1 << 24, "bytes are searched once");
        lines.push(b"\n");
        assert_eq!(lines.line().map(|line| line.map(|line| line.len())), Ok(Some(1 << 24)));
        assert_eq!(lines.buffer.capacity(), 0);
    }
}
