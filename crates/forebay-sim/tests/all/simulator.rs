//! The simulated machine as a program sees it: files, power cuts, faults, and the same digest everywhere.

use std::cell::Cell;
use std::time::Duration;

use forebay::{Class, Durability, Engine, ErrorKind, Open, shard};
use forebay_sim::{self as sim, FailureKind, Fault, Profile, Rule, World};
use forebay_test::children::{Scene, is_child};

/// Runs everything once: files, directories, concurrent writes from outside and from shards, a drop in
/// flight, a power cut.
fn eventful(seed: u64) -> (u64, u64, Duration) {
    let mut world = World::new(seed).disk(Profile::nand().fault(Rule::new(Fault::Slow).chance_ppm(20_000)));
    world
        .run(async |engine| {
            engine.create_dir_all("/a/b").await.unwrap();
            let file = engine.open("/a/b/c", Open::create()).await.unwrap();
            let mut tasks = Vec::new();
            for number in 0..10u64 {
                let file = file.clone();
                tasks.push(sim::spawn(async move {
                    let offset = number * 8192;
                    file.write(offset, vec![number as u8; 8192]).await.unwrap();
                    let _ = sim::dropped_after(sim::random(3) as usize, file.read(0..4096)).await;
                    file.read(offset + 100..offset + 200).await.unwrap()
                }));
            }
            for (number, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap()[..], [number as u8; 100]);
            }
            let local = file.clone();
            let sum = engine.spawn_on_shard(1, Class::DEFAULT, move || async move {
                shard::sleep(Duration::from_millis(3)).await.unwrap();
                let mut scan = local.scan().start();
                let mut sum = 0u64;
                while let Some(block) = scan.next().await.transpose().unwrap() {
                    sum += block.iter().map(|&byte| u64::from(byte)).sum::<u64>();
                }
                sum
            });
            assert_eq!(sum.await.unwrap(), 45 * 8192);
            file.sync(Durability::Data).await.unwrap();
            engine.rename("/a/b/c", "/a/c").await.unwrap();
            let names: Vec<_> = engine.read_dir("/a").await.unwrap();
            assert_eq!(names.len(), 2);
        })
        .unwrap();
    world.power_cut();
    world.reboot();
    world
        .run(async |engine| {
            let file = engine.open("/a/c", Open::read()).await.unwrap();
            let blocks =
                file.read_many((0..10).map(|number| number * 8192..number * 8192 + 512)).await.unwrap();
            for (number, block) in blocks.iter().enumerate() {
                assert_eq!(block.as_ref().unwrap()[..], [number as u8; 512]);
            }
        })
        .unwrap();
    (world.history_digest(), world.steps(), world.now())
}

#[test]
fn the_same_seed_is_the_same_run_in_another_process() {
    const TEST: &str = "simulator::the_same_seed_is_the_same_run_in_another_process";
    let digests: Vec<_> = (0..20).map(eventful).collect();
    let text = format!("digests {digests:?} end");
    if is_child(TEST) {
        return println!("{text}");
    }
    let said = Scene::new(TEST).run().unwrap();
    assert!(said.contains(&text), "the other process had other digests:\n{said}\nhere:\n{text}");
    let different: std::collections::BTreeSet<_> = digests.iter().map(|&(digest, ..)| digest).collect();
    assert_eq!(different.len(), digests.len(), "each seed is a run of its own");
}

/// Digests are the same on every machine and stay the same: a seed that someone wrote down keeps its meaning.
/// A change of the core's scheduling, or of the model, changes this number; then it is written down anew, and
/// CHANGELOG mentions it.
#[test]
fn a_seed_keeps_its_meaning() {
    assert_eq!(format!("{:016x}", eventful(42).0), "51932e5b678e50e2");
}

#[test]
fn the_seventh_flush_fails_and_no_other() {
    let mut world = World::new(1).disk(Profile::ideal().fault(Rule::new(Fault::FlushError).nth(7)));
    let failed = world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            let mut failed = Vec::new();
            for number in 1..=10 {
                file.write(0, vec![1; 4096]).await.unwrap();
                if let Err(error) = file.sync(Durability::Data).await {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO));
                    failed.push(number);
                }
            }
            failed
        })
        .unwrap();
    assert_eq!(failed, [7]);
}

#[test]
fn a_stuck_operation_is_a_deadlock_for_who_waits_and_leaks_at_the_close() {
    let stuck = || Profile::ideal().fault(Rule::new(Fault::Stuck).on("/f").times(1));
    let mut world = World::new(2).disk(stuck());
    let failure = world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            file.write(0, vec![1; 4096]).await.unwrap();
        })
        .unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Deadlock, "{failure}");
    let mut world = World::new(2).disk(stuck());
    let report = world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            assert!(sim::dropped_after(1, file.write(0, vec![1; 4096])).await.is_none());
            // The shard receives the sent messages, and then the engine ends with the write in flight.
            engine.nop().await.unwrap();
            engine.close().await.unwrap()
        })
        .unwrap();
    assert!(report.leaked_operations <= 1, "{report:?}");
}

#[test]
fn short_transfers_are_never_success() {
    let profile = Profile::ideal()
        .fault(Rule::new(Fault::ShortRead).chance_ppm(400_000))
        .fault(Rule::new(Fault::ShortWrite).chance_ppm(400_000));
    let mut world = World::new(3).disk(profile);
    world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            let bytes: Vec<u8> = (0..65_536u32).map(|at| (at / 7) as u8).collect();
            for _ in 0..20 {
                file.write(0, bytes.clone()).await.unwrap();
                assert_eq!(file.read(0..65_536).await.unwrap()[..], bytes[..]);
                assert_eq!(file.read(100..60_000).await.unwrap()[..], bytes[100..60_000]);
            }
        })
        .unwrap();
}

