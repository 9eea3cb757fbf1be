//! What `tailscaled` and `tailscale` print, in our log. The reader of a process's output waits for nothing but output: what
//! the log cannot take at once is counted and left out, so that a slow log never stops a process.

use std::{
    fmt::Write as _,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    task::JoinHandle,
};

use super::{mask::Masks, said::Said};

/// A longer line is cut.
const LONGEST: usize = 4096;
/// Lines that wait for the log.
const WAITING: usize = 1024;

/// Who printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// `tailscaled`: the log's target of this name.
    Daemon,
    /// `tailscale`: the log's target of this name.
    Program,
}

/// Passes lines on to the log, from a thread of its own, since writing to it may block.
#[derive(Clone, Debug)]
pub(super) struct Relay {
    lines: mpsc::SyncSender<(Source, String)>,
    left_out: Arc<AtomicU64>,
    masks: Masks,
}

impl Relay {
    pub(super) fn new(masks: Masks) -> io::Result<Self> {
        Self::with(masks, |source, line| {
            let (level, text) = level(line);
            emit(source, level, text);
        })
    }

    fn with(masks: Masks, write: impl Fn(Source, &str) + Send + 'static) -> io::Result<Self> {
        let (lines, waiting) = mpsc::sync_channel::<(Source, String)>(WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let missed = Arc::clone(&left_out);
        let work = move || {
            for (source, line) in waiting {
                write(source, &line);
                let count = missed.swap(0, Ordering::Relaxed);
                if count > 0 {
                    tracing::warn!(count, "the log was too slow for lines of tailscaled's");
                }
            }
        };
        std::thread::Builder::new().name("tailscaled-log".to_owned()).spawn(work)?;
        Ok(Self { lines, left_out, masks })
    }

    /// Reads until the end of the stream.
    pub(super) fn read(
        &self,
        source: Source,
        mut stream: impl AsyncRead + Unpin + Send + 'static,
        said: Arc<Mutex<Said>>,
    ) -> JoinHandle<()> {
        let relay = self.clone();
        tokio::spawn(async move {
            let mut lines = Lines::default();
            let mut buffer = vec![0; 8192];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                lines.feed(buffer.get(..count).unwrap_or_default(), &mut |line| {
                    relay.take(source, line, &said);
                });
            }
            lines.end(&mut |line| relay.take(source, line, &said));
        })
    }

    fn take(&self, source: Source, line: &str, said: &Mutex<Said>) {
        let line = self.masks.apply(line);
        said.lock().unwrap_or_else(PoisonError::into_inner).push(&line);
        if self.lines.try_send((source, line.into_owned())).is_err() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Bytes to lines. Empty ones are left out.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    cut: usize,
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], line: &mut impl FnMut(&str)) {
        let mut parts = bytes.split(|byte| *byte == b'\n');
        self.extend(parts.next().unwrap_or_default());
        for part in parts {
            self.end(line);
            self.extend(part);
        }
    }

    fn extend(&mut self, part: &[u8]) {
        let room = LONGEST - self.line.len().min(LONGEST);
        let (kept, cut) = part.split_at(part.len().min(room));
        self.line.extend_from_slice(kept);
        self.cut += cut.len();
    }

    fn end(&mut self, line: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(&self.line);
        // Whatever it prints, it does not move a terminal's cursor.
        let mut text = text.trim_end().replace(|c: char| c.is_control() && c != '\t', " ");
        if self.cut > 0 {
            let _ = write!(text, " ({} more bytes)", self.cut);
        }
        if !text.is_empty() {
            line(&text);
        }
        self.line.clear();
        self.cut = 0;
    }
}

/// The level of a line, and the line without what is in our log anyway. `[v1]` and `[v2]` are its own marks, at the beginning
/// or the end; the rest is guessed from words.
fn level(line: &str) -> (tracing::Level, &str) {
    use tracing::Level;
    let text = without_time(line);
    for (mark, level) in [("[v1]", Level::DEBUG), ("[v2]", Level::TRACE)] {
        if let Some(stripped) = text.strip_prefix(mark).or_else(|| text.strip_suffix(mark)) {
            return (level, stripped.trim());
        }
    }
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let level = if text.starts_with("panic:") || text.starts_with("fatal error:") {
        Level::ERROR
    } else if has(&["[RATELIMIT]"]) {
        Level::DEBUG
    } else if has(&["[unexpected]", "rror", "ailed", "arning:", "cannot ", "could not "]) {
        Level::WARN
    } else {
        Level::INFO
    };
    (level, text)
}

