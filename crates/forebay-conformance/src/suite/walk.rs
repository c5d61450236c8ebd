//! Dependent reads: the arguments and results of steps, and the ways in which walks end.

#![allow(clippy::panic, reason = "a step that panics is what one case is about")]

use std::future::{Future, IntoFuture, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use forebay::{Block, Class, Error, ErrorKind, Open, Step, Walk};

use super::check::{Outcome, fails_with, holds, same, same_bytes};
use super::hike::{Hike, Ledger};
use super::operations::LEN;
use super::tools::{all, at_rest, bytes_of, open_all, poll_now, put, some};
use crate::Env;

super::group! { "walk":
    hops_follow_from_one_another,
    a_batch_has_each_result_in_its_place,
    each_of_many_comes_once_and_in_any_order,
    what_is_given_up_reaches_no_step,
    faults_name_the_hop,
    a_cycle_ends,
    a_panic_is_the_walks_error,
    states_are_dropped_once_however_walks_end,
    closing_ends_every_walk,
    closing_a_file_lets_its_walks_end,
}

async fn hops_follow_from_one_another(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for seed in some(env, 12) {
            same("wrong blocks", file.walk(Hike::ROOT, Hike::new(seed, 20)).await?, 0)?;
            let inner = file.clone();
            let task =
                env.engine().spawn_on_shard(
                    seed as usize % env.engine().shard_count(),
                    Class::DEFAULT,
                    move || async move {
                        inner.walk(Hike::ROOT, Hike::new(seed, 20)).class(Class::BACKGROUND).await
                    },
                );
            same("wrong blocks on a shard", task.await??, 0)?;
        }
        let walks = (0..20).map(|seed| file.walk(Hike::ROOT, Hike::new(seed, 9)).into_future());
        for wrong in all(walks).await {
            same("wrong blocks, beside each other", wrong?, 0)?;
        }
    }
    Ok(())
}

/// A walk that moves on one byte with each hop and returns its number after some hops.
struct Place(u64, u32);

impl Walk for Place {
    type Output = u64;
    type Error = Error;

    fn step(&mut self, _: &Block, at: Range<u64>) -> Step<u64, Error> {
        match self.1 {
            0 => Step::Done(self.0),
            _ => {
                self.1 -= 1;
                Step::Read(at.start + 1..at.end + 1)
            }
        }
    }
}

async fn a_batch_has_each_result_in_its_place(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for depth in [2, 500] {
            // Every seventh has a root that no file can have.
            let root = |n: u64| if n % 7 == 3 { LEN..LEN + 1 } else { n..n + 10 };
            let walks = (0..40u64).map(|n| (root(n), Place(n, n as u32 % 4)));
            let results = file.walk_many(walks).depth(depth).await?;
            same("results", results.len(), 40)?;
            for (n, result) in (0..).zip(results) {
                match n % 7 {
                    3 => {
                        fails_with("past the end", result, ErrorKind::UnexpectedEof { got: 0 })?;
                    }
                    _ => same("its own number", result?, n)?,
                }
            }
        }
        let none: [(Range<u64>, Place); 0] = [];
        same("nothing of nothing", file.walk_many(none).await?.len(), 0)?;
    }
    Ok(())
}

async fn each_of_many_comes_once_and_in_any_order(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for width in [2, 16] {
            let walks = (1..9).map(|seed| (Hike::ROOT, Hike { width, waits: true, ..Hike::new(seed, 4) }));
            for wrong in file.walk_many(walks).await? {
                same("wrong blocks", wrong?, 0)?;
            }
        }
    }
    Ok(())
}

async fn what_is_given_up_reaches_no_step(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let walks = (1..16).map(|seed| {
            let hike = Hike { width: 2 + seed % 15, ..Hike::new(seed, 5) };
            (Hike::ROOT, Hike { under_way: 1, ..hike })
        });
        for wrong in file.walk_many(walks).await? {
            same("wrong blocks", wrong?, 0)?;
        }
        at_rest(env, env.engine()).await?;
    }
    Ok(())
}

