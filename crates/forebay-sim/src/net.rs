//! The network of a world: datagrams between its nodes, with latency, loss, duplicates, reordering and partitions.
//!
//! A [`Socket`] is bound to an [`Address`], a node and a port, and receives [`Message`]s. A message is some bytes, which
//! arrive whole or not at all, any number of times and in any order, as the [`Conditions`] of its link and the seed
//! decide. A *link* is one direction from a node to another, so that a partition may be one-way.
//!
//! | a message is | when |
//! |---|---|
//! | lost | the conditions of its link say so; its link is cut, or has an outage, when it is sent; no socket is bound to its address when it arrives (the node is off, for example); the socket has 4,096 unread messages |
//! | still delivered | its sender loses power, or its link is cut, after it was sent. Its receiver restarts before it arrives, and binds the port again |
//! | delivered immediately and exactly once | it is for the sender's own node (after a microsecond) |
//!
//! Messages that are in flight at the end of a run are lost, and all sockets are closed; conditions and cuts stay.
//!
//! ```
//! use forebay_sim::net::{self, Address, Conditions, Socket};
//! use forebay_sim::{self as sim, World};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut world = World::new(7).network(Conditions::lan());
//! let echoed = world.run(async |_| {
//!     let server = sim::node(1).spawn(async {
//!         let mut socket = Socket::bind(80)?;
//!         while let Ok(request) = socket.recv().await {
//!             let bytes = request.bytes().clone();
//!             request.reply(bytes);
//!         }
//!         Ok::<_, forebay::Error>(())
//!     });
//!     let echoed = net::call(Address::new(1, 80), "hello", Duration::from_secs(1)).await;
//!     net::cut(0, 1); // requests no longer arrive
//!     net::call(Address::new(1, 80), "hello", Duration::from_secs(1)).await.unwrap_err();
//!     server.abort();
//!     echoed
//! })??;
//! assert_eq!(&echoed[..], b"hello");
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use forebay::internal::ErrorExt;
use forebay::{Error, ErrorKind, Result};

use crate::history::{Fate, What};
use crate::hub::{self, Hub};
use crate::node::ns;
use crate::program::timeout;

/// The most unread messages of a socket.
const UNREAD_MAX: usize = 4_096;
/// The latency of messages within a node.
const LOCAL_NS: u64 = 1_000;
/// The first of the ports that sockets without a name get, one after the other.
const FIRST_UNNAMED: u32 = 1 << 16;
/// The longest time that can be drawn, in nanoseconds.
const DRAWN_NS_MAX: u64 = u32::MAX as u64;

/// Properties of a link, or of all links: how long messages take, and which are lost, late or doubled.
///
/// Times and chances are whole numbers, and the world's seed determines all randomness. Each message draws its own latency, so
/// messages of a link with jitter overtake each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "give it to World::network, net::set_conditions or net::set_link"]
pub struct Conditions {
    latency_ns: u64,
    jitter_ns: u64,
    loss_ppm: u32,
    duplicate_ppm: u32,
    late_ppm: u32,
    late_ns: u64,
    outage_ppm: u32,
    outage_ns: u64,
}

impl Conditions {
    /// Returns a network without faults: every message takes 50 us, in order. The default of a world.
    pub fn ideal() -> Conditions {
        Conditions {
            latency_ns: 50_000,
            jitter_ns: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            late_ppm: 0,
            late_ns: 0,
            outage_ppm: 0,
            outage_ns: 0,
        }
    }

    /// Returns a network within a data centre: 50 to 150 us, one message in a thousand up to 5 ms late, ten in a
    /// million lost.
    pub fn lan() -> Conditions {
        Conditions {
            jitter_ns: 100_000,
            loss_ppm: 10,
            late_ppm: 1_000,
            late_ns: 5_000_000,
            ..Conditions::ideal()
        }
    }

    /// Returns a network between continents: 40 to 50 ms, one message in a thousand lost, one in a hundred up to 200 ms
    /// late.
    pub fn wan() -> Conditions {
        Conditions {
            latency_ns: 40_000_000,
            jitter_ns: 10_000_000,
            loss_ppm: 1_000,
            duplicate_ppm: 100,
            late_ppm: 10_000,
            late_ns: 200_000_000,
            ..Conditions::ideal()
        }
    }

