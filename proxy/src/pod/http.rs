//! What a pod serves over HTTP: upstream's endpoints (`/metrics`, `/healthz`, `/debug/`, the egress pre-shutdown hook) and
//! Sluice's own, on one address.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time};

use super::{drain, settings::Settings, state::Pod};
use crate::{admin, localapi::LocalApi, shared::Shared};

/// Where the egress pre-shutdown hook of the pods asks.
pub const PRE_SHUTDOWN: &str = "/internal-egress-services-preshutdown";
/// Tells who has answered, for clients that want to know whether a Service still leads here.
const POD_IPV4: &str = "pod-ipv4";
/// The same for IPv6.
const POD_IPV6: &str = "pod-ipv6";
/// How long tailscaled's debug server may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the handlers need.
#[derive(Clone, Debug)]
pub struct App {
    /// The data path.
    pub shared: Arc<Shared>,
    /// The node.
    pub pod: Arc<Pod>,
    /// tailscaled.
    pub api: LocalApi,
    /// The pod's settings.
    pub settings: Arc<Settings>,
}

/// Everything that a pod serves.
pub fn router(app: App) -> Router {
    let own = admin::router(Arc::clone(&app.shared));
    let upstreams = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/debug/{*path}", get(debug))
        .route("/debug/", get(debug))
        .route(PRE_SHUTDOWN, get(pre_shutdown))
        .with_state(app);
    own.merge(upstreams)
}

/// tailscaled's own metrics, then the data path's. While tailscaled is away there are still those of the data path.
async fn metrics(State(app): State<App>) -> Result<Response, admin::Refused> {
    let own = admin::metrics_text(&app.shared).await?;
    let tailscaled = app.api.user_metrics().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "tailscaled's metrics");
        String::new()
    });
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let newline = if tailscaled.is_empty() || tailscaled.ends_with('\n') { "" } else { "\n" };
    Ok(([(header::CONTENT_TYPE, kind)], tailscaled + newline + &own).into_response())
}

/// Healthy: this node takes part in the tailnet and its rules are in force. So it stays while the process drains: whether
/// clients are still led here is found out by asking.
async fn healthz(State(app): State<App>) -> Response {
    let waiting: Vec<_> =
        app.pod.latches().into_iter().filter(|(_, open)| !open).map(|(name, _)| name).collect();
    if !waiting.is_empty() {
        let text = format!("not ready: waiting for {}\n", waiting.join(", "));
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let mut headers = HeaderMap::new();
    let pod = &app.settings.pod;
    for (name, address) in [(POD_IPV4, pod.ipv4()), (POD_IPV6, pod.ipv6())] {
        if let Some(value) = address.and_then(|ip: IpAddr| ip.to_string().parse().ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    (headers, "ok").into_response()
}

/// The debug server of tailscaled, where there is one.
async fn debug(State(app): State<App>, uri: Uri) -> Response {
    let Some(address) = app.settings.tailscaled.debug else {
        let text = "set TS_DEBUG_ADDR_PORT to have tailscaled serve this\n";
        return (StatusCode::NOT_FOUND, text).into_response();
    };
    let answer = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let asked = hyper::Request::get(path)
            .header(header::HOST, address.to_string())
            .body(http_body_util::Empty::<bytes::Bytes>::new())?;
        let (parts, body) = sender.send_request(asked).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        anyhow::Ok((parts.status, parts.headers, body))
    };
    match time::timeout(PATIENCE, answer).await {
        Ok(Ok((code, headers, body))) => {
            let kind = headers.get(header::CONTENT_TYPE).cloned();
            let kind = kind.unwrap_or_else(|| HeaderValue::from_static("text/plain"));
            (code, [(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Ok(Err(error)) => (StatusCode::BAD_GATEWAY, format!("{error:#}\n")).into_response(),
        Err(_) => (StatusCode::GATEWAY_TIMEOUT, "no answer in time\n").into_response(),
    }
}

/// Answers when no client of a group's Services is led to this replica any more.
async fn pre_shutdown(State(app): State<App>) -> Response {
    let Some(directory) = &app.settings.targets.egress_config_dir else {
        return (StatusCode::OK, "no egress services are configured\n").into_response();
    };
    match drain::wait(directory, &app.settings.pod).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(error) => {
            tracing::error!(%error, "waiting for clients to be led elsewhere");
            (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response()
        }
    }
}
