use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use super::*;
use crate::base::affinity::Affinity;
use crate::memory::block::Block;

const MIB: usize = 1 << 20;

/// A small generator with a seed (xorshift64*), so that a failing run can be repeated.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % limit
    }
}

fn arena(bytes_initial: usize, bytes_max: usize, overflow_bytes_max: usize, shards: usize) -> Arena {
    let config = ArenaConfig {
        bytes_initial,
        first_region_bytes: usize::MAX,
        bytes_max,
        overflow_bytes_max,
        long_bytes_max: usize::MAX,
        shards,
    };
    Arena::new(config, Nodes::default()).unwrap()
}

fn pages(count: usize) -> Arena {
    arena(count * 4096, count * 4096, 0, 2)
}

fn shared(arena: &Arena) -> Arc<ArenaCore> {
    Arc::clone(&arena.0.0)
}

fn mapped(shared: &ArenaCore) -> usize {
    shared.bytes_mapped.load(Ordering::Relaxed)
}

fn block(buffer: Buffer) -> Block {
    let len = buffer.capacity();
    // SAFETY: within the capacity and initialised here.
    unsafe {
        buffer.as_ptr().write_bytes(7, len);
        buffer.into_block(0, len)
    }
}

/// Allocates page buffers until all but overflow memory is used, and returns them.
fn take_all(arena: &Arena) -> Vec<Buffer> {
    std::iter::from_fn(|| arena.alloc_local(1).ok()).collect()
}

#[test]
fn capacities_are_powers_of_two_and_aligned() {
    let arena = arena(8 * MIB, 8 * MIB, 0, 1);
    for (len, capacity) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (100_000, 131_072), (MIB, MIB)]
    {
        let buffer = arena.alloc(len).unwrap();
        assert_eq!(buffer.capacity(), capacity);
        assert_eq!(buffer.as_ptr().addr() % capacity, 0);
        assert_eq!(buffer.region_index(), Some(0));
    }
    assert_eq!(arena.alloc(BUFFER_BYTES_MAX + 1).unwrap_err(), AllocError::TooLarge);
    assert_eq!(arena.alloc_local(usize::MAX).unwrap_err(), AllocError::TooLarge);
    assert_eq!(arena.alloc_overflow(usize::MAX).unwrap_err(), AllocError::TooLarge);
}

/// Neither node has processors, which the system refuses: memory is of any node, and regions still count for the requested nodes.
#[test]
#[cfg_attr(miri, ignore = "asks the system for the thread's processors")]
fn a_shard_takes_memory_of_its_node_first_and_any_other_before_none() {
    let nodes = Nodes::new(vec![Affinity::of([]); 2], vec![0, 1]);
    let config = ArenaConfig {
        bytes_initial: 4 * MIB,
        first_region_bytes: usize::MAX,
        bytes_max: 6 * MIB,
        overflow_bytes_max: 0,
        long_bytes_max: usize::MAX,
        shards: 3,
    };
    let arena = Arena::new(config, nodes).unwrap();
    assert_eq!(arena.regions(), 2, "one of each node");
    let regions = |buffers: &[Buffer]| buffers.iter().map(Buffer::region_index).collect::<Vec<_>>();
    let take = || std::iter::from_fn(|| arena.alloc_local(MIB).ok()).collect::<Vec<_>>();
    arena.install(1);
    // Its own region, the one that is mapped for it, and then the other node's.
    let taken = take();
    assert_eq!(regions(&taken), [1, 1, 2, 2, 0, 0].map(Some));
    drop(taken);
    arena.uninstall();
    arena.install(0);
    let taken = take();
    assert_eq!(regions(&taken), [0, 0, 1, 1, 2, 2].map(Some));
    drop(taken);
    arena.uninstall();
    // A shard that no node was named for.
    arena.install(2);
    assert_eq!(take().len(), 6);
    arena.uninstall();
    assert_eq!(arena.counts().bytes_held, 0);
}

