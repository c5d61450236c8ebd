//! An aggregator's part in a call: it receives the pieces of all ranks window by window, and writes or reads them in large requests.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;
use forebay::{Block, Error, ErrorKind, Result};

use super::call::{Call, Share, Task};
use super::file_lock;
use super::links::{Links, join, spawn};
use super::windows::{Deposit, Plan, overlap, places, union, window_of};
use super::wire::{Body, Fault, Frame, Kind, SMALL, Wire, both};
use crate::coalesce::{Runs, Tail, WriteStats};
use crate::collective::{Part, write_part};

/// Windows that are written at a time.
const WINDOWS_WRITTEN: usize = 2;

/// The windows of one aggregator, as they arrive.
struct Arrivals<'l> {
    links: &'l Links,
    wires: &'l [Wire],
    plan: &'l Plan,
    is_write: bool,
    /// The next window in which each rank has pieces.
    next: Vec<Option<u64>>,
}

/// The pieces of a window: the rank, its message, and the bytes of the pieces, one after the other.
type Window = Vec<(usize, Deposit, Bytes)>;

impl<'l> Arrivals<'l> {
    fn new(links: &'l Links, wires: &'l [Wire], plan: &'l Plan, is_write: bool) -> Result<Self, Fault> {
        let first = |wire: &Wire| {
            let body = wire.expect(Kind::Pieces, SMALL, links.stall())?;
            let window = window_of(&mut Body(&body)).filter(|window| plan.allows(*window));
            window.ok_or_else(|| wire.stranger("no first window".to_owned()))
        };
        let next = wires.iter().map(first).collect::<Result<_, Fault>>()?;
        Ok(Arrivals { links, wires, plan, is_write, next })
    }

    /// Receives the next window that has pieces; `None` at the end.
    fn receive(&mut self) -> Result<Option<(u64, Window)>, Fault> {
        let Some(window) = self.next.iter().flatten().min().copied() else { return Ok(None) };
        let (mut arrived, mut bytes) = (Vec::new(), 0);
        for (rank, wire) in self.wires.iter().enumerate() {
            if self.next[rank] != Some(window) {
                continue;
            }
            let (body, memory) = wire.expect_with(Kind::Pieces, self.plan.body_max(), self.links.stall())?;
            self.links.go_on()?;
            let message = Deposit::of_message(body, memory, self.plan, window, self.is_write);
            let stranger = || wire.stranger(format!("no pieces of window {window}"));
            let (deposit, found) = message.ok_or_else(stranger)?;
            self.next[rank] = deposit.next;
            bytes += found.len() as u64;
            arrived.push((rank, deposit, found));
            // More than the window has: pieces overlap, and the rest needs no memory.
            if bytes > self.plan.window {
                break;
            }
        }
        Ok(Some((window, arrived)))
    }
}

/// The write of a window.
type WindowWrite = Task<(Tail, WriteStats)>;

/// Writes this aggregator's windows, in the order of the file.
pub(super) fn write(links: &Links, wires: &[Wire], plan: &Plan, call: &Call) -> Result<Share, Fault> {
    check_lock(links, plan, call)?;
    let mut share = Share { end: plan.length, ..Share::default() };
    let mut under_way = VecDeque::new();
    let outcome = write_arrivals(links, wires, plan, call, &mut share, &mut under_way);
    let mut outcome = outcome.inspect_err(|_| links.sever());
    // Also after a failure: no write of this call may meet those of a later one.
    for task in &under_way {
        let Err(fault) = add_write(&mut share, task, links) else { continue };
        outcome = Err(match outcome {
            // The fault of an unfinished write makes rank 0 keep the lock.
            Err(first) if !fault.is_overdue() => first.nearer(fault),
            _ => fault,
        });
    }
    outcome.map(|()| share)
}

