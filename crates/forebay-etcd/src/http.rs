//! HTTP in addition to gRPC: health, version, metrics, and the JSON gateway.

mod access;
mod gateway;
mod metrics;

pub(crate) use access::Access;
#[cfg(test)]
pub(crate) use gateway::RANGE_BYTES_MAX;
pub(crate) use gateway::router as gateway;
pub(crate) use metrics::PageSettings;
#[cfg(test)]
pub(crate) use metrics::page as metrics_page;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::node::Node;
use crate::proto::etcdserverpb::{AlarmType, RangeRequest};
use crate::services::{CallCounts, Followers};
use crate::version::{CLUSTER_VERSION, ETCD_VERSION};

/// The time limit of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(7);

/// Returns the pages that are served by HTTP.
pub(crate) fn router(
    node: Node,
    followers: Arc<Followers>,
    calls: Arc<CallCounts>,
    settings: PageSettings,
) -> Router {
    let counted = (node.clone(), followers, calls, settings);
    let with_counts = Router::new().route("/metrics", get(metrics)).with_state(counted);
    Router::new()
        .route("/health", get(health))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/livez/{check}", get(one_live))
        .route("/readyz/{check}", get(one_ready))
        .route("/version", get(version))
        .with_state(node)
        .merge(with_counts)
}

/// Returns what other members may ask by HTTP.
pub(crate) fn peer_router() -> Router {
    Router::new().route("/version", get(version))
}

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

async fn version() -> Response {
    let body = format!(
        "{{\"etcdserver\":\"{ETCD_VERSION}\",\"etcdcluster\":\"{CLUSTER_VERSION}\",\"storage\":\"{CLUSTER_VERSION}\"}}"
    );
    (JSON, body).into_response()
}

async fn metrics(
    State((node, followers, calls, settings)): State<(Node, Arc<Followers>, Arc<CallCounts>, PageSettings)>,
) -> Response {
    let page = metrics::page(&node, &followers, &calls, settings).await;
    ([(header::CONTENT_TYPE, page.content_type())], page.finish()).into_response()
}

/// The parameters of a request, which may be repeated.
type Parameters = Query<Vec<(String, String)>>;

fn has(parameters: &Parameters, name: &str, value: &str) -> bool {
    parameters.iter().any(|(other, given)| other == name && given == value)
}

async fn health(State(node): State<Node>, parameters: Parameters) -> Response {
    let unhealthy = unhealthy(&node, &parameters).await;
    let counts = node.counts();
    let count = if unhealthy.is_none() { &counts.healthy } else { &counts.unhealthy };
    count.fetch_add(1, Ordering::Relaxed);
    let (status, word, reason) = match unhealthy {
        None => (StatusCode::OK, "true", String::new()),
        Some(reason) => {
            tracing::warn!("unhealthy: {reason}");
            (StatusCode::SERVICE_UNAVAILABLE, "false", reason)
        }
    };
    // The order of the fields is etcd's.
    let reason = serde_json::Value::String(reason);
    (status, JSON, format!("{{\"health\":\"{word}\",\"reason\":{reason}}}")).into_response()
}

/// Returns why this member is not healthy.
async fn unhealthy(node: &Node, parameters: &Parameters) -> Option<String> {
    match alarms(node).await {
        Ok(alarms) => {
            let counts = |alarm: &AlarmType| !has(parameters, "exclude", alarm.as_str_name());
            if let Some(alarm) = alarms.into_iter().find(counts) {
                return Some(format!("ALARM {}", alarm.as_str_name()));
            }
        }
        Err(reason) => return Some(format!("RANGE ERROR:{reason}")),
    }
    let damage = node.damage().filter(|_| !has(parameters, "exclude", AlarmType::Corrupt.as_str_name()));
    if let Some(damage) = damage {
        return Some(format!("DAMAGED STATE:{damage}"));
    }
    let is_serializable = has(parameters, "serializable", "true");
    if !is_serializable && node.leader().is_none() {
        return Some("RAFT NO LEADER".to_owned());
    }
    read(node, is_serializable).await.err().map(|reason| format!("RANGE ERROR:{reason}"))
}

