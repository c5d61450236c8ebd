use std::thread;

use super::*;
use crate::base::error::ErrorKind;
use crate::memory::arena::{Arena, ArenaConfig, Nodes};

fn arena() -> Arena {
    let config = ArenaConfig {
        bytes_initial: 2 << 20,
        first_region_bytes: usize::MAX,
        bytes_max: 2 << 20,
        overflow_bytes_max: 0,
        long_bytes_max: usize::MAX,
        shards: 1,
    };
    Arena::new(config, Nodes::default()).unwrap()
}

/// Dirties every byte that the next buffers will have.
fn dirty(arena: &Arena) {
    let buffer = arena.alloc(2 << 20).unwrap();
    // SAFETY: within the capacity.
    unsafe { buffer.as_ptr().write_bytes(0xee, buffer.capacity()) };
}

fn block_mut(arena: &Arena, len: usize) -> BlockMut {
    // SAFETY: no byte is claimed to be filled.
    unsafe { arena.alloc(len).unwrap().into_block_mut(len, 0) }
}

fn numbers(arena: &Arena, len: usize) -> Block {
    let mut block = block_mut(arena, len);
    for (index, byte) in block.iter_mut().enumerate() {
        *byte = index as u8;
    }
    block.freeze()
}

#[test]
fn three_words() {
    assert_eq!(size_of::<Block>(), 3 * size_of::<usize>());
    assert_eq!(size_of::<Option<Block>>(), size_of::<Block>());
    fn both<T: Send + Sync>() {}
    both::<Block>();
    both::<BlockMut>();
}

#[test]
fn slices_share_and_never_panic() {
    let arena = arena();
    let block = numbers(&arena, 300);
    let part = block.slice(10..20).unwrap();
    assert_eq!(&part[..], &(10..20).collect::<Vec<u8>>()[..]);
    assert_eq!(part.slice(2..=3).unwrap(), *[12, 13].as_slice());
    assert_eq!(part.slice((Bound::Excluded(7), Bound::Unbounded)).unwrap()[..], [18, 19]);
    assert_eq!((part.start_offset_in_buffer(), part.len()), (10, 10));
    assert_eq!(part.region_index(), Some(0));
    assert_eq!(part.pinned_bytes(), 4096);
    for range in [0..11, 11..11, 5..usize::MAX] {
        assert!(part.slice(range).is_none());
    }
    #[expect(clippy::reversed_empty_ranges, reason = "a backwards range is what is tested")]
    let backwards = part.slice(5..4);
    assert!(backwards.is_none());
    assert!(part.slice(..=usize::MAX).is_none());
    assert!(part.slice(10..).unwrap().is_empty());
    let (head, tail) = block.split_at(100).unwrap();
    assert_eq!((head.len(), tail[0]), (100, 100));
    assert!(block.split_at(301).is_none());
    drop((block, head, tail));
    assert_eq!(part[9], 19, "a part keeps the buffer");
    assert_eq!(format!("{part:?}"), "Block { len: 10, .. }");
}

#[test]
fn empty_blocks_need_no_buffer() {
    let empty = Block::default();
    assert_eq!((empty.len(), empty.pinned_bytes(), empty.start_offset_in_buffer()), (0, 0, 0));
    assert_eq!(empty.region_index(), None);
    assert!(empty.slice(..).is_some() && empty.clone().detach() == empty);
    assert!(empty.try_into_mut().is_err());
}

#[test]
fn unwritten_bytes_are_zero() {
    let arena = arena();
    dirty(&arena);
    let mut block = block_mut(&arena, 5000);
    assert!(block.len() == 5000 && block.capacity() == 8192);
    assert!(block.iter().all(|byte| *byte == 0));
    block.resize(8192).unwrap();
    assert!(block.iter().all(|byte| *byte == 0), "grown within the buffer");
    block.fill(9);
    block.truncate(10);
    block.truncate(20);
    assert_eq!(block.len(), 10);
    block.resize(6000).unwrap();
    assert!(block[..10].iter().all(|byte| *byte == 9) && block[10..].iter().all(|byte| *byte == 0));
    block.resize(4).unwrap();
    assert_eq!(block[..], [9; 4]);
    assert_eq!(block.resize(8193).unwrap_err().kind(), ErrorKind::TooLarge { limit: 8192 });
    assert_eq!(block.len(), 4);
}

#[test]
fn what_was_filled_stays_and_the_rest_is_zeroed() {
    let arena = arena();
    dirty(&arena);
    let buffer = arena.alloc(4096).unwrap();
    // SAFETY: 3 bytes are within the capacity and initialised.
    let block = unsafe {
        buffer.as_ptr().copy_from(b"abc".as_ptr(), 3);
        buffer.into_block_mut(6, 3)
    };
    assert_eq!(&block[..], b"abc\0\0\0");
    let (buffer, len) = block.into_buffer();
    assert_eq!(len, 6);
    // SAFETY: the 6 bytes are initialised.
    let mut block = unsafe { BlockMut::from_buffer(buffer.unwrap(), 2, len) };
    assert_eq!(&block[..], b"ab");
    block.resize(4).unwrap();
    assert_eq!(&block[..], b"ab\0\0");
}