/// Receives all windows, and writes them; the last writes stay under way.
fn write_arrivals(
    links: &Links,
    wires: &[Wire],
    plan: &Plan,
    call: &Call,
    share: &mut Share,
    under_way: &mut VecDeque<WindowWrite>,
) -> Result<(), Fault> {
    let core = call.core(plan.window);
    let mut arrivals = Arrivals::new(links, wires, plan, true)?;
    while let Some((window, arrived)) = arrivals.receive()? {
        let mut deposits: Vec<Vec<(u64, Bytes)>> = wires.iter().map(|_| Vec::new()).collect();
        let mut pieces = Vec::with_capacity(arrived.len());
        for (rank, deposit, found) in arrived {
            deposits[rank] = deposit.with_bytes(&found);
            pieces.push((rank, deposit));
        }
        if let Some((one, other, offset)) = overlap(&pieces) {
            let text = format!("the pieces of ranks {one} and {other} overlap at offset {offset}");
            return Err(Fault::cause(ErrorKind::InvalidInput, text));
        }
        let range = plan.range(window);
        let all = pieces.iter().flat_map(|(_, deposit)| &deposit.pieces);
        let bytes: u64 = all.map(|piece| piece.end - piece.start).sum();
        // Rank 0 saw no holes, because the bytes of pieces that overlap elsewhere made up for these.
        if !plan.is_locked && bytes < plan.end.min(range.end).saturating_sub(plan.start.max(range.start)) {
            let text = format!("pieces of two ranks overlap: there are holes behind offset {}", range.start);
            return Err(Fault::cause(ErrorKind::InvalidInput, text));
        }
        if under_way.len() == WINDOWS_WRITTEN
            && let Some(oldest) = under_way.pop_front()
        {
            add_write(share, &oldest, links)?;
        }
        links.check_under_way()?;
        let (core, length) = (core.clone(), plan.length);
        under_way.push_back(call.start(window, move || async move {
            let mut tail = Tail { end: length, padded: None };
            let mut runs = Runs::new(&core);
            write_part(&mut runs, &core, Part::new(Arc::new(deposits), core.shape, range), &mut tail).await?;
            Ok::<_, Error>((tail, runs.take_stats()))
        }));
    }
    Ok(())
}

/// Waits for the write of a window, and adds it to the aggregator's share.
fn add_write(share: &mut Share, task: &WindowWrite, links: &Links) -> Result<(), Fault> {
    let (tail, stats) = task.finish("write of a window", links.deadline)?;
    share.end = share.end.max(tail.end);
    share.padded = share.padded.max(tail.padded.unwrap_or(0));
    share.stats.add_requests(&stats);
    links.go_on()
}

/// Checks that rank 0's lock is one on this host, too: else another program could write between the read and the write of a page.
fn check_lock(links: &Links, plan: &Plan, call: &Call) -> Result<(), Fault> {
    if !plan.is_locked || links.rank == 0 {
        return Ok(());
    }
    let look = call
        .perform("look at the lock", links.deadline, |file| async move { file_lock::is_locked(&file).await });
    if look? {
        return Ok(());
    }
    let text = format!(
        "rank {} does not see rank 0's lock: this file system has none between hosts, so holes cannot be kept",
        links.rank
    );
    Err(Fault::cause(ErrorKind::Unsupported, text))
}

/// The read of a window: each byte once, however many ranks want it.
struct WindowRead {
    window: u64,
    /// The ranks with their pieces.
    ranks: Vec<(usize, Vec<Range<u64>>)>,
    /// The ranges of the file that have a block each.
    ranges: Vec<Range<u64>>,
    blocks: Task<Vec<Result<Block>>>,
}

/// Reads this aggregator's windows, and sends each rank its bytes: one window is read while the one before it is sent.
pub(super) fn read(links: &Links, wires: &[Wire], plan: &Plan, call: &Call) -> Result<Share, Fault> {
    let shape = call.shape(plan.window);
    let (windows, inbox) = sync_channel::<WindowRead>(1);
    thread::scope(|scope| {
        let sender = spawn(scope, move || {
            let sent = inbox.iter().try_for_each(|read| {
                let blocks = read.blocks.finish("read of a window", links.deadline)?;
                let blocks: Vec<Block> = blocks.into_iter().collect::<Result<_>>()?;
                read.ranks.iter().try_for_each(|(rank, pieces)| {
                    let mut frame = Frame::new(Kind::Bytes);
                    frame.put(read.window);
                    let found = places(&read.ranges, pieces).map(|(index, range)| &blocks[index][range]);
                    wires[*rank].send_with(frame, &found.collect::<Vec<_>>(), links.stall())?;
                    links.go_on()
                })
            });
            // The other thread may wait for a rank that waits for this thread.
            sent.inspect_err(|_| links.sever())
        })?;
        let receive = || {
            let mut arrivals = Arrivals::new(links, wires, plan, false)?;
            while let Some((window, arrived)) = arrivals.receive()? {
                let ranks: Vec<_> =
                    arrived.into_iter().map(|(rank, deposit, _)| (rank, deposit.pieces)).collect();
                let ranges = union(ranks.iter().flat_map(|(_, pieces)| pieces));
                let (file, class, wanted) = (call.file.clone(), call.class, ranges.clone());
                let blocks = call.start(window, move || {
                    let reads = file.read_many(wanted).request_bytes_max(shape.request).class(class);
                    reads.depth(shape.depth as u32)
                });
                if windows.send(WindowRead { window, ranks, ranges, blocks }).is_err() {
                    break;
                }
            }
            Ok::<(), Fault>(())
        };
        let received = receive().inspect_err(|_| links.sever());
        drop(windows);
        both(received, join(sender)).map(|_| Share { end: plan.length, ..Share::default() })
    })
}
