//! What the tests of this folder share.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// Two ends of a connection of this host.
pub(super) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback works");
    let here = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let (there, _) = listener.accept().expect("somebody connected");
    (here, there)
}
