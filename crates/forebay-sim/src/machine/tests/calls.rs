//! Calls about names and open files, compared with the results on Linux.

use forebay::{ErrorKind, Lock, Metadata};

use super::*;

fn metadata(rig: &mut Rig, request: MetaRequest) -> Metadata {
    match rig.ask(request).unwrap() {
        MetaReply::Metadata(found) => found,
        other => panic!("{other:?}"),
    }
}

fn open_error(rig: &mut Rig, at: &str, how: OpenHow) -> Error {
    rig.opened(MetaRequest::Open { path: path(at), how }).unwrap_err()
}

#[test]
fn opening_as_told() {
    let mut rig = Rig::with(Source::new(1), []);
    let absent = OpenHow { create: false, ..CREATE };
    let missing = open_error(&mut rig, "/a", absent);
    assert_eq!((missing.raw_os_error(), missing.path()), (Some(libc::ENOENT), Some(Path::new("/a"))));
    let file = rig.open("/a", CREATE);
    rig.write(file, 0, &[1; 512]);
    let exists = open_error(&mut rig, "a", OpenHow { create_new: true, ..CREATE });
    assert_eq!(exists.raw_os_error(), Some(libc::EEXIST));
    assert_eq!(open_error(&mut rig, "/a/b", CREATE).raw_os_error(), Some(libc::ENOTDIR));
    assert_eq!(open_error(&mut rig, "/x/b", CREATE).raw_os_error(), Some(libc::ENOENT));
    assert_eq!(open_error(&mut rig, "", CREATE).raw_os_error(), Some(libc::ENOENT));
    let long = open_error(&mut rig, &"n".repeat(256), CREATE);
    assert!(long.to_string().contains("too long"), "{long}");
    for how in [OpenHow { read: false, write: false, ..absent }, OpenHow { write: false, ..CREATE }] {
        assert_eq!(open_error(&mut rig, "/a", how).kind(), ErrorKind::InvalidInput);
    }
    let dir = open_error(&mut rig, "/", CREATE);
    assert!(dir.kind() == ErrorKind::InvalidInput && dir.to_string().contains("a directory"), "{dir}");
    let again = rig.open("/a", OpenHow { truncate: true, ..absent });
    assert_eq!(rig.read(file, 0, 512).unwrap(), []);
    assert!(again > file, "numbers are never used again");
    let opened = rig.opened(MetaRequest::Open { path: path("/a"), how: absent }).unwrap();
    assert_eq!((opened.alignment.memory, opened.alignment.offset), (4096, 512));
    assert_eq!(opened.disk_name, "sim0");
}

#[test]
fn a_temp_file_has_no_name_and_goes_with_its_handle() {
    let mut rig = Rig::new(1, Profile::ideal().capacity(8192));
    let request = || MetaRequest::TempFile { dir: path("/"), direct: true };
    let file = rig.opened(request()).unwrap().number;
    assert_eq!(rig.write(file, 0, &[1; 8192]), 8192);
    assert_eq!(rig.read(file, 0, 8192).unwrap(), [1; 8192]);
    assert!(rig.names("/").is_empty());
    rig.machine.close(file);
    let file = rig.opened(request()).unwrap().number;
    assert_eq!(rig.write(file, 0, &[1; 8192]), 8192, "the space is free again");
    let missing = rig.opened(MetaRequest::TempFile { dir: path("/none"), direct: true }).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
}

