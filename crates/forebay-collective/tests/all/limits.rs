//! Every number that can be set works, at its limits and beyond.

use forebay::{Durability, Engine, Open};
use forebay_collective::{Collective, Options, WriteCombiner};

use crate::common::{config, dir};

type Setting = fn(usize) -> Options;

/// The settings with numbers, by the method that sets them.
const SETTINGS: [(&str, Setting); 4] = [
    ("memory", |number| Options::new().memory_bytes_max(number)),
    ("request", |number| Options::new().request_bytes_max(number)),
    ("depth", |number| Options::new().depth(number)),
    ("aggregators", |number| Options::new().aggregators(number)),
];

#[test]
fn every_number_works() {
    let (engine, dir) = (Engine::start(config()).unwrap(), dir());
    let open = |name| engine.open(dir.path().join(name), Open::create()).wait().unwrap();
    for (name, options) in SETTINGS {
        for number in [0, 1, usize::MAX] {
            let combiner = WriteCombiner::start(&open(format!("combined-{name}")), options(number));
            combiner.write(5, &[7; 100]).wait().unwrap();
            combiner.flush(Durability::Data).wait().unwrap();
            let file = open(format!("shared-{name}-{number}"));
            let mut parts = Collective::start(&file, 2, options(number));
            let pieces = |rank: u64| (0..50).map(|n| ((2 * n + rank) * 1000, vec![7; 1000].into())).collect();
            let writes = parts.iter_mut().map(|part| {
                let rank = part.rank() as u64;
                part.write(pieces(rank), Durability::None)
            });
            for written in engine.block_on(futures::future::join_all(writes)).unwrap() {
                written.unwrap_or_else(|error| panic!("{name}({number}): {error}"));
            }
            assert_eq!(file.read(0..100_000).wait().unwrap()[..], [7; 100_000], "{name}({number})");
        }
    }
}

/// Regression: each participant that left cleared the pieces of all, so that dropping 65,536 lasted 13 seconds.
#[test]
fn every_number_of_participants_works() {
    let (engine, dir) = (Engine::start(config()).unwrap(), dir());
    let file = engine.open(dir.path().join("participants"), Open::create()).wait().unwrap();
    assert_eq!(Collective::start(&file, 0, Options::new()).len(), 1);
    let most = Collective::start(&file, usize::MAX, Options::new());
    assert!(most.len() <= 1 << 16 && most[0].participants() == most.len());
}
