//! The bus: what changes, as it changes.

use std::ops::BitOr;

use tracing::debug;

use super::{Error, Notify, exchange::Answer, lines::Lines, parse};

/// What errors call it.
const CALL: &str = "GET watch-ipn-bus";

/// What a watch asks for. State changes, changed preferences and `self_change` come in any case.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Watch(u64);

impl Watch {
    /// The first message holds the state and the watch's session id.
    pub const INITIAL_STATE: Self = Self(1 << 1);
    /// The first message holds the preferences.
    pub const INITIAL_PREFS: Self = Self(1 << 2);
    /// The first message holds the node itself, as `self_change`. The netmap beside it is not read: prefer
    /// `INITIAL_STATUS`, whose cost is less.
    pub const INITIAL_NETMAP: Self = Self(1 << 3);
    /// The first message holds the warnings.
    pub const INITIAL_HEALTH: Self = Self(1 << 7);
    /// Peers that come, change and go are told.
    pub const PEER_CHANGES: Self = Self(1 << 12);
    /// No netmaps but the first, whatever the platform.
    pub const NO_NETMAP: Self = Self(1 << 13);
    /// The first message holds the whole status, peers included.
    pub const INITIAL_STATUS: Self = Self(1 << 14);

    /// The number that tailscaled takes.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl BitOr for Watch {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A watch that is going on. Dropping it ends it.
///
/// Read it without long pauses: tailscaled ends a watch that is more than 128 messages behind. A new one then begins with
/// the whole state again.
#[derive(Debug)]
pub struct Bus {
    /// Gone when the stream has ended.
    answer: Option<Answer>,
    lines: Lines,
    limit: usize,
}

impl Bus {
    pub(super) fn new(answer: Answer, limit: usize) -> Self {
        Self { answer: Some(answer), lines: Lines::new(limit), limit }
    }

    /// The next message; `None` when tailscaled has ended the watch, by stopping or because it was not read. Cancel safe: no
    /// message is lost or cut when the future is dropped. After a message that cannot be read the next one still can.
    pub async fn next(&mut self) -> Result<Option<Notify>, Error> {
        loop {
            match self.lines.line() {
                Ok(Some(line)) if line.trim_ascii().is_empty() => {}
                Ok(Some(line)) => {
                    return parse::notify(&line)
                        .map(Some)
                        .map_err(|problem| Error::Parse { call: CALL.to_owned(), problem });
                }
                Ok(None) => {
                    let Some(answer) = &mut self.answer else { return Ok(None) };
                    match answer.piece().await {
                        Some(Ok(piece)) => self.lines.push(&piece),
                        // A tailscaled that is killed does not end the answer; what came of a line is of no use.
                        ended => {
                            debug!(?ended, "tailscaled ended the watch of its bus");
                            self.answer = None;
                            return Ok(None);
                        }
                    }
                }
                Err(_) => {
                    self.answer = None;
                    self.lines = Lines::new(self.limit);
                    return Err(Error::TooLong { call: CALL.to_owned(), limit: self.limit });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_containerboot_asks_for_has_its_number() {
        let watch = Watch::INITIAL_STATUS
            | Watch::PEER_CHANGES
            | Watch::NO_NETMAP
            | Watch::INITIAL_PREFS
            | Watch::INITIAL_HEALTH;
        assert_eq!(watch.bits(), 16384 + 4096 + 8192 + 4 + 128);
        assert_eq!((Watch::INITIAL_STATE | Watch::INITIAL_NETMAP).bits(), 10);
    }
}
