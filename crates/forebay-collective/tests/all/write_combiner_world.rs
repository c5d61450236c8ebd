//! Write combiners in simulated worlds against bytes in memory: any writes, reads, barriers and flushes, with power cuts and
//! faults; after a restart the file must be one that the barriers and flushes allow.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay::{Class, Durability, Engine, ErrorKind, File, Open};
use forebay_collective::{Options, WriteCombiner};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};

use crate::worlds::{PATH, disk, draw, survive};

const PAGE: u64 = 4096;

/// The program's writes, in order, and the promises that it received.
#[derive(Default)]
struct Model {
    initial: Vec<u8>,
    /// The file with all started writes.
    now: Vec<u8>,
    /// Offset and bytes.
    writes: Vec<(u64, Vec<u8>)>,
    /// Numbers of the first write behind each barrier.
    barriers: Vec<usize>,
    /// The number of barriers that have returned.
    returned: usize,
    /// Writes before this index are durable.
    durable: usize,
}

impl Model {
    /// Returns the file after this many writes.
    fn after(&self, writes: usize) -> Vec<u8> {
        let mut bytes = self.initial.clone();
        for (offset, data) in &self.writes[..writes] {
            lay(&mut bytes, *offset as usize, data);
        }
        bytes
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        lay(&mut self.now, offset as usize, data);
        self.writes.push((offset, data.to_vec()));
    }

    /// Checks that `found` is a file that is possible after a power cut.
    fn allows(&self, found: &[u8]) -> Result<(), String> {
        let mut bounds = vec![0];
        bounds.extend(&self.barriers);
        bounds.push(self.writes.len());
        let mut whys = Vec::new();
        for bound in bounds.windows(2).rev() {
            let (first, end) = (bound[0].max(self.durable), bound[1]);
            if first > end {
                break;
            }
            match self.allows_between(found, first, end) {
                Ok(()) => return Ok(()),
                Err(why) => whys.push(format!("with writes {first}..{end} under way: {why}")),
            }
        }
        Err(format!("{} durable of {}; {}", self.durable, self.writes.len(), whys.join("; ")))
    }

    /// Checks that `found` has all writes before `first`, any part of those up to `end`, and nothing of the
    /// others.
    fn allows_between(&self, found: &[u8], first: usize, end: usize) -> Result<(), String> {
        let mut known = self.after(first);
        if found.len() < known.len() {
            return Err(format!("{} bytes instead of at least {}", found.len(), known.len()));
        }
        let longest = self.after(end).len().next_multiple_of(PAGE as usize);
        if found.len() > longest {
            return Err(format!("{} bytes instead of at most {longest}", found.len()));
        }
        known.resize(found.len(), 0);
        for (at, (found, known)) in found.iter().zip(&known).enumerate() {
            let written = |(offset, data): &(u64, Vec<u8>)| {
                at.checked_sub(*offset as usize).and_then(|at| data.get(at)) == Some(found)
            };
            if found != known && !self.writes[first..end].iter().any(written) {
                return Err(format!("byte {at} is {found} instead of {known}"));
            }
        }
        Ok(())
    }
}

fn lay(bytes: &mut Vec<u8>, start: usize, data: &[u8]) {
    bytes.resize(bytes.len().max(start + data.len()), 0);
    bytes[start..start + data.len()].copy_from_slice(data);
}

