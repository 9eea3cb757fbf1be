//! What the operator tells about itself over HTTP: `/healthz`, `/readyz`, `/metrics` and
//! `/v1/counters`.

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::get,
};
use tokio::net::TcpListener;

use crate::{context::Context, leader::Standing};

/// Where what proxies have carried is told.
pub const COUNTERS: &str = "/v1/counters";

/// What is told about.
#[derive(Clone)]
struct Told {
    context: Arc<Context>,
    standing: Standing,
}

/// Serves until it is told to stop.
pub async fn serve(
    listener: TcpListener,
    context: Arc<Context>,
    standing: Standing,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = Router::new()
        // It answers: it is alive. Whether the API server or the control server answer is not its health.
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route(COUNTERS, get(counters))
        .with_state(Told { context, standing });
    axum::serve(listener, router).with_graceful_shutdown(stop).await
}

/// A replica that waits for its turn is as ready as the one that reconciles.
async fn ready(State(told): State<Told>) -> (StatusCode, String) {
    if let Some(obstacle) = told.standing.obstacle() {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("nothing is reconciled: {obstacle}"));
    }
    if told.context.cache.is_ready() {
        (StatusCode::OK, "ok".into())
    } else {
        let why = "what is in the cluster has not been listed yet: is the API server reached?";
        (StatusCode::SERVICE_UNAVAILABLE, why.into())
    }
}

async fn metrics(State(told): State<Told>) -> ([(&'static str, &'static str); 1], String) {
    let mut text = told.context.counts.text();
    // A String takes everything.
    let _ = write!(
        text,
        "# HELP sluice_operator_leader Whether this replica reconciles: it holds the Lease.\n\
         # TYPE sluice_operator_leader gauge\n\
         sluice_operator_leader {}\n",
        u8::from(told.standing.leads())
    );
    text.push_str(&told.context.counters.metrics(&told.context).await);
    ([("content-type", "text/plain; version=0.0.4")], text)
}

/// What proxies have carried, where this replica reconciles.
async fn counters(State(told): State<Told>) -> Response {
    let Some(reports) = told.context.counters.reports(&told.context).await else {
        let why =
            "this replica reads no proxies: ask the one that holds the Lease sluice-operator\n";
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    Json(reports).into_response()
}
