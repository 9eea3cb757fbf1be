//! Upstream's operator and ours on the same work: a real API server and etcd, a real control server with its emulated API, and
//! what a cluster does besides (pods that start, proxies that log in), done by this program for both.
//!
//! Every contestant has a fresh cluster in which all objects are already there. It is timed from its start until the status of
//! every object is right, and then watched while nothing happens.

pub mod book;
pub mod contestant;
pub mod field;
pub mod goals;
pub mod kubelet;
pub mod load;
pub mod witness;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use proxy_testbed_programs::UPSTREAM;

use self::{
    book::{Book, Row},
    contestant::{Contestant, Running},
    field::Field,
    load::Load,
};
use crate::{progress::Progress, usage};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Each round, every contestant has its turn.
    pub rounds: u32,
    /// How many objects of each kind.
    pub load: Load,
    /// Who.
    pub contestants: Vec<Contestant>,
    /// How long statuses may take.
    pub patience: Duration,
    /// What trails after the last status is right and before the idle time begins.
    pub settle: Duration,
    /// How long an idle operator is watched.
    pub idle: Duration,
}

/// Measures everything.
pub fn measure(plan: &Plan) -> Result<Book> {
    let upstream = UPSTREAM.find()?;
    let progress = Progress::new(u64::from(plan.rounds) * plan.contestants.len() as u64);
    let mut book = Book::default();
    for round in 0..plan.rounds {
        for contestant in &plan.contestants {
            progress.say(&format!("round {}: {}", round + 1, contestant.label()));
            let row = turn(plan, *contestant, &upstream)
                .with_context(|| format!("round {}, {}", round + 1, contestant.label()))?;
            book.rows.push(row);
            progress.step();
        }
    }
    progress.finish();
    Ok(book)
}

#[expect(
    clippy::disallowed_methods,
    reason = "nothing is waited for: the idle time is what is measured"
)]
fn turn(plan: &Plan, contestant: Contestant, upstream: &std::path::Path) -> Result<Row> {
    let field = Field::start()?;
    field.make(&plan.load)?;
    let (started, running, right) = field.server.run(async || {
        let client = field.server.client(field.admin.token())?;
        let started = Instant::now();
        let running = Running::start(contestant, &field, upstream)?;
        let right = tokio::select! {
            Err(error) = kubelet::run(client.clone()) => return Err(error),
            outcome = tokio::time::timeout(plan.patience, witness::wait(&client, &plan.load)) => outcome,
        };
        let Ok(right) = right else {
            let missing = witness::missing(&client, &plan.load).await?;
            bail!("not right in {:?}: {missing}\n{}", plan.patience, running.tail());
        };
        let right = right?;
        Ok((started, running, right))
    })??;
    let elapsed = right.duration_since(started);
    let at_once = field.requests()?;
    std::thread::sleep(plan.settle);
    let settled = field.requests()?;
    let (before, peak) = (running.cpu()?, running.peak()?);
    std::thread::sleep(plan.idle);
    let idle = field.requests()?;
    let row = Row {
        contestant,
        seconds: elapsed.as_secs_f64(),
        requests: settled.total(),
        trailing: settled.total().saturating_sub(at_once.total()),
        by_kind: settled.top(12),
        idle_requests: idle.without_leases().saturating_sub(settled.without_leases()),
        idle_kinds: idle.since(&settled),
        cpu_seconds: before,
        idle_cpu_seconds: running.cpu()? - before,
        peak_megabytes: peak,
        idle_megabytes: usage::memory(&[running.id()])?,
    };
    running.stop()?;
    Ok(row)
}
