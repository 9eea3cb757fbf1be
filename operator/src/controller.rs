//! One controller a kind.

pub mod service;
mod standalone;
mod trigger;

use std::sync::Arc;

use futures::FutureExt as _;

use crate::context::Context;

/// Runs all controllers until it is told to stop, and what they are doing then is done.
pub async fn run(context: Arc<Context>, stop: impl Future<Output = ()> + Send + 'static) {
    let stop = stop.shared();
    service::run(context, stop).await;
}