    /// Returns a network with all faults that a network may have: 0.1 to 5 ms, one message in 20 up to 300 ms late, 2 % lost, 2 %
    /// doubled; each message starts an outage of its link of up to 1 s with a chance of one in a thousand.
    pub fn hostile() -> Conditions {
        Conditions {
            latency_ns: 100_000,
            jitter_ns: 5_000_000,
            loss_ppm: 20_000,
            duplicate_ppm: 20_000,
            late_ppm: 50_000,
            late_ns: 300_000_000,
            outage_ppm: 1_000,
            outage_ns: 1_000_000_000,
        }
    }

    fn drawn_ns(&self, fate: &mut Fate) -> u64 {
        let jitter_ns = fate.source.below(self.jitter_ns + 1);
        let late_ns = if fate.source.ppm(self.late_ppm) { fate.source.below(self.late_ns + 1) } else { 0 };
        self.latency_ns.saturating_add(jitter_ns + late_ns)
    }

    /// Sets the shortest latency of a message, and the most by which it may be longer, drawn evenly; the second is at most 4 s.
    pub fn latency(mut self, shortest: Duration, jitter: Duration) -> Conditions {
        (self.latency_ns, self.jitter_ns) = (ns(shortest), drawn_ns(jitter));
        self
    }

    /// Sets the messages in a million that are lost.
    pub fn loss_ppm(mut self, ppm: u32) -> Conditions {
        self.loss_ppm = ppm;
        self
    }

    /// Sets the messages in a million that arrive twice, with independent latencies.
    pub fn duplicate_ppm(mut self, ppm: u32) -> Conditions {
        self.duplicate_ppm = ppm;
        self
    }

    /// Makes `ppm` messages in a million late by up to `time` more (at most 4 s), so that many others overtake them.
    pub fn late(mut self, ppm: u32, time: Duration) -> Conditions {
        (self.late_ppm, self.late_ns) = (ppm, drawn_ns(time));
        self
    }

    /// Makes `ppm` in a million messages start an outage of their link: the message and all that follow within up to `time` (at
    /// most 4 s) are lost.
    pub fn outages(mut self, ppm: u32, time: Duration) -> Conditions {
        (self.outage_ppm, self.outage_ns) = (ppm, drawn_ns(time));
        self
    }
}

fn drawn_ns(time: Duration) -> u64 {
    ns(time).min(DRAWN_NS_MAX - 1)
}

/// The address of messages: a node and a port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    node: u32,
    port: u32,
}

impl Address {
    /// Returns the address of a port of a node.
    pub fn new(node: u32, port: u32) -> Address {
        Address { node, port }
    }

    /// Returns the node's number.
    pub fn node(self) -> u32 {
        self.node
    }

    /// Returns the port's number.
    pub fn port(self) -> u32 {
        self.port
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.node, self.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Counts of the messages of a world so far. A doubled message counts once in `sent` and up to twice in
/// `delivered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traffic {
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that reached a socket.
    pub delivered: u64,
    /// Messages that their link's conditions lost.
    pub lost: u64,
    /// Messages that were sent into a cut or an outage.
    pub blocked: u64,
    /// Messages that were doubled.
    pub duplicated: u64,
    /// Messages that arrived after one that was sent later on the same link.
    pub overtaken: u64,
    /// Messages that found no socket when they arrived.
    pub unreachable: u64,
    /// Messages dropped because their socket had too many unread messages.
    pub overflowed: u64,
    /// Outages of links.
    pub outages: u64,
}

/// One direction between two nodes.
#[derive(Default)]
struct LinkState {
    conditions: Option<Conditions>,
    is_cut: bool,
    outage_until_ns: u64,
    /// The greatest serial number that has arrived.
    arrived: u64,
}

/// The state of a bound socket.
pub(crate) struct Bound {
    /// The number of the socket: one that outlived its node's power does not close the next one with this address.
    socket: u64,
    unread: VecDeque<Message>,
    pub(crate) waker: Option<Waker>,
}

struct Flight {
    serial: u64,
    sent_ns: u64,
    message: Message,
}

/// All links, sockets and messages in flight of a world.
pub(crate) struct Network {
    conditions: Conditions,
    links: BTreeMap<(u32, u32), LinkState>,
    bound: BTreeMap<Address, Bound>,
    /// By the time of arrival; at equal times in the order of sending.
    flights: BTreeMap<(u64, u64), Flight>,
    messages: u64,
    flown: u64,
    sockets: u64,
    next_unnamed: u32,
    traffic: Traffic,
}

impl Network {
    pub(crate) fn new() -> Network {
        Network {
            conditions: Conditions::ideal(),
            links: BTreeMap::new(),
            bound: BTreeMap::new(),
            flights: BTreeMap::new(),
            messages: 0,
            flown: 0,
            sockets: 0,
            next_unnamed: FIRST_UNNAMED,
            traffic: Traffic::default(),
        }
    }

