//! Values as Go programs write them.

use std::time::Duration;

/// As Go's `strconv.ParseBool`.
pub(super) fn bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// As Go's `time.ParseDuration`: numbers with units, such as `1m30s` or `1.5h`, or `0`. A negative one is `None` too, since
/// nothing here takes one.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        // The longest first: `m` begins `ms`.
        let (unit, nanoseconds) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        total = total.checked_add(amount(number, *nanoseconds)?)?;
        rest = after.strip_prefix(unit)?;
    }
    // Go counts nanoseconds in 64 bits with a sign.
    (total.as_nanos() <= i64::MAX as u128).then_some(total)
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// `number` of a unit; digits below a nanosecond are cut, as in Go.
fn amount(number: &str, unit: u64) -> Option<Duration> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut nanoseconds = u128::from(whole) * u128::from(unit);
    let mut scale = u128::from(unit);
    for digit in fraction.bytes() {
        scale /= 10;
        nanoseconds += u128::from(digit - b'0') * scale;
    }
    Some(Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        let cases = [
            ("0", Some(0)),
            ("60s", Some(60_000_000_000)),
            ("+1m30s", Some(90_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("300ms", Some(300_000_000)),
            ("1h1m1s1ms1us1ns", Some(3_661_001_001_001)),
            ("2\u{b5}s", Some(2_000)),
            ("0.0000000019s", Some(1)),
            ("", None),
            ("+", None),
            ("60", None),
            ("-1s", None),
            ("1 s", None),
            ("s", None),
            (".s", None),
            ("1..5s", None),
            ("1d", None),
            ("\u{ff11}s", None),
            ("3000000h", None),
            ("99999999999999999999s", None),
        ];
        for (text, nanoseconds) in cases {
            assert_eq!(duration(text), nanoseconds.map(Duration::from_nanos), "{text}");
        }
    }

    #[test]
    fn truth_is_gos() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(bool(text), Some(true));
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(bool(text), Some(false));
        }
        for text in ["", "yes", "tRUE", " true", "on", "2"] {
            assert_eq!(bool(text), None, "{text}");
        }
    }
}
