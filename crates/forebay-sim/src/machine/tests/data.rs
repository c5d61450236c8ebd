//! Reads, writes and their errnos; time, space, and the sharing of memory.

use super::*;

fn pattern(len: usize, by: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + by) as u8 | 1).collect()
}

#[test]
fn what_is_written_is_read() {
    let mut rig = Rig::with(Source::new(1), []);
    let file = rig.open("/a", CREATE);
    let bytes = pattern(20 * KIB, 1);
    assert_eq!(rig.write(file, 4096, &bytes), 20_480);
    let read = rig.read(file, 0, 32 * KIB).unwrap();
    assert_eq!(read.len(), 24_576);
    assert_eq!((&read[..4096], &read[4096..]), (&[0; 4096][..], &bytes[..]));
    // At the end of the file a read returns fewer bytes, and zero bytes behind it.
    assert_eq!(rig.read(file, 1 << 30, 4096).unwrap(), []);
    let other = rig.open("/a", BUFFERED);
    assert_eq!(rig.write(other, 24_576, b"odd"), 3);
    assert_eq!(rig.read(file, 24_576, 4096).unwrap(), b"odd");
    assert_eq!(rig.read(other, 24_570, 100).unwrap().len(), 9);
    // A sparse file costs nothing for its holes.
    assert_eq!(rig.write(file, 1 << 40, &bytes), 20_480);
    assert_eq!(rig.read(file, 1 << 39, 4096).unwrap(), [0; 4096]);
    assert!(rig.machine.violations().is_empty());
}

#[test]
fn refusals_are_those_of_linux() {
    let mut rig = Rig::new(1, Profile::ideal().alignment(4096, 4096));
    let file = rig.open("/a", CREATE);
    let buffered = rig.open("/a", BUFFERED);
    let reader = rig.open("/a", OpenHow { write: false, create: false, ..CREATE });
    let page = [7u8; 4096];
    assert_eq!(rig.write(file, 0, &page), 4096);
    assert_eq!(rig.write(reader, 0, &page), -libc::EBADF);
    // Direct: offset, length and memory.
    assert_eq!(rig.write(file, 512, &page), -libc::EINVAL);
    assert_eq!(rig.write(file, 0, &page[..512]), -libc::EINVAL);
    assert_eq!(rig.read(file, 512, 4096), Err(libc::EINVAL));
    let odd = &memory(&[0; 8192])[512..4608];
    let id = rig.start(OpKind::Read, file, 0, Some(odd));
    assert_eq!(rig.result(id), -libc::EINVAL);
    let id = rig.start(OpKind::Read, buffered, 0, Some(odd));
    assert_eq!(rig.result(id), 4096);
    // Offsets are signed, and a file has a greatest length.
    for offset in [1u64 << 63, u64::MAX - 4095, i64::MAX as u64 - 4094] {
        let offset = offset & !4095;
        assert_eq!(rig.read(file, offset | (1 << 63), 4096), Err(libc::EINVAL));
        assert_eq!(rig.write(file, offset | (1 << 63), &page), -libc::EINVAL);
    }
    assert_eq!(rig.read(buffered, i64::MAX as u64, 2), Err(libc::EINVAL));
    assert_eq!(rig.read(file, (1 << 62) + 4096, 4096), Ok(vec![]));
    assert_eq!(rig.write(file, 1 << 62, &page), -libc::EFBIG);
    assert_eq!(rig.write(buffered, disk::FILE_MAX - 1, &page), 1);
    assert_eq!(rig.write(buffered, disk::FILE_MAX, &page), -libc::EFBIG);
    assert!(rig.machine.violations().is_empty());
    assert_eq!(rig.sync(OpKind::SyncAll, 99), -libc::EBADF);
    assert_eq!(rig.machine.violations().len(), 1);
}