/// Go's log package begins a line with `2006/01/02 15:04:05 `.
fn without_time(line: &str) -> &str {
    const FORM: &[u8] = b"0000/00/00 00:00:00 ";
    let matches = line.len() >= FORM.len()
        && line.bytes().zip(FORM).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            form => byte == *form,
        });
    if matches { line.get(FORM.len()..).unwrap_or_default() } else { line }
}

/// The target and the level of an event are constants.
fn emit(source: Source, level: tracing::Level, text: &str) {
    macro_rules! emit {
        ($target:literal) => {
            match level {
                tracing::Level::ERROR => tracing::error!(target: $target, "{text}"),
                tracing::Level::WARN => tracing::warn!(target: $target, "{text}"),
                tracing::Level::INFO => tracing::info!(target: $target, "{text}"),
                tracing::Level::DEBUG => tracing::debug!(target: $target, "{text}"),
                tracing::Level::TRACE => tracing::trace!(target: $target, "{text}"),
            }
        };
    }
    match source {
        Source::Daemon => emit!("tailscaled"),
        Source::Program => emit!("tailscale"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tracing::Level;

    use super::*;

    fn lines(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for part in parts {
            lines.feed(part, &mut |line| found.push(line.to_owned()));
        }
        lines.end(&mut |line| found.push(line.to_owned()));
        found
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\n", b"three"]), ["one", "two", "three"]);
        assert_eq!(lines(&[b"\n\n"]), Vec::<String>::new());
        assert_eq!(lines(&[b"a\x1b[31mb\r\n\xff\tc"]), ["a [31mb", "\u{fffd}\tc"]);
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        let long = vec![b'x'; LONGEST + 10];
        let found = lines(&[&long, &long, b"\nnext"]);
        assert_eq!(found[0], format!("{} ({} more bytes)", "x".repeat(LONGEST), LONGEST + 20));
        assert_eq!(found[1], "next");
    }

    #[test]
    fn levels_are_its_own_marks_or_guessed() {
        for (line, wanted, text) in [
            ("2026/11/30 14:30:00 [v1] magicsock: x", Level::DEBUG, "magicsock: x"),
            ("netcheck: y [v2]", Level::TRACE, "netcheck: y"),
            ("2026/11/30 14:30:00 Start", Level::INFO, "Start"),
            ("2026/11/30 14:3x:00 Start", Level::INFO, "2026/11/30 14:3x:00 Start"),
            ("health(warnable=x): error: y", Level::WARN, "health(warnable=x): error: y"),
            ("[RATELIMIT] format(\"an error\")", Level::DEBUG, "[RATELIMIT] format(\"an error\")"),
            ("[unexpected] z", Level::WARN, "[unexpected] z"),
            ("panic: nil map", Level::ERROR, "panic: nil map"),
            ("2026/11/30 14:30:00 ", Level::INFO, ""),
        ] {
            assert_eq!(level(line), (wanted, text), "{line}");
        }
    }

    /// A log that takes nothing stops neither the reader nor the writer, and what is left out is counted.
    #[tokio::test]
    async fn a_stuck_log_stops_nobody() {
        const LINES: usize = 3 * WAITING;
        let (open, gate) = mpsc::channel::<()>();
        let relay = Relay::with(Masks::default(), move |_, _| {
            let _ = gate.recv();
        })
        .unwrap();
        let (mut writer, reader) = tokio::io::duplex(512);
        let said = Arc::new(Mutex::new(Said::default()));
        let read = relay.read(Source::Daemon, reader, Arc::clone(&said));
        for line in 0..LINES {
            writer.write_all(format!("line {line} tskey-auth-secret\n").as_bytes()).await.unwrap();
        }
        drop(writer);
        read.await.unwrap();
        let left_out = relay.left_out.load(Ordering::Relaxed);
        assert!(left_out >= (LINES - WAITING - 1) as u64, "{left_out}");
        let last = said.lock().unwrap().lines().last().unwrap().to_owned();
        assert_eq!(last, format!("line {} tskey-[REDACTED]", LINES - 1));
        drop(open);
    }
}