/// Story: where a full arena had nothing left of a shard's node, each refill emptied the shard's cache and all stacks of returns
/// before it used memory of another node, which had plenty.
#[test]
#[cfg_attr(miri, ignore = "asks the system for the thread's processors")]
fn a_refill_from_another_node_leaves_the_cache_as_it_is() {
    let nodes = Nodes::new(vec![Affinity::of([]); 2], vec![0, 1]);
    let config = ArenaConfig {
        bytes_initial: 4 * MIB,
        first_region_bytes: usize::MAX,
        bytes_max: 4 * MIB,
        overflow_bytes_max: 0,
        long_bytes_max: usize::MAX,
        shards: 2,
    };
    let arena = Arena::new(config, nodes).unwrap();
    arena.install(0);
    let own: Vec<_> = (0..2).map(|_| arena.alloc_local(MIB).unwrap()).collect();
    assert!(own.iter().all(|buffer| buffer.region_index() == Some(0)));
    drop((0..32).map(|_| arena.alloc_local(4096).unwrap()).collect::<Vec<_>>());
    let cached = || arena.0.0.cached[0].bytes();
    let before = cached();
    assert!(before >= 32 * 4096, "{before}");
    let other = arena.alloc_local(8192).unwrap();
    assert!(other.region_index() == Some(1) && cached() >= before, "{} of {before}", cached());
    // In the end all is found, wherever it lies.
    assert_eq!(take_all(&arena).len(), (2 * MIB - 8192) / 4096);
    drop((own, other));
    arena.uninstall();
    assert_eq!(arena.counts().bytes_held, 0);
}

#[test]
fn the_last_buffer_dropped_comes_first() {
    let arena = arena(8 * MIB, 8 * MIB, 0, 1);
    arena.install(0);
    let (one, two) = (arena.alloc_local(4096).unwrap(), arena.alloc_local(4096).unwrap());
    let (first, second) = (one.as_ptr(), two.as_ptr());
    drop(one);
    drop(two);
    let again = arena.alloc_local(100).unwrap();
    assert_eq!(again.as_ptr(), second);
    assert_eq!(arena.alloc_local(100).unwrap().as_ptr(), first);
    let large = arena.alloc_local(512 << 10).unwrap();
    let address = large.as_ptr();
    drop(block(large));
    assert_eq!(arena.alloc_local(512 << 10).unwrap().as_ptr(), address, "each size has its list");
    drop(again);
    arena.uninstall();
    assert_eq!(arena.counts().bytes_held, 0);
}

#[test]
fn buffers_never_overlap() {
    let arena = arena(2 * MIB + 12_288, 20 * MIB, 0, 1);
    arena.install(0);
    let mut random = Random(42);
    let mut live: Vec<(Buffer, u64)> = Vec::new();
    for id in 1..if cfg!(miri) { 300 } else { 30_000u64 } {
        if random.below(2) == 0 || live.is_empty() {
            let len = 1 << random.below(if cfg!(miri) { 15 } else { 21 });
            let taken = if random.below(8) == 0 { arena.alloc(len) } else { arena.alloc_local(len) };
            let Ok(buffer) = taken else {
                live.truncate(live.len() / 2);
                continue;
            };
            for offset in (0..buffer.capacity()).step_by(4096) {
                // SAFETY: within the capacity, and ours.
                unsafe { buffer.as_ptr().add(offset).cast::<u64>().write(id) };
            }
            live.push((buffer, id));
        } else {
            let (buffer, id) = live.swap_remove(random.below(live.len() as u64) as usize);
            for offset in (0..buffer.capacity()).step_by(4096) {
                // SAFETY: as above; written then.
                assert_eq!(unsafe { buffer.as_ptr().add(offset).cast::<u64>().read() }, id);
            }
            if random.below(8) == 0 {
                thread::scope(|scope| {
                    scope.spawn(move || drop(buffer));
                });
            }
        }
        if id % 1000 == 0 {
            let held: usize = live.iter().map(|(buffer, _)| buffer.capacity()).sum();
            assert_eq!(arena.counts().bytes_held, held);
        }
    }
    live.clear();
    arena.uninstall();
    assert_eq!(arena.counts().bytes_held, 0);
    assert!(arena.counts().bytes_mapped <= 20 * MIB);
}

