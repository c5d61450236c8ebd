//! URLs of listeners and members, and the list of a new cluster's members.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Where a member listens or is reached: `http://10.0.0.1:2380`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Url {
    pub(crate) is_tls: bool,
    /// An IPv6 address is without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
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
                return Err(format!("sockets of the file system are not supported; {expected}"));
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
            port.parse().map_err(|_| format!("{port:?} is no port; a port is a number up to 65535"))?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => {
                address
                    .parse::<std::net::Ipv6Addr>()
                    .map_err(|_| format!("{address:?} is no IPv6 address"))?;
                address
            }
            None if host.is_empty() => return Err(format!("it has no host; {expected}")),
            None if host.contains(':') => return Err("an IPv6 address stands in brackets: [::1]".to_owned()),
            None => host,
        };
        Ok(Url { is_tls, host: host.to_owned(), port })
    }

    /// Returns the address to listen on: a host name other than `localhost` has none.
    pub(crate) fn listen_address(&self) -> Option<SocketAddr> {
        let ip = match &*self.host {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => host.parse().ok()?,
        };
        Some(SocketAddr::new(ip, self.port))
    }

    /// Returns the same URL with another port.
    pub(crate) fn with_port(&self, port: u16) -> Url {
        Url { port, ..self.clone() }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        if self.host.contains(':') {
            return write!(f, "{scheme}://[{}]:{}", self.host, self.port);
        }
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// Parses a list such as `http://10.0.0.1:2379,http://10.0.0.2:2379`, sorted and without repetitions.
pub(crate) fn parse_list(text: &str) -> Result<Vec<Url>, String> {
    let mut urls = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        urls.push(Url::parse(part).map_err(|reason| format!("{part:?} is not usable: {reason}"))?);
    }
    urls.sort();
    urls.dedup();
    Ok(urls)
}

/// Parses `NAME=URL,NAME=URL`; a name may come again with another URL.
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
