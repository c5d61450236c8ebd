//! URLs of listeners and members, and the list of a new cluster's members.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where a member listens or is reached: `http://10.0.0.1:2380`; by clients also `unix:///run/etcd.sock`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Url {
    pub(crate) is_tls: bool,
    place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// With its port. An IPv6 address is without brackets.
    Host(String, u16),
    /// A socket of the file system.
    Socket(PathBuf),
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The fault, and a form that is right.
    pub(crate) fn parse(text: &str) -> Result<Url, String> {
        let expected = "a URL has the form http://HOST:PORT or https://HOST:PORT";
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("it has no scheme; {expected}"));
        };
        let is_tls = match scheme {
            "http" => false,
            "https" => true,
            "unix" | "unixs" => {
                return Err(format!("sockets of the file system are for clients alone; {expected}"));
            }
            _ => return Err(format!("its scheme is {scheme:?}; {expected}")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#', '@']) {
            return Err(format!("it has more than host and port; {expected}"));
        }
        let Some((host, port)) = rest.rsplit_once(':') else {
            return Err(format!("it has no port; {expected}"));
        };
        let port =
            port.parse().map_err(|_| format!("{port:?} is not a port; a port is a number up to 65535"))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => {
                address
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| format!("{address:?} is no IPv6 address"))?;
                address
            }
            None if host.is_empty() => return Err(format!("it has no host; {expected}")),
            None if host.contains(':') => return Err("an IPv6 address stands in brackets: [::1]".to_owned()),
            // What no URI can have there would be written down as a member's URL, and never be connected to.
            None if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)) => {
                return Err(format!("{host:?} is not a host; {expected}"));
            }
            None => host,
        };
        Ok(Url { is_tls, place: Place::Host(host.to_owned(), port) })
    }

    /// Parses a URL under which clients reach a member: also `unix://PATH`, and `unixs://PATH` with TLS.
    ///
    /// # Errors
    /// The fault, and a form that is right.
    pub(crate) fn of_clients(text: &str) -> Result<Url, String> {
        let (is_tls, path) = match text.split_once("://") {
            Some(("unix", path)) => (false, path),
            Some(("unixs", path)) => (true, path),
            _ => return Url::parse(text),
        };
        if path.is_empty() || path.contains(['?', '#', '@']) {
            return Err("a socket of the file system has the form unix:///PATH or unixs:///PATH".to_owned());
        }
        Ok(Url { is_tls, place: Place::Socket(PathBuf::from(path)) })
    }

    /// Returns the address to listen on: `None` for a host name other than `localhost`, and for a socket of the file system.
    pub(crate) fn listen_address(&self) -> Option<SocketAddr> {
        let Place::Host(host, port) = &self.place else { return None };
        let ip = match &**host {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().ok()?,
        };
        Some(SocketAddr::new(ip, *port))
    }

    /// Returns the path of a socket of the file system.
    pub(crate) fn socket(&self) -> Option<&Path> {
        match &self.place {
            Place::Host(..) => None,
            Place::Socket(path) => Some(path),
        }
    }

    /// Returns the same URL with another port, if it has one.
    pub(crate) fn with_port(mut self, other: u16) -> Url {
        if let Place::Host(_, port) = &mut self.place {
            *port = other;
        }
        self
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.is_tls { "s" } else { "" };
        match &self.place {
            Place::Host(host, port) if host.contains(':') => write!(f, "http{tls}://[{host}]:{port}"),
            Place::Host(host, port) => write!(f, "http{tls}://{host}:{port}"),
            Place::Socket(path) => write!(f, "unix{tls}://{}", path.display()),
        }
    }
}

/// Parses a list such as `http://10.0.0.1:2379,http://10.0.0.2:2379`, sorted and without repetitions; each by `parse`.
pub(crate) fn parse_list(text: &str, parse: fn(&str) -> Result<Url, String>) -> Result<Vec<Url>, String> {
    let mut urls = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        urls.push(parse(part).map_err(|reason| format!("{part:?} is not usable: {reason}"))?);
    }
    urls.sort();
    urls.dedup();
    Ok(urls)
}

/// Parses `NAME=URL,NAME=URL`; a name may occur again with another URL.
pub(crate) fn parse_cluster(text: &str) -> Result<BTreeMap<String, Vec<Url>>, String> {
    let mut members: BTreeMap<String, Vec<Url>> = BTreeMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let expected = "a list of members has the form NAME=URL,NAME=URL";
        let Some((name, url)) = part.split_once('=') else {
            return Err(format!("{part:?} has no name; {expected}"));
        };
        if name.is_empty() {
            return Err(format!("{part:?} has an empty name; {expected}"));
        }
        let url = Url::parse(url).map_err(|reason| format!("{url:?} of {name} is not usable: {reason}"))?;
        if members.iter().any(|(_, urls)| urls.contains(&url)) {
            return Err(format!("{url} comes twice; every member has URLs of its own"));
        }
        members.entry(name.to_owned()).or_default().push(url);
    }
    for urls in members.values_mut() {
        urls.sort();
    }
    Ok(members)
}
