//! Memory of the program's own: read into, written from, returned, and abandoned.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

use forebay::{BlockMut, Class, Durability, ErrorKind, IoMemory, Open};

use super::check::{Outcome, fails_with, holds, same, same_bytes};
use super::tools::{all, at_rest, bytes_of, content, fresh, modes, open_all, poll_now, put};
use crate::Env;

super::group! { "lent":
    any_range_goes_into_any_memory,
    the_end_of_the_file_ends_the_bytes,
    any_memory_is_written_from_its_place,
    a_misplaced_write_gives_the_memory_back,
    batches_go_into_memory_side_by_side,
    memory_of_a_dropped_operation_is_the_engines_until_the_device_is_done,
}

const LEN: u64 = 300_007;

/// Memory that starts `skip` bytes behind a page, and is watched: the bytes around it must stay as they are.
#[derive(Default)]
struct WatchedMemory {
    whole: BlockMut,
    skip: usize,
    len: usize,
}

// SAFETY: a part of a block that is its own.
unsafe impl IoMemory for WatchedMemory {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.whole[self.skip..].as_mut_ptr(), self.len)
    }
}

impl WatchedMemory {
    fn new(skip: usize, len: usize) -> Outcome<WatchedMemory> {
        let mut whole = BlockMut::aligned(skip + len + 100)?;
        whole.fill(0xA5);
        Ok(WatchedMemory { whole, skip, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.whole[self.skip..self.skip + self.len]
    }

    /// Fails if bytes outside were written.
    fn check(&self) -> Outcome {
        let around = self.whole[..self.skip].iter().chain(&self.whole[self.skip + self.len..]);
        holds("the bytes around the memory are as they were", around.into_iter().all(|byte| *byte == 0xA5))
    }
}

/// Places in a file, and lengths: blocks of the device, parts of them, and several requests by way of I/O memory.
const PLACES: [(u64, usize); 9] = [
    (0, 4096),
    (4096, 65_536),
    (0, 1),
    (511, 2),
    (5_000, 20_000),
    (4_000, 100_000),
    (1, 270_000),
    (100, 3_996),
    (8_192, 290_000 - 8_192),
];

async fn any_range_goes_into_any_memory(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for (offset, len) in PLACES {
            let what = format!("{len} bytes at {offset}, {:?}", file.mode());
            let expected = bytes_of(offset..offset + len as u64);
            let (read, vec) = file.read_into(offset, vec![1; len]).await;
            same(&what, (read?, vec == expected), (len, true))?;
            let (read, boxed) = file.read_into(offset, vec![1; len].into_boxed_slice()).owned().await;
            same(&what, (read?, boxed[..] == expected[..]), (len, true))?;
            let (read, bytes) = file.read_into(offset, BytesMut::zeroed(len)).class(Class::LOG).await;
            same(&what, (read?, bytes == expected), (len, true))?;
            let (read, block) = file.read_into(offset, env.engine().block(len)?).await;
            same(&what, (read?, block == expected), (len, true))?;
            let (read, aligned) = file.read_into(offset, BlockMut::aligned(len)?).await;
            same(&what, (read?, aligned == expected), (len, true))?;
            // In step with the file's blocks, so that the device can read the middle of it; and out of step.
            for skip in [offset as usize % 4096, 0, 16, 4095] {
                let (read, mut placed) = file.read_into(offset, WatchedMemory::new(skip, len)?).await;
                same(
                    format!("{what}, {skip} behind a page"),
                    (read?, placed.bytes() == expected),
                    (len, true),
                )?;
                placed.check()?;
            }
        }
    }
    at_rest(env, env.engine()).await
}

async fn the_end_of_the_file_ends_the_bytes(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    for file in open_all(env, &path, Open::read()).await? {
        for skip in [0, 16] {
            for (offset, bytes) in [(0, LEN), (4096, LEN - 4096), (LEN - 1, 1), (LEN, 0), (1 << 30, 0)] {
                let what = format!("from {offset} on, {skip} behind a page, {:?}", file.mode());
                let (read, mut placed) =
                    file.read_into(offset, WatchedMemory::new(skip, LEN as usize + 5000)?).await;
                same(&what, read?, bytes as usize)?;
                same_bytes(&what, &placed.bytes()[..bytes as usize], &bytes_of(offset..offset + bytes))?;
                placed.check()?;
            }
        }
        let (read, empty) = file.read_into(7, Vec::new()).await;
        same("no bytes", (read?, empty.len()), (0, 0))?;
        let (read, vec) = file.read_into((1 << 63) - 1, vec![9; 5]).await;
        fails_with("a place that no file has", read, ErrorKind::InvalidInput)?;
        same_bytes("its memory", &vec, &[9; 5])?;
        file.clone().close().await?;
        let (read, vec) = file.read_into(0, vec![9; 5]).await;
        fails_with("a closed file", read, ErrorKind::FileClosed)?;
        same_bytes("its memory", &vec, &[9; 5])?;
        let (read, _) = file.read_into(0, Vec::new()).await;
        fails_with("no bytes of a closed file", read, ErrorKind::FileClosed)?;
    }
    Ok(())
}

async fn any_memory_is_written_from_its_place(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&format!("{number}"));
        let file = fresh(env, &path, open, 1 << 20).await?;
        let grain = u64::from(file.alignment().offset);
        let mut expected = Vec::new();
        for (round, skip) in [0usize, 16, 512, 4095].into_iter().enumerate() {
            for blocks in [1, 3, 40, 300] {
                let offset = expected.len() as u64;
                let mut placed = WatchedMemory::new(skip, (blocks * grain) as usize)?;
                let bytes = bytes_of(offset + 7..offset + 7 + blocks * grain);
                placed.bytes().copy_from_slice(&bytes);
                let durability = [Durability::None, Durability::Data, Durability::All][round % 3];
                let (written, placed) = file.write_from(offset, placed).durable(durability).owned().await;
                written?;
                placed.check()?;
                expected.extend(bytes);
                // The same bytes again, from memory of the standard library.
                let vec = expected[offset as usize..].to_vec();
                let (written, vec) = file.write_from(offset, vec).class(Class::LOG).await;
                written?;
                file.write(offset, vec).await?;
                file.write(offset, bytes::Bytes::from(expected[offset as usize..].to_vec())).await?;
            }
        }
        let (written, _) = file.write_from(0, Vec::new()).durable(Durability::Data).await;
        written?;
        drop(file);
        same_bytes(format!("{open:?}"), &content(env, &path).await?[..expected.len()], &expected)?;
    }
    at_rest(env, env.engine()).await
}