fn data(number: usize, offset: u64, len: u64) -> Vec<u8> {
    let mix = |at: u64| (at ^ (number as u64).wrapping_mul(0x9E37_79B9)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (offset..offset + len).map(|at| (mix(at) >> 40) as u8).collect()
}

async fn opened(engine: &Engine, seed: u64) -> Result<File, forebay::Error> {
    let open = if seed % 5 == 4 { Open::create().buffered() } else { Open::create() };
    engine.open(PATH, open).await
}

/// Makes writes, reads, barriers and flushes until the steps are done or something fails.
async fn program(engine: &Engine, seed: u64, model: &Rc<RefCell<Model>>) -> Result<(), forebay::Error> {
    let file = opened(engine, seed).await?;
    let memory = 65_536 << sim::random(3);
    let options = Options::new().memory_bytes_max(memory).request_bytes_max(4096 << sim::random(4));
    let combine = WriteCombiner::start(&file, options.depth(draw(1..9) as usize));
    let span = draw(1..60) * PAGE;
    let mut flushes = Vec::new();
    for _ in 0..draw(5..80) {
        match sim::random(20) {
            0..=12 => {
                let number = model.borrow().writes.len();
                let (offset, len) = match sim::random(3) {
                    0 => (sim::random(span / PAGE) * PAGE, draw(1..4) * PAGE),
                    1 => (sim::random(span), draw(1..200)),
                    _ => (sim::random(span), draw(1..20_000)),
                };
                let data = data(number, offset, len);
                model.borrow_mut().write(offset, &data);
                combine.write(offset, &data).await?;
                model.borrow_mut().returned = number + 1;
            }
            13..=15 => compare(&combine, model, span).await?,
            16 | 17 => {
                let writes = model.borrow().writes.len();
                model.borrow_mut().barriers.push(writes);
                combine.barrier()?;
            }
            18 => flush(&combine, model).await?,
            // A flush that the other calls do not wait for.
            _ => {
                let (combine, model) = (combine.clone(), model.clone());
                flushes.push(sim::spawn_local(async move { flush(&combine, &model).await }));
            }
        }
    }
    for task in flushes {
        task.await.unwrap()?;
    }
    flush(&combine, model).await?;
    compare(&combine, model, span).await?;
    let (len, expected) = (file.len().await?, model.borrow().now.clone());
    assert_eq!(len, expected.len() as u64, "the exact length");
    assert!(file.read(0..len).await?[..] == expected[..], "what was flushed is in the file");
    assert_eq!(combine.held_bytes(), 0);
    Ok(())
}

async fn flush(combine: &WriteCombiner, model: &Rc<RefCell<Model>>) -> Result<(), forebay::Error> {
    // A write that runs meanwhile is not waited for.
    let writes = model.borrow().returned;
    let durability = [Durability::None, Durability::Data, Durability::All][sim::random(3) as usize];
    combine.flush(durability).await?;
    if durability != Durability::None {
        let mut model = model.borrow_mut();
        model.durable = model.durable.max(writes);
    }
    Ok(())
}

/// Checks that a read sees the written bytes, wherever they are.
async fn compare(
    combine: &WriteCombiner,
    model: &Rc<RefCell<Model>>,
    span: u64,
) -> Result<(), forebay::Error> {
    let start = sim::random(span);
    let range = start..start + sim::random(30_000);
    let expected = model.borrow().now.clone();
    match combine.read(range.clone()).await {
        Ok(block) => {
            assert!(expected.get(start as usize..range.end as usize) == Some(&block[..]), "{range:?}")
        }
        Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof { .. }) => {
            assert!(range.end > expected.len() as u64, "{error}, but there are {} bytes", expected.len());
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

fn world(seed: u64) -> World {
    World::new(seed).disk(disk(seed).fault(Rule::new(Fault::Reorder).chance_ppm(300_000)))
}

/// Runs one world: a program, perhaps a power cut or faults in it, a restart, and a check of the file after
/// that.
pub(crate) fn attempt(seed: u64) -> Result<(), String> {
    let model = Rc::new(RefCell::new(Model::default()));
    let fault = (seed % 4 >= 2).then_some((seed / 4, 20_000));
    let cut = (seed % 2 == 1).then(|| Duration::from_micros(20 + 211 * (seed % 97)));
    let planted = |bytes: Vec<u8>| {
        let mut model = model.borrow_mut();
        (model.now, model.initial) = (bytes.clone(), bytes);
    };
    let found =
        survive(world(seed), fault, cut, planted, async |engine| program(engine, seed, &model).await)?;
    model.borrow().allows(&found)
}

#[test]
fn any_program_equals_a_model_and_keeps_its_promises() {
    sim::explore(0..250, attempt).unwrap_or_else(|failing| panic!("{failing}"));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let digest = |seed| {
        let model = Rc::new(RefCell::new(Model::default()));
        let mut world = world(seed);
        world.run(async |engine| program(&engine, seed, &model).await.unwrap()).unwrap();
        world.history_digest()
    };
    assert_eq!(digest(3), digest(3));
    assert_ne!(digest(3), digest(6));
}

/// Several tasks, wherever the world runs them and on shards, each with separate bytes in pages that all share.
#[test]
fn many_handles_share_pages() {
    const TASKS: u64 = 5;
    const PIECE: u64 = 700;
    sim::explore(0..60, |seed| {
        let mut world = world(seed);
        world
            .run(async |engine| {
                let file = engine.open(PATH, Open::create()).await.unwrap();
                let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(65_536).depth(3));
                let mut tasks = Vec::new();
                for task in 0..TASKS {
                    let combine = combine.clone();
                    let work = async move {
                        for round in 0..40 {
                            let piece = (round * 17 + task * 3) % 40 * TASKS + task;
                            let offset = piece * PIECE;
                            let bytes = data(task as usize, offset, PIECE);
                            combine.write(offset, &bytes).await.unwrap();
                            let read = combine.read(offset..offset + PIECE).await.unwrap();
                            assert!(read[..] == bytes[..]);
                            match round % 13 {
                                5 => combine.barrier().unwrap(),
                                9 => combine.flush(Durability::None).await.unwrap(),
                                _ => {}
                            }
                        }
                    };
                    let engine = engine.clone();
                    tasks.push(sim::spawn(async move {
                        match task % 2 {
                            0 => work.await,
                            _ => engine
                                .spawn_on_shard(
                                    task as usize % engine.shard_count(),
                                    Class::BACKGROUND,
                                    move || work,
                                )
                                .await
                                .unwrap(),
                        }
                    }));
                }
                for task in tasks {
                    task.await.unwrap();
                }
                combine.flush(Durability::Data).await.unwrap();
                assert_eq!(file.len().await.unwrap(), 40 * TASKS * PIECE);
                let all = file.read(0..40 * TASKS * PIECE).await.unwrap();
                for (piece, found) in (0..).zip(all.chunks(PIECE as usize)) {
                    assert!(found == data((piece % TASKS) as usize, piece * PIECE, PIECE), "piece {piece}");
                }
            })
            .map_err(|failure| failure.to_string())
    })
    .unwrap_or_else(|failing| panic!("{failing}"));
}

/// Futures that are dropped at every one of their awaits leave a write combiner that works.
#[test]
fn calls_given_up_anywhere_leave_nothing_behind() {
    for polls in 0..6 {
        World::new(polls)
            .disk(Profile::nand())
            .run(async |engine| {
                let file = engine.open(PATH, Open::create()).await.unwrap();
                let combine = WriteCombiner::start(&file, Options::new().memory_bytes_max(65_536));
                for round in 0..6u64 {
                    let bytes = data(7, round * 50_000, 100_000);
                    let write = combine.write(round * 50_000, &bytes);
                    let _ = sim::dropped_after(polls as usize, write).await;
                    let _ = sim::dropped_after(polls as usize, combine.flush(Durability::Data)).await;
                    let _ = sim::dropped_after(polls as usize, combine.read(0..10)).await;
                    combine.write(round * 50_000, &bytes).await.unwrap();
                }
                combine.flush(Durability::Data).await.unwrap();
                let read = file.read(0..350_000).await.unwrap();
                assert!(read[..] == data(7, 0, 350_000));
            })
            .unwrap_or_else(|failure| panic!("{failure}"));
    }
}