    pub(crate) fn set_conditions(&mut self, conditions: Conditions) {
        self.conditions = conditions;
    }

    pub(crate) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Returns the time of the next arrival.
    pub(crate) fn next_event_ns(&self) -> Option<u64> {
        self.flights.first_key_value().map(|((at_ns, _), _)| *at_ns)
    }

    fn bind(&mut self, node: u32, port: Option<u32>) -> Result<Socket> {
        let port = port.unwrap_or_else(|| {
            self.next_unnamed = self.next_unnamed.checked_add(1).unwrap_or(FIRST_UNNAMED);
            self.next_unnamed
        });
        let address = Address { node, port };
        if self.bound.contains_key(&address) {
            let error = io::Error::from_raw_os_error(libc::EADDRINUSE);
            return Err(Error::io("bind", error).with_note(format!("another socket is bound to {address}")));
        }
        self.sockets += 1;
        let socket = self.sockets;
        self.bound.insert(address, Bound { socket, unread: VecDeque::new(), waker: None });
        Ok(Socket { address, socket })
    }

    /// Returns the entry of a socket, unless its node lost power meanwhile.
    fn entry(&mut self, socket: &Socket) -> Option<&mut Bound> {
        self.bound.get_mut(&socket.address).filter(|bound| bound.socket == socket.socket)
    }

    fn send(&mut self, message: Message, now_ns: u64, fate: &mut Fate) {
        let (from, to) = (message.from, message.to);
        self.messages += 1;
        self.traffic.sent += 1;
        fate.history.note(
            What::Sent,
            &[from.node, from.port, to.node, to.port, message.bytes.len() as u32].map(u64::from),
        );
        fate.history.bytes(&message.bytes);
        if from.node == to.node {
            return self.fly(message, now_ns, LOCAL_NS);
        }
        let link = self.links.entry((from.node, to.node)).or_default();
        let conditions = link.conditions.unwrap_or(self.conditions);
        if now_ns >= link.outage_until_ns && fate.source.ppm(conditions.outage_ppm) {
            link.outage_until_ns = now_ns + 1 + fate.source.below(conditions.outage_ns);
            self.traffic.outages += 1;
        }
        #[cfg(feature = "_mutants")]
        if forebay::mutants::Mutant::CutLinkCarries.is_on() {
            link.is_cut = false;
        }
        if link.is_cut || now_ns < link.outage_until_ns {
            self.traffic.blocked += 1;
            return;
        }
        if fate.source.ppm(conditions.loss_ppm) {
            self.traffic.lost += 1;
            return;
        }
        if fate.source.ppm(conditions.duplicate_ppm) {
            self.traffic.duplicated += 1;
            self.fly(message.clone(), now_ns, conditions.drawn_ns(fate));
        }
        self.fly(message, now_ns, conditions.drawn_ns(fate));
    }

    fn fly(&mut self, message: Message, now_ns: u64, latency_ns: u64) {
        self.flown += 1;
        let at_ns = now_ns.saturating_add(latency_ns.max(1));
        #[cfg(feature = "_mutants")]
        let at_ns = if forebay::mutants::Mutant::ArrivesAtOnce.is_on() { now_ns + 1 } else { at_ns };
        let flight = Flight { serial: self.messages, sent_ns: now_ns, message };
        self.flights.insert((at_ns, self.flown), flight);
    }

