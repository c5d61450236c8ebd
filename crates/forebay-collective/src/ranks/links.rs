//! The connections of one rank, and how they are made.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use forebay::ErrorKind;

use super::wire::{Evidence, Fault, Frame, Kind, Life, SMALL, Spare, Wire};
use crate::options::Options;
use crate::rendezvous::{Invitation, MeetingPlace, RENDEZVOUS_WITHIN, Rank, Rendezvous, without_local};

/// The deadlines for which a rank waits for rank 0, which waits for all others meanwhile: for their entries and a lock, their parts, or
/// their syncs.
const PATIENCE: u32 = 8;
/// The deadlines since the last sign of life for which an aggregator waits for a rank: longer than a window's write.
const STALL: u32 = 2;
/// Those for which a rank waits for an aggregator, which is to name first the rank that it waits for itself.
const RANK_STALL: u32 = 3;
/// The deadlines for which rank 0 waits for ranks without a sign of life. They wait for each other and for their own tasks
/// meanwhile, and their faults should be first.
pub(super) const LEAD_STALL: u32 = 4;

/// The connections of this rank.
pub(super) struct Links {
    pub(super) rank: u32,
    /// To rank 0, also of rank 0 itself.
    pub(super) control: Wire,
    /// One to each aggregator.
    pub(super) aggregators: Vec<Wire>,
    /// Where this rank is an aggregator: one from each rank.
    pub(super) incoming: Option<Vec<Wire>>,
    /// On rank 0.
    pub(super) members: Option<Members>,
    /// The time limit of a step.
    pub(super) deadline: Duration,
    /// The last sign of life that this rank has got from rank 0, and the last one that it has given.
    life: Arc<Life>,
    given: Arc<Life>,
    /// Whether the connections of pieces are ended.
    is_severed: AtomicBool,
}

/// Rank 0's connections to all ranks.
pub(super) struct Members {
    pub(super) wires: Vec<Wire>,
    /// The name of each rank's host.
    pub(super) hosts: Vec<String>,
    /// The ranks that are aggregators.
    pub(super) aggregators: Vec<usize>,
}

impl Links {
    /// Meets the other ranks, and connects.
    pub(super) fn meet(rank: &Rank, place: &MeetingPlace, options: &Options) -> Result<Links, Fault> {
        let deadline = options.step_deadline();
        if rank.number() >= rank.size() {
            let text = format!("rank {} of {} is out of range", rank.number(), rank.size());
            return Err(Fault::cause(ErrorKind::InvalidInput, text));
        }
        if rank.number() > 0 {
            let (invitation, stream) = place.follow(rank)?;
            return connect(rank, &invitation, stream, deadline);
        }
        let meeting = place.open(rank)?;
        let invitation = meeting.invitation();
        let _published = Notice(invitation);
        thread::scope(|scope| {
            let own = spawn(scope, move || connect(rank, invitation, invitation.accept(0)?, deadline))?;
            let members = introduce(rank, &meeting, options.aggregators_of_host());
            let links = join(own);
            // The own part fails if the others do not connect; their absence is the reason.
            let members = members?;
            Ok(Links { members: Some(members), ..links? })
        })
    }

    /// Returns how long this rank waits for rank 0.
    fn patience(&self) -> Duration {
        self.deadline.saturating_mul(PATIENCE)
    }

    /// Returns how long an aggregator waits for a rank's pieces without a sign of life.
    pub(super) fn stall(&self) -> Duration {
        self.deadline.saturating_mul(STALL)
    }

    /// Returns how long a rank waits for an aggregator.
    pub(super) fn rank_stall(&self) -> Duration {
        self.deadline.saturating_mul(RANK_STALL)
    }

    /// Sends a sign of life, which all ranks get from rank 0: an aggregator has made progress.
    pub(super) fn go_on(&self) -> Result<(), Fault> {
        if self.given.renew_after(self.deadline) {
            self.control.send(Frame::new(Kind::Alive), self.deadline)?;
        }
        Ok(())
    }

