//! Which replica reconciles: the one that holds the Lease, while no other operator lives.
//!
//! Every replica knows what is in the cluster, so that the next one can go on at once.

mod lease;
mod rival;

use std::sync::Arc;

use futures::{Future, FutureExt as _};
use tokio::sync::watch;

pub use self::lease::{Lease, NAME as LEASE, pod};
use self::rival::Beside;
use crate::{
    context::{Context, Kind},
    controller,
    counters::INTERVAL,
};

/// What this replica is at the moment, for whoever asks.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Whether it holds the Lease.
    leads: watch::Sender<bool>,
    /// Another operator that lives; nothing is reconciled beside it, nor before that is known.
    beside: watch::Sender<Beside>,
}

impl Default for Standing {
    fn default() -> Self {
        Self { leads: watch::Sender::new(false), beside: watch::Sender::new(Beside::Unknown) }
    }
}

impl Standing {
    /// Whether this replica holds the Lease.
    pub fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Why nothing is reconciled, and what to do about it.
    pub fn obstacle(&self) -> Option<String> {
        match &*self.beside.borrow() {
            Beside::Rival(rival) => Some(rival.to_string()),
            Beside::Unknown | Beside::Nobody => None,
        }
    }
}

/// Reconciles whenever it is this replica's turn, until it is told to stop.
pub async fn run(
    context: Arc<Context>,
    lease: Lease,
    standing: Standing,
    stop: impl Future<Output = ()> + Send + 'static,
) {
    let stop = stop.shared();
    let looking_out = tokio::spawn(rival::watch(Arc::clone(&context), standing.beside.clone()));
    loop {
        let mut held = tokio::select! {
            held = lease.acquire() => held,
            () = stop.clone() => break,
        };
        tracing::info!(identity = lease.identity(), "leads: this replica reconciles");
        standing.leads.send_replace(true);
        let lost = tokio::select! {
            // A process that slept too long must not reconcile before it knows.
            biased;
            lost = lease.keep(&mut held) => Some(lost),
            () = reconcile(&context, &standing, stop.clone()) => None,
        };
        standing.leads.send_replace(false);
        let Some(why) = lost else {
            lease.release(&held).await;
            break;
        };
        tracing::error!(%why, "leads no more: nothing is reconciled from here");
    }
    looking_out.abort();
}

/// Reconciles while no other operator lives, until it is told to stop.
async fn reconcile(
    context: &Arc<Context>,
    standing: &Standing,
    stop: impl Future<Output = ()> + Clone + Send + Sync + 'static,
) {
    let mut beside = standing.beside.subscribe();
    loop {
        let is_alone = async {
            loop {
                let found = beside.borrow_and_update().clone();
                match found {
                    Beside::Nobody => return,
                    Beside::Unknown => {}
                    Beside::Rival(rival) => {
                        let note = rival.to_string();
                        tracing::error!(rival = rival.name(), "nothing is reconciled: {note}");
                        let about = rival.deployment();
                        context.events.tell(about, Kind::Warning, "OperatorConflict", &note).await;
                    }
                }
                if beside.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = is_alone => {}
            () = stop.clone() => return,
        }
        let mut appears = standing.beside.subscribe();
        let told = stop.clone();
        let until = async move {
            tokio::select! {
                () = told => {}
                _ = appears.wait_for(|beside| matches!(beside, Beside::Rival(_))) => {}
            }
        }
        .shared();
        let counting = context.counters.run(Arc::clone(context), INTERVAL, until.clone());
        tokio::join!(controller::run(Arc::clone(context), until), counting);
        if stop.clone().now_or_never().is_some() {
            return;
        }
    }
}