#[test]
fn foreign_drops_come_home() {
    let arena = pages(4);
    arena.install(0);
    let all = take_all(&arena);
    assert_eq!(all.len(), 4);
    assert_eq!(arena.alloc_local(1).unwrap_err(), AllocError::NoMemory { held: 16_384 });
    let blocks: Vec<Block> = all.into_iter().map(block).collect();
    thread::spawn(move || drop(blocks)).join().unwrap();
    assert_eq!(take_all(&arena).len(), 4);
    assert!(arena.alloc_local(16_384).is_ok(), "cached pages join again when a larger buffer is wanted");
    arena.uninstall();
}

#[test]
fn what_returned_to_another_shard_can_be_used() {
    let arena = pages(4);
    let (send, receive) = mpsc::channel();
    let end = Barrier::new(2);
    thread::scope(|scope| {
        let (there, end) = (arena.clone(), &end);
        scope.spawn(move || {
            there.install(1);
            send.send(take_all(&there)).unwrap();
            end.wait();
            there.uninstall();
        });
        let held = receive.recv().unwrap();
        assert_eq!(held.len(), 4);
        arena.install(0);
        assert!(arena.alloc_local(1).is_err());
        // Dropped on a thread that is not a shard, they are pushed to the stack of shard 1, which does not check it.
        thread::spawn(move || drop(held)).join().unwrap();
        assert_eq!(take_all(&arena).len(), 4);
        arena.uninstall();
        end.wait();
    });
    assert_eq!(arena.counts().bytes_held, 0);
}

#[test]
#[cfg_attr(
    miri,
    ignore = "two thousand buffers take the interpreter minutes, and others cover the same lines"
)]
fn a_cache_leaves_memory_to_others() {
    let arena = arena(8 * MIB, 8 * MIB, 0, 2);
    arena.install(0);
    drop(take_all(&arena));
    let cached = 8 * MIB - arena.0.0.counts_free();
    assert!((64 << 10..=2 * MIB).contains(&cached), "{cached} bytes are cached");
    thread::scope(|scope| {
        scope.spawn(|| assert!(arena.alloc(2 * MIB).is_ok()));
    });
    arena.uninstall();
}

#[test]
fn each_return_wakes_a_waiting_shard_once() {
    let arena = pages(2);
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    arena.install(0);
    arena.set_memory_waker(
        0,
        Box::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let mut held = take_all(&arena).into_iter();
    drop(held.next());
    assert_eq!(wakes.load(Ordering::Relaxed), 0, "nobody waits");
    let first = arena.alloc_local(1).unwrap();
    arena.wait_for_memory(0, true);
    assert!(arena.alloc_local(1).is_err());
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(first);
            drop(held);
        });
    });
    assert_eq!(wakes.load(Ordering::Relaxed), 1);
    let held = take_all(&arena);
    assert_eq!(held.len(), 2);
    arena.wait_for_memory(0, true);
    arena.wait_for_memory(0, false);
    thread::scope(|scope| {
        scope.spawn(move || drop(held));
    });
    assert_eq!(wakes.load(Ordering::Relaxed), 1, "no longer waiting");
    let own = arena.alloc_local(1).unwrap();
    arena.wait_for_memory(0, true);
    drop(own);
    assert_eq!(wakes.load(Ordering::Relaxed), 2, "a drop on the shard itself counts too");
    arena.uninstall();
}

