//! Ports for servers in separate processes.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// Returns a port of 127.0.0.1 that is free now, and another one each time. It is below the range of ports of outgoing connections,
/// so that a server finds it free when it starts, and again after a restart.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 1_000) as u16 * 20;
    loop {
        let port = 12_000 + (first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed))) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
