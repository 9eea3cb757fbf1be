//! What tailscaled answers. Every reader gets every input: a mutant of one answer is a strange form of another.

use std::time::SystemTime;

use proxy::localapi::{
    lines::{Lines, TooLong},
    parse::{self, ParseError},
};
use serde_json::Value;

/// A line of the bus is at most so long here, so that some inputs exceed it.
const LONGEST: usize = 2048;

/// What an error may hold: two texts of 1024 characters, of four bytes each at most, and a sign that they were cut.
const LONGEST_ERROR: usize = 2 * (4 * 1024 + 3) + 2;

/// An answer of the LocalAPI, a line of its bus or a stretch of it, the text of an error, a header.
pub fn localapi(data: &[u8]) {
    if let Some(notify) = read(parse::notify(data)) {
        assert!(notify.peers_removed.len() + notify.peers_changed.len() <= data.len());
        if let Some(node) = notify.self_change {
            assert!(node.allowed_ips.len() <= data.len());
            read(parse::services(&node.cap_map));
        }
    }
    if let Some(status) = read(parse::status(data)) {
        assert!(status.peers.len() <= data.len());
        assert_eq!(status.state().map(|state| state.to_string()), named(&status.backend_state));
    }
    if let Some(config) = read(parse::serve_config(data)) {
        let written = serde_json::to_value(&config).unwrap_or_default();
        if !fractions(&written) {
            let text = written.to_string();
            let again = parse::serve_config(text.as_bytes());
            assert_eq!(again, Ok(config), "changed by being written and read");
        }
    }
    if let Some(pair) = read(parse::cert_pair(data)) {
        assert_eq!(data, [pair.key.as_bytes(), pair.chain.as_bytes()].concat());
        assert!(!pair.chain.contains("PRIVATE KEY-----"), "a key among the certificates");
    }
    read(parse::prefs(data));
    read(parse::dns_config(data));
    read(parse::cert_domains(data));
    read(parse::whois(data));
    read(parse::reload(data));
    read(parse::warning(data));
    one_line(&parse::error_text(data));
    if let Ok(value) = std::str::from_utf8(data) {
        parse::retry_after(value, SystemTime::UNIX_EPOCH);
    }
    lines(data);
}

/// Whether there is a number that is no integer of 64 bits: serde_json keeps such a one nearly, not exactly.
fn fractions(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(list) => list.iter().any(fractions),
        Value::Object(map) => map.values().any(fractions),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

fn read<T>(result: Result<T, ParseError>) -> Option<T> {
    result.map_err(|error| one_line(&error.to_string())).ok()
}

fn one_line(text: &str) {
    assert!(text.len() <= LONGEST_ERROR, "{} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control()), "{text:?}");
}

/// The names of states that there are.
fn named(name: &str) -> Option<String> {
    let names = [
        "NoState",
        "InUseOtherUser",
        "NeedsLogin",
        "NeedsMachineAuth",
        "Stopped",
        "Starting",
        "Running",
    ];
    names.contains(&name).then(|| name.to_owned())
}

/// A stream in pieces, of a size that the first byte says, has the lines that it has as a whole.
fn lines(data: &[u8]) {
    let mut expected = Vec::new();
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at(end);
        expected.push(line);
        rest = after.get(1..).unwrap_or_default();
    }
    let fits = expected.iter().chain([&rest]).all(|line| line.len() <= LONGEST);
    let size = usize::from(data.first().copied().unwrap_or_default()) + 1;
    let mut stream = Lines::new(LONGEST);
    let mut seen = Vec::new();
    let mut cut = || -> Result<(), TooLong> {
        for piece in data.chunks(size) {
            stream.push(piece);
            while let Some(line) = stream.line()? {
                seen.push(line);
            }
        }
        Ok(())
    };
    assert_eq!(cut().is_ok(), fits, "bounded otherwise than said");
    assert!(seen.iter().zip(&expected).all(|(seen, expected)| seen == expected));
    assert!(!fits || seen.len() == expected.len(), "lines are missing");
}
