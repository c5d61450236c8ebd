//! Helpers common to the tests of this folder.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// Returns both ends of a connection of this host.
pub(super) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback works");
    let here = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (there, _) = listener.accept().expect("somebody connected");
    (here, there)
}
