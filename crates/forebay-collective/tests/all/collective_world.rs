//! Collective writes in simulated worlds against bytes in memory: uneven, overlapping and missing pieces, participants that call at
//! any time or are dropped, power cuts and faults.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use forebay::{Class, Config, Durability, Engine, ErrorKind, Open};
use forebay_collective::{Collective, Options};
use forebay_sim::{self as sim, Profile, World};

use crate::worlds::{PATH, content, disk, draw, survive};

type Pieces = Vec<(u64, Bytes)>;

/// The file after each write that was complete, and the one that may be in progress.
#[derive(Default)]
struct Model {
    durable: Vec<u8>,
    under_way: Option<Vec<Pieces>>,
}

/// Returns the bytes with the pieces of one write laid over them: the highest rank, and of it the last piece,
/// is on top.
fn laid(bytes: &[u8], deposits: &[Pieces]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (offset, data) in deposits.iter().flatten().filter(|(_, data)| !data.is_empty()) {
        let (start, end) = (*offset as usize, *offset as usize + data.len());
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(data);
    }
    bytes
}

impl Model {
    fn allows(&self, found: &[u8]) -> Result<(), String> {
        let Some(pieces) = &self.under_way else {
            return if found == self.durable { Ok(()) } else { Err("not what was durable".to_string()) };
        };
        let longest = laid(&self.durable, pieces).len().next_multiple_of(4096);
        if found.len() < self.durable.len() || found.len() > longest {
            return Err(format!("{} bytes, not {} to {longest}", found.len(), self.durable.len()));
        }
        for (at, &byte) in found.iter().enumerate() {
            let written = |(offset, data): &(u64, Bytes)| {
                at.checked_sub(*offset as usize).and_then(|at| data.get(at)) == Some(&byte)
            };
            let before = self.durable.get(at).copied().unwrap_or(0);
            if byte != before && !pieces.iter().flatten().any(written) {
                return Err(format!("byte {at} is {byte} instead of {before}"));
            }
        }
        Ok(())
    }
}

/// Returns pieces for one participant: strided like a matrix's columns, or anywhere.
fn pieces(rank: u64, participants: u64) -> Pieces {
    let fill = |len: u64| Bytes::from((0..len).map(|_| sim::random(255) as u8 + 1).collect::<Vec<u8>>());
    match sim::random(4) {
        0 => Vec::new(),
        1 => {
            let (record, base) = (700 + 100 * participants, sim::random(3) * 1_111);
            (0..draw(1..15)).map(|n| (base + (n * participants + rank) * record, fill(record))).collect()
        }
        2 => vec![(sim::random(60_000), fill(sim::random(100_000)))],
        _ => (0..draw(1..12)).map(|_| (sim::random(150_000), fill(sim::random(5_000)))).collect(),
    }
}

async fn start(engine: &Engine, participants: usize) -> Result<Vec<Collective>, forebay::Error> {
    let file = engine.open(PATH, Open::create()).await?;
    let options = Options::new().memory_bytes_max(65_536 << sim::random(4)).depth(draw(1..5) as usize);
    Ok(Collective::start(&file, participants, options.request_bytes_max(4096 << sim::random(5))))
}

/// Returns settings with one to three shards, each of which writes a part of the file.
fn shards(number: u64) -> Config {
    Config::new().shards(1 + number as usize % 3)
}

/// Makes some writes of some participants, each wherever the world runs it; stops at the first failure.
async fn program(engine: &Engine, model: &Rc<RefCell<Model>>) -> Result<(), forebay::Error> {
    let participants = draw(1..6) as usize;
    let mut handles = start(engine, participants).await?;
    for _ in 0..draw(1..5) {
        let deposits: Vec<Pieces> =
            (0..participants).map(|rank| pieces(rank as u64, participants as u64)).collect();
        model.borrow_mut().under_way = Some(deposits.clone());
        let mut tasks = Vec::new();
        for (mut handle, pieces) in handles.drain(..).zip(deposits.clone()) {
            let (engine, pause) = (engine.clone(), Duration::from_nanos(sim::random(30_000)));
            tasks.push(sim::spawn(async move {
                sim::sleep(pause).await.unwrap();
                if handle.rank() % 2 == 0 {
                    let written = handle.write(pieces, Durability::Data).await;
                    return (handle, written);
                }
                let task = engine.spawn_on_shard(
                    handle.rank() % engine.shard_count(),
                    Class::DEFAULT,
                    move || async move {
                        let written = handle.write(pieces, Durability::Data).await;
                        (handle, written)
                    },
                );
                task.await.unwrap()
            }));
        }
        let mut failed = None;
        let mut ok = 0;
        for task in tasks {
            let (handle, written) = task.await.unwrap();
            match written {
                Ok(()) => ok += 1,
                Err(error) if error.to_string().contains("had failed before") => {}
                Err(error) => {
                    assert!(failed.is_none(), "one is told the error itself: {error} after {failed:?}");
                    failed = Some(error);
                }
            }
            handles.push(handle);
        }
        if let Some(error) = failed {
            assert_eq!(ok, 0, "all are told: {error}");
            return Err(error);
        }
        assert_eq!(ok, participants);
        let mut model = model.borrow_mut();
        model.durable = laid(&model.durable, &deposits);
        model.under_way = None;
    }
    Ok(())
}

pub(crate) fn attempt(seed: u64) -> Result<(), String> {
    let model = Rc::new(RefCell::new(Model::default()));
    let world = World::new(seed).config(shards(seed / 9)).disk(disk(seed / 3));
    let fault = (seed % 3 == 2).then_some((seed / 3, 50_000));
    let cut = (seed % 3 == 1).then(|| Duration::from_micros(10 + 61 * (seed % 89)));
    let planted = |bytes| model.borrow_mut().durable = bytes;
    let found = survive(world, fault, cut, planted, async |engine| {
        program(engine, &model).await?;
        assert!(content(engine).await? == model.borrow().durable, "the file is not what was written");
        Ok(())
    })?;
    model.borrow().allows(&found)
}

#[test]
fn any_pieces_equal_a_model_and_stay() {
    sim::explore(0..300, attempt).unwrap_or_else(|failing| panic!("{failing}"));
}

/// A participant that is dropped before, during or after it passed its pieces ends the write for all, and no other waits forever.
#[test]
fn one_who_is_gone_ends_it_for_all() {
    for seed in 0..90 {
        let participants = 2 + (seed % 4) as usize;
        World::new(seed)
            .config(shards(seed / 4))
            .disk(Profile::nand())
            .run(async |engine| {
                let handles = start(&engine, participants).await.unwrap();
                let mut tasks = Vec::new();
                for mut handle in handles {
                    tasks.push(sim::spawn(async move {
                        let rank = handle.rank() as u64;
                        let pieces = vec![(rank * 50_000, Bytes::from(vec![1; 50_000]))];
                        if rank == 0 {
                            let polls = (seed % 6) as usize;
                            let given_up =
                                sim::dropped_after(polls, handle.write(pieces, Durability::None)).await;
                            return given_up.unwrap_or(Ok(()));
                        }
                        handle.write(pieces.clone(), Durability::None).await?;
                        // The second one can never be complete.
                        let error = handle.write(pieces, Durability::None).await.unwrap_err();
                        let text = error.to_string();
                        assert!(text.contains("is gone") || text.contains("had failed before"), "{text}");
                        assert_eq!(error.kind(), ErrorKind::Cancelled, "{text}");
                        Err(error)
                    }));
                }
                for task in tasks.into_iter().skip(1) {
                    let error = task.await.unwrap().unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                }
            })
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