    /// Ends all connections of pieces, so that no rank, no aggregator and no other thread of this rank waits on them.
    pub(super) fn sever(&self) {
        self.is_severed.store(true, Ordering::Release);
        self.aggregators.iter().chain(self.incoming.iter().flatten()).for_each(Wire::sever);
    }

    /// Ends all connections, so that the other ranks learn at once that this one has ended.
    pub(super) fn end(&self) {
        self.sever();
        self.control.sever();
        self.members.iter().flat_map(|members| &members.wires).for_each(Wire::sever);
    }

    /// Checks that the call is under way, before a write of it. An aggregator that stood still wakes up with messages that had arrived,
    /// when the others have given the call up, and may have repeated it.
    pub(super) fn check_under_way(&self) -> Result<(), Fault> {
        if self.is_severed.load(Ordering::Acquire) {
            let text = "the call has ended on other ranks".to_owned();
            return Err(Fault { evidence: Evidence::Lost, kind: ErrorKind::Cancelled, text });
        }
        let limit = self.deadline.saturating_mul(LEAD_STALL);
        if self.life.last().elapsed() > limit {
            let text = format!("rank {} heard nothing of rank 0 within {} s", self.rank, limit.as_secs_f64());
            return Err(Fault { evidence: Evidence::Silent, kind: ErrorKind::Elapsed, text });
        }
        Ok(())
    }

    /// Reports a fault of this rank to rank 0.
    pub(super) fn report(&self, fault: &Fault) -> Result<(), Fault> {
        self.sever();
        self.control.send(fault.frame(Kind::Failed), self.deadline)
    }

    /// Reports a fault, and returns rank 0's verdict, which names the cause. Without one it is the nearest fault that this rank knows.
    pub(super) fn verdict(&self, fault: Fault) -> Fault {
        self.sever();
        if fault.evidence == Evidence::Verdict || self.report(&fault).is_err() {
            return fault;
        }
        loop {
            match self.control.receive(SMALL, self.patience()) {
                Ok((Kind::End, body)) => {
                    return Fault { evidence: Evidence::Verdict, ..Fault::of_body(&body) };
                }
                Ok(_) => {}
                Err(error) => return fault.nearer(error),
            }
        }
    }

    /// Waits for rank 0's next word in a call.
    pub(super) fn word(&self) -> Result<(Kind, Vec<u8>), Fault> {
        let verdict = |fault: Fault| Fault { evidence: Evidence::Verdict, ..fault };
        // Without rank 0 no other verdict can arrive.
        let word = self.control.receive(SMALL, self.patience()).map_err(verdict)?;
        self.life.renew();
        match word {
            (Kind::End, body) => Err(verdict(Fault::of_body(&body))),
            word => Ok(word),
        }
    }
}

/// Removes the invitation when all have connected, or after a failure.
struct Notice<'i>(&'i Invitation);

impl Drop for Notice<'_> {
    fn drop(&mut self) {
        self.0.withdraw();
    }
}

/// Introduces the ranks to each other, on rank 0.
fn introduce(rank: &Rank, meeting: &Rendezvous, of_host: usize) -> Result<Members, Fault> {
    let streams = meeting.gather(0..rank.size())?;
    let wires: Vec<Wire> = (0..).zip(streams).map(|(rank, stream)| Wire::control(stream, rank)).collect();
    let (mut hosts, mut aggregators, mut places): (Vec<String>, _, Vec<String>) =
        (Vec::new(), Vec::new(), Vec::new());
    for (number, wire) in wires.iter().enumerate() {
        let hello = wire.expect(Kind::Hello, SMALL, RENDEZVOUS_WITHIN)?;
        let hello = String::from_utf8_lossy(&hello).into_owned();
        let lines: Vec<&str> = hello.lines().collect();
        let [size, host, place] = lines[..] else { return Err(wire.stranger(format!("{hello:?}"))) };
        if size != rank.size().to_string() {
            let text = format!("rank {number} is one of {size} ranks, rank 0 one of {}", rank.size());
            return Err(Fault::cause(ErrorKind::InvalidInput, text));
        }
        if hosts.iter().filter(|known| **known == host).count() < of_host {
            aggregators.push(number);
            places.push(place.to_owned());
        }
        hosts.push(host.to_owned());
    }
    for (wire, host) in wires.iter().zip(&hosts) {
        let place = |(number, place): (&usize, &String)| {
            let place = if hosts[*number] == *host { place.clone() } else { without_local(place) };
            format!("{number} {place}\n")
        };
        let members: String = aggregators.iter().zip(&places).map(place).collect();
        wire.send(text_frame(Kind::Members, &members), RENDEZVOUS_WITHIN)?;
    }
    for wire in &wires {
        wire.expect(Kind::Ready, 0, RENDEZVOUS_WITHIN)?;
    }
    for wire in &wires {
        wire.send(Frame::new(Kind::Go), RENDEZVOUS_WITHIN)?;
    }
    Ok(Members { wires, hosts, aggregators })
}

