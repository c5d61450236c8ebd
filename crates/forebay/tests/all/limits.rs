//! Every number that a program can set, with 0, with 1 and with the largest value: it works, is documented to count as another one,
//! or is refused with a sentence. Nothing panics and nothing requests memory that no machine has.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use std::ops::Range;

use forebay::{Block, Class, ClassSpec, Config, Engine, Error, ErrorKind, Open, Step, Walk};

/// Returns the settings of a small engine, so that a setting that makes it larger shows.
fn config() -> Config {
    Config::new().shards(1).arena_bytes(1 << 20).arena_bytes_max(32 << 20)
}

fn time(n: u64) -> Duration {
    if n == u64::MAX { Duration::MAX } else { Duration::from_nanos(n) }
}

/// Writes and reads through an engine; returns the reason if the engine was refused.
fn use_of(config: Config, dir: &std::path::Path) -> Result<(), String> {
    let engine = Engine::start(config).map_err(|error| {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        error.to_string()
    })?;
    let file = engine.open(dir.join("engine"), Open::create()).wait().unwrap();
    file.write(0, engine.block_from(&[7; 8192]).unwrap()).wait().unwrap();
    assert_eq!(file.read(0..8192).wait().unwrap()[..], [7; 8192]);
    drop(file);
    engine.close().wait().unwrap();
    Ok(())
}