async fn a_misplaced_write_gives_the_memory_back(env: &Env) -> Outcome {
    let path = put(env, "a", 10_000).await?;
    for file in open_all(env, &path, Open::write()).await? {
        let needed = file.alignment().offset;
        if needed > 1 {
            for (offset, len) in [(1, 4096), (0, 100)] {
                let (written, memory) = file.write_from(offset, vec![3; len]).await;
                fails_with("misplaced", written, ErrorKind::Misaligned { needed })?;
                same_bytes("its memory", &memory, &vec![3; len])?;
            }
        }
        let (written, memory) = file.write_from(u64::MAX - 4095, vec![3; 4096]).await;
        fails_with("a place that no file has", written, ErrorKind::InvalidInput)?;
        same("its memory", memory.len(), 4096)?;
    }
    same_bytes("nothing was written", &content(env, &path).await?[..10_000], &bytes_of(0..10_000))
}

async fn batches_go_into_memory_side_by_side(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let mut ranges: Vec<_> = (0..300).map(|n| n * 877 % 200_000..n * 877 % 200_000 + n * 11 % 5000).collect();
    ranges.extend([4096..8192, 65_536..131_072, 7..7, LEN - 100..LEN, 8192..12_288]);
    let expected: Vec<u8> = ranges.iter().flat_map(|range| bytes_of(range.clone())).collect();
    for file in open_all(env, &path, Open::read()).await? {
        for (gap, skip) in [(0, 0), (16 << 10, 0), (0, 16)] {
            let what = format!("gap {gap}, {skip} behind a page, {:?}", file.mode());
            let many = || file.read_many(ranges.iter().cloned()).gap_bytes_max(gap);
            let (result, mut placed) = many().into_memory(WatchedMemory::new(skip, expected.len())?).await;
            result?;
            same_bytes(&what, placed.bytes(), &expected)?;
            placed.check()?;
            let (result, vec) = many().depth(2).into_memory(vec![0; expected.len() + 9]).await;
            result?;
            same_bytes(&what, &vec[..expected.len()], &expected)?;
            same_bytes("behind them", &vec[expected.len()..], &[0; 9])?;
            let (result, vec) = many().into_memory(vec![5; expected.len() - 1]).await;
            fails_with("too little memory", result, ErrorKind::InvalidInput)?;
            same_bytes("it comes back", &vec, &vec![5; expected.len() - 1])?;
        }
        let past = [0..10, LEN - 5..LEN + 5, 20..30];
        let (result, vec) = file.read_many(past).into_memory(vec![0; 30]).await;
        let error = fails_with("past the end", result, ErrorKind::UnexpectedEof { got: 5 })?;
        same("the range of the error", error.range(), Some((LEN - 5, 10)))?;
        same_bytes("the others", &vec[20..], &bytes_of(20..30))?;
        let (result, vec) = file.read_many([]).into_memory(vec![1, 2]).await;
        same("nothing", (result.is_ok(), vec), (true, vec![1, 2]))?;
        file.clone().close().await?;
        let (result, vec) = file.read_many([0..1, 1..1]).into_memory(vec![1]).await;
        fails_with("a closed file", result, ErrorKind::FileClosed)?;
        same_bytes("its memory", &vec, &[1])?;
    }
    at_rest(env, env.engine()).await
}