#[test]
fn space_ends_where_the_profile_says() {
    let mut rig = Rig::new(1, Profile::ideal().capacity(64 << 10));
    let file = rig.open("/a", CREATE);
    assert_eq!(rig.write(file, 0, &[1; 48 << 10]), 48 << 10);
    // The part that fits, then the error; blocks that exist can be written again.
    assert_eq!(rig.write(file, 32 << 10, &[2; 48 << 10]), 32 << 10);
    assert_eq!(rig.write(file, 64 << 10, &[2; 4096]), -libc::ENOSPC);
    assert_eq!(rig.write(file, 0, &[3; 64 << 10]), 64 << 10);
    rig.done(MetaRequest::PunchHole { file: owner(file), offset: 4096, len: 8192 });
    let other = rig.open("/b", BUFFERED);
    assert_eq!(rig.write(other, 0, &[4; 9000]), 8192);
    assert_eq!(rig.write(other, 8192, &[4; 1]), -libc::ENOSPC);
    rig.done(MetaRequest::RemoveFile { path: path("/a") });
    assert_eq!(rig.write(other, 8192, &[4; 1]), -libc::ENOSPC, "it is open still");
    rig.machine.close(file);
    assert_eq!(rig.write(other, 8192, &[4; 1]), 1);
}

#[test]
fn an_operation_has_its_effect_when_it_ends() {
    let mut rig = Rig::new(1, Profile::nand());
    let file = rig.open("/a", CREATE);
    rig.write(file, 0, &[1; 4096]);
    let (old, new) = (memory(&[0; 4096]), memory(&[2; 4096]));
    let read = rig.start(OpKind::Read, file, 0, Some(old));
    let write = rig.start(OpKind::Write, file, 0, Some(new));
    // The write is faster than the read, uses the bytes at its end, and the read sees them.
    new[0].set(9);
    assert_eq!(rig.result(write), 4096);
    new[1].set(8);
    assert_eq!(old[0].get(), 0);
    assert_eq!(rig.result(read), 4096);
    assert_eq!((old[0].get(), old[1].get()), (9, 2));
}

#[test]
fn a_flush_takes_as_long_as_the_cache_has_to_drain() {
    let times = |profile: Profile| {
        let mut rig = Rig::new(1, profile);
        let file = rig.open("/a", CREATE);
        rig.sync(OpKind::SyncData, file);
        let flush = |rig: &mut Rig| {
            let begun = rig.now_ns;
            assert_eq!(rig.sync(OpKind::SyncData, file), 0);
            rig.now_ns - begun
        };
        for block in 0..100 {
            rig.write(file, block * 4096, &[1; 4096]);
        }
        [flush(&mut rig), flush(&mut rig)]
    };
    // 100 blocks at 4,096,000 bytes a second are a tenth of one.
    assert_eq!(times(Profile::ideal().drain(4_096_000)), [100_001_000, 1_000]);
    assert_eq!(times(Profile::ideal()), [1_000, 1_000]);
    assert_eq!(times(Profile::ideal().drain(4_096_000).write_cache(0)), [1_000, 1_000]);
}

#[test]
fn memory_in_flight_is_shared_by_writes_only() {
    let mut rig = Rig::new(1, Profile::nand());
    let file = rig.open("/a", CREATE);
    let shared = memory(&[1; 8192]);
    let first = rig.start(OpKind::Write, file, 0, Some(shared));
    let second = rig.start(OpKind::Write, file, 8192, Some(shared));
    assert!(rig.machine.violations().is_empty());
    let read = rig.start(OpKind::Read, file, 0, Some(&shared[4096..]));
    assert_eq!(rig.machine.violations().len(), 2);
    for id in [first, second, read] {
        rig.result(id);
    }
    let id = rig.start(OpKind::Write, file, 0, Some(shared));
    let io = SimIo { id, kind: OpKind::Nop, file: 0, offset: 0, transfer: None, len: 0, fua: false };
    rig.machine.submit(io, rig.now_ns, &mut rig.fate);
    assert_eq!(rig.machine.violations().len(), 1, "an id that is in flight");
    rig.machine.close(file);
    assert_eq!(rig.machine.violations().len(), 1, "a file closed under its operation");
    let late = rig.start(OpKind::SyncData, file, 0, None);
    assert_eq!(rig.result(late), -libc::EBADF);
    assert_eq!(rig.machine.violations().len(), 1, "an operation on a closed file");
}

