//! Ranges without a cursor, in each mode.

use std::io::{ErrorKind, IoSliceMut};
use std::path::Path;
use std::process::Command;

use forebay_fs::{File, OpenOptions};
use forebay_test::draw::Random;
use futures::future::join_all;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::common::{bytes, dir};

const LEN: u64 = 20 << 20;

/// Opens the same file in every way; without direct I/O on file systems that lack it.
async fn open_in_all_ways(path: &Path) -> Vec<(&'static str, File)> {
    let mut options = OpenOptions::new();
    options.read(true);
    let mut files = vec![("read alone", options.open(path).await.unwrap())];
    files.push(("read and write", options.clone().write(true).open(path).await.unwrap()));
    files.push(("adaptive", options.clone().adaptive(true).open(path).await.unwrap()));
    match options.clone().direct(true).open(path).await {
        Ok(file) => files.push(("direct", file)),
        Err(error) => println!("skipped: no direct I/O here: {error}"),
    }
    let clone = files[0].1.try_clone().await.unwrap();
    files.push(("a clone", clone));
    files.push(("from std", File::from_std(std::fs::File::open(path).unwrap())));
    files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_ranges_return_their_bytes() {
    let dir = dir();
    let path = dir.path().join("file");
    let expected = bytes(LEN);
    std::fs::write(&path, &expected).unwrap();
    for (way, file) in open_in_all_ways(&path).await {
        let mut random = Random(7);
        let reads = (0..200).map(|_| {
            let (offset, len) = (random.below(LEN), random.below(20_000));
            let (file, expected) = (&file, &expected);
            async move {
                let mut part = vec![0; len as usize];
                let end = (offset + len) as usize;
                match file.read_exact_at(&mut part, offset).await {
                    Ok(()) => assert!(part == expected[offset as usize..end], "{way}, {offset}, {len}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{way}, {offset}, {len}: {error}");
                        assert!(end > expected.len(), "{way}, {offset}, {len}");
                    }
                }
            }
        });
        join_all(reads).await;
        let mut most = vec![0; LEN as usize - 3];
        file.read_exact_at(&mut most, 3).await.unwrap();
        assert!(most == expected[3..], "{way}");
        file.read_exact_at(&mut [0; 2], LEN - 1).await.unwrap_err();
        file.read_exact_at(&mut [], LEN + 5).await.unwrap();

        let (mut one, mut none, mut other) = ([0; 100], [], [0; 5_000]);
        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut none), IoSliceMut::new(&mut other)];
        assert_eq!(file.read_vectored_at(&mut parts, 5_000).await.unwrap(), 5_100, "{way}");
        assert_eq!(one, expected[5_000..5_100], "{way}");
        assert_eq!(other, expected[5_100..10_100], "{way}");
        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut other)];
        assert_eq!(file.read_vectored_at(&mut parts, LEN - 150).await.unwrap(), 150, "{way}");
        assert_eq!(other[..50], expected[LEN as usize - 50..], "{way}");
    }
}

/// Reads at the cursor use the engine from the third read on that waits. They are the same.
#[tokio::test]
async fn reads_at_the_cursor_are_the_same_in_each_mode() {
    let dir = dir();
    let path = dir.path().join("file");
    let expected = bytes(LEN);
    std::fs::write(&path, &expected).unwrap();
    for (way, mut file) in open_in_all_ways(&path).await {
        // A clone's cursor is the first file's, which is at the end.
        file.rewind().await.unwrap();
        let mut random = Random(11);
        let mut cursor = 0;
        let mut part = vec![0; 3 << 20];
        while cursor < expected.len() {
            let len = 1 + random.below(3 << 20) as usize;
            let count = file.read(&mut part[..len]).await.unwrap();
            assert!(count > 0 && part[..count] == expected[cursor..cursor + count], "{way}, {cursor}, {len}");
            cursor += count;
            if random.below(4) == 0 {
                assert_eq!(file.stream_position().await.unwrap(), cursor as u64, "{way}");
            }
        }
        assert_eq!(file.read(&mut part).await.unwrap(), 0, "{way}");
        let mut std = file.into_std().await;
        assert_eq!(std::io::Seek::stream_position(&mut std).unwrap(), LEN, "{way}");
    }
}