async fn faults_name_the_hop(env: &Env) -> Outcome {
    struct Astray(u32, Range<u64>);
    impl Walk for Astray {
        type Output = ();
        type Error = Error;
        fn step(&mut self, _: &Block, at: Range<u64>) -> Step<(), Error> {
            self.0 -= 1;
            if self.0 == 0 { Step::Read(self.1.clone()) } else { Step::Read(at) }
        }
    }
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for (range, kind) in [
            (LEN - 3..LEN + 3, ErrorKind::UnexpectedEof { got: 3 }),
            (Range { start: 5, end: 2 }, ErrorKind::InvalidInput),
            (5..5, ErrorKind::InvalidInput),
            (0..2 << 30, ErrorKind::TooLarge { limit: 1 << 30 }),
        ] {
            let error = fails_with("astray", file.walk(0..9, Astray(4, range.clone())).await, kind)?;
            same("the hop", (error.operation(), error.hop()), ("walk", Some(5)))?;
            same("the place", error.range().map(|range| range.0), Some(range.start))?;
            same("the file", error.path(), Some(file.path()))?;
        }
    }
    Ok(())
}

async fn a_cycle_ends(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let limit = |limit| ErrorKind::TooManyHops { limit };
        fails_with("by default", file.walk(0..1, Place(0, 64)).await, limit(64))?;
        same("as many as allowed", file.walk(0..1, Place(7, 63)).await?, 7)?;
        fails_with("as told", file.walk(0..1, Place(0, 64)).hops_max(9).await, limit(9))?;
        same("more", file.walk(0..1, Place(7, 200)).hops_max(201).await?, 7)?;
    }
    Ok(())
}

async fn a_panic_is_the_walks_error(env: &Env) -> Outcome {
    struct Stumbles(bool);
    impl Walk for Stumbles {
        type Output = ();
        type Error = Error;
        fn step(&mut self, _: &Block, at: Range<u64>) -> Step<(), Error> {
            match (at.start, self.0) {
                (0, _) => Step::read_each([5..6, 7..8, 90_000..90_001]),
                (_, true) => panic!("its words"),
                _ => Step::Done(()),
            }
        }
    }
    let file = env.open(put(env, "a", LEN).await?, Open::read()).await?;
    let results = file.walk_many((0..20).map(|n| (0..1, Stumbles(n % 3 == 0)))).await?;
    for (n, result) in results.into_iter().enumerate() {
        match n % 3 {
            0 => {
                let error = fails_with("it panics", result, ErrorKind::TaskPanicked)?;
                holds(format_args!("{error} has the words"), error.to_string().contains("its words"))?;
            }
            _ => result?,
        }
    }
    Ok(())
}

/// Returns a hike without an end.
fn endless(seed: u64, ledger: &Ledger) -> Hike {
    Hike { _entry: ledger.entry(), width: 1 + seed % 16, ..Hike::new(seed, u32::MAX) }
}

async fn states_are_dropped_once_however_walks_end(env: &Env) -> Outcome {
    let file = env.open(put(env, "a", LEN).await?, Open::read()).await?;
    let ledger = Ledger::default();
    for times in some(env, 6) {
        // Dropped after this many polls, alone and in a batch, from outside and on a shard.
        let mut one = file.walk(Hike::ROOT, endless(times, &ledger)).hops_max(u32::MAX).into_future();
        let batch = (0..9).map(|seed| (Hike::ROOT, endless(seed, &ledger)));
        let mut many = file.walk_many(batch).depth(4).hops_max(u32::MAX).into_future();
        for _ in 0..times {
            holds("it has no end", poll_now(&mut one).is_pending() && poll_now(&mut many).is_pending())?;
            env.pause().await;
        }
        drop((one, many));
        let (inner, entries) = (file.clone(), ledger.clone());
        let task = env.engine().spawn_on_shard(
            times as usize % env.engine().shard_count(),
            Class::DEFAULT,
            move || async move {
                let mut one =
                    inner.walk(Hike::ROOT, endless(times, &entries)).hops_max(u32::MAX).into_future();
                let begun =
                    poll_fn(|context| Poll::Ready(Pin::new(&mut one).poll(context).is_pending())).await;
                for _ in 0..times {
                    forebay::shard::yield_now().await;
                }
                begun
            },
        );
        holds("it has no end on a shard", task.await?)?;
        at_rest(env, env.engine()).await?;
        same("states that are left", ledger.left(), 0)?;
    }
    Ok(())
}

