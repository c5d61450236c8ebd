//! Caches in simulated worlds: tasks read, write, invalidate, drop and keep futures, while reads and writes fail and
//! any order of completions is possible. Reads return what was written.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::common::poll_once;
use forebay::{Engine, Open};
use forebay_cache::{Cache, CacheOptions, CachedFile};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_test::worlds::{self, Draw};
use futures::future::join_all;

const PAGE: u64 = 4096;
const PAGES: u64 = 48;

/// What a page may hold: the number of its last write that completed, and of those that may have taken effect.
#[derive(Clone, Debug, Default)]
struct PageVersions {
    /// Writes that have completed, and are not older than another one.
    may_be: Vec<u64>,
    /// Writes in flight, with those that failed or were dropped.
    in_flight: Vec<u64>,
}

#[derive(Default)]
struct Model {
    pages: RefCell<Vec<PageVersions>>,
    number: Cell<u64>,
    hits: Cell<u64>,
    failures: Cell<u64>,
}

/// Returns the number of the write that produced a page's bytes.
fn number(block: &[u8]) -> Result<u64, String> {
    let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"));
    let first = word(0);
    let is_whole = (0..block.len() / 8).all(|at| word(8 * at) == first);
    is_whole.then_some(first).ok_or_else(|| "a page is torn".to_string())
}

fn contents(number: u64, pages: u64) -> Vec<u8> {
    number.to_le_bytes().repeat((pages * PAGE / 8) as usize)
}

impl Model {
    /// Returns the versions that a read that starts now may find in each page, apart from later writes.
    fn at_the_beginning(&self, pages: std::ops::Range<u64>) -> Vec<PageVersions> {
        let all = self.pages.borrow();
        pages.map(|page| all[page as usize].clone()).collect()
    }

    fn begin_write(&self, pages: std::ops::Range<u64>) -> (u64, Vec<PageVersions>) {
        let before = self.at_the_beginning(pages.clone());
        self.number.set(self.number.get() + 1);
        let number = self.number.get();
        let mut all = self.pages.borrow_mut();
        pages.for_each(|page| all[page as usize].in_flight.push(number));
        (number, before)
    }

    fn fail(&self) -> Result<(), String> {
        self.failures.set(self.failures.get() + 1);
        Ok(())
    }

    /// A write that completed: versions of writes that had completed before its start are removed.
    fn end_write(&self, pages: std::ops::Range<u64>, number: u64, before: Vec<PageVersions>) {
        let mut all = self.pages.borrow_mut();
        for (page, before) in pages.zip(before) {
            let page = &mut all[page as usize];
            page.in_flight.retain(|other| *other != number);
            page.may_be.retain(|other| !before.may_be.contains(other));
            page.may_be.push(number);
        }
    }
}

async fn check(
    file: &CachedFile,
    model: &Model,
    pages: std::ops::Range<u64>,
    slow: bool,
) -> Result<(), String> {
    let before = model.at_the_beginning(pages.clone());
    let newest = model.number.get();
    let range = pages.start * PAGE..pages.end * PAGE;
    let block = match file.get(range.clone()) {
        Some(block) => {
            model.hits.set(model.hits.get() + 1);
            block
        }
        None if slow => {
            let mut many = file.read_many(pages.clone().map(|page| page * PAGE..(page + 1) * PAGE)).await;
            let last = many.pop().ok_or("no result")?;
            match (many.into_iter().all(|part| part.is_ok()), last) {
                (true, Ok(block)) if pages.end - pages.start == 1 => block,
                (true, Ok(_)) => return Ok(()),
                _ => return model.fail(),
            }
        }
        None => match file.read(range).await {
            Ok(block) => block,
            Err(_) => return model.fail(),
        },
    };
    for ((page, expected), bytes) in pages.zip(before).zip(block.chunks(PAGE as usize)) {
        let found = number(bytes).map_err(|text| format!("page {page}: {text}"))?;
        let is_known =
            expected.may_be.contains(&found) || expected.in_flight.contains(&found) || found > newest;
        if !is_known {
            return Err(format!(
                "page {page} has write {found}; possible {expected:?} or later than {newest}"
            ));
        }
    }
    Ok(())
}

async fn task(file: CachedFile, model: Rc<Model>, mut draw: Draw) -> Result<(), String> {
    let mut kept_reads = Vec::new();
    for _ in 0..60 {
        let first = if draw.below(3) == 0 { draw.below(PAGES) } else { draw.below(6) };
        let pages = first..(first + 1 + draw.below(4)).min(PAGES);
        match draw.below(20) {
            0..10 => check(&file, &model, pages, draw.below(3) == 0).await?,
            10..14 => {
                let (number, before) = model.begin_write(pages.clone());
                let data = contents(number, pages.end - pages.start);
                let mut write = file.write(pages.start * PAGE, data);
                match draw.below(8) {
                    // Dropped: it may take effect at any time, and stays possible.
                    0 => drop(poll_once(&mut write)),
                    _ => match write.await {
                        Ok(()) => model.end_write(pages, number, before),
                        Err(_) => model.fail()?,
                    },
                }
            }
            14 => file.invalidate(pages.start * PAGE..pages.end * PAGE),
            15 => file.invalidate(0..u64::MAX),
            16 => {
                let (file, range) = (file.clone(), pages.start * PAGE..pages.end * PAGE);
                let mut kept = file.read_many([range]);
                let _ = poll_once(&mut kept);
                kept_reads.push(kept);
            }
            17 => drop(kept_reads.pop()),
            18 => {
                let mut dropped = file.read(pages.start * PAGE..pages.end * PAGE);
                let _ = poll_once(&mut dropped);
            }
            _ => sim::sleep(std::time::Duration::from_micros(draw.below(300)))
                .await
                .map_err(|error| error.to_string())?,
        }
    }
    Ok(())
}