async fn alarms(node: &Node) -> Result<Vec<AlarmType>, String> {
    let view = node.view().await.map_err(text)?;
    let alarms = node.alarms(&view).await.map_err(text)?;
    Ok(alarms.into_iter().filter_map(|alarm| AlarmType::try_from(alarm.alarm).ok()).collect())
}

fn text(status: tonic::Status) -> String {
    status.message().to_owned()
}

/// Reads a key, which need not exist.
async fn read(node: &Node, is_serializable: bool) -> Result<(), String> {
    let reads = async {
        if !is_serializable {
            node.read_barrier().await.map_err(text)?;
        }
        let view = node.view().await.map_err(text)?;
        // One alone: of a range all keys are counted, also those beyond a limit.
        let request = RangeRequest { key: vec![0], ..Default::default() };
        match view.range(&request).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(text(node.unread_in(&view, failure).await)),
        }
    };
    tokio::time::timeout(CHECK_TIMEOUT, reads).await.unwrap_or_else(|_| Err("it took too long".to_owned()))
}

const LIVE: &[&str] = &["serializable_read"];
const READY: &[&str] = &["data_corruption", "serializable_read", "linearizable_read", "non_learner"];

async fn check(node: &Node, name: &str) -> Result<(), String> {
    match name {
        "serializable_read" => read(node, true).await,
        "linearizable_read" => read(node, false).await,
        "data_corruption" if alarms(node).await?.contains(&AlarmType::Corrupt) => {
            Err("alarm activated: CORRUPT".to_owned())
        }
        "data_corruption" => match node.damage() {
            Some(damage) if node.is_healing() => {
                Err(format!("the state is damaged, and is taken again from the other members: {damage}"))
            }
            Some(damage) => Err(format!("the state is damaged: {damage}")),
            None => Ok(()),
        },
        "non_learner" if node.is_learner() => Err("not supported for learner".to_owned()),
        _ => Ok(()),
    }
}

async fn checks(node: &Node, names: &[&str], parameters: &Parameters) -> Response {
    let (mut lines, mut is_ok) = (String::new(), true);
    for name in names.iter().filter(|name| !has(parameters, "exclude", name)) {
        match check(node, name).await {
            Ok(()) => lines.push_str(&format!("[+]{name} ok\n")),
            Err(reason) => {
                is_ok = false;
                lines.push_str(&format!("[-]{name} failed: {reason}\n"));
            }
        }
    }
    if !is_ok {
        return (StatusCode::SERVICE_UNAVAILABLE, lines).into_response();
    }
    let is_verbose = parameters.iter().any(|(name, _)| name == "verbose");
    (StatusCode::OK, if is_verbose { format!("{lines}ok\n") } else { "ok\n".to_owned() }).into_response()
}

async fn livez(State(node): State<Node>, parameters: Parameters) -> Response {
    checks(&node, LIVE, &parameters).await
}

async fn readyz(State(node): State<Node>, parameters: Parameters) -> Response {
    checks(&node, READY, &parameters).await
}

async fn one(node: &Node, of: &[&str], name: &str, parameters: &Parameters) -> Response {
    if of.contains(&name) {
        return checks(node, &[name], parameters).await;
    }
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

async fn one_live(
    State(node): State<Node>,
    axum::extract::Path(name): axum::extract::Path<String>,
    parameters: Parameters,
) -> Response {
    one(&node, LIVE, &name, &parameters).await
}

async fn one_ready(
    State(node): State<Node>,
    axum::extract::Path(name): axum::extract::Path<String>,
    parameters: Parameters,
) -> Response {
    one(&node, READY, &name, &parameters).await
}
