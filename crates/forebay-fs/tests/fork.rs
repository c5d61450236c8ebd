//! A separate program: it forks, and until a child has ended it holds every descriptor of the process.

#![cfg(target_os = "linux")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use forebay_fs::{File, OpenOptions};
use forebay_test::children::{all_descriptors, in_fork, set_limit};
use forebay_test::draw::bytes_of;
use futures::executor::block_on;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

/// Uses threads and engine of a process in all ways.
async fn work(dir: &std::path::Path, name: &str) -> std::io::Result<()> {
    let path = dir.join(name);
    let mut file = File::create(&path).await?;
    file.write_all(&bytes_of(0..100_000)).await?;
    file.flush().await?;
    let file = OpenOptions::new().read(true).adaptive(true).open(&path).await?;
    let mut part = vec![0; 50_000];
    file.read_exact_at(&mut part, 777).await?;
    assert!(part == bytes_of(777..50_777));
    forebay_fs::engine()?.nop().await?;
    Ok(())
}

/// The parent's threads and shards are not in the child, and its locks may be held there for ever.
#[test]
fn a_forked_child_has_threads_and_an_engine_of_its_own() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    block_on(work(dir.path(), "parent")).unwrap();
    let mut inherited = block_on(File::open(dir.path().join("parent"))).unwrap();
    for round in 0..3 {
        let code = in_fork(|| {
            let done = block_on(async {
                work(dir.path(), &format!("child {round}")).await?;
                let mut part = [0; 100];
                inherited.read_exact_at(&mut part, 5).await?;
                assert_eq!(part, bytes_of(5..105)[..]);
                inherited.read_exact(&mut part).await.map(drop)
            });
            done.map_or(1, |()| 0)
        });
        assert_eq!(code, 0);
        block_on(work(dir.path(), "parent")).unwrap();
    }
}

/// Regression: a child that was forked while a thread of its parent opened the file in the engine waited for that thread.
#[test]
fn a_child_that_is_forked_during_an_open_reads() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    block_on(work(dir.path(), "parent")).unwrap();
    let path = dir.path().join("long");
    // More than is tried in the page cache.
    let expected = bytes_of(0..2 << 20);
    std::fs::write(&path, &expected).unwrap();
    for _ in 0..8 {
        let file = block_on(File::open(&path)).unwrap();
        let mut part = vec![0; expected.len()];
        let mut read = pin!(file.read_exact_at(&mut part, 0));
        // The open in the engine is under way, or over.
        let _ = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let code = in_fork(|| {
            let mut part = vec![0; expected.len()];
            let read = block_on(file.read_exact_at(&mut part, 0));
            u8::from(read.is_err() || part != expected)
        });
        assert_eq!(code, 0);
    }
}

/// Regression: a thread that looked at a file of `from_std` had a lock, and so had one that read at the cursor of an adaptive file. A
/// child that was forked meanwhile and used the file waited for the thread, which it does not have.
#[test]
fn a_child_waits_for_no_lock_of_its_parents_threads() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes_of(0..2 << 20)).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..8 {
        let given = [(); 16].map(|()| File::from_std(std::fs::File::open(&path).unwrap()));
        let mut own = block_on(OpenOptions::new().read(true).adaptive(true).open(&path)).unwrap();
        let mut clone = block_on(own.try_clone()).unwrap();
        let mut parts = [[0_u8; 100]; 16];
        let reads = given.iter().zip(&mut parts).map(|(file, part)| Box::pin(file.read_exact_at(part, 5)));
        let mut reads: Vec<_> = reads.collect();
        let mut whole = vec![0; 2 << 20];
        let mut read = pin!(own.read(&mut whole));
        // On their way to a thread, or there.
        let _ = read.as_mut().poll(&mut context);
        for read in &mut reads {
            let _ = read.as_mut().poll(&mut context);
        }
        let code = in_fork(|| {
            let mut part = [0; 100];
            for file in &given {
                block_on(file.read_exact_at(&mut part, 5)).unwrap();
                assert_eq!(part, bytes_of(5..105)[..]);
            }
            // Without direct I/O it is as any other file.
            if let Err(error) = block_on(clone.read(&mut part)) {
                assert!(error.to_string().contains("open it again in the child"), "{error}");
            }
            0
        });
        assert_eq!(code, 0);
    }
}

/// Regression: where an adaptive file found no descriptor for its first read or write, all failed with "Invalid argument" from then
/// on. They had become the system's calls, whose memory is not aligned.
#[test]
fn an_adaptive_file_works_once_a_descriptor_is_free() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    std::fs::write(&path, bytes_of(0..100_000)).unwrap();
    let code = in_fork(|| {
        set_limit(libc::RLIMIT_NOFILE, 256);
        // It has its descriptors before the others are used up.
        forebay_fs::engine().unwrap();
        let open = || block_on(OpenOptions::new().read(true).write(true).adaptive(true).open(&path)).unwrap();
        let (mut at_cursor, at_offsets, written) = (open(), open(), open());
        let mut part = [0; 500];
        let own = all_descriptors();
        let results = [
            block_on(at_cursor.read_exact(&mut part)).map(drop),
            block_on(at_offsets.read_exact_at(&mut part, 777)),
            block_on(written.write_all_at(&bytes_of(0..4096), 0)),
        ];
        drop(own);
        for result in results {
            // Without direct I/O it is as any other file.
            if let Err(error) = result {
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
            }
        }
        block_on(at_cursor.rewind()).unwrap();
        block_on(at_cursor.read_exact(&mut part)).unwrap();
        assert_eq!(part, bytes_of(0..500)[..]);
        block_on(at_offsets.read_exact_at(&mut part, 777)).unwrap();
        assert_eq!(part, bytes_of(777..1277)[..]);
        block_on(written.write_all_at(&bytes_of(4096..8192), 4096)).unwrap();
        0
    });
    assert_eq!(code, 0);
}