#[test]
fn renames_and_links() {
    let mut rig = Rig::with(Source::new(1), []);
    let rename = |from: &str, to: &str| MetaRequest::Rename { from: path(from), to: path(to) };
    let link = |from: &str, to: &str| MetaRequest::HardLink { from: path(from), to: path(to) };
    for dir in ["/d", "/d/e", "/f"] {
        rig.done(MetaRequest::CreateDir { path: path(dir) });
    }
    for (name, byte) in [("/a", 1u8), ("/b", 2)] {
        let file = rig.open(name, BUFFERED);
        rig.write(file, 0, &[byte]);
        rig.machine.close(file);
    }
    rig.done(rename("/a", "/b"));
    assert_eq!((rig.content("/a"), rig.content("/b")), (None, Some(vec![1])));
    rig.done(link("/b", "/d/c"));
    rig.done(rename("/b", "/d/c"));
    assert!(rig.content("/b").is_some(), "two names of one file: rename(2) does nothing");
    rig.done(rename("/b", "/d/x"));
    assert_eq!(rig.names("/d"), ["c", "e", "x"]);
    assert_eq!(metadata(&mut rig, MetaRequest::Metadata { path: path("/d/x") }).links(), 2);
    for (request, errno) in [
        (rename("/none", "/y"), libc::ENOENT),
        (rename("/d", "/d/e/y"), libc::EINVAL),
        (rename("/d/c", "/f"), libc::EISDIR),
        (rename("/f", "/d/c"), libc::ENOTDIR),
        (rename("/f", "/d"), libc::ENOTEMPTY),
        (rename("/d/e", "/d"), libc::ENOTEMPTY),
        (rename("/d/c", "/none/y"), libc::ENOENT),
        (link("/d/c", "/d/x"), libc::EEXIST),
        (link("/d", "/y"), libc::EPERM),
        (link("/none", "/y"), libc::ENOENT),
        (MetaRequest::RemoveFile { path: path("/d") }, libc::EISDIR),
        (MetaRequest::RemoveFile { path: path("/none") }, libc::ENOENT),
        (MetaRequest::RemoveDir { path: path("/d") }, libc::ENOTEMPTY),
        (MetaRequest::RemoveDir { path: path("/d/c") }, libc::ENOTDIR),
        (MetaRequest::RemoveDir { path: path("/") }, libc::EBUSY),
        (MetaRequest::CreateDir { path: path("/d") }, libc::EEXIST),
        (MetaRequest::CreateDirAll { path: path("/d/c/z") }, libc::ENOTDIR),
        (MetaRequest::CreateDirAll { path: path("/d/c") }, libc::EEXIST),
        (MetaRequest::SyncDir { path: path("/d/c") }, libc::ENOTDIR),
        (MetaRequest::ReadDir { path: path("/none") }, libc::ENOENT),
        (MetaRequest::Metadata { path: path("/none") }, libc::ENOENT),
    ] {
        let text = format!("{request:?}");
        let error = rig.ask(request).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno), "{text}: {error}");
        assert!(error.path().is_some());
    }
    let error = rig.ask(rename("/none", "/y")).unwrap_err().to_string();
    assert!(error.contains("/none") && error.contains("to /y"), "{error}");
    let error = rig.ask(rename("/d/c", "/none/y")).unwrap_err().to_string();
    assert!(error.contains("cannot open the directory /none"), "{error}");
    assert_eq!(rig.ask(rename("/", "/y")).unwrap_err().kind(), ErrorKind::InvalidInput);
    rig.done(MetaRequest::CreateDirAll { path: path("/d/e/f/g") });
    rig.done(MetaRequest::CreateDirAll { path: path("/d/e/f/g") });
    rig.done(rename("/d/e", "/f"));
    assert_eq!(rig.names("/f/f"), ["g"]);
    rig.done(MetaRequest::RemoveDir { path: path("/f/f/../f/g") });
    assert!(rig.names("/f/f").is_empty());
}

#[test]
fn metadata_tells_what_is_there() {
    let mut rig = Rig::with(Source::new(1), []);
    rig.done(MetaRequest::CreateDir { path: path("/d") });
    let file = rig.open("/d/a", OpenHow { mode: 0o640, ..CREATE });
    rig.write(file, 8192, &[1; 512]);
    let found = metadata(&mut rig, MetaRequest::FileMetadata { file: owner(file) });
    assert_eq!((found.len(), found.blocks_bytes(), found.links()), (8704, 4096, 1));
    assert_eq!((found.is_file(), found.mode()), (true, 0o100_640));
    let named = metadata(&mut rig, MetaRequest::Metadata { path: path("d/a") });
    assert_eq!(named, found);
    let dir = metadata(&mut rig, MetaRequest::Metadata { path: path("/") });
    assert!(dir.is_dir() && dir.links() == 3 && dir.inode() != found.inode());
    assert!(found.modified() > dir.created());
    assert_eq!(rig.errno(MetaRequest::FileMetadata { file: owner(77) }), libc::EBADF);
}

#[test]
fn lengths_and_holes() {
    let mut rig = Rig::with(Source::new(1), []);
    let file = rig.open("/a", CREATE);
    let reader = rig.open("/a", OpenHow { write: false, create: false, ..CREATE });
    rig.write(file, 0, &[1; 16 << 10]);
    let truncate = |file, len| MetaRequest::Truncate { file: owner(file), len };
    let allocate = |file, offset, len| MetaRequest::Allocate { file: owner(file), offset, len };
    rig.done(truncate(file, 5000));
    rig.done(truncate(file, 9000));
    let read = rig.read(file, 0, 16 << 10).unwrap();
    assert_eq!(read.len(), 9000);
    assert!(read[..5000].iter().all(|&byte| byte == 1) && read[5000..].iter().all(|&byte| byte == 0));
    rig.done(allocate(file, 0, 1 << 30));
    let found = metadata(&mut rig, MetaRequest::FileMetadata { file: owner(file) });
    assert_eq!((found.len(), found.blocks_bytes()), (1 << 30, 1 << 30));
    rig.done(MetaRequest::PunchHole { file: owner(file), offset: 100, len: 1 << 20 });
    let found = metadata(&mut rig, MetaRequest::FileMetadata { file: owner(file) });
    assert_eq!((found.len(), found.blocks_bytes()), (1 << 30, (1 << 30) - (1 << 20) + 4096));
    let read = rig.read(file, 0, 512).unwrap();
    assert_eq!((&read[..100], &read[100..]), (&[1; 100][..], &[0; 412][..]));
    for (request, errno) in [
        (truncate(file, 1 << 63), libc::EINVAL),
        (truncate(file, 1 << 62), libc::EFBIG),
        (truncate(reader, 0), libc::EINVAL),
        (allocate(file, 0, 0), libc::EINVAL),
        (allocate(file, 1 << 63, 1), libc::EINVAL),
        (allocate(file, 1 << 62, 1), libc::EFBIG),
        (allocate(file, 0, 1 << 41), libc::ENOSPC),
        (allocate(reader, 0, 1), libc::EBADF),
        (MetaRequest::PunchHole { file: owner(file), offset: 0, len: 0 }, libc::EINVAL),
    ] {
        let error = rig.ask(request).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    }
}