#[test]
fn padding_is_zero_and_outside() {
    let arena = arena();
    dirty(&arena);
    let mut block = block_mut(&arena, 0);
    assert!(block.is_empty());
    block.extend_from_slice(b"0123456789").unwrap();
    block.pad_with_zeros(4096);
    assert_eq!(block.len(), 10);
    // SAFETY: padded up to 4096, which is the capacity.
    let whole = unsafe { std::slice::from_raw_parts(block.as_ptr(), 4096) };
    assert!(whole[10..].iter().all(|byte| *byte == 0));
    block.extend_from_slice(b"ab").unwrap();
    block.resize(14).unwrap();
    assert_eq!(&block[..], b"0123456789ab\0\0");
    assert_eq!(block.extend_from_slice(&[1; 4083]).unwrap_err().kind(), ErrorKind::TooLarge { limit: 4096 });
    assert_eq!(block.len(), 14);
    block.extend_from_slice(&[1; 4082]).unwrap();
    assert_eq!(block.len(), block.capacity());
    block.pad_with_zeros(usize::MAX);
    assert_eq!(block[4095], 1);
    assert_eq!(block.region_index(), Some(0));
}

#[test]
fn only_a_sole_owner_may_write_again() {
    let arena = arena();
    let block = numbers(&arena, 100);
    let address = block.as_ptr();
    let other = block.clone();
    let block = block.try_into_mut().unwrap_err();
    drop(other);
    let mut back = block.try_into_mut().unwrap();
    assert_eq!(back.as_ptr().cast_const(), address, "no copy");
    back[0] = 200;
    let part = back.freeze().slice(50..60).unwrap();
    let mut moved = part.try_into_mut().unwrap();
    assert_eq!(moved[..], (50..60).collect::<Vec<u8>>());
    assert_eq!(moved.as_ptr().cast_const(), address, "moved to the aligned start");
    moved.resize(12).unwrap();
    assert_eq!(moved[10..], [0, 0]);
}

#[test]
fn bytes_without_a_copy() {
    let arena = arena();
    let block = numbers(&arena, 200);
    let address = block.as_ptr();
    let shared: bytes::Bytes = block.slice(7..).unwrap().into();
    drop(block);
    assert_eq!(shared.as_ptr(), address.wrapping_add(7));
    assert_eq!(arena.counts().bytes_held, 4096);
    let part = shared.slice(1..3);
    drop(shared);
    assert_eq!(part[..], [8, 9]);
    drop(part);
    assert_eq!(arena.counts().bytes_held, 0);
}

#[test]
fn detach_copies_small_parts_of_large_buffers() {
    let arena = arena();
    let large = numbers(&arena, 64 << 10);
    let small = large.slice(1000..1100).unwrap().detach();
    assert_eq!(small.pinned_bytes(), 4096);
    assert_eq!(small[..], large[1000..1100]);
    let quarter = large.slice(..16 << 10).unwrap().detach();
    assert_eq!(quarter.pinned_bytes(), 16 << 10);
    let more = large.slice(..(16 << 10) + 1).unwrap().detach();
    assert_eq!(more.as_ptr(), large.as_ptr(), "not worth a copy");
    assert_eq!(large.slice(5..5).unwrap().detach().pinned_bytes(), 0);
    drop((large, more));
    assert_eq!(arena.counts().bytes_held, 20 << 10);
    let held: Vec<_> = std::iter::from_fn(|| arena.alloc(4096).ok()).collect();
    let kept = quarter.slice(7..8).unwrap().detach();
    assert_eq!(
        (kept.pinned_bytes(), kept[..] == quarter[7..8]),
        (1, true),
        "without room in ordinary memory"
    );
    assert_eq!(kept.detach().as_ptr(), kept.as_ptr());
    // The allocator may have aligned it by chance, once in some hundred runs.
    let is_aligned = kept.as_ptr().addr().is_multiple_of(4096);
    assert_eq!(kept.try_into_mut().is_ok(), is_aligned, "writable memory is aligned to pages");
    drop((held, quarter));
    let page = numbers(&arena, 4096).slice(8..12).unwrap().detach();
    assert_eq!((page.pinned_bytes(), &page[..]), (4, &[8, 9, 10, 11][..]), "a part of the smallest buffer");
}

#[test]
fn eight_threads_clone_and_drop() {
    const ROUNDS: usize = if cfg!(miri) { 20 } else { 20_000 };
    let arena = arena();
    for _ in 0..3 {
        let block = numbers(&arena, 4096);
        thread::scope(|scope| {
            for _ in 0..8 {
                let mine = block.clone();
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for round in 0..ROUNDS {
                        kept.push(mine.slice(round % 4096..).unwrap_or_default());
                        if round % 7 == 0 {
                            kept.clear();
                        }
                    }
                    assert_eq!(mine[255], 255);
                });
            }
            drop(block);
        });
        assert_eq!(arena.counts().bytes_held, 0);
    }
}
