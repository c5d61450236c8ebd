//! [`Access`]: from which pages, under which names, and with which certificates the server may be asked by HTTP. Calls of gRPC pass: no page
//! can make them.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};

use super::gateway;
use crate::config::{Config, Names};
use crate::listen::Caller;
use crate::services::{Users, is_call};

/// Why etcd refuses a certificate with a common name at the gateway.
const IGNORED_NAME: &str =
    "CommonName of client sending a request against gateway will be ignored and not used as expected\n";

/// What `--cors` and `--host-whitelist` allow, and `--client-cert-auth`.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    origins: Arc<Names>,
    /// With certificates all are allowed: a page cannot pass for a server that has one.
    hosts: Arc<Names>,
    /// Users whose names may be those of certificates, if any.
    users: Option<Arc<Users>>,
}

impl Access {
    pub(crate) fn new(config: &Config, users: &Arc<Users>, is_tls: bool) -> Access {
        let hosts = if is_tls { Names::default() } else { config.host_whitelist.clone() };
        let has_names = is_tls && config.client_tls.is_client_cert_required && config.is_gateway_on;
        let users = has_names.then(|| users.clone());
        Access { origins: Arc::new(config.cors.clone()), hosts: Arc::new(hosts), users }
    }

    /// Returns whether the call of the gateway has a certificate with a user's name, which the gateway never uses.
    fn ignores_name(&self, request: &Request) -> bool {
        let Some(users) = &self.users else { return false };
        let caller = request.extensions().get::<Caller>();
        let name = caller.and_then(|caller| caller.common_name.as_deref()).unwrap_or_default();
        !name.is_empty() && gateway::serves(request.uri().path()) && users.is_on()
    }

    /// Has all requests to these routes looked at.
    pub(crate) fn guard(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.clone(), look))
    }
}

async fn look(State(access): State<Access>, request: Request, next: Next) -> Response {
    if is_call(&request) {
        return next.run(request).await;
    }
    if !access.hosts.has(host(&request)) {
        let host = host(&request);
        tracing::warn!("a request for the host {host:?} is refused: --host-whitelist does not have it");
        let text = format!(
            "This server is not to be asked as {host:?}: a page could have made its name point here (CVE-2018-5702). \
             Use TLS, or add the name to --host-whitelist.\n"
        );
        return (StatusCode::MISDIRECTED_REQUEST, text).into_response();
    }
    if access.ignores_name(&request) {
        return (StatusCode::BAD_REQUEST, IGNORED_NAME).into_response();
    }
    let origin = origin(&access, request.headers());
    let mut response = if request.method() == Method::OPTIONS {
        StatusCode::OK.into_response()
    } else {
        next.run(request).await
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let names = HeaderValue::from_static("accept, content-type, authorization");
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    response
}

/// Returns the origin that may read the response, if any may.
fn origin(access: &Access, headers: &HeaderMap) -> Option<HeaderValue> {
    if access.origins.has("*") {
        return Some(HeaderValue::from_static("*"));
    }
    let origin = headers.get(header::ORIGIN)?;
    Some(origin.clone()).filter(|_| origin.to_str().is_ok_and(|origin| access.origins.has(origin)))
}

/// Returns the name of the host that a request is for, without a port.
fn host(request: &Request) -> &str {
    let of_header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or_else(of_header);
    without_port(host.unwrap_or_default())
}

fn without_port(host: &str) -> &str {
    let Some((name, _)) = host.rsplit_once(':') else { return host };
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address,
        // An address without brackets is whole.
        None if name.contains(':') => host,
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_named_without_its_port() {
        for (host, name) in
            [("a", "a"), ("a:1", "a"), ("[::1]:1", "::1"), ("::1", "::1"), ("a:b:c", "a:b:c"), ("", "")]
        {
            assert_eq!(without_port(host), name);
        }
    }
}
