//! Operations as futures that can be polled anywhere, and the places where they are polled.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use forebay::{Block, BlockMut, Class, Engine, File, Result, WriteData};

use super::step::{Op, Place, pattern_bytes};

/// The result of an operation.
pub(super) enum Outcome {
    Block(Result<Block>),
    Into(Result<usize>, BlockMut),
    Many(Result<Vec<Result<Block>>>),
    Done(Result<()>),
}

/// An operation in progress.
pub(super) type Flight = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The state of an operation after a few polls: completed, or still in progress.
pub(super) enum FlightState {
    Over(Outcome),
    Pending(Flight),
}

/// Returns the operation as a future that owns everything it needs. `shared`, a block with a write's bytes,
/// is written without a copy.
pub(super) fn begin(engine: &Engine, file: File, op: &Op, shared: Option<Block>) -> Result<Flight> {
    Ok(match op.clone() {
        Op::Read { range, .. } => Box::pin(async move { Outcome::Block(file.read(range).await) }),
        Op::ReadUpTo { range, .. } => Box::pin(async move { Outcome::Block(file.read_up_to(range).await) }),
        Op::ReadInto { offset, len, .. } => {
            // I/O memory, or the program's own memory, aligned to a page or not.
            let (own, len) = (len % 3, len as usize);
            let block = if own == 2 { BlockMut::aligned(len)? } else { engine.block(len)? };
            Box::pin(async move {
                if own == 1 {
                    let (result, vec) = file.read_into(offset, vec![0; len]).await;
                    let mut block = block;
                    block.truncate(vec.len());
                    block.copy_from_slice(&vec);
                    return Outcome::Into(result, block);
                }
                let (result, block) = file.read_into(offset, block).await;
                Outcome::Into(result, block)
            })
        }
        Op::ReadMany { ranges, .. } => Box::pin(async move { Outcome::Many(file.read_many(ranges).await) }),
        Op::Write { offset, len, pattern, durability, .. } => {
            let bytes = pattern_bytes(pattern, offset, len as usize);
            if shared.is_none() && pattern % 3 == 0 {
                return Ok(Box::pin(async move {
                    Outcome::Done(file.write_from(offset, bytes).durable(durability).await.0)
                }));
            }
            let data: WriteData<'static> = match shared {
                Some(block) => block.into(),
                None if pattern % 2 == 0 => bytes.into(),
                None => engine.block_from(&bytes)?.into(),
            };
            Box::pin(async move { Outcome::Done(file.write(offset, data).durable(durability).await) })
        }
        Op::Sync { durability, .. } => Box::pin(async move { Outcome::Done(file.sync(durability).await) }),
    })
}

/// Awaits the operation at `place`.
pub(super) async fn finish(engine: &Engine, mut flight: Flight, place: Place) -> Result<Outcome> {
    match place {
        Place::Here => Ok(flight.await),
        Place::Shard(shard) => on_shard(engine, shard, flight).await,
        Place::ToShard(shard, polls) => match poll_some(&mut flight, polls).await {
            Some(outcome) => Ok(outcome),
            None => on_shard(engine, shard, flight).await,
        },
        Place::FromShard(shard, polls) => match polled_on_shard(engine, shard, flight, polls).await? {
            FlightState::Over(outcome) => Ok(outcome),
            FlightState::Pending(flight) => Ok(flight.await),
        },
    }
}

/// Polls the operation `polls` times at the start of `place`, and drops it at the end of `place` if it has not completed by then.
pub(super) async fn give_up(
    engine: &Engine,
    mut flight: Flight,
    place: Place,
    polls: u8,
) -> Result<Option<Outcome>> {
    match place {
        Place::Here => Ok(poll_some(&mut flight, polls).await),
        Place::Shard(shard) => {
            let polled = engine.spawn_on_shard(
                usize::from(shard) % engine.shard_count(),
                Class::DEFAULT,
                move || async move {
                    let outcome = poll_some(&mut flight, polls).await;
                    drop(flight);
                    outcome
                },
            );
            polled.await
        }
        Place::ToShard(shard, _) => match poll_some(&mut flight, polls).await {
            Some(outcome) => Ok(Some(outcome)),
            None => {
                let dropped = engine.spawn_on_shard(
                    usize::from(shard) % engine.shard_count(),
                    Class::DEFAULT,
                    move || async { drop(flight) },
                );
                dropped.await.map(|()| None)
            }
        },
        Place::FromShard(shard, _) => match polled_on_shard(engine, shard, flight, polls).await? {
            FlightState::Over(outcome) => Ok(Some(outcome)),
            FlightState::Pending(_) => Ok(None),
        },
    }
}

async fn on_shard(engine: &Engine, shard: u8, flight: Flight) -> Result<Outcome> {
    engine.spawn_on_shard(usize::from(shard) % engine.shard_count(), Class::DEFAULT, move || flight).await
}

async fn polled_on_shard(engine: &Engine, shard: u8, mut flight: Flight, polls: u8) -> Result<FlightState> {
    let polled = engine.spawn_on_shard(
        usize::from(shard) % engine.shard_count(),
        Class::DEFAULT,
        move || async move {
            match poll_some(&mut flight, polls).await {
                Some(outcome) => FlightState::Over(outcome),
                None => FlightState::Pending(flight),
            }
        },
    );
    polled.await
}

/// Polls the operation `polls` times, and lets other tasks run in between.
pub(super) async fn poll_some(flight: &mut Flight, polls: u8) -> Option<Outcome> {
    for at in 0..polls {
        if at > 0 {
            yield_once().await;
        }
        let polled = poll_fn(|context| Poll::Ready(flight.as_mut().poll(context))).await;
        if let Poll::Ready(outcome) = polled {
            return Some(outcome);
        }
    }
    None
}

async fn yield_once() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Awaits all of them concurrently.
pub(super) async fn join(mut flights: Vec<Flight>) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = flights.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (flight, outcome) in flights.iter_mut().zip(&mut outcomes) {
            if outcome.is_none() {
                match flight.as_mut().poll(context) {
                    Poll::Ready(over) => *outcome = Some(over),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}
