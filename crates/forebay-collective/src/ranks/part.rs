//! A rank's part in a call: it hands its pieces to the aggregators, or gets them from there.

use std::thread;

use bytes::Bytes;
use forebay::ErrorKind;
use forebay::internal::SealedMemory;

use super::call::{Call, Entry, Share, durability_of, is_window};
use super::links::{Links, join, spawn};
use super::windows::{Plan, Turns, first_frame, pieces_frame};
use super::wire::{Body, Fault, Frame, Kind, both};
use super::{aggregator, coordinator};
use crate::coalesce::WriteStats;
use crate::view::View;

/// Makes a call together with all other ranks. Returns the bytes of a read, and the requests that this rank sent as an aggregator.
pub(super) fn make(links: &Links, call: &Call) -> Result<(Vec<u8>, WriteStats), Fault> {
    thread::scope(|scope| {
        if let Some(members) = &links.members {
            spawn(scope, move || {
                coordinator::lead(members, links.deadline, call);
                Ok(())
            })
            // The other ranks have nobody to wait for.
            .inspect_err(|_| links.end())?;
        }
        take_part(links, call).map_err(|fault| links.verdict(fault))
    })
}

fn take_part(links: &Links, call: &Call) -> Result<(Vec<u8>, WriteStats), Fault> {
    links.control.send(Entry::of(call, links.deadline)?.frame(), links.deadline)?;
    let plan = match links.word()? {
        (Kind::Plan, body) => Plan::of_body(&body)
            .filter(|plan| plan.aggregators == links.aggregators.len() as u64 && is_window(plan.window)),
        (kind, _) => return Err(unexpected(links, kind)),
    };
    let plan = plan.ok_or_else(|| links.control.stranger("a plan that is none".to_owned()))?;
    thread::scope(|scope| {
        let moving = spawn(scope, || {
            let moved = move_pieces(links, &plan, call).inspect_err(|fault| {
                // If rank 0 has ended, the wait for its verdict fails as well.
                let _ = links.report(fault);
            });
            let (share, bytes) = moved?;
            links.control.send(share.frame(), links.deadline)?;
            Ok((bytes, share.stats))
        })?;
        let attended = attend(links, call).inspect_err(|_| links.sever());
        both(attended, join(moving)).map(|((), moved)| moved)
    })
}

/// Hears rank 0 until the call's end, also while pieces are moved: others may live when this rank waits, or have failed.
fn attend(links: &Links, call: &Call) -> Result<(), Fault> {
    loop {
        match links.word()? {
            (Kind::Alive, _) => {}
            (Kind::Sync, body) => {
                let durability = durability_of(Body(&body).take().unwrap_or_default());
                let class = call.class;
                call.perform("sync", links.deadline, move |file| async move {
                    file.sync(durability).class(class).await
                })?;
                links.control.send(Frame::new(Kind::Synced), links.deadline)?;
            }
            (Kind::Done, _) => return Ok(()),
            (kind, _) => return Err(unexpected(links, kind)),
        }
    }
}

fn unexpected(links: &Links, kind: Kind) -> Fault {
    links.control.stranger(format!("{kind:?} too early or too late"))
}

/// Moves the pieces of all windows, on an aggregator including its own.
fn move_pieces(links: &Links, plan: &Plan, call: &Call) -> Result<(Share, Vec<u8>), Fault> {
    thread::scope(|scope| {
        let aggregate = match &links.incoming {
            Some(wires) => Some(spawn(scope, move || {
                let share = match call.bytes() {
                    Some(_) => aggregator::write(links, wires, plan, call),
                    None => aggregator::read(links, wires, plan, call),
                };
                share.inspect_err(|_| links.sever())
            })?),
            None => None,
        };
        let moved = match call.bytes() {
            Some(bytes) => send(links, plan, &call.view, Some(bytes)).map(|()| Vec::new()),
            None => receive(links, plan, &call.view),
        };
        let moved = moved.inspect_err(|_| links.sever());
        both(aggregate.map_or(Ok(Share::default()), join), moved)
    })
}

/// Sends this rank's pieces to the aggregators, for a write with their bytes.
fn send(links: &Links, plan: &Plan, view: &View, bytes: Option<&Bytes>) -> Result<(), Fault> {
    let turns = Turns::new(*plan, view);
    for (aggregator, wire) in links.aggregators.iter().enumerate() {
        wire.send(first_frame(turns.first(aggregator)), links.rank_stall())?;
    }
    for turn in turns {
        let mut found: Vec<&[u8]> = Vec::new();
        if let Some(bytes) = bytes {
            for piece in view.pieces_in(plan.range(turn.window)) {
                let at = piece.at as usize;
                found.push(&bytes[at..at + (piece.end - piece.start) as usize]);
            }
        }
        let frame = pieces_frame(plan, view, &turn);
        links.aggregators[turn.aggregator].send_with(frame, &found, links.rank_stall())?;
    }
    Ok(())
}

/// Asks the aggregators for this rank's pieces, and receives their bytes. All that is asked for is sent while bytes arrive: aggregators
/// receive what is asked in one thread and send in another, so neither direction waits for the other.
fn receive(links: &Links, plan: &Plan, view: &View) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let size = view.bytes() as usize;
    if bytes.try_reserve_exact(size).is_err() {
        return Err(Fault::cause(ErrorKind::Io, format!("there is no memory for {size} bytes")));
    }
    bytes.resize(size, 0u8);
    thread::scope(|scope| {
        let asked = spawn(scope, || send(links, plan, view, None).inspect_err(|_| links.sever()))?;
        let mut fill = || {
            for turn in Turns::new(*plan, view) {
                let wire = &links.aggregators[turn.aggregator];
                let (body, memory) = wire.expect_with(Kind::Bytes, plan.body_max(), links.rank_stall())?;
                let mut rest = Body(&body);
                let mut fits = rest.take() == Some(turn.window);
                fits &= memory.is_none() || rest.0.is_empty();
                let mut rest = memory.as_ref().map_or(rest.0, SealedMemory::bytes);
                for piece in view.pieces_in(plan.range(turn.window)) {
                    let (at, len) = (piece.at as usize, (piece.end - piece.start) as usize);
                    let Some((found, behind)) = rest.split_at_checked(len) else {
                        fits = false;
                        break;
                    };
                    bytes[at..at + len].copy_from_slice(found);
                    rest = behind;
                }
                if !fits || !rest.is_empty() {
                    return Err(wire.stranger(format!("other bytes than those of window {}", turn.window)));
                }
            }
            Ok(())
        };
        let filled = fill().inspect_err(|_| links.sever());
        both(filled, join(asked))
    })?;
    Ok(bytes)
}