#[test]
fn a_full_disk_says_so_and_goes_on_when_there_is_space() {
    let mut world = World::new(4).disk(Profile::ideal().capacity(1 << 20));
    world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            file.write(0, vec![1; 512 << 10]).durable(Durability::Data).await.unwrap();
            let error = file.write(512 << 10, vec![2; 1 << 20]).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
            let text = error.to_string();
            assert!(text.contains("/f") && text.contains("free space"), "{text}");
            assert!(file.read(0..512 << 10).await.unwrap().iter().all(|&byte| byte == 1));
            file.truncate(0).await.unwrap();
            file.write(0, vec![3; 512 << 10]).durable(Durability::Data).await.unwrap();
        })
        .unwrap();
}

#[test]
fn a_file_of_the_operating_system_is_refused() {
    let mut world = World::new(5);
    let real = tempfile::tempfile().unwrap();
    let error = world.run(async |engine| engine.from_std(real, Open::read()).await.unwrap_err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn misaligned_writes_are_refused_as_on_a_real_disk() {
    let mut world = World::new(6).disk(Profile::nand().sector(512).alignment(512, 512));
    world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            assert_eq!(file.alignment().offset, 512);
            let error = file.write(100, vec![1; 512]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misaligned { needed: 512 });
            file.write(512, vec![1; 512]).await.unwrap();
            let buffered = engine.open("/g", Open::create().buffered()).await.unwrap();
            buffered.write(100, vec![1; 5]).await.unwrap();
            assert_eq!(buffered.read(100..105).await.unwrap()[..], [1; 5]);
        })
        .unwrap();
}

/// A power cut may lose only bytes that were not synced, and over many seeds it does lose some of them.
#[test]
fn a_power_cut_takes_what_was_not_flushed_and_nothing_else() {
    let (kept, lost) = (Cell::new(0), Cell::new(0));
    for seed in 0..60 {
        let mut world = World::new(seed).disk(Profile::nand());
        world
            .run(async |engine: Engine| {
                let file = engine.open("/f", Open::create()).await.unwrap();
                file.write(0, vec![1; 65_536]).durable(Durability::All).await.unwrap();
                engine.sync_dir("/").await.unwrap();
                file.write(8192, vec![2; 8192]).await.unwrap();
            })
            .unwrap();
        world.power_cut();
        world.reboot();
        world
            .run(async |engine| {
                let file = engine.open("/f", Open::read()).await.unwrap();
                let block = file.read(0..65_536).await.unwrap();
                for (at, sector) in block.chunks(4096).enumerate() {
                    let first = sector[0];
                    assert!(sector.iter().all(|&byte| byte == first) || (2..4).contains(&at), "seed {seed}");
                    match (at, first) {
                        (2 | 3, 2) => kept.set(kept.get() + 1),
                        (2 | 3, 1) => lost.set(lost.get() + 1),
                        (_, first) => assert_eq!(first, 1, "seed {seed}, sector {at}"),
                    }
                }
            })
            .unwrap();
    }
    assert!(kept.get() > 10 && lost.get() > 10, "{} kept, {} lost", kept.get(), lost.get());
}

/// The fault known as fsyncgate: a flush fails, the program tries again, the second flush succeeds, and the data are still lost,
/// because Linux had marked the pages clean. A simulated disk behaves like that, so such a program is detected.
#[test]
fn a_flush_that_failed_and_is_tried_again_has_lost_data() {
    let mut lost = 0;
    for seed in 0..40 {
        let profile = Profile::ideal().fault(Rule::new(Fault::FlushError).on("/log").nth(2));
        let mut world = World::new(seed).disk(profile);
        world
            .run(async |engine| {
                let log = engine.open("/log", Open::create()).await.unwrap();
                log.write(0, vec![1; 8192]).durable(Durability::All).await.unwrap();
                log.write(0, vec![2; 8192]).await.unwrap();
                assert_eq!(log.sync(Durability::Data).await.unwrap_err().raw_os_error(), Some(libc::EIO));
                log.sync(Durability::Data).await.unwrap();
            })
            .unwrap();
        world.power_cut();
        world.reboot();
        let block = world
            .run(async |engine| {
                let log = engine.open("/log", Open::read()).await.unwrap();
                log.read(0..8192).await.unwrap().to_vec()
            })
            .unwrap();
        lost += u32::from(block.contains(&1));
    }
    assert!(lost > 5, "only {lost} of 40 retries lost anything");
}

#[test]
fn a_disk_that_takes_little_at_a_time_gets_it_all() {
    let mut world = World::new(7).disk(Profile::nand().max_request(8192));
    world
        .run(async |engine| {
            let file = engine.open("/f", Open::create()).await.unwrap();
            let bytes: Vec<u8> = (0..1u32 << 18).map(|at| (at / 9) as u8).collect();
            file.write(0, bytes.clone()).durable(Durability::Data).await.unwrap();
            assert_eq!(file.read(0..1 << 18).await.unwrap()[..], bytes[..]);
            assert_eq!(file.read(777..200_001).await.unwrap()[..], bytes[777..200_001]);
        })
        .unwrap();
}

/// Regression: at the start of a world the limit of a shard's sleep overflowed where its only timer had no end.
#[test]
fn a_task_sleeps_without_an_end() {
    World::new(1)
        .run(async |engine| {
            let endless = engine.spawn_on_shard(0, Class::DEFAULT, || shard::sleep(Duration::MAX));
            sim::sleep(Duration::from_millis(1)).await.expect("in a world");
            engine.nop().await.unwrap();
            drop(endless);
        })
        .unwrap();
}
