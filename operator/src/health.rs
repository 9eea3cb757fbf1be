//! What the operator tells about itself over HTTP: `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;

use crate::context::Context;

/// Serves until it is told to stop.
pub async fn serve(
    listener: TcpListener,
    context: Arc<Context>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        // It answers: it is alive. Whether the API server or the control server answer is not its health.
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(context);
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

async fn ready(State(context): State<Arc<Context>>) -> (StatusCode, &'static str) {
    if context.cache.is_ready() {
        (StatusCode::OK, "ok")
    } else {
        let why = "what is in the cluster has not been listed yet: is the API server reached?";
        (StatusCode::SERVICE_UNAVAILABLE, why)
    }
}

async fn metrics(
    State(context): State<Arc<Context>>,
) -> ([(&'static str, &'static str); 1], String) {
    ([("content-type", "text/plain; version=0.0.4")], context.counts.text())
}