#[test]
fn zeros_are_written_where_the_disk_has_it() {
    for has in [true, false] {
        let mut rig = Rig::new(1, Profile::ideal().write_zeros(has));
        let file = rig.open("/a", CREATE);
        rig.write(file, 0, &[1; 8 << 10]);
        let zeros = MetaRequest::WriteZeros { file: owner(file), offset: 4 << 10, len: 12 << 10 };
        let asked = rig.ask(zeros);
        let found = metadata(&mut rig, MetaRequest::FileMetadata { file: owner(file) });
        let read = rig.read(file, 0, 16 << 10).unwrap();
        assert!(read[..4 << 10].iter().all(|&byte| byte == 1));
        if has {
            asked.unwrap();
            assert_eq!((found.len(), found.blocks_bytes(), read.len()), (16 << 10, 16 << 10, 16 << 10));
            assert!(read[4 << 10..].iter().all(|&byte| byte == 0));
        } else {
            assert_eq!(asked.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
            assert!(read[..] == [1; 8 << 10]);
        }
    }
}

#[test]
fn locks_are_those_of_flock() {
    let mut rig = Rig::with(Source::new(1), []);
    let (one, two) = (rig.open("/a", CREATE), rig.open("/a", CREATE));
    let lock = |file, lock| MetaRequest::TryLock { file: owner(file), lock };
    rig.done(lock(one, Lock::Shared));
    rig.done(lock(two, Lock::Shared));
    rig.done(lock(two, Lock::Shared));
    assert_eq!(rig.ask(lock(two, Lock::Exclusive)).unwrap_err().kind(), ErrorKind::Locked);
    // The failed attempt had already released the shared lock.
    rig.done(lock(one, Lock::Exclusive));
    assert_eq!(rig.ask(lock(two, Lock::Shared)).unwrap_err().kind(), ErrorKind::Locked);
    rig.done(MetaRequest::Unlock { file: owner(one) });
    rig.done(lock(two, Lock::Exclusive));
    rig.machine.close(two);
    rig.done(lock(one, Lock::Exclusive));
    rig.cut();
    let file = rig.open("/a", CREATE);
    rig.done(lock(file, Lock::Exclusive));
}

#[test]
fn copies_end_with_the_source() {
    let mut rig = Rig::new(1, Profile::ideal().capacity(2 << 20));
    let (from, to) = (rig.open("/a", BUFFERED), rig.open("/b", CREATE));
    let bytes: Vec<u8> = (0..700_001u32).map(|at| (at * 31 % 251) as u8).collect();
    rig.write(from, 0, &bytes);
    let copy = |from: u32, offset, len, to: u32, to_offset| MetaRequest::CopyRange {
        from: owner(from),
        offset,
        len,
        to: owner(to),
        to_offset,
    };
    let copied = |reply: Result<MetaReply>| match reply.unwrap() {
        MetaReply::Copied(bytes) => bytes,
        other => panic!("{other:?}"),
    };
    assert_eq!(copied(rig.ask(copy(from, 3, 700_001, to, 5))), 699_998);
    let other = rig.open("/b", BUFFERED);
    assert_eq!(rig.read(other, 5, 1 << 20).unwrap(), bytes[3..]);
    assert_eq!(copied(rig.ask(copy(from, 700_001, 5, to, 0))), 0);
    assert_eq!(copied(rig.ask(copy(from, 700_000, (1 << 63) - 1 - 700_000, to, 9))), 1);
    assert_eq!(rig.ask(copy(from, 0, 50, from, 49)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(rig.ask(copy(from, u64::MAX, 2, to, 0)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(rig.errno(copy(from, 0, 700_001, to, 1 << 20)), libc::ENOSPC);
}

#[test]
fn disks_are_mounted_in_one_tree() {
    let mut rig = Rig::with(Source::new(1), [Profile::nand().at("/data/log"), Profile::ideal()]);
    assert_eq!(rig.names("/data"), ["log"]);
    let file = rig.opened(MetaRequest::Open { path: path("/data/log/a"), how: CREATE }).unwrap();
    assert_eq!(file.disk_name, "sim0");
    let across = |to: &str| MetaRequest::Rename { from: path("/data/log/a"), to: path(to) };
    assert_eq!(rig.errno(across("/data/b")), libc::EXDEV);
    rig.done(across("/data/log/b"));
    assert_eq!(rig.errno(MetaRequest::RemoveDir { path: path("/data/log") }), libc::EBUSY);
    rig.cut();
    assert_eq!(rig.names("/data"), ["log"]);
    assert_eq!(rig.names("/data/log"), ["b"]);
}