#[test]
fn a_cancel_ends_what_waits_and_perhaps_what_runs() {
    let (mut stopped, mut ran) = (0, 0);
    for seed in 0..100 {
        let mut rig = Rig::new(seed, Profile::nand().parallelism(1));
        let file = rig.open("/a", CREATE);
        rig.write(file, 0, &[1; 4096]);
        let running = rig.start(OpKind::Write, file, 0, Some(memory(&[2; 4096])));
        let waiting = rig.start(OpKind::Write, file, 0, Some(memory(&[3; 4096])));
        for id in [waiting, running, IoId(9999)] {
            rig.machine.cancel(id, rig.now_ns, &mut rig.fate);
        }
        assert_eq!(rig.result(waiting), -libc::ECANCELED);
        let result = rig.result(running);
        let read = rig.read(file, 0, 4096).unwrap();
        match result {
            4096 => {
                ran += 1;
                assert_eq!(read, [2; 4096]);
            }
            _ => {
                stopped += 1;
                assert_eq!(result, -libc::ECANCELED);
                assert!(read.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
            }
        }
    }
    assert!(stopped > 20 && ran > 20);
}

#[test]
fn time_is_that_of_the_profile() {
    let took = |profile: Profile, kind: OpKind| {
        let mut rig = Rig::new(1, profile);
        let file = rig.open("/a", CREATE);
        rig.write(file, 0, &[1; 4096]);
        let before = rig.now_ns;
        match kind {
            OpKind::Read => drop(rig.read(file, 0, 4096)),
            OpKind::Write => drop(rig.write(file, 0, &[1; 4096])),
            kind => drop(rig.sync(kind, file)),
        }
        rig.now_ns - before
    };
    let plain = |profile: Profile| profile.jitter(0).tail(0, 1).bandwidth(0).iops(0, 0);
    for (kind, want) in [(OpKind::Read, 80_000), (OpKind::Write, 15_000), (OpKind::SyncAll, 600_000)] {
        assert_eq!(took(plain(Profile::nand()), kind), want);
    }
    assert_eq!(took(plain(Profile::cloud()), OpKind::Write), 600_000);
    assert_eq!(took(Profile::ideal(), OpKind::Read), 1_000);
}

#[test]
fn long_requests_are_split_and_counted() {
    let mut rig = Rig::new(1, Profile::ideal().max_request(128 << 10));
    let file = rig.open("/a", CREATE);
    assert_eq!(rig.write(file, 0, &[1; 512 << 10]), 512 << 10);
    let counts = rig.machine.counts();
    assert_eq!((counts.writes, counts.splits, counts.written_bytes), (1, 3, 512 << 10));
}

#[test]
fn impossible_profiles_are_refused() {
    let mut machine = Machine::new();
    for wrong in [
        Profile::ideal().sector(1024),
        Profile::ideal().alignment(4096, 256),
        Profile::ideal().alignment(100, 512),
        Profile::ideal().queue_depth(0),
        Profile::ideal().max_request(100),
    ] {
        assert!(machine.mount(wrong).is_err());
    }
    machine.mount(Profile::ideal()).unwrap();
    assert!(machine.mount(Profile::nand()).unwrap_err().to_string().contains("mounted there"));
}

#[test]
fn many_small_writes_without_a_sync_stay_cheap() {
    let mut rig = Rig::new(1, Profile::ideal());
    let (direct, buffered) = (rig.open("/a", CREATE), rig.open("/b", BUFFERED));
    for at in 0..6_000u64 {
        assert_eq!(rig.write(direct, at % 64 * 512, &[at as u8; 512]), 512);
        assert_eq!(rig.write(buffered, at % 64 * 100, &[at as u8; 100]), 100);
    }
    let waiting = |disk: &Disk| disk.cache.len() + disk.dirty.len();
    assert!(rig.machine.disks.iter().map(waiting).sum::<usize>() <= 2 * 4096);
    let logged = |disk: &Disk| disk.tree.inodes.values().map(|inode| inode.content.log.len()).sum::<usize>();
    assert!(rig.machine.disks.iter().map(logged).sum::<usize>() <= 2 * 4096 + 200);
    assert_eq!(rig.sync(OpKind::SyncAll, direct), 0);
    assert_eq!(rig.sync(OpKind::SyncAll, buffered), 0);
    assert!(rig.machine.disks.iter().all(|disk| waiting(disk) + logged(disk) == 0));
}