/// Memory that was returned.
type ReturnList = Arc<Mutex<Vec<&'static mut [u8]>>>;

/// Memory that is never freed: its drop puts it onto a list, filled with a pattern that nothing may change any more.
#[derive(Default)]
struct StaticMemory {
    memory: Option<(&'static mut [u8], ReturnList)>,
}

// SAFETY: the bytes are never freed, and nothing else has them before the drop.
unsafe impl IoMemory for StaticMemory {
    fn memory(&mut self) -> (*mut u8, usize) {
        self.memory.as_mut().map_or((std::ptr::null_mut(), 0), |(bytes, _)| (bytes.as_mut_ptr(), bytes.len()))
    }
}

impl Drop for StaticMemory {
    fn drop(&mut self) {
        if let Some((bytes, list)) = self.memory.take() {
            bytes.fill(0x5A);
            list.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    }
}

async fn memory_of_a_dropped_operation_is_the_engines_until_the_device_is_done(env: &Env) -> Outcome {
    let path = put(env, "a", LEN).await?;
    let list = Arc::new(Mutex::new(Vec::new()));
    let lend = |len: usize| -> Outcome<StaticMemory> {
        let bytes: &'static mut [u8] = Box::leak(vec![0x11; len + 4096].into_boxed_slice());
        let at = bytes.as_ptr().align_offset(4096);
        Ok(StaticMemory { memory: Some((&mut bytes[at..at + len], list.clone())) })
    };
    let mut lent = 0;
    for file in open_all(env, &path, Open::read()).await? {
        // The device has had no turn, or some: an empty operation makes a round trip to the shard.
        for turns in [0, 1, 2, 5, 20] {
            for (offset, len) in [(0, 65_536), (100, 70_000), (1, 200_000)] {
                let mut read = file.read_into(offset, lend(len)?);
                drop(poll_now(&mut read));
                all((0..turns).map(|_| env.engine().nop().into_future())).await;
                drop(read);
                let half = len as u64 / 2;
                let ranges = [0..half / 4096 * 4096, 100_001..100_001 + half];
                let mut batch = file.read_many(ranges).into_memory(lend(len)?);
                drop(poll_now(&mut batch));
                all((0..turns).map(|_| env.engine().nop().into_future())).await;
                drop(batch);
                lent += 2;
            }
        }
        let unbegun = (file.read_into(0, lend(10)?), file.read_many([0..5, 9..9]).into_memory(lend(10)?));
        drop(unbegun);
        lent += 2;
    }
    // The device finishes those that it had, while others read the same bytes.
    let file = env.open(&path, Open::read()).await?;
    all((0..64).map(|n| file.read(n * 4096..n * 4096 + 4096).into_future())).await;
    at_rest(env, env.engine()).await?;
    while list.lock().unwrap_or_else(PoisonError::into_inner).len() < lent {
        // Dropped on a thread of the engine's.
        file.read(0..4096).await?;
    }
    let list = list.lock().unwrap_or_else(PoisonError::into_inner);
    same("each is dropped once", list.len(), lent)?;
    let is_as_dropped = |bytes: &&'static mut [u8]| bytes.iter().all(|byte| *byte == 0x5A);
    holds("nothing was written to memory that had been given back", list.iter().all(is_as_dropped))?;
    same("leaked", env.engine().memory().leaked_lends, 0)
}