#[test]
fn no_wake_up_is_lost() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
    let arena = pages(1);
    let (send, receive) = mpsc::sync_channel::<Block>(1);
    thread::scope(|scope| {
        scope.spawn(|| receive.into_iter().for_each(drop));
        scope.spawn(|| {
            arena.install(0);
            let (this, kicked) = (thread::current(), Arc::new(AtomicBool::new(false)));
            let kick = Arc::clone(&kicked);
            arena.set_memory_waker(
                0,
                Box::new(move || {
                    kick.store(true, Ordering::Release);
                    this.unpark();
                }),
            );
            for _ in 0..ROUNDS {
                // Only the kick ends the wait: if one were lost, this would never return.
                let buffer = loop {
                    if let Ok(buffer) = arena.alloc_local(1) {
                        break buffer;
                    }
                    arena.wait_for_memory(0, true);
                    if let Ok(buffer) = arena.alloc_local(1) {
                        arena.wait_for_memory(0, false);
                        break buffer;
                    }
                    while !kicked.swap(false, Ordering::Acquire) {
                        thread::park();
                    }
                };
                send.send(block(buffer)).unwrap();
            }
            drop(send);
            arena.uninstall();
        });
    });
    assert_eq!(arena.counts().bytes_held, 0);
}

#[test]
fn blocks_outlive_the_arena_and_the_last_unmaps() {
    let arena = arena(2 * MIB, 2 * MIB, 0, 1);
    let shared = shared(&arena);
    arena.install(0);
    let one = block(arena.alloc_local(5000).unwrap());
    let two = one.slice(100..200).unwrap();
    let other = block(arena.alloc(1).unwrap());
    arena.uninstall();
    drop(arena);
    assert_eq!(mapped(&shared), 2 * MIB);
    drop(one);
    drop(other);
    assert_eq!(mapped(&shared), 2 * MIB);
    assert!(two.iter().all(|byte| *byte == 7));
    thread::spawn(move || drop(two)).join().unwrap();
    assert_eq!(mapped(&shared), 0);
    assert_eq!(Arc::strong_count(&shared), 1, "the region is gone too");
}

#[test]
fn empty_regions_are_unmapped_at_once() {
    let arena = arena(2 * MIB, 10 * MIB, 0, 1);
    let shared = shared(&arena);
    let first = arena.alloc(2 * MIB).unwrap();
    let second = arena.alloc(2 * MIB).unwrap();
    assert_eq!((first.region_index(), second.region_index()), (Some(0), Some(1)));
    assert_eq!(arena.counts().bytes_mapped, 4 * MIB);
    drop(first);
    arena.close();
    arena.close();
    assert_eq!(mapped(&shared), 2 * MIB);
    assert_eq!((arena.regions(), arena.region(0)), (0, None));
    assert!(arena.alloc_local(1).is_err());
    drop(second);
    assert_eq!(mapped(&shared), 0);
}

#[test]
#[cfg_attr(miri, ignore = "leaks on purpose")]
fn a_leaked_buffer_leaks_its_region_whole() {
    let arena = arena(2 * MIB, 2 * MIB, 0, 1);
    let shared = shared(&arena);
    let leaked = arena.alloc(4096).unwrap();
    let (address, block) = (leaked.as_ptr(), block(arena.alloc(4096).unwrap()));
    std::mem::forget(leaked);
    drop(arena);
    drop(block);
    assert_eq!(mapped(&shared), 2 * MIB);
    // SAFETY: a device might write this late: the memory is still there and not used by others.
    unsafe { address.write(1) };
}

#[test]
fn a_cache_may_outlive_the_close() {
    let arena = arena(2 * MIB, 2 * MIB, 0, 1);
    let shared = shared(&arena);
    arena.install(0);
    let block = block(arena.alloc_local(1).unwrap());
    arena.close();
    drop(block);
    assert_eq!(mapped(&shared), 2 * MIB, "in the cache");
    arena.uninstall();
    assert_eq!(mapped(&shared), 0);
}