async fn closing_ends_every_walk(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for shards in [1, 2] {
        let engine = env.restart(|config| config.shards(shards).queue_depth(8))?;
        let file = env.open_on(&engine, &path, Open::read()).await?;
        let ledger = Ledger::default();
        let mut ones: Vec<_> = (0..20)
            .map(|seed| file.walk(Hike::ROOT, endless(seed, &ledger)).hops_max(u32::MAX).into_future())
            .collect();
        let batch = (0..40).map(|seed| (Hike::ROOT, endless(seed, &ledger)));
        let mut many = file.walk_many(batch).depth(8).hops_max(u32::MAX).into_future();
        let (inner, entries) = (file.clone(), ledger.clone());
        let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
            inner.walk(Hike::ROOT, endless(5, &entries)).hops_max(u32::MAX).await
        });
        for one in &mut ones {
            holds("it has no end", poll_now(one).is_pending())?;
        }
        holds("it has no end", poll_now(&mut many).is_pending())?;
        env.pause().await;
        let report = engine.close().await?;
        same("leaked and lost", (report.leaked_operations, report.lost_shards), (0, 0))?;
        for one in &mut ones {
            match poll_now(one) {
                Poll::Ready(result) => fails_with("a walk", result, ErrorKind::EngineClosed)?,
                Poll::Pending => return super::check::fail("a walk has no answer when close has"),
            };
        }
        match poll_now(&mut many) {
            Poll::Ready(results) => {
                for result in results? {
                    fails_with("one of a batch", result, ErrorKind::EngineClosed)?;
                }
            }
            Poll::Pending => return super::check::fail("a batch has no answer when close has"),
        }
        // Its message may never have arrived. A task that is polled once more learns how its walk ended.
        let kind = match task.await {
            Ok(walked) => walked.err().map(|error| error.kind()),
            Err(error) => Some(error.kind()),
        };
        let ended = [Some(ErrorKind::TaskCancelled), Some(ErrorKind::EngineClosed)].contains(&kind);
        holds(format_args!("{kind:?} is the end of a task"), ended)?;
        same("states that are left", ledger.left(), 0)?;
        fails_with("a later walk", file.walk(0..1, Place(0, 0)).await, ErrorKind::EngineClosed)?;
    }
    Ok(())
}

async fn closing_a_file_lets_its_walks_end(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        let mut walk = file.walk(Hike::ROOT, Hike::new(3, 50)).into_future();
        let begun = poll_now(&mut walk);
        env.pause().await;
        file.clone().close().await?;
        let ended = match begun {
            Poll::Ready(ended) => ended,
            Poll::Pending => walk.await,
        };
        match ended {
            Ok(wrong) => same("wrong blocks", wrong, 0)?,
            // Its message arrived after the close.
            Err(error) => same("the error", error.kind(), ErrorKind::FileClosed)?,
        }
        fails_with("a later walk", file.walk(0..1, Place(0, 0)).await, ErrorKind::FileClosed)?;
        fails_with("a later batch", file.walk_many([(0..1, Place(0, 0))]).await, ErrorKind::FileClosed)?;
    }
    let engine = env.engine();
    let file = env.open_on(engine, &path, Open::read()).await?;
    same_bytes("the file", &file.read(0..9).await?, &bytes_of(0..9))
}
