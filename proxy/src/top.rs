//! What `status` and `top` print.

use std::{collections::BTreeMap, fmt::Write as _, io::Write as _, time::Duration};

use anyhow::Result;
use comfy_table::{Table, presets::NOTHING};
use serde::Serialize;

use crate::{
    client::Client,
    status::{PortStatus, Status},
};

/// Rates of one series.
#[derive(Debug, PartialEq, Serialize)]
struct Rate {
    rule: String,
    from: String,
    protocol: String,
    port: String,
    original_packets_per_second: f64,
    original_bytes_per_second: f64,
    reply_packets_per_second: f64,
    reply_bytes_per_second: f64,
    flows: u64,
    dropped: u64,
}

/// Prints rates until interrupted, or once.
pub async fn top(client: &Client, interval: Duration, once: bool, json: bool) -> Result<()> {
    use std::io::IsTerminal;
    let refresh = std::io::stdout().is_terminal() && !once && !json;
    let mut before: Status = client.get("/v1/status").await?;
    let mut since = std::time::Instant::now();
    loop {
        tokio::time::sleep(interval).await;
        let now: Status = client.get("/v1/status").await?;
        let seconds = since.elapsed().as_secs_f64();
        since = std::time::Instant::now();
        let rates = rates(&before.ports, &now.ports, seconds);
        let mut text = String::new();
        if json {
            for rate in &rates {
                writeln!(text, "{}", serde_json::to_string(rate)?)?;
            }
        } else {
            if refresh {
                // Home, and clear what follows.
                text.push_str("\x1b[H\x1b[J");
            }
            writeln!(text, "{}", headline(&now))?;
            writeln!(text, "{}", table(&rates))?;
        }
        std::io::stdout().write_all(text.as_bytes())?;
        if once {
            return Ok(());
        }
        before = now;
    }
}

fn rates(before: &[PortStatus], now: &[PortStatus], seconds: f64) -> Vec<Rate> {
    fn key(port: &PortStatus) -> (&str, &str, &str, &str) {
        (&port.rule, &port.from, &port.protocol, &port.port)
    }
    let before: BTreeMap<_, _> = before.iter().map(|port| (key(port), port)).collect();
    let rate = |port: &PortStatus| {
        let old = before.get(&key(port));
        let grown = |pick: fn(&PortStatus) -> u64| {
            let old = old.map_or(0, |old| pick(old));
            pick(port).saturating_sub(old) as f64 / seconds.max(f64::EPSILON)
        };
        Rate {
            rule: port.rule.clone(),
            from: port.from.clone(),
            protocol: port.protocol.clone(),
            port: port.port.clone(),
            original_packets_per_second: grown(|p| p.original_packets),
            original_bytes_per_second: grown(|p| p.original_bytes),
            reply_packets_per_second: grown(|p| p.reply_packets),
            reply_bytes_per_second: grown(|p| p.reply_bytes),
            flows: port.flows,
            dropped: port.dropped,
        }
    };
    now.iter().map(rate).collect()
}

fn table(rates: &[Rate]) -> Table {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "RULE", "FROM", "PROTO", "PORT", "PKT/S >", "B/S >", "PKT/S <", "B/S <", "FLOWS", "DROPS",
    ]);
    for rate in rates {
        table.add_row([
            rate.rule.clone(),
            rate.from.clone(),
            rate.protocol.clone(),
            rate.port.clone(),
            format!("{:.0}", rate.original_packets_per_second),
            format!("{:.0}", rate.original_bytes_per_second),
            format!("{:.0}", rate.reply_packets_per_second),
            format!("{:.0}", rate.reply_bytes_per_second),
            rate.flows.to_string(),
            rate.dropped.to_string(),
        ]);
    }
    table
}

fn headline(status: &Status) -> String {
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    let flows = match (status.flows.live, status.flows.max) {
        (Some(live), Some(max)) => format!("{live} of {max}"),
        (Some(live), None) => live.to_string(),
        (None, _) => "not known".to_owned(),
    };
    format!(
        "data path {}   generation {}   ready {}   flows {flows}",
        or_none(&status.data_path.kind),
        or_none(&status.generation),
        status.ready
    )
}

/// The status as text.
pub fn status(status: &Status) -> Result<String> {
    let mut text = headline(status);
    text.push('\n');
    for refusal in &status.data_path.refusals {
        writeln!(text, "refused  {} ({}): {}", refusal.kind, refusal.reason, refusal.message)?;
    }
    if let Some(error) = &status.data_path.error {
        writeln!(text, "error    {error}")?;
    }
    for note in &status.data_path.notes {
        writeln!(text, "note     {note}")?;
    }
    for error in &status.config.errors {
        writeln!(text, "config   {error}")?;
    }
    for rule in status.rules.iter().filter(|rule| rule.reason.is_some()) {
        writeln!(text, "rule     {}: {}", rule.rule, rule.reason.as_deref().unwrap_or_default())?;
    }
    let mut table = Table::new();
    table.load_style(NOTHING).set_header([
        "RULE", "FROM", "PROTO", "PORT", "PKTS >", "BYTES >", "PKTS <", "BYTES <", "FLOWS", "DROPS",
    ]);
    for port in &status.ports {
        table.add_row([
            port.rule.clone(),
            port.from.clone(),
            port.protocol.clone(),
            port.port.clone(),
            port.original_packets.to_string(),
            port.original_bytes.to_string(),
            port.reply_packets.to_string(),
            port.reply_bytes.to_string(),
            port.flows.to_string(),
            port.dropped.to_string(),
        ]);
    }
    writeln!(text, "{table}")?;
    for (reason, packets) in status.drops.iter().filter(|(_, packets)| **packets > 0) {
        writeln!(text, "dropped  {reason}: {packets}")?;
    }
    Ok(text)
}
