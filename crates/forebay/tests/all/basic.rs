//! The operations of a file from plain threads, Tokio, another executor and shard tasks.

use crate::common::{bytes_of, dir, engine, write_file};
use forebay::{Class, Durability, ErrorKind, Open, shard};

#[test]
fn reads_any_range_from_a_plain_thread() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 100_003);
    for open in [Open::read(), Open::read().buffered(), Open::read().uncached()] {
        let file = engine.open(&path, open).wait().unwrap();
        for range in [0..1, 0..4096, 1..2, 511..513, 4095..4097, 99_999..100_003, 0..100_003, 50..50] {
            let block = file.read(range.clone()).wait().unwrap();
            assert_eq!(&block[..], &bytes_of(range.clone())[..], "{range:?} {open:?}");
        }
        let error = file.read(100_000..100_010).wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof { got: 3 });
        assert_eq!(file.read_up_to(100_000..100_010).wait().unwrap().len(), 3);
        assert_eq!(file.read_up_to(200_000..200_010).wait().unwrap().len(), 0);
        file.close().wait().unwrap();
    }
}

#[test]
fn writes_and_syncs() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    let file = engine.open(&path, Open::create_new()).wait().unwrap();
    let data = bytes_of(0..8192);
    file.write(0, &data[..]).durable(Durability::Data).wait().unwrap();
    let mut block = engine.block(4096).unwrap();
    block.copy_from_slice(&bytes_of(8192..12288));
    file.write(8192, block).wait().unwrap();
    let shared = file.read(0..4096).wait().unwrap();
    file.write(12288, shared.clone()).durable(Durability::All).wait().unwrap();
    file.sync(Durability::Data).wait().unwrap();
    let mut expected = bytes_of(0..12288);
    expected.extend_from_slice(&bytes_of(0..4096));
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    let error = file.write(1, &data[..]).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Misaligned { .. }), "{error}");
    let (result, block) = file.read_into(4096, engine.block(4096).unwrap()).wait();
    assert_eq!(result.unwrap(), 4096);
    assert_eq!(&block[..], &bytes_of(4096..8192)[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_from_tokio() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).await.unwrap();
    let tasks: Vec<_> = (0..200u64)
        .map(|n| {
            let file = file.clone();
            tokio::spawn(async move {
                let range = n * 5000..n * 5000 + 3000;
                assert_eq!(&file.read(range.clone()).await.unwrap()[..], &bytes_of(range)[..]);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let report = engine.close().await.unwrap();
    assert_eq!(report.leaked_operations, 0);
    assert_eq!(file.read(0..1).await.unwrap_err().kind(), ErrorKind::EngineClosed);
}

#[test]
fn works_on_a_shard() {
    let (engine, dir) = (engine(), dir());
    let path = dir.path().join("a");
    write_file(&path, 1 << 20);
    let file = engine.open(&path, Open::read()).wait().unwrap();
    let held = engine.clone();
    let task = engine.spawn_on_shard(0, Class::DEFAULT, move || async move {
        let mut tasks = Vec::new();
        for n in 0..100u64 {
            let file = file.clone();
            tasks.push(
                shard::spawn(async move {
                    let range = n * 5000..n * 5000 + 3000;
                    assert_eq!(&file.read(range.clone()).await.unwrap()[..], &bytes_of(range)[..]);
                    shard::sleep(std::time::Duration::from_micros(n)).await.unwrap();
                })
                .unwrap(),
            );
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(file.read(0..1).wait().unwrap_err().kind(), ErrorKind::WaitOnShard);
        held.nop().await.unwrap();
    });
    task.wait().unwrap();
    let stats = engine.stats().wait().unwrap();
    assert_eq!(stats.flows.iter().map(|flow| flow.reads).sum::<u64>(), 100);
}