/// Connects a rank that has found rank 0 to the aggregators.
fn connect(
    rank: &Rank,
    invitation: &Invitation,
    stream: TcpStream,
    deadline: Duration,
) -> Result<Links, Fault> {
    let (control, life, spare) = (Wire::control(stream, 0), Life::new(), Spare::new());
    let meeting = Rendezvous::beside(invitation, rank)?.with_local()?;
    let hello = format!("{}\n{}\n{}", rank.size(), rank.host_name(), meeting.invitation().places());
    control.send(text_frame(Kind::Hello, &hello), RENDEZVOUS_WITHIN)?;
    let members = control.expect(Kind::Members, SMALL, RENDEZVOUS_WITHIN)?;
    let mut places = Vec::new();
    for line in String::from_utf8_lossy(&members).lines() {
        let place = line
            .split_once(' ')
            .and_then(|(number, place)| Some((number.parse::<u32>().ok()?, place.to_owned())));
        places.push(place.ok_or_else(|| control.stranger(format!("{line:?}")))?);
    }
    let is_aggregator = places.iter().any(|(number, _)| *number == rank.number());
    let (aggregators, incoming) = thread::scope(|scope| -> Result<_, Fault> {
        // At the same time: an aggregator is a rank as well.
        let arriving =
            if is_aggregator { Some(spawn(scope, || Ok(meeting.gather(0..rank.size())?))?) } else { None };
        let mut aggregators = Vec::new();
        for (number, place) in &places {
            let stream = invitation.at(place)?.accept(rank.number())?;
            aggregators.push(Wire::of_pieces(stream, *number, &life, &spare));
        }
        let Some(arriving) = arriving else { return Ok((aggregators, None)) };
        let arrived = (0..).zip(join(arriving)?);
        let incoming = arrived.map(|(rank, stream)| Wire::of_pieces(stream, rank, &life, &spare));
        Ok((aggregators, Some(incoming.collect::<Vec<Wire>>())))
    })?;
    control.send(Frame::new(Kind::Ready), RENDEZVOUS_WITHIN)?;
    control.expect(Kind::Go, 0, RENDEZVOUS_WITHIN)?;
    let (rank, given, is_severed) = (rank.number(), Life::new(), AtomicBool::new(false));
    Ok(Links { rank, control, aggregators, incoming, members: None, deadline, life, given, is_severed })
}

fn text_frame(kind: Kind, text: &str) -> Frame {
    let mut frame = Frame::new(kind);
    frame.put_bytes(text.as_bytes());
    frame
}

/// Starts a thread of a call.
pub(super) fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, Fault>>, Fault> {
    Ok(thread::Builder::new().name("forebay-ranks".to_owned()).spawn_scoped(scope, work)?)
}

/// Waits for the end of a thread of a call.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, Result<T, Fault>>) -> Result<T, Fault> {
    thread
        .join()
        .unwrap_or_else(|_| Err(Fault::cause(ErrorKind::TaskPanicked, "a thread of the call has panicked")))
}