/// Regression: `inbox_depth(usize::MAX)` panicked with a capacity overflow in `Engine::start`.
#[test]
fn every_number_of_the_configuration_works_or_is_refused_with_a_sentence() {
    type Set = fn(Config, u64) -> Config;
    let settings: [(&str, Set); 9] = [
        ("shards", |config, n| config.shards(n as usize)),
        ("arena_bytes", |config, n| {
            config.arena_bytes(n as usize).arena_bytes_max((n as usize).max(32 << 20))
        }),
        ("arena_bytes_max", |config, n| config.arena_bytes(0).arena_bytes_max(n as usize)),
        ("overflow_bytes_max", |config, n| config.overflow_bytes_max(n as usize)),
        ("queue_depth", |config, n| config.queue_depth(u32::try_from(n).unwrap_or(u32::MAX))),
        ("inbox_depth", |config, n| config.inbox_depth(n as usize)),
        ("spin", |config, n| config.spin(time(n))),
        ("stall_after", |config, n| config.stall_after(time(n))),
        ("shutdown_deadline", |config, n| config.shutdown_deadline(time(n))),
    ];
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut wrong = Vec::new();
    for (name, set) in settings {
        for number in [0, 1, u64::MAX] {
            // A quarter of the machine's memory, as documented: too much for a test.
            if name == "arena_bytes" && number == u64::MAX {
                continue;
            }
            match catch_unwind(AssertUnwindSafe(|| use_of(set(config(), number), dir.path()))) {
                Ok(Ok(())) => {}
                Ok(Err(refused)) if refused.contains(name) => {}
                Ok(Err(refused)) => {
                    wrong.push(format!("{name}({number}) is refused without its name: {refused}"))
                }
                Err(_) => wrong.push(format!("{name}({number}) panics")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_number_of_a_builder_works_or_is_refused_with_a_sentence() {
    let engine = Engine::start(config().arena_bytes_max(256 << 20)).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let open = |name: &str| engine.open(dir.path().join(name), Open::create()).wait().unwrap();
    let file = open("read");
    file.write(0, engine.block_from(&[7; 65536]).unwrap()).wait().unwrap();
    let scan = |builder: forebay::ScanBuilder| -> forebay::Result<forebay::Result<usize>> {
        engine.block_on(async {
            let (mut scan, mut bytes) = (builder.start(), 0);
            while let Some(block) = scan.next().await {
                bytes += block?.len();
            }
            Ok(bytes)
        })
    };
    let append = |builder: forebay::AppendBuilder| {
        engine.block_on(async {
            let mut append = builder.start();
            append.write(&[7; 10_000]).await?;
            append.close().await
        })
    };
    for number in [0, 1, usize::MAX] {
        let found = scan(file.scan().request_bytes(number)).unwrap().unwrap();
        assert_eq!(found, 65536, "scan.request_bytes({number})");
        assert_eq!(scan(file.scan().depth(number)).unwrap().unwrap(), 65536, "scan.depth({number})");
        let word = number.min(u32::MAX as usize) as u32;
        let many = |builder: forebay::ReadMany| builder.depth(word).wait().map(|read| read.len());
        assert_eq!(many(file.read_many([0..512, 8192..8704])).unwrap(), 2, "read_many.depth({number})");
        let merged = file.read_many([0..512, 8192..8704]).gap_bytes_max(number as u64).wait().unwrap();
        assert_eq!(merged.len(), 2, "read_many.gap_bytes_max({number})");
        let short = file.read_many([0..512, 8192..8704]).request_bytes_max(number as u64).wait().unwrap();
        assert_eq!(short.len(), 2, "read_many.request_bytes_max({number})");
        let some = file.read_many([0..512, 8192..8704]).waste_bytes_max(number as u64).wait().unwrap();
        assert_eq!(some.len(), 2, "read_many.waste_bytes_max({number})");
        append(open("buffer").append().request_bytes(number))
            .unwrap()
            .unwrap_or_else(|e| panic!("append.request_bytes({number}): {e}"));
        append(open("depth").append().depth(number))
            .unwrap()
            .unwrap_or_else(|e| panic!("append.depth({number}): {e}"));
        let last = append(open("at").append().at(number as u64)).unwrap();
        assert!(last.is_ok() || number == usize::MAX, "append.at({number}): {last:?}");
        let there = engine.open(dir.path().join("shard"), Open::create().shard(number)).wait();
        assert!(there.is_ok() || there.unwrap_err().kind() == ErrorKind::InvalidInput);
        for set in [
            ClassSpec::shares as fn(ClassSpec, u32) -> ClassSpec,
            |spec, n| spec.read_bytes_per_second_max(n.into()).write_bytes_per_second_max(n.into()),
            |spec, n| spec.reads_per_second_max(n.into()).writes_per_second_max(n.into()),
            |spec, n| spec.latency_goal(time(if n == u32::MAX { u64::MAX } else { n.into() })),
        ] {
            let refused = engine.set_class(set(ClassSpec::new("limited"), word));
            assert!(refused.is_ok() || refused.unwrap_err().kind() == ErrorKind::InvalidInput);
        }
    }
}

/// Reads page after page, `left` of them.
struct Pages {
    left: u32,
}

impl Walk for Pages {
    type Output = ();
    type Error = Error;

    fn step(&mut self, _: &Block, at: Range<u64>) -> Step<(), Error> {
        self.left -= 1;
        match self.left {
            0 => Step::Done(()),
            _ => Step::Read(at.end..at.end + 4096),
        }
    }
}

#[test]
fn every_number_of_a_walk_works_or_is_refused_with_a_sentence() {
    let engine = Engine::start(config()).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = engine.open(dir.path().join("walks"), Open::create()).wait().unwrap();
    file.write(0, engine.block_from(&[7; 65536]).unwrap()).wait().unwrap();
    let walks = || (0..20).map(|_| (0..4096, Pages { left: 2 }));
    for number in [0, 1, u32::MAX] {
        let found = file.walk(0..4096, Pages { left: 2 }).hops_max(number).wait();
        if number < 2 {
            let error = found.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooManyHops { limit: number });
            assert!(error.to_string().contains("hops_max"), "{error}");
        } else {
            found.unwrap();
        }
        let all = file.walk_many(walks()).hops_max(number).wait().unwrap();
        assert_eq!(all.iter().filter(|walk| walk.is_ok()).count(), if number < 2 { 0 } else { 20 });
        let all = file.walk_many(walks()).depth(number).wait().unwrap();
        assert!(all.iter().all(Result::is_ok), "walk_many.depth({number})");
    }
}

#[test]
fn a_shard_that_does_not_exist_is_refused_by_its_number() {
    let engine = Engine::start(Config::new().shards(2)).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("file");
    let open = |shard| engine.open(&path, Open::create().shard(shard)).wait();
    let task = |shard| engine.spawn_on_shard(shard, Class::DEFAULT, || async {}).wait();
    for error in [open(2).unwrap_err(), open(usize::MAX).unwrap_err(), task(2).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("this engine has 2"), "{error}");
    }
    assert!(!path.exists(), "a file was created before the shard was checked");
    open(1).unwrap();
    task(1).unwrap();
}
