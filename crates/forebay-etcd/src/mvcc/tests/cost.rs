//! Measures, rather than shows: the costs of a put where it is applied, and of reads. Run with
//! `cargo test -p forebay-etcd --release --lib cost -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Instant;

use forebay::{Config, Engine};
use forebay_kv::{Batch, Options};
use forebay_raft::{Apply, RaftStore};
use openraft::storage::RaftStateMachine;

use super::harness::{Node, Recorder, compact, dir, entry, put, range};
use crate::mvcc::{Limits, Machine, View};
use crate::proto::peer::command::Change;
use crate::types::Command;

const PUTS: u64 = 200_000;
const KEYS: u64 = 50_000;
const VALUE_BYTES: usize = 256;

fn key(number: u64) -> Vec<u8> {
    // In no order.
    format!("/registry/pods/{:016x}", (number % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn commands() -> Vec<Command> {
    let value = vec![7; VALUE_BYTES];
    (0..PUTS).map(|number| Command::new(Change::Put(put(key(number), &value)))).collect()
}

/// Ticks of processor time, of 10 ms, that this thread and this process have used.
fn ticks() -> (u64, u64) {
    let of = |path: &str| {
        let stat = std::fs::read_to_string(path).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    (of("/proc/thread-self/stat"), of("/proc/self/stat"))
}

/// A part that is measured: its time, and its processor time, which other programs on the machine lengthen less.
struct Part {
    begun: Instant,
    ticks: (u64, u64),
}

fn print_stats(store: &forebay_kv::Store) {
    let stats = store.stats();
    println!(
        "  {} flushes, {} compactions, {} writes slowed; cache: {} hits, {} misses, {} insertions, {} refusals, {} evictions",
        stats.flushes,
        stats.compactions,
        stats.slowed,
        stats.cache_hits,
        stats.cache_misses,
        stats.cache_insertions,
        stats.cache_refusals,
        stats.cache_evictions
    );
}

fn begin() -> Part {
    Part { ticks: ticks(), begun: Instant::now() }
}

impl Part {
    fn print(self, what: &str, count: u64) {
        let each = |seconds: f64| seconds * 1e6 / count as f64;
        let (took, (thread, process)) = (self.begun.elapsed(), ticks());
        println!(
            "{what}: {:.2} us each ({:.2} of this thread's processor time, {:.2} of all), {count}",
            each(took.as_secs_f64()),
            each((thread - self.ticks.0) as f64 / 100.0),
            each((process - self.ticks.1) as f64 / 100.0),
        );
    }
}

#[tokio::test]
#[ignore = "it measures"]
async fn cost_of_a_put() {
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let dir = dir();
    let seen = Arc::new(Recorder::default());
    let machine = Machine::new(seen.clone(), Limits::default());
    // Blocks have the rest of the cache, which is a sixteenth of it by default.
    let options = Options::new().memory_bytes_max(256 << 20).pinned_bytes(16 << 20);
    let mut store = RaftStore::open(&engine, dir.path(), options, machine).await.unwrap();
    let part = begin();
    let commands = commands();
    part.print("making a command", PUTS);
    let part = begin();
    for command in &commands {
        assert!(std::hint::black_box(command.decode()).is_some());
    }
    part.print("decoding it", PUTS);
    let mut index = 0;
    for turn in 0..3 {
        let entries: Vec<_> = commands
            .iter()
            .map(|command| {
                index += 1;
                Ok((entry(index, command.clone()), None))
            })
            .collect();
        let part = begin();
        store.apply(futures_util::stream::iter(entries)).await.unwrap();
        part.print(&format!("applying a put, turn {turn}"), PUTS);
        seen.applied.lock().unwrap().clear();
        print_stats(&store.store());
        store.store().settle().await.unwrap();
    }
    // The parts: the machine without a write, and writes of batches like its own.
    let second = Machine::new(Arc::new(Recorder::default()), Limits::default());
    let keyspaces = store.keyspaces();
    second.opened(&keyspaces).await.unwrap();
    let mut batch = Batch::new();
    let entries: Vec<_> = commands.iter().map(|command| entry(0, command.clone())).collect();
    let part = begin();
    for entry in entries {
        batch.clear();
        second.apply(entry, &keyspaces, &mut batch).await.unwrap();
    }
    part.print("the machine without the write", PUTS);
    let part = begin();
    for number in 0..PUTS {
        let found = keyspaces[0].get(&key(number)).await.unwrap();
        assert!(std::hint::black_box(found).is_some());
    }
    part.print("get of the current value", PUTS);
    print_stats(&store.store());
    let part = begin();
    for _ in 0..PUTS {
        drop(View::of_keyspaces(keyspaces.clone()).await.unwrap());
    }
    part.print("a view", PUTS);
    let view = View::of_keyspaces(keyspaces.clone()).await.unwrap();
    let part = begin();
    for number in 0..PUTS {
        let request = range(key(number), "");
        assert_eq!(view.range(&request).await.unwrap().count, 1);
    }
    part.print("a range of one key", PUTS);
    print_stats(&store.store());
    for (what, limit, is_count) in
        [("all keys", 0, false), ("a page of 500 of them", 500, false), ("their count", 0, true)]
    {
        let mut request = range("/registry/pods/", "/registry/pods0");
        (request.limit, request.count_only) = (limit, is_count);
        let part = begin();
        assert_eq!(view.range(&request).await.unwrap().count as u64, KEYS);
        part.print(&format!("a range of {what}, for each key"), KEYS);
        request.revision = view.revision() - KEYS as i64;
        let part = begin();
        assert_eq!(view.range(&request).await.unwrap().count as u64, KEYS);
        part.print(&format!("a range of {what} at an older revision, for each key"), KEYS);
    }
    let part = begin();
    let (events, _) = view.events(3 * PUTS as i64 - 100_000, |_| true, usize::MAX).await.unwrap();
    part.print("an event with its previous value", events.len() as u64);
    let part = begin();
    view.hash(0).await.unwrap();
    part.print("a hash, for each event", view.revision() as u64);
    // Puts while a compaction's events are removed.
    let revision = view.revision();
    drop(view);
    let mut entries = vec![Ok((entry(index + 1, Command::new(compact(revision))), None))];
    let puts = 20_000;
    entries.extend(
        (0..puts).map(|number| Ok((entry(index + 2 + number, commands[number as usize].clone()), None))),
    );
    let part = begin();
    store.apply(futures_util::stream::iter(entries)).await.unwrap();
    part.print("a put while compacting", puts);
    println!("still cleaning: {}", View::of_keyspaces(store.keyspaces()).await.unwrap().is_cleaning());
    println!("a batch has {} entries", batch.len());
    let kv = store.store();
    let part = begin();
    for _ in 0..PUTS {
        kv.write(&batch).await.unwrap();
    }
    part.print("writing one batch again and again", PUTS);
}

#[tokio::test]
#[ignore = "it measures"]
async fn cost_of_small_stores() {
    let mut node = Node::new().await;
    let part = begin();
    for number in 0..20_000 {
        node.put(key(number), [7; VALUE_BYTES]).await;
    }
    part.print("a put by itself, with 16 MiB of memory", 20_000);
}