#[test]
fn close_races_with_returns() {
    for round in 0..if cfg!(miri) { 3 } else { 200 } {
        let arena = arena(4 * MIB, 4 * MIB, 0, 1);
        let shared = shared(&arena);
        let barrier = Barrier::new(5);
        thread::scope(|scope| {
            arena.install(0);
            for part in 0..4 {
                let mine: Vec<Block> = (0..16).map(|_| block(arena.alloc_local(4096).unwrap())).collect();
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let both = mine.clone();
                    drop(mine);
                    if (round + part) % 2 == 0 {
                        thread::yield_now();
                    }
                    drop(both);
                });
            }
            barrier.wait();
            arena.uninstall();
            drop(arena);
        });
        assert_eq!(mapped(&shared), 0, "round {round}");
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}

#[test]
fn after_uninstall_returns_go_to_all() {
    let arena = pages(4);
    arena.install(0);
    let held = take_all(&arena);
    arena.uninstall();
    assert!(arena.alloc(1).is_err());
    drop(held);
    assert_eq!(arena.alloc(16_384).unwrap().capacity(), 16_384);
    arena.install(0);
    let held = take_all(&arena);
    assert_eq!(held.len(), 4, "a shard may start anew");
    thread::scope(|scope| {
        scope.spawn(move || drop(held));
    });
    assert_eq!(take_all(&arena).len(), 4);
    arena.uninstall();
}

#[test]
fn two_arenas_on_one_thread() {
    let (left, right) = (pages(4), pages(4));
    left.install(0);
    right.install(0);
    let (one, two) = (left.alloc_local(1).unwrap(), right.alloc_local(1).unwrap());
    let (one_at, two_at) = (one.as_ptr(), two.as_ptr());
    drop(one);
    drop(two);
    assert_eq!(left.alloc_local(1).unwrap().as_ptr(), one_at);
    assert_eq!(right.alloc_local(1).unwrap().as_ptr(), two_at);
    left.uninstall();
    right.uninstall();
    left.uninstall();
    assert_eq!((left.counts().bytes_held, right.counts().bytes_held), (0, 0));
}

#[test]
fn several_shards_on_one_thread() {
    let arena = pages(8);
    arena.install(0);
    arena.install(1);
    arena.install(1);
    let held = take_all(&arena);
    thread::scope(|scope| {
        let arena = &arena;
        scope.spawn(move || {
            arena.install(0);
            drop(held);
            assert!(arena.alloc_local(1).is_ok(), "works without a cache: shard 0 has one elsewhere");
            arena.uninstall();
        });
    });
    assert_eq!(take_all(&arena).len(), 8);
    arena.uninstall();
    let held = take_all(&arena);
    assert_eq!(held.len(), 8, "shard 0 is the newest again");
    drop(held);
    arena.uninstall();
    assert_eq!((arena.counts().bytes_held, arena.0.0.counts_free()), (0, 8 * 4096));
}

#[test]
fn overflow_is_counted_and_limited() {
    let arena = arena(8192, 8192, 8192 + 4096, 1);
    let held: Vec<Buffer> = (0..2).map(|_| arena.alloc(1).unwrap()).collect();
    assert_eq!(arena.alloc_local(1).unwrap_err(), AllocError::NoMemory { held: 8192 }, "never overflow");
    let over = block(arena.alloc(8192).unwrap());
    assert_eq!(over.region_index(), None);
    assert_eq!(over.as_ptr().addr() % 4096, 0);
    let counts = arena.counts();
    assert_eq!((counts.overflow_bytes, counts.overflow_allocations, counts.bytes_held), (8192, 1, 8192));
    assert_eq!(arena.alloc(8192).unwrap_err(), AllocError::NoMemory { held: 16_384 });
    let more = arena.alloc_overflow(4096).unwrap();
    assert_eq!(arena.alloc(1).unwrap_err(), AllocError::NoMemory { held: 20_480 });
    let shared = shared(&arena);
    drop((held, arena));
    assert_eq!(mapped(&shared), 0);
    assert!(over.iter().all(|byte| *byte == 7), "overflow memory outlives the arena");
    drop((over, more));
    assert_eq!(shared.overflow_bytes.load(Ordering::Relaxed), 0);
    assert_eq!(Arc::strong_count(&shared), 1);
}

