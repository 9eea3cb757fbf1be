//! The process's HTTP interface: metrics, status, health, and (for this host only) commands.

mod bounded;

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{ConnectInfo, Query, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use proxy_rules::Snapshot;
use serde::Deserialize;
use tokio::{
    net::{TcpListener, UnixListener},
    time,
};

use self::bounded::{Bounded, Peer};
use crate::{
    data_path::Kind,
    explain,
    metrics::{self, Scrape},
    shared::Shared,
    status::{self, DataPathStatus, FlowStatus, ProcessStatus, Status},
};

/// How long a reading of the counters may wait for an apply.
const PATIENCE: Duration = Duration::from_secs(5);

type App = State<Arc<Shared>>;
/// A status code and a line of text.
pub type Refused = (StatusCode, String);

/// Serves a proxy without a tailnet on both until the process ends.
pub async fn serve(
    shared: Arc<Shared>,
    tcp: TcpListener,
    unix: Option<UnixListener>,
) -> std::io::Result<()> {
    listen(alone(shared), tcp, unix).await
}

/// Serves a router on both until the process ends.
pub async fn listen(
    router: Router,
    tcp: TcpListener,
    unix: Option<UnixListener>,
) -> std::io::Result<()> {
    let over_tcp = router.clone().into_make_service_with_connect_info::<Peer>();
    let tcp = axum::serve(Bounded::new(tcp), over_tcp);
    match unix {
        Some(unix) => {
            let unix = axum::serve(unix, router.into_make_service());
            tokio::try_join!(tcp.into_future(), unix.into_future()).map(|_| ())
        }
        None => tcp.await,
    }
}

/// Listens on a Unix socket that only this user may use. A socket without listener is in the way and goes.
pub async fn listen_unix(path: &Path) -> std::io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    if tokio::net::UnixStream::connect(path).await.is_ok() {
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Without a tailnet.
fn alone(shared: Arc<Shared>) -> Router {
    router(Arc::clone(&shared)).merge(
        Router::new()
            .route("/metrics", get(metrics_answer))
            .route("/healthz", get(|| async { "ok\n" }))
            .with_state(shared),
    )
}

/// What every proxy serves; `/metrics` and `/healthz` are left to the caller.
pub fn router(shared: Arc<Shared>) -> Router {
    let commands = Router::new()
        .route("/v1/log-level", put(log_level))
        .route("/v1/data-path", post(data_path))
        .layer(middleware::from_fn(this_host_only));
    Router::new()
        .route("/v1/status", get(status_document))
        .route("/v1/explain", get(explain_packet))
        .route("/readyz", get(ready))
        .merge(commands)
        .with_state(shared)
}

/// Over the Unix socket there is no address, and the file's mode has decided already.
async fn this_host_only(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    if peer.is_some_and(|peer| !peer.0.0.ip().to_canonical().is_loopback()) {
        return (StatusCode::FORBIDDEN, "only from this host\n").into_response();
    }
    next.run(request).await
}

async fn snapshot(shared: &Shared) -> Result<Snapshot, Refused> {
    let unavailable = |why: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    match time::timeout(PATIENCE, shared.engine.counters()).await {
        Ok(Ok(Ok(snapshot))) => Ok(snapshot),
        Ok(Ok(Err(error))) => Err(unavailable(crate::data_path::select::chain(&error))),
        Ok(Err(error)) => Err(unavailable(error.to_string())),
        Err(_) => Err(unavailable("the data path is busy applying a table".into())),
    }
}

async fn metrics_answer(State(shared): App) -> Result<impl IntoResponse, Refused> {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], metrics_text(&shared).await?))
}

/// The metrics of the data paths.
pub async fn metrics_text(shared: &Shared) -> Result<String, Refused> {
    let snapshot = snapshot(shared).await?;
    let scrape = Scrape {
        snapshot,
        state: shared.engine.state(),
        config_errors: shared.config().error_count as u64,
        ready: shared.is_ready(),
    };
    metrics::text(scrape, &shared.apply_seconds)
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

async fn status_document(State(shared): App) -> Result<Json<Status>, Refused> {
    let snapshot = snapshot(&shared).await?;
    let state = shared.engine.state();
    let drops = snapshot.drops.iter().map(|(reason, n)| (reason.label().to_owned(), *n)).collect();
    Ok(Json(Status {
        version: status::VERSION,
        program: env!("CARGO_PKG_VERSION").to_owned(),
        ready: shared.is_ready(),
        latches: shared.latches(),
        generation: state.table.as_ref().map(|table| table.generation().to_owned()),
        data_path: DataPathStatus::of(&state),
        config: shared.config(),
        rules: status::rules(&state),
        ports: status::ports(&snapshot),
        drops,
        flows: FlowStatus { live: snapshot.live_flows, max: snapshot.max_flows },
        process: ProcessStatus {
            capabilities: crate::capability::effective(),
            bpffs: crate::capability::bpffs().map(|path| path.display().to_string()),
            resident_bytes: crate::capability::resident(),
        },
        tailnet: shared.pod.get().map(|pod| pod.tailnet()),
        targets: shared.pod.get().map(|pod| pod.targets()).unwrap_or_default(),
    }))
}

async fn ready(State(shared): App) -> (StatusCode, String) {
    use std::fmt::Write;
    let mut text = String::new();
    for (name, open) in shared.latches() {
        let _ = writeln!(text, "{name}: {}", if open { "ok" } else { "waiting" });
    }
    let code = if shared.is_ready() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelRequest {
    level: String,
}

async fn log_level(
    State(shared): App,
    Json(request): Json<LevelRequest>,
) -> Result<StatusCode, Refused> {
    let outcome = shared.level.set(&request.level);
    outcome.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    tracing::info!(level = request.level, "the log level has changed");
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathRequest {
    kind: String,
}

async fn data_path(
    State(shared): App,
    Json(request): Json<PathRequest>,
) -> Result<Json<DataPathStatus>, Refused> {
    let kind = match (request.kind.as_str(), Kind::ALL.iter().find(|k| k.label() == request.kind)) {
        ("auto", _) => None,
        (_, Some(kind)) => Some(*kind),
        (other, None) => {
            let text = format!("data path `{other}`: use auto, ebpf, nftables or userspace\n");
            return Err((StatusCode::BAD_REQUEST, text));
        }
    };
    let outcome = shared.engine.force(kind).await;
    let applied = outcome.map_err(|e| (StatusCode::SERVICE_UNAVAILABLE, format!("{e}\n")))?;
    applied.map_err(|error| (StatusCode::CONFLICT, format!("{error}\n")))?;
    Ok(Json(DataPathStatus::of(&shared.engine.state())))
}

async fn explain_packet(
    State(shared): App,
    Query(question): Query<explain::Question>,
) -> Result<Json<explain::Answer>, Refused> {
    let state = shared.engine.state();
    let Some(table) = &state.table else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, "no table is in force\n".into()));
    };
    let answer = explain::explain(table, &question, state.kind);
    let mut answer = answer.map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}\n")))?;
    if state.kind == Some(Kind::Ebpf) {
        let table = table.clone();
        let asked = move || explain::program::ask(&table, &question);
        // Loading takes some ten milliseconds of the processor.
        answer.program = Some(match tokio::task::spawn_blocking(asked).await {
            Ok(Ok(said)) => said,
            Ok(Err(error)) => format!("could not be asked: {error}"),
            Err(error) => format!("could not be asked: {error}"),
        });
    }
    Ok(Json(answer))
}
