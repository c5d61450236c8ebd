//! Everything that open(2) opens: pipes, devices, procfs, directories.

use std::process::Command;

use forebay_fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::common::{bytes, comparable, dir};

#[tokio::test]
async fn pipes_are_opened_read_and_written() {
    let dir = dir();
    let path = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    // Each open waits for the other one.
    let write = async {
        let mut file = File::options().write(true).open(&path).await.unwrap();
        file.write_all(&bytes(3 << 20)).await.unwrap();
        file.flush().await.unwrap();
        file.seek(std::io::SeekFrom::Start(0)).await.unwrap_err();
    };
    let read = async {
        let mut file = File::open(&path).await.unwrap();
        let mut all = Vec::new();
        file.read_to_end(&mut all).await.unwrap();
        all
    };
    let ((), all) = futures::future::join(write, read).await;
    assert!(all == bytes(3 << 20));
}

#[tokio::test]
async fn devices_are_as_in_tokio() {
    let mut null = File::options().read(true).write(true).open("/dev/null").await.unwrap();
    null.write_all(&bytes(100_000)).await.unwrap();
    null.flush().await.unwrap();
    assert_eq!(null.read(&mut [0; 10]).await.unwrap(), 0);

    let mut zero = File::open("/dev/zero").await.unwrap();
    let mut part = vec![1; 70_000];
    zero.read_exact(&mut part).await.unwrap();
    assert_eq!(part, vec![0; 70_000]);

    let mut ours = File::options().write(true).open("/dev/full").await.unwrap();
    let mut tokios = tokio::fs::File::options().write(true).open("/dev/full").await.unwrap();
    assert_eq!(comparable(ours.write(b"abc").await), comparable(tokios.write(b"abc").await));
    assert_eq!(comparable(ours.flush().await), comparable(tokios.flush().await));
    assert_eq!(comparable(ours.flush().await), comparable(tokios.flush().await));
}

#[tokio::test]
async fn files_of_procfs_are_read_whole() {
    for path in ["/proc/version", "/proc/filesystems", "/proc/self/limits", "/proc/sys/kernel/ostype"] {
        let expected = std::fs::read(path).unwrap();
        assert_eq!(forebay_fs::read(path).await.unwrap().len(), expected.len(), "{path}");
        let mut file = File::open(path).await.unwrap();
        for _ in 0..4 {
            let mut contents = Vec::new();
            file.read_to_end(&mut contents).await.unwrap();
            assert_eq!(contents.len(), expected.len(), "{path}");
            file.rewind().await.unwrap();
        }
        let mut first = [0; 4];
        file.read_exact_at(&mut first, 0).await.unwrap();
        assert_eq!(first, expected[..4], "{path}");
    }
}

#[tokio::test]
async fn directories_are_synced_and_not_read() {
    let dir = dir();
    let mut ours = File::open(dir.path()).await.unwrap();
    let mut tokios = tokio::fs::File::open(dir.path()).await.unwrap();
    ours.sync_all().await.unwrap();
    ours.sync_data().await.unwrap();
    assert!(ours.metadata().await.unwrap().is_dir());
    let (mut one, mut other) = ([0; 10], [0; 10]);
    assert_eq!(comparable(ours.read(&mut one).await), comparable(tokios.read(&mut other).await));
    ours.read_exact_at(&mut one, 0).await.unwrap_err();
}
