//! One controller a kind.

mod connector;
mod dns_config;
mod dns_records;
mod egress;
mod ha_ingress;
mod ha_service;
mod ingress;
mod peer_relay;
mod proxy_class;
mod proxy_group;
mod proxy_group_policy;
mod reconcile;
mod recorder;
mod service;
mod standalone;
mod tailnet;
mod tailscale_service;
mod told;
mod trigger;

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;

use crate::context::Context;

/// How long reconciliations may go on once it is time to stop; the kubelet waits for 30 seconds.
const GRACE: Duration = Duration::from_secs(20);

/// Runs all controllers until it is told to stop. What they are doing then is done, if it can be done soon.
pub async fn run(context: Arc<Context>, stop: impl Future<Output = ()> + Send + 'static) {
    let stop = stop.shared();
    tokio::select! {
        () = context.cache.wait_until_ready() => {}
        () = stop.clone() => return,
    }
    tracing::info!("what is there is known");
    let all = async {
        tokio::join!(
            service::run(Arc::clone(&context), stop.clone()),
            connector::run(Arc::clone(&context), stop.clone()),
            ingress::run(Arc::clone(&context), stop.clone()),
            proxy_class::run(Arc::clone(&context), stop.clone()),
            proxy_group::run(Arc::clone(&context), stop.clone()),
            tailnet::run(Arc::clone(&context), stop.clone()),
            peer_relay::run(Arc::clone(&context), stop.clone()),
            recorder::run(Arc::clone(&context), stop.clone()),
            dns_config::run(Arc::clone(&context), stop.clone()),
            proxy_group_policy::run(Arc::clone(&context), stop.clone()),
        )
    };
    let late = async {
        stop.clone().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        _ = all => {}
        () = late => tracing::warn!("what was being reconciled is left as it is"),
    }
}