async fn live(engine: Engine, seed: u64, hits: &Cell<u64>) -> Result<(), String> {
    let mut draw = Draw::new(seed);
    let text = |error: forebay::Error| error.to_string();
    let page_bytes = [PAGE, PAGE, 4 * PAGE][draw.below(3) as usize];
    let room = (8 + draw.below(40)) * (PAGE + 160);
    let options = CacheOptions::new().bytes_max(room).page_bytes(page_bytes).bypass_above(1 << 20);
    let cache = Cache::new(&engine, options).map_err(text)?;
    let file = cache.open("/disk/data", Open::create()).await.map_err(text)?;
    let model = Rc::new(Model::default());
    let zero = loop {
        if file.write(0, contents(0, PAGES)).await.is_ok() {
            break PageVersions { may_be: vec![0], in_flight: Vec::new() };
        }
    };
    model.pages.borrow_mut().resize(PAGES as usize, zero);
    let tasks = (0..4).map(|number| task(file.clone(), model.clone(), Draw::new(seed ^ (number << 40))));
    join_all(tasks).await.into_iter().collect::<Result<Vec<()>, String>>()?;
    hits.set(hits.get() + model.hits.get());
    Ok(())
}

fn attempt(world: &mut World, faults: bool, hits: &Cell<u64>) -> Result<(), String> {
    let mut draw = Draw::new(world.seed());
    let profile = if draw.below(2) == 0 { Profile::nand() } else { Profile::optane() };
    world.add_disk(profile.at("/disk").torn(false));
    let seed = world.seed();
    if faults {
        world.inject(Rule::new(Fault::ReadError).chance_ppm(20_000));
        world.inject(Rule::new(Fault::Slow).chance_ppm(50_000));
    }
    let run = world.run(async |engine| live(engine, seed, hits).await);
    run.map_err(|failure| failure.to_string())?
}

fn explore(faults: bool) {
    let (hits, lives) = (Cell::new(0), Cell::new(0));
    worlds::explore(100, |world| {
        lives.set(lives.get() + 1);
        attempt(world, faults, &hits)
    });
    assert!(hits.get() > 10 * lives.get(), "{} reads found their pages in memory", hits.get());
}

#[test]
fn reads_return_what_was_written() {
    explore(false);
}

#[test]
fn reads_return_what_was_written_when_reads_fail_and_writes_are_slow() {
    explore(true);
}

#[test]
fn worlds_repeat_themselves() {
    worlds::repeats_itself(|world| attempt(world, true, &Cell::new(0)));
}

/// A read that fails is made again: nothing of the error stays.
#[test]
fn errors_are_not_cached() {
    let mut world = World::new(1);
    world.add_disk(Profile::optane().at("/disk"));
    world.inject(Rule::new(Fault::ReadError).nth(1).times(1));
    let run = world.run(async |engine: Engine| {
        let cache = Cache::new(&engine, CacheOptions::new().bytes_max(1 << 20)).expect("a cache");
        let file = cache.open("/disk/data", Open::create()).await.expect("opens");
        file.write(0, contents(7, 1)).await.expect("a write");
        let (mut first, mut second) = (file.read(0..8), file.read(8..16));
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        let (first, second) = (first.await, second.await);
        assert!(first.is_err() && second.is_err(), "both waited for the one read");
        assert_eq!(cache.stats().pages.blocks, 0);
        assert_eq!(file.read(0..8).await.expect("a read")[..], 7u64.to_le_bytes());
        assert_eq!(cache.stats().reads, 2);
    });
    run.expect("a world");
}

/// A read of many pages fails; ranges that do not need the bad one have their bytes.
#[test]
fn an_error_of_a_page_is_not_that_of_its_neighbours() {
    let mut world = World::new(2);
    world.add_disk(Profile::optane().at("/disk"));
    world.inject(Rule::new(Fault::ReadError).within(5 * PAGE..6 * PAGE));
    let run = world.run(async |engine: Engine| {
        let cache = Cache::new(&engine, CacheOptions::new().bytes_max(1 << 20)).expect("a cache");
        let file = cache.open("/disk/data", Open::create()).await.expect("opens");
        file.write(0, contents(7, 16)).await.expect("a write");
        let blocks = file.read_many((0..16).map(|page| page * PAGE..page * PAGE + 8)).await;
        let failed: Vec<_> = (0..16).filter(|page| blocks[*page].is_err()).collect();
        assert_eq!(failed, [5], "{blocks:?}");
    });
    run.expect("a world");
}