#[tokio::test]
async fn writes_of_ranges_leave_the_cursor_and_come_in_order() {
    let dir = dir();
    let path = dir.path().join("file");
    let mut file = File::options().read(true).write(true).create(true).open(&path).await.unwrap();
    file.write_all(&[1; 10_000]).await.unwrap();
    // Behind the bytes that were accepted before.
    file.write_all_at(&[2; 100], 50).await.unwrap();
    file.write_all(&[3; 10]).await.unwrap();
    let mut found = vec![0; 10_010];
    file.read_exact_at(&mut found, 0).await.unwrap();
    let mut expected = vec![1; 10_000];
    expected[50..150].fill(2);
    expected.extend([3; 10]);
    assert!(found == expected);
    file.sync_range(50..150).await.unwrap();
    file.sync_range(7..7).await.unwrap();
    assert_eq!(file.stream_position().await.unwrap(), 10_010);
}

#[tokio::test]
async fn direct_files_take_whole_blocks() {
    let dir = dir();
    let path = dir.path().join("file");
    for (way, is_direct) in [("direct", true), ("adaptive", false)] {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true);
        let opened = if is_direct { options.direct(true) } else { options.adaptive(true) }.open(&path).await;
        let Ok(mut file) = opened else { return println!("skipped: no direct I/O here") };
        file.write_all(&bytes(1 << 20)).await.unwrap();
        file.write_all(&bytes(8192)).await.unwrap();
        file.flush().await.unwrap();
        file.write_all_at(&[9; 4096], 4096).await.unwrap();
        let mut expected = bytes(1 << 20);
        expected[4096..8192].fill(9);
        expected.extend(bytes(8192));
        assert!(std::fs::read(&path).unwrap() == expected, "{way}");
        file.rewind().await.unwrap();
        let mut found = Vec::new();
        file.read_to_end(&mut found).await.unwrap();
        assert!(found == expected, "{way}");
    }
}

/// Regression: such a file opened, and each write to it failed with EINVAL.
#[tokio::test]
async fn direct_files_do_not_append() {
    let dir = dir();
    let path = dir.path().join("file");
    let mut options = OpenOptions::new();
    options.append(true).create(true).direct(true);
    assert_eq!(options.open(&path).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut file = options.adaptive(true).open(&path).await.unwrap();
    file.write_all(&bytes(100)).await.unwrap();
    file.flush().await.unwrap();
    assert!(std::fs::read(&path).unwrap() == bytes(100));
}

/// A new file that could not be direct stayed there, empty. The program opened it again as its error said, and failed because it
/// existed.
#[tokio::test]
async fn a_new_file_that_is_refused_does_not_stay() {
    let dir = dir();
    let path = dir.path().join("file");
    let mut options = OpenOptions::new();
    options.append(true).create_new(true);
    let refused = options.clone().direct(true).open(&path).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    drop(options.open(&path).await.unwrap());

    let ram = dir.path().join("ram");
    std::fs::create_dir(&ram).unwrap();
    let mounted = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&ram).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no file system without direct I/O can be mounted here");
    }
    let path = ram.join("file");
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let refused = options.clone().direct(true).open(&path).await.map(drop);
    let buffered = options.open(&path).await.map(drop);
    let exists = options.direct(true).open(&path).await.map(drop);
    assert!(Command::new("umount").arg("--lazy").arg(&ram).status().unwrap().success());
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    buffered.unwrap();
    assert_eq!(exists.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

/// A program that set both modes from its settings, `adaptive(true)` and then `direct(false)`, had a file that used the page cache
/// alone.
#[tokio::test]
async fn a_mode_that_is_not_wanted_leaves_the_other() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(5_000)).unwrap();
    for (adaptive, direct) in [(true, false), (false, true), (false, false)] {
        let (mut one, mut other) = (OpenOptions::new(), OpenOptions::new());
        one.read(true).adaptive(adaptive).direct(direct);
        other.read(true).direct(direct).adaptive(adaptive);
        for options in [one, other] {
            let file = options.open(&path).await.unwrap();
            let flags = rustix::fs::fcntl_getfl(&file).unwrap();
            let is_direct = flags.contains(rustix::fs::OFlags::DIRECT);
            assert_eq!(is_direct, adaptive || direct, "adaptive: {adaptive}, direct: {direct}");
        }
    }
}
