//! Times of what runs between a changed configuration and the kernel: reading it, ordering it, compiling it.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "criterion's macros; a bench that cannot set itself up has nothing to say"
)]

use std::{fmt::Write, hint::black_box, net::IpAddr, time::Duration};

use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use proxy::data_path::ebpf::image::{Slots, compile};
use proxy_ebpf_common::{FlowKey, tuple_hash};
use proxy_rules::{Affinity, Backend, BackendState, Backends, RuleTable, validate::validate};

/// A rules file with so many published ports.
fn document(ports: u16) -> String {
    let mut text = String::from(
        "apiVersion: sluice.dev/v1\nkind: ProxyRules\n\
         settings:\n  interfaces: {tailnet: [tn0], cluster: [cl0]}\n\
         ingress:\n- name: default/web\n  frontends: [100.64.0.9]\n  \
         backends: [{address: 192.0.2.10}]\n  ports:\n",
    );
    for port in 10_000..10_000 + ports {
        writeln!(text, "  - {{protocol: tcp, port: {port}, targetPort: 8080}}").unwrap();
    }
    text
}

fn table(ports: u16) -> RuleTable {
    validate(&document(ports)).expect("the rules file is valid").table
}

fn configuration(c: &mut Criterion) {
    let mut group = c.benchmark_group("configuration");
    for ports in [100, 1000, 10_000] {
        let text = document(ports);
        group.bench_function(BenchmarkId::new("validate", ports), |b| {
            b.iter(|| validate(black_box(&text)));
        });
        let table = table(ports);
        group.bench_function(BenchmarkId::new("canonical order", ports), |b| {
            b.iter_batched(
                || (table.rules().to_vec(), table.settings().clone()),
                |(rules, settings)| RuleTable::new(rules, settings),
                BatchSize::LargeInput,
            );
        });
        group.bench_function(BenchmarkId::new("map image", ports), |b| {
            b.iter(|| compile(black_box(&table), &mut Slots::default()));
        });
    }
    group.finish();
}

fn backends(c: &mut Criterion) {
    let mut group = c.benchmark_group("backends");
    for count in [2_u8, 16, 128] {
        let list = (1..=count).map(|host| Backend {
            address: IpAddr::from([192, 0, 2, host]),
            port: Some(8080),
            weight: 1,
            state: BackendState::Ready,
        });
        let backends = Backends { list: list.collect(), affinity: Affinity::Flow };
        group.bench_function(BenchmarkId::new("lookup table", count), |b| {
            b.iter(|| black_box(&backends).lookup_table());
        });
    }
    group.finish();
    let key = FlowKey { src: [7; 16], dst: [9; 16], ..FlowKey::default() };
    c.bench_function("tuple hash", |b| b.iter(|| tuple_hash(black_box(&key), false)));
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    targets = configuration, backends
}
criterion_main!(benches);
