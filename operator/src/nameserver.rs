//! `sluice-operator nameserver`: answers for names of the tailnet with the addresses that pods reach them by.
//!
//! It reads the records that the operator writes into the ConfigMap `dnsrecords`, and reads them again when they change.
//! It needs no privilege and asks nobody: not the API server, no other nameserver.
//!
//! The wire format is hickory's. Its server is not used: it takes any number of TCP connections, and reserves room for
//! 65 535 questions when a packet of 12 bytes says that it has so many.

mod answer;
mod records;
mod serve;
mod watch;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::{Context as _, Result};
use tokio::sync::watch as latest;

pub use self::{
    answer::{Transport, answer},
    records::{BadRecords, File, Records, VERSION},
};

/// Where it listens and what it reads.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where questions are answered, over UDP and TCP.
    #[arg(long, default_value = "[::]:1053")]
    listen: SocketAddr,
    /// The records. Until they can be read, every question is answered with SERVFAIL.
    #[arg(long, default_value = "/config/records.json")]
    records: PathBuf,
}

/// The records that count, once there are any.
type Latest = latest::Receiver<Option<Arc<Records>>>;

/// Answers until it is told to stop.
pub async fn run(args: Args, stop: impl Future<Output = ()>) -> Result<()> {
    let sockets = serve::bind(args.listen)
        .await
        .with_context(|| format!("listen at {} (--listen)", args.listen))?;
    tracing::info!(listen = %sockets.address()?, records = %args.records.display(), "started");
    let (sender, records) = latest::channel(None);
    tokio::select! {
        ended = watch::follow(&args.records, &sender) => {
            ended.with_context(|| format!("watch {} (--records)", args.records.display()))
        }
        ended = sockets.serve(records) => ended.context("answer"),
        () = stop => Ok(()),
    }
}