    /// Lets the next message that is due arrive. Returns the waker of its receiver, which the caller wakes when nothing
    /// is borrowed; `None` when no message is due.
    pub(crate) fn arrive(&mut self, now_ns: u64, fate: &mut Fate) -> Option<Option<Waker>> {
        let first = self.flights.first_entry().filter(|flight| flight.key().0 <= now_ns)?;
        let ((at_ns, flown), Flight { serial, sent_ns, message }) = first.remove_entry();
        debug_assert!(at_ns > sent_ns, "a message arrives after it was sent");
        let (from, to) = (message.from, message.to);
        let link = self.links.entry((from.node, to.node)).or_default();
        if serial < link.arrived {
            self.traffic.overtaken += 1;
        }
        link.arrived = link.arrived.max(serial);
        let mut waker = None;
        let outcome = match self.bound.get_mut(&to) {
            None => &mut self.traffic.unreachable,
            Some(bound) if bound.unread.len() >= UNREAD_MAX => &mut self.traffic.overflowed,
            Some(bound) => {
                bound.unread.push_back(message);
                waker = bound.waker.take();
                &mut self.traffic.delivered
            }
        };
        *outcome += 1;
        fate.history.note(What::Arrived, &[flown, at_ns, *outcome]);
        Some(waker)
    }

    /// Closes the sockets of a node, or all. Returns their states, whose receivers the caller wakes when nothing is
    /// borrowed.
    pub(crate) fn close(&mut self, node: Option<u32>) -> Vec<Bound> {
        let bound = std::mem::take(&mut self.bound);
        let (closed, open): (BTreeMap<_, _>, _) =
            bound.into_iter().partition(|(address, _)| node.is_none_or(|node| node == address.node));
        self.bound = open;
        closed.into_values().collect()
    }

    /// Forgets the messages in flight.
    pub(crate) fn lose_flights(&mut self) {
        self.flights.clear();
    }
}

/// A message that has arrived.
#[derive(Clone)]
pub struct Message {
    from: Address,
    to: Address,
    bytes: Bytes,
}

impl Message {
    /// Returns the address of the socket that sent it.
    pub fn from(&self) -> Address {
        self.from
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns its bytes, and drops the rest.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Sends `bytes` from the address of arrival to the sender, whether that socket is still bound or not.
    pub fn reply(self, bytes: impl Into<Bytes>) {
        send(self.to, self.from, bytes.into());
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} -> {}, {} bytes)", self.from, self.to, self.bytes.len())
    }
}

fn send(from: Address, to: Address, bytes: Bytes) {
    // A node that has just lost its power sends nothing more, when destructors of its tasks try.
    if let Some(hub) = hub::current().filter(|hub| hub.node(from.node).is_on()) {
        let message = Message { from, to, bytes };
        hub.net.borrow_mut().send(message, hub.now_ns(), &mut hub.fate.borrow_mut());
    }
}

/// A port of the node that bound it, where messages arrive. Dropping it unbinds the port, with all that was not read.
///
/// A socket belongs to one run of the world: after it, and after a power cut of its node, it is closed.
pub struct Socket {
    address: Address,
    socket: u64,
}

impl Socket {
    /// Binds a port of the current node.
    ///
    /// # Errors
    /// `EADDRINUSE` when another socket has the port; [`ErrorKind::OutsideWorld`]
    /// where no world runs.
    pub fn bind(port: u32) -> Result<Socket> {
        Socket::bind_some(Some(port))
    }

    /// Binds a port of the current node that no other socket has or had, from 65,536 on.
    ///
    /// # Errors
    /// [`ErrorKind::OutsideWorld`] where no world runs.
    pub fn bind_unnamed() -> Result<Socket> {
        Socket::bind_some(None)
    }

    fn bind_some(port: Option<u32>) -> Result<Socket> {
        let hub = world("bind")?;
        let node = hub.here();
        if !node.is_on() {
            return Err(Error::invalid("bind", format!("node {} has no power", node.number)));
        }
        hub.net.borrow_mut().bind(node.number, port)
    }

