//! Prometheus text from one reading of the counters: nothing is mirrored, and a scrape that is slow to be sent holds
//! up nobody.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge, histogram::Histogram},
    registry::Registry,
};
use proxy_rules::{Count, Protocol, Snapshot};

use crate::{data_path::Kind, engine::State, status};

/// What a scrape reports.
#[derive(Debug)]
pub struct Scrape {
    /// The counters.
    pub snapshot: Snapshot,
    /// What is in force.
    pub state: std::sync::Arc<State>,
    /// What is wrong with the rules file.
    pub config_errors: u64,
    /// Whether the process is ready.
    pub ready: bool,
}

/// How long applies take: from a changed port to a whole new table.
pub fn apply_seconds() -> Histogram {
    Histogram::new([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
}

/// The text of a scrape.
pub fn text(scrape: Scrape, apply_seconds: &Histogram) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register(
        "sluice_apply_seconds",
        "Time to put a table in force",
        apply_seconds.clone(),
    );
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

type Pick = fn(&Count) -> u64;

impl Scrape {
    fn by_series(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        picks: &[(Option<&str>, Pick)],
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (series, count) in &self.snapshot.series {
            for (direction, pick) in picks {
                let mut labels = vec![
                    ("rule", series.rule.to_string()),
                    ("from", series.from.label().to_owned()),
                    ("protocol", series.protocol.map_or("any", Protocol::label).to_owned()),
                    ("port", status::port(series)),
                ];
                labels.extend(direction.map(|direction| ("direction", direction.to_owned())));
                ConstCounter::new(pick(count)).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }

    fn traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (original, reply) = (Some("original"), Some("reply"));
        self.by_series(
            encoder,
            "sluice_forwarded_packets",
            "Packets carried; direction is that of the flow",
            &[(original, |c| c.original_packets), (reply, |c| c.reply_packets)],
        )?;
        self.by_series(
            encoder,
            "sluice_forwarded_bytes",
            "Bytes carried, IP length",
            &[(original, |c| c.original_bytes), (reply, |c| c.reply_bytes)],
        )?;
        self.by_series(encoder, "sluice_flows_created", "Flows created", &[(None, |c| c.flows)])?;
        let dropped: Pick = |c| c.dropped;
        self.by_series(
            encoder,
            "sluice_series_dropped",
            "Packets of a rule dropped",
            &[(None, dropped)],
        )?;
        let help = "Packets dropped, by reason";
        let mut family =
            encoder.encode_descriptor("sluice_dropped_packets", help, None, MetricType::Counter)?;
        for reason in proxy_rules::DropReason::ALL {
            let packets = self.snapshot.drops.get(reason).copied().unwrap_or(0);
            ConstCounter::new(packets)
                .encode(family.encode_family(&[("reason", reason.label())])?)?;
        }
        Ok(())
    }

    fn mode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "1 for the data path in force; 0 for one that was refused, with the reason";
        let mut family =
            encoder.encode_descriptor("sluice_data_path_info", help, None, MetricType::Gauge)?;
        if let Some(kind) = self.state.kind {
            let labels = [("kind", kind.label()), ("reason", "")];
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
        for refusal in &self.state.refusals {
            let labels = [("kind", Kind::label(refusal.kind)), ("reason", refusal.reason)];
            ConstGauge::new(0_i64).encode(family.encode_family(&labels)?)?;
        }
        let help = "Content hash of the table in force";
        let mut family =
            encoder.encode_descriptor("sluice_generation_info", help, None, MetricType::Gauge)?;
        if let Some(table) = &self.state.table {
            let labels = [("generation", table.generation())];
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.traffic(&mut encoder)?;
        self.mode(&mut encoder)?;
        let rules = self.state.table.as_ref().map_or(0, |table| table.rules().len());
        let gauges = [
            ("sluice_flows", "Live flows", self.snapshot.live_flows),
            ("sluice_max_flows", "Capacity of the flow table", self.snapshot.max_flows),
            ("sluice_rules", "Rules in force", Some(rules as u64)),
            ("sluice_config_errors", "What is wrong with the rules file", Some(self.config_errors)),
            ("sluice_ready", "Whether traffic is carried as configured", Some(self.ready.into())),
            ("sluice_data_path_switches", "Changes of the data path", Some(self.state.switches)),
            ("process_resident_memory_bytes", "Resident memory", crate::capability::resident()),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                let metric = ConstGauge::new(value as i64);
                let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                metric.encode(encoder)?;
            }
        }
        Ok(())
    }
}
