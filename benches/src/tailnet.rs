//! Proxy pods on a real tailnet: upstream's entry point and ours in the same place, in turn, under the same traffic.
//!
//! ```text
//! ingress   peer (client) ==tailnet== pod | eth0 -- cluster (server)
//! egress    peer (server) ==tailnet== pod | eth0 -- cluster (client)
//! direct    peer (client) ==tailnet== other (server)
//! ```
//!
//! Every tailscaled is upstream's release, with a kernel TUN; all tunnels are direct, over veth pairs and a bridge. IPv4.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::{progress::Progress, usage};

pub mod book;
pub mod field;
pub mod goals;
pub mod load;
pub mod pod;
pub mod series;
pub mod way;

use book::Book;
use field::Field;
use load::{Load, Outcome, Servers};
use pod::Pod;
use proxy_testbed::tailnet::Cluster;
use series::Measure;
use way::{Role, Way};

/// What is measured, and how much of it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub rounds: u32,
    pub round: Duration,
    pub ways: Vec<Way>,
    pub loads: Vec<Load>,
    /// Whether pods are also started anew, and timed, each round.
    pub starts: bool,
}

impl Plan {
    fn stands(&self) -> impl Iterator<Item = (Way, Option<Role>)> {
        self.ways.iter().flat_map(|&way| way.roles().iter().map(move |&role| (way, role)))
    }

    fn steps(&self) -> usize {
        let stands = self.stands().count();
        let starts = self.stands().filter(|(_, role)| role.is_some()).count();
        self.loads.len() * stands + if self.starts { starts } else { 0 }
    }
}

/// Measures everything in turn, round after round.
pub fn measure(plan: &Plan) -> Result<Book> {
    let bar = Progress::new(plan.steps() as u64 * u64::from(plan.rounds));
    bar.say("the tailnet starts");
    let field = Field::new()?;
    let mut book = Book::default();
    if !plan.loads.is_empty() {
        let mut stands = Vec::new();
        for (way, role) in plan.stands() {
            bar.say(&format!("{} starts", name(way, role)));
            let stand = Stand::new(&field, way, role);
            stands.push(stand.with_context(|| format!("setting up {}", name(way, role)))?);
        }
        for load in &plan.loads {
            under(*load, plan, &field, &stands, &mut book, &bar)?;
        }
    }
    if plan.starts {
        starts(plan, &field, &mut book, &bar)?;
    }
    bar.finish();
    Ok(book)
}

/// One way in one role, carrying.
struct Stand {
    way: Way,
    role: Option<Role>,
    target: std::net::SocketAddr,
    pod: Option<Pod>,
}

impl Stand {
    fn new(field: &Field, way: Way, role: Option<Role>) -> Result<Self> {
        let (Some(role), Some(entry)) = (role, way.entry_point()) else {
            field.meet(field::OTHER)?;
            return Ok(Self { way, role: None, target: field.direct(), pod: None });
        };
        let name = format!("{}-{}", way.name(), role.name());
        let mut pod = Pod::start(field, &field.cluster, entry, role, &name)?;
        let target = pod.carries(field, &field.cluster)?;
        field.meet(&name)?;
        Ok(Self { way, role: Some(role), target, pod: Some(pod) })
    }
}

fn under(
    load: Load,
    plan: &Plan,
    field: &Field,
    stands: &[Stand],
    book: &mut Book,
    bar: &Progress,
) -> Result<()> {
    for number in 0..=plan.rounds {
        for stand in stands {
            let name = name(stand.way, stand.role);
            bar.say(&format!("{}, round {number}/{}: {name}", load.label(), plan.rounds));
            let time = if number == 0 { plan.round / 4 } else { plan.round };
            let values = one_round(load, time, field, stand)
                .with_context(|| format!("{} through {name}", load.label()))?;
            // The first pass makes tunnels, flows and caches.
            if number > 0 {
                for (measure, value) in values {
                    book.add(measure, stand.way, stand.role, value);
                }
                bar.step();
            }
        }
    }
    Ok(())
}

fn one_round(
    load: Load,
    time: Duration,
    field: &Field,
    stand: &Stand,
) -> Result<Vec<(Measure, f64)>> {
    let (client, servers) = field.ends(stand.role);
    let machine = usage::machine()?;
    let used = stand.pod.as_ref().map(Pod::used).transpose()?;
    let Outcome { mut values, bytes } = load.run(client, servers, stand.target, time)?;
    let machine = usage::machine()? - machine;
    if let (Some(cost), Some(bytes)) = (load.cost(), bytes) {
        let gigabytes = bytes as f64 / 1e9;
        values.push((cost.machine, machine / gigabytes));
        if let (Some(pod), Some(before)) = (&stand.pod, used) {
            let used = pod.used()?;
            values.push((cost.tailscaled, (used.tailscaled - before.tailscaled) / gigabytes));
            values.push((cost.agent, (used.agent - before.agent) / gigabytes));
        }
    }
    // Once a round, not once a load.
    if let (Load::Rr, Some(pod)) = (load, &stand.pod) {
        values.extend(pod.resident()?);
    }
    Ok(values)
}

/// Pods in new places with new keys: from the process's start to the first byte that comes back through it.
fn starts(plan: &Plan, field: &Field, book: &mut Book, bar: &Progress) -> Result<()> {
    for number in 1..=plan.rounds {
        for (way, role) in plan.stands() {
            let (Some(role), Some(entry)) = (role, way.entry_point()) else { continue };
            bar.say(&format!("start, round {number}/{}: {}", plan.rounds, name(way, Some(role))));
            let cluster = Cluster::new()?;
            let _servers = Servers::new(&cluster.namespace)?;
            let name = format!("start-{}-{}-{number}", way.name(), role.name());
            let mut pod = Pod::start(field, &cluster, entry, role, &name)?;
            pod.carries(field, &cluster)?;
            book.add(Measure::Start, way, Some(role), pod.age().as_secs_f64() * 1e3);
            drop(pod);
            field.forget(&name)?;
            bar.step();
        }
    }
    Ok(())
}

fn name(way: Way, role: Option<Role>) -> String {
    role.map_or_else(|| way.label().to_owned(), |role| format!("{}, {}", way.label(), role.name()))
}
