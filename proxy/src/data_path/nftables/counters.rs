//! Reads the table's counters: those of set elements (by mark) and the named ones (by reason).

use std::collections::BTreeMap;

use proxy_rules::{Count, DropReason, Series, Snapshot};
use serde::Deserialize;

use super::{
    apply::{self, NftError},
    script::TABLE,
};

/// What `nft -j list` prints, as far as it matters here.
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    set: Option<Set>,
    counter: Option<Named>,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    #[serde(default)]
    elem: Vec<Element>,
}

/// An element alone, or with a counter or comment.
#[derive(Deserialize)]
#[serde(untagged)]
enum Element {
    Dressed {
        elem: Dressed,
    },
    #[expect(dead_code, reason = "takes whatever an element without counter looks like")]
    Plain(serde_json::Value),
}

#[derive(Deserialize)]
struct Dressed {
    val: serde_json::Value,
    counter: Option<Value>,
    comment: Option<String>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
    packets: u64,
}

#[derive(Clone, Copy, Deserialize)]
struct Value {
    packets: u64,
    bytes: u64,
}

/// What the table in the kernel holds that a process must not lose.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// By mark.
    pub(crate) counts: BTreeMap<u32, Count>,
    /// By reason.
    pub(crate) drops: BTreeMap<DropReason, u64>,
    /// Kernel settings before us: path -> value.
    pub(crate) sysctls: BTreeMap<String, String>,
}

/// Reads the table; `None` if there is none.
pub(crate) fn read() -> Result<Option<Reading>, NftError> {
    let table: Vec<&str> = TABLE.split(' ').collect();
    let list = |what: &'static str| {
        let mut words = vec![what, "table"];
        words.extend(&table);
        apply::list(&words)
    };
    match (list("sets")?, list("counters")?) {
        (Some(sets), Some(counters)) => Ok(Some(parse(&sets, &counters)?)),
        _ => Ok(None),
    }
}

pub(crate) fn parse(sets: &str, counters: &str) -> Result<Reading, NftError> {
    let mut reading = Reading::default();
    let sets: Listing = serde_json::from_str(sets)?;
    for set in sets.nftables.into_iter().filter_map(|object| object.set) {
        for element in set.elem {
            let Element::Dressed { elem } = element else { continue };
            if let ("sysctls", Some(comment)) = (set.name.as_str(), &elem.comment) {
                let saved = comment.split_once('=');
                reading.sysctls.extend(saved.map(|(path, old)| (path.to_owned(), old.to_owned())));
            }
            let (Some(mark), Some(value)) = (elem.val.as_u64(), elem.counter) else { continue };
            let count = reading.counts.entry(mark as u32).or_default();
            match set.name.as_str() {
                "count_original" => {
                    (count.original_packets, count.original_bytes) = (value.packets, value.bytes);
                }
                "count_reply" => {
                    (count.reply_packets, count.reply_bytes) = (value.packets, value.bytes);
                }
                "count_flows" => count.flows = value.packets,
                "count_dropped" => count.dropped = value.packets,
                _ => {}
            }
        }
    }
    let counters: Listing = serde_json::from_str(counters)?;
    for counter in counters.nftables.into_iter().filter_map(|object| object.counter) {
        let reason = DropReason::ALL
            .iter()
            .find(|reason| counter.name.strip_prefix("drop_") == Some(reason.label()));
        reading.drops.extend(reason.map(|reason| (*reason, counter.packets)));
    }
    Ok(reading)
}

impl Reading {
    /// By series; marks that `series` does not know are left out.
    pub(crate) fn snapshot(&self, series: impl Fn(u32) -> Option<Series>) -> Snapshot {
        let mut snapshot = Snapshot { drops: self.drops.clone(), ..Snapshot::default() };
        for (mark, count) in &self.counts {
            if let Some(series) = series(*mark) {
                let sum = snapshot.series.entry(series).or_default();
                *sum = sum.plus(*count);
            }
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_and_named_counters_are_read() {
        let sets = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"set": {"family": "inet", "name": "count_original", "table": "sluice", "type": "mark", "handle": 1,
             "elem": [{"elem": {"val": 1342177281, "counter": {"packets": 3, "bytes": 180}}}], "stmt": [{"counter": null}]}},
            {"set": {"family": "inet", "name": "count_flows", "table": "sluice", "type": "mark", "handle": 2,
             "elem": [{"elem": {"val": 1342177281, "counter": {"packets": 1, "bytes": 60}}}]}},
            {"set": {"family": "inet", "name": "masquerades", "table": "sluice", "type": "mark", "handle": 3, "elem": [1342177281]}},
            {"set": {"family": "inet", "name": "sysctls", "table": "sluice", "type": "mark", "handle": 4,
             "elem": [{"elem": {"val": 1, "comment": "net/ipv4/conf/eth0/forwarding=0"}}]}}]}"#;
        let counters = r#"{"nftables": [{"metainfo": {}},
            {"counter": {"family": "inet", "name": "drop_no_rule", "table": "sluice", "handle": 9, "packets": 7, "bytes": 420}},
            {"counter": {"family": "inet", "name": "mss_clamped", "table": "sluice", "handle": 10, "packets": 1, "bytes": 60}}]}"#;
        let reading = parse(sets, counters).unwrap();
        let count = reading.counts.get(&1_342_177_281).unwrap();
        assert_eq!((count.original_packets, count.original_bytes, count.flows), (3, 180, 1));
        assert_eq!(reading.drops, BTreeMap::from([(DropReason::NoRule, 7)]));
        assert_eq!(reading.sysctls.get("net/ipv4/conf/eth0/forwarding").unwrap(), "0");
    }
}