/// Memory of an exact length and the regions share one limit, from both sides.
#[test]
fn exact_memory_and_regions_share_a_limit() {
    const MOST: usize = 64 << 10;
    let arena = arena(0, MOST, 0, 1);
    let held: Vec<Block> = (0..3).map(|_| block(arena.alloc_exact(15_001).unwrap())).collect();
    assert_eq!((arena.counts().exact_bytes, held[0].pinned_bytes()), (45_003, 15_001));
    assert!(arena.alloc_exact(MOST - 45_002).is_none(), "beyond the limit");
    let buffers = take_all(&arena);
    let counts = arena.counts();
    let used = counts.bytes_mapped + counts.exact_bytes;
    assert!(used <= MOST && buffers.len() == (MOST - 45_003) / 4096, "{counts:?}");
    assert!(arena.alloc_exact(4096).is_none(), "regions have the rest");
    assert_eq!(arena.alloc_local(1).unwrap_err(), AllocError::NoMemory { held: used as u64 });
    drop(held);
    assert_eq!(arena.counts().exact_bytes, 0);
    let last = block(arena.alloc_exact(100).unwrap());
    assert!(arena.alloc_local(1).is_ok(), "the regions grow by what is free again");
    drop((buffers, arena));
    assert!(last.iter().all(|byte| *byte == 7), "it outlives the arena");
}

#[test]
fn freed_overflow_wakes_too() {
    let arena = arena(0, 0, 4096, 1);
    assert_eq!(arena.regions(), 0);
    let woken = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&woken);
    arena.set_memory_waker(0, Box::new(move || flag.store(true, Ordering::Relaxed)));
    let only = arena.alloc(1).unwrap();
    arena.wait_for_memory(0, true);
    assert_eq!(arena.alloc_overflow(1).unwrap_err(), AllocError::NoMemory { held: 4096 });
    drop(only);
    assert!(woken.load(Ordering::Relaxed));
}

#[test]
fn grows_to_its_limit_and_no_further() {
    let arena = arena(2 * MIB, 15 * MIB, 0, 1);
    let before = arena.region(0).unwrap();
    assert_eq!((arena.regions(), arena.region(1)), (1, None));
    let held: Vec<Buffer> = std::iter::from_fn(|| arena.alloc_local(MIB).ok()).collect();
    assert_eq!(held.len(), 15, "one huge page after the other, then the last 1");
    assert_eq!(arena.counts().bytes_mapped, 15 * MIB);
    assert_eq!(arena.counts().bytes_mapped_max, 15 * MIB);
    assert_eq!(arena.regions(), 8);
    assert_eq!(arena.region(0).unwrap(), before, "regions never move");
    for buffer in &held {
        let index = usize::from(buffer.region_index().unwrap());
        let (start, len) = arena.region(index).unwrap();
        assert_eq!(start.addr() % (2 * MIB), 0);
        let offset = buffer.as_ptr().addr() - start.addr();
        assert!(offset + buffer.capacity() <= len);
    }
    assert_eq!(arena.alloc_local(1).unwrap_err(), AllocError::NoMemory { held: 15 << 20 });
    assert!(matches!(arena.alloc_local(64 * MIB), Err(AllocError::NoMemory { .. })));
}