    /// Returns the address that it is bound to.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Sends a message, which may be lost. It is in transit when this returns.
    pub fn send(&self, to: Address, bytes: impl Into<Bytes>) {
        send(self.address, to, bytes.into());
    }

    /// Waits for the next message. Dropping the call loses no message.
    ///
    /// # Errors
    /// `ENOTCONN` when the socket was closed by a power cut of its node or the end of its run;
    /// [`ErrorKind::OutsideWorld`] where no world runs.
    pub async fn recv(&mut self) -> Result<Message> {
        std::future::poll_fn(|context| {
            let hub = match world("receive") {
                Ok(hub) => hub,
                Err(error) => return Poll::Ready(Err(error)),
            };
            let mut net = hub.net.borrow_mut();
            let Some(bound) = net.entry(self) else {
                let error = Error::io("receive", io::Error::from_raw_os_error(libc::ENOTCONN));
                return Poll::Ready(
                    Err(error.with_note(format!("the socket at {} is closed", self.address))),
                );
            };
            if let Some(message) = bound.unread.pop_front() {
                return Poll::Ready(Ok(message));
            }
            let before = bound.waker.replace(context.waker().clone());
            drop(net);
            drop(before);
            Poll::Pending
        })
        .await
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(hub) = hub::current() else { return };
        let mut net = hub.net.borrow_mut();
        if net.entry(self).is_some() {
            let bound = net.bound.remove(&self.address);
            drop(net);
            drop(bound);
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Socket({})", self.address)
    }
}

fn world(operation: &'static str) -> Result<Rc<Hub>> {
    hub::current().ok_or_else(|| Error::new(ErrorKind::OutsideWorld, operation))
}

/// Sends a request from an unnamed socket of the current node, and returns the first reply within `limit` by this node's clock.
/// Without a reply it is unknown whether the request arrived; it may arrive more than once.
///
/// # Errors
/// [`ErrorKind::Elapsed`] without a reply in time; those of [`Socket::bind_unnamed`] and [`Socket::recv`].
pub async fn call(to: Address, request: impl Into<Bytes>, limit: Duration) -> Result<Bytes> {
    let mut socket = Socket::bind_unnamed()?;
    socket.send(to, request);
    Ok(timeout(limit, socket.recv()).await??.into_bytes())
}

/// Sets the conditions of all links without specific conditions, for messages from now on.
pub fn set_conditions(conditions: Conditions) {
    if let Some(hub) = hub::current() {
        hub.net.borrow_mut().set_conditions(conditions);
    }
}

/// Sets the conditions of one link, for messages from now on.
pub fn set_link(from: u32, to: u32, conditions: Conditions) {
    with_link(from, to, |link| link.conditions = Some(conditions));
}

/// Cuts the link from one node to another: messages that are sent from now on do not arrive. The other direction is a separate
/// link.
pub fn cut(from: u32, to: u32) {
    with_link(from, to, |link| link.is_cut = true);
}

/// Mends a link, and ends its outage.
pub fn heal(from: u32, to: u32) {
    with_link(from, to, LinkState::heal);
}

/// Cuts both links between any two nodes that are in different groups. All other links stay as they are.
pub fn partition(groups: &[&[u32]]) {
    for (at, group) in groups.iter().enumerate() {
        for (other, others) in groups.iter().enumerate() {
            for (&from, &to) in group.iter().flat_map(|from| others.iter().map(move |to| (from, to))) {
                if at != other && from != to {
                    cut(from, to);
                }
            }
        }
    }
}

/// Mends all links, and ends their outages.
pub fn heal_all() {
    if let Some(hub) = hub::current() {
        hub.net.borrow_mut().links.values_mut().for_each(LinkState::heal);
    }
}

/// Returns the counts of messages so far; zeros outside of a world.
pub fn traffic() -> Traffic {
    hub::current().map(|hub| hub.net.borrow().traffic()).unwrap_or_default()
}

impl LinkState {
    fn heal(&mut self) {
        (self.is_cut, self.outage_until_ns) = (false, 0);
    }
}

fn with_link(from: u32, to: u32, change: impl FnOnce(&mut LinkState)) {
    if let Some(hub) = hub::current() {
        change(hub.net.borrow_mut().links.entry((from, to)).or_default());
    }
}
