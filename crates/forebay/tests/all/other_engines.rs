//! Memory of one engine in operations of another, and files that were opened elsewhere.
//!
//! Regression: a block of one engine written through a file of another ended in a bare EFAULT with io_uring:
//! the request named the other engine's memory by its number, and to the kernel that number is a region of
//! this engine's memory.

use crate::common::{bytes_of, config, dir};
use forebay::{DriverChoice, Durability, Engine, ErrorKind, Open};

/// Checks that blocks of `theirs` are accepted by every write into files of `ours`.
fn is_taken(ours: &Engine, theirs: &Engine) {
    let dir = dir();
    let block = |range| theirs.block_from(&bytes_of(range)).unwrap();
    for (number, open) in [Open::create(), Open::create().buffered()].into_iter().enumerate() {
        let file = ours.open(dir.path().join(number.to_string()), open).wait().unwrap();
        let read = |range| file.read(range).wait().unwrap().to_vec();

        file.write(0, block(0..8192).freeze()).wait().unwrap();
        file.write(8192, block(8192..16384)).durable(Durability::Data).wait().unwrap();
        file.write(16384, block(16384..24576).freeze().slice(4096..).unwrap()).wait().unwrap();
        assert_eq!(read(0..16384), bytes_of(0..16384));
        assert_eq!(read(16384..20480), bytes_of(20480..24576));

        let (read_bytes, taken) = file.read_into(4096, theirs.block(8192).unwrap()).wait();
        assert_eq!(read_bytes.unwrap(), 8192);
        assert_eq!(&taken[..], &bytes_of(4096..12288)[..]);

        let mut append = file.append().at(1 << 20).start();
        append.write_block(block(0..100_000).freeze()).wait().unwrap();
        append.sync(Durability::Data).wait().unwrap();
        append.close().wait().unwrap();
        assert_eq!(read(1 << 20..(1 << 20) + 100_000), bytes_of(0..100_000));
    }
    // And back: bytes read here are written there.
    let file = ours.open(dir.path().join("0"), Open::read()).wait().unwrap();
    let there = theirs.open(dir.path().join("there"), Open::create_new()).wait().unwrap();
    there.write(0, file.read(0..8192).wait().unwrap()).wait().unwrap();
    assert_eq!(std::fs::read(dir.path().join("there")).unwrap(), bytes_of(0..8192));
}

#[test]
fn blocks_of_another_engine_are_written_and_filled() {
    for driver in [DriverChoice::Auto, DriverChoice::Threads] {
        let start = || Engine::start(config().driver(driver).shards(1)).unwrap();
        is_taken(&start(), &start());
        let engine = start();
        is_taken(&engine, &engine);
    }
}

/// Regression: `from_std` accepted a file that was opened with `O_APPEND`, and `write(0, ..)` landed at its end with success.
#[test]
fn a_file_opened_to_append_is_refused() {
    let (engine, dir) = (Engine::start(config()).unwrap(), dir());
    let path = dir.path().join("log");
    std::fs::write(&path, b"first").unwrap();
    let appending = std::fs::File::options().append(true).read(true).open(&path).unwrap();
    let error = engine.from_std(appending, Open::write().buffered()).wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let text = error.to_string();
    assert!(text.contains("O_APPEND") && text.contains("File::append"), "{text}");
    let plain = std::fs::File::options().write(true).read(true).open(&path).unwrap();
    let file = engine.from_std(plain, Open::write().buffered()).wait().unwrap();
    file.write(0, b"FIRST").wait().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"FIRST");
}