#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn regions_are_present_and_not_inherited() {
    let arena = arena(4 * MIB, 4 * MIB, 0, 1);
    let start = arena.region(0).unwrap().0.addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    let mut seen = std::collections::HashMap::new();
    for line in smaps.lines() {
        let (word, rest) = line.split_once(' ').unwrap();
        if let Some((from, to)) = word.split_once('-') {
            let bounds = (usize::from_str_radix(from, 16).unwrap(), usize::from_str_radix(to, 16).unwrap());
            inside = (bounds.0..bounds.1).contains(&start);
        } else if inside {
            seen.insert(word, rest.trim());
        }
    }
    let kib = |name: &str| seen[name].trim_end_matches(" kB").parse::<usize>().unwrap();
    // The kernel may have moved some of it into swap space.
    assert!((kib("Rss:") + kib("Swap:")) * 1024 >= 4 * MIB, "{seen:?}");
    assert!(seen["VmFlags:"].split(' ').any(|flag| flag == "dc"), "no copy at fork: {seen:?}");
}

#[test]
fn shards_and_threads_in_turmoil() {
    const ROUNDS: u64 = if cfg!(miri) { 5 } else { 20_000 };
    let arena = arena(8 * MIB, 24 * MIB, 0, 4);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..8).map(|_| mpsc::channel::<(Block, u8)>()).unzip();
    thread::scope(|scope| {
        for (index, receiver) in receivers.into_iter().enumerate() {
            let (arena, senders) = (arena.clone(), senders.clone());
            scope.spawn(move || {
                let shard = index < 4;
                if shard {
                    arena.install(index);
                }
                let mut random = Random(index as u64 + 1);
                for round in 0..ROUNDS {
                    let len = 1 << random.below(if cfg!(miri) { 14 } else { 17 });
                    let taken = if shard { arena.alloc_local(len) } else { arena.alloc(len) };
                    if let Ok(buffer) = taken {
                        let tag = round as u8;
                        // SAFETY: within the capacity; `len` bytes are initialised.
                        let block = unsafe {
                            buffer.as_ptr().write_bytes(tag, len);
                            buffer.into_block(0, len)
                        };
                        let to = random.below(8) as usize;
                        let _ = senders[to].send((block.clone(), tag));
                    }
                    while let Ok((block, tag)) = receiver.try_recv() {
                        assert!(block.iter().all(|byte| *byte == tag));
                    }
                }
                drop(senders);
                for (block, tag) in receiver {
                    assert!(block.first().is_none_or(|byte| *byte == tag));
                }
                arena.uninstall();
            });
        }
        drop(senders);
    });
    let counts = arena.counts();
    assert_eq!((counts.bytes_held, counts.overflow_bytes), (0, 0));
    assert!(counts.bytes_mapped <= 24 * MIB);
    let shared = shared(&arena);
    drop(arena);
    assert_eq!(mapped(&shared), 0);
}

/// Regression: when the last handle of an arena was dropped in a forked child, it closed the arena, under a
/// lock. A thread of the parent may have held that lock at the fork, and no thread releases it in the child:
/// the child hung.
#[test]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_forked_child_drops_the_arena_whoever_held_its_lock() {
    let arena = pages(64);
    let shared = shared(&arena);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // Counting holds the lock most of the time.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                shared.counts();
            }
        });
        let statuses: Vec<libc::c_int> = (0..64)
            .map(|_| {
                // SAFETY: the child makes system calls and drops its copy of the handle, whose destructor must neither
                // lock nor free anything; it is not used again, as the child ends by `_exit`.
                match unsafe { libc::fork() } {
                    // SAFETY: as above.
                    0 => unsafe {
                        libc::alarm(60);
                        drop(std::ptr::read(&arena));
                        libc::_exit(0)
                    },
                    child => {
                        let mut status = -1;
                        // SAFETY: `status` is writable; the child is ours.
                        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                        status
                    }
                }
            })
            .take_while(|&status| status == 0)
            .collect();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(statuses.len(), 64, "a child hung, and its alarm ended it");
    });
    // The parent's arena is as it was.
    assert_eq!(take_all(&arena).len(), 64);
}
