//! The cursor is the descriptor's: clones and files of the standard library share it.

use std::io::{Read, Seek, SeekFrom, Write};

use forebay_fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::common::{bytes, dir};

#[tokio::test]
async fn clones_share_it() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(1_000)).unwrap();
    let mut file = File::open(&path).await.unwrap();
    let mut clone = file.try_clone().await.unwrap();
    let mut part = [0; 100];
    for turn in 0..10 {
        let reader = if turn % 2 == 0 { &mut file } else { &mut clone };
        reader.read_exact(&mut part).await.unwrap();
        assert_eq!(part, bytes(1_000)[turn * 100..][..100]);
    }
    clone.seek(SeekFrom::Start(300)).await.unwrap();
    assert_eq!(file.stream_position().await.unwrap(), 300);
}

/// Many readers of one cursor: each byte is read once, as read(2) promises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_clones_at_the_same_time_overlap_nowhere() {
    let dir = dir();
    let path = dir.path().join("file");
    let numbers: Vec<u8> = (0..8_000_u64).flat_map(u64::to_le_bytes).collect();
    std::fs::write(&path, &numbers).unwrap();
    let file = File::open(&path).await.unwrap();
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut clone = file.try_clone().await.unwrap();
        readers.push(tokio::spawn(async move {
            let mut found = Vec::new();
            let mut number = [0; 8];
            while clone.read(&mut number).await.unwrap() == 8 {
                found.push(u64::from_le_bytes(number));
            }
            found
        }));
    }
    let mut all = Vec::new();
    for reader in readers {
        all.extend(reader.await.unwrap());
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(0..8_000));
}

#[tokio::test]
async fn files_of_the_standard_library_share_it() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes(1_000)).unwrap();
    let mut std = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    std.seek(SeekFrom::Start(100)).unwrap();
    let mut file = File::from_std(std.try_clone().unwrap());
    let mut part = [0; 50];
    file.read_exact(&mut part).await.unwrap();
    assert_eq!(part, bytes(1_000)[100..150]);
    assert_eq!(std.stream_position().unwrap(), 150);

    std.write_all(b"here").unwrap();
    file.write_all(b"there").await.unwrap();
    file.flush().await.unwrap();
    assert_eq!(std.stream_position().unwrap(), 159);

    let mut back = file.into_std().await;
    back.seek(SeekFrom::Start(150)).unwrap();
    let mut text = String::new();
    (&mut std).take(9).read_to_string(&mut text).unwrap();
    assert_eq!(text, "herethere");
}

#[tokio::test]
async fn appended_bytes_leave_it_at_the_end() {
    let dir = dir();
    let path = dir.path().join("log");
    std::fs::write(&path, "first,").unwrap();
    let mut one = File::options().append(true).open(&path).await.unwrap();
    let mut other = File::options().append(true).open(&path).await.unwrap();
    for turn in 0..4 {
        let (writer, text) = if turn % 2 == 0 { (&mut one, "one,") } else { (&mut other, "other,") };
        writer.write_all(text.as_bytes()).await.unwrap();
        writer.flush().await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "first,one,other,one,other,");
    assert_eq!(other.stream_position().await.unwrap(), 26);
    assert_eq!(one.stream_position().await.unwrap(), 20);
}
