//! A store with four writers: batches over two keyspaces, deletions, long values, compressed tables, compactions.

use std::collections::BTreeMap;
use std::path::Path;

use forebay::Engine;
use forebay_kv::{Batch, Compression, Keyspace, Options, Store};

use crate::random::{Random, mix};
use crate::subject::{self, Say, Writer, difference, ended, number};

const WRITERS: u64 = 4;
/// Number of keys per writer, each in both keyspaces.
const KEYS: u64 = 150;
/// Bytes of a value in addition to the words that identify it.
const EXTRA: u64 = 1_500;
/// The same for long values, whose least length is that above which a store reads a value by itself; one value in
/// `LONG_PART` is long.
const LONG: u64 = 64 << 10;
const LONG_EXTRA: u64 = 64 << 10;
const LONG_PART: u64 = 16;

/// Returns the key of the count-th operation, and whether the operation removes it.
fn op(life: u64, writer: u64, count: u64) -> (u64, bool) {
    let luck = mix(&[life, writer, count]);
    (luck % KEYS, luck >> 32 & 7 == 0)
}

fn key(writer: u64, number: u64) -> Vec<u8> {
    format!("writer {writer} key {number:04}").into_bytes()
}

/// Returns the value that an operation writes. Half of them compress.
fn value(words: [u64; 3]) -> Vec<u8> {
    let luck = mix(&[words[0], words[1], words[2], 1]);
    let len = match luck % LONG_PART {
        0 => LONG + 1 + (luck >> 8) % LONG_EXTRA,
        _ => 24 + (luck >> 8) % EXTRA,
    };
    let begin = words.map(u64::to_le_bytes).concat();
    if luck >> 4 & 1 == 0 {
        begin.into_iter().cycle().take(len as usize).collect()
    } else {
        let mut random = Random::new(luck);
        let rest = std::iter::repeat_with(move || random.next().to_le_bytes()).flatten();
        begin.into_iter().chain(rest).take(len as usize).collect()
    }
}

/// Returns the words that [`value`] was called with, if `found` is exactly its result.
fn words(found: &[u8]) -> Option<[u64; 3]> {
    let word = |at: usize| found.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let words = [word(0)?, word(8)?, word(16)?];
    (found == value(words)).then_some(words)
}

/// Returns the options of the store: small memtables, which hold a batch of two long values.
fn options() -> Options {
    let options = Options::new().memory_bytes_max(Options::MEMORY_BYTES_MIN).compression(Compression::Lz4);
    options.memtable_bytes(512 << 10).log_segment_bytes(256 << 10)
}

struct Open {
    store: Store,
    one: Keyspace,
    two: Keyspace,
}

pub(crate) fn recover(engine: &Engine, dir: &Path, say: Say<'_>) -> Result<impl Writer + 'static, String> {
    let store = Store::open(engine, dir, options()).wait().map_err(|error| format!("opening: {error:?}"))?;
    let one = store.default_keyspace();
    let two = store.keyspace("two").wait().map_err(|error| format!("the keyspace: {error:?}"))?;
    say("first");
    let (left, right) = (entries(&one)?, entries(&two)?);
    if left != right {
        let unlike = left.iter().find(|(key, value)| right.get(*key) != Some(value)).map(|(key, _)| key);
        let unlike = unlike.or_else(|| right.keys().find(|key| !left.contains_key(*key)));
        return Err(format!("half a batch is there: {:?}", unlike.map(|key| String::from_utf8_lossy(key))));
    }
    let mut known = 0;
    for writer in 0..WRITERS {
        for number in 0..KEYS {
            let key = key(writer, number);
            let got = one.get(&key).wait().map_err(|error| format!("get: {error:?}"))?;
            if got.as_deref() != left.get(&key).map(Vec::as_slice) {
                return Err(format!("a get and a range disagree about {}", String::from_utf8_lossy(&key)));
            }
            let Some(value) = got else { continue };
            known += 1;
            match words(&value) {
                Some([life, of, count]) if of == writer => {
                    say(&format!("has {writer} {number} {life} {count}"));
                }
                _ => return Err(format!("{} has a value that nobody wrote", String::from_utf8_lossy(&key))),
            }
        }
    }
    if known != left.len() {
        return Err(format!("there are {} keys that nobody wrote", left.len() - known));
    }
    let verified = store.verify().wait().map_err(|error| format!("verify: {error:?}"))?;
    if !verified.is_whole() {
        return Err(format!("verify found {:?}", verified.findings));
    }
    say("whole");
    Ok(Open { store, one, two })
}

fn entries(keyspace: &Keyspace) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, String> {
    let mut entries = BTreeMap::new();
    let mut range = keyspace.iter();
    while let Some((key, value)) =
        range.next().wait().transpose().map_err(|error| format!("range: {error:?}"))?
    {
        entries.insert(key, value.to_vec());
    }
    Ok(entries)
}

impl Writer for Open {
    fn write(self: Box<Self>, life: u64, say: Say<'_>) -> Result<(), String> {
        let open = &self;
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..WRITERS).map(|writer| scope.spawn(move || open.put(life, writer, say))).collect();
            ended(threads)
        })
    }
}

impl Open {
    fn put(&self, life: u64, writer: u64, say: Say<'_>) -> Result<(), String> {
        for count in 0.. {
            let (number, removes) = op(life, writer, count);
            let (key, value) = (key(writer, number), value([life, writer, count]));
            let mut batch = Batch::new();
            if removes {
                batch.delete(&self.one, &key).delete(&self.two, &key);
            } else {
                batch.put(&self.one, &key, &value).put(&self.two, &key, &value);
            }
            self.store.write(&batch).wait().map_err(|error| format!("write: {error:?}"))?;
            if !say(&format!("ack {writer} {count}")) {
                return Ok(());
            }
            if writer == 0 && count % 150 == 149 {
                self.store.compact().wait().map_err(|error| format!("compact: {error:?}"))?;
            }
        }
        Ok(())
    }
}

/// The contents that the store must have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    life: u64,
    /// For each writer: by key, the life and count of the operation that wrote it.
    held: [BTreeMap<u64, (u64, u64)>; WRITERS as usize],
    /// The next operation of each writer, set once the guest writes.
    counts: Option<[u64; WRITERS as usize]>,
    told: u64,
    found: [BTreeMap<u64, (u64, u64)>; WRITERS as usize],
}

fn change(held: &mut BTreeMap<u64, (u64, u64)>, life: u64, writer: u64, count: u64) {
    match op(life, writer, count) {
        (key, true) => held.remove(&key),
        (key, false) => held.insert(key, (life, count)),
    };
}

impl Model {
    fn check(&mut self) -> Result<(), String> {
        for writer in 0..WRITERS as usize {
            let Some(difference) = difference(&self.held[writer], &self.found[writer]) else { continue };
            let Some(counts) = self.counts else {
                return Err(format!("writer {writer}, as nothing was in flight: key {difference}"));
            };
            let mut next = self.held[writer].clone();
            change(&mut next, self.life, writer as u64, counts[writer]);
            if let Some(other) = self::difference(&next, &self.found[writer]) {
                let (key, removes) = op(self.life, writer as u64, counts[writer]);
                return Err(format!(
                    "writer {writer}: key {difference}; with the one in flight (key {key}, removes: {removes}): key {other}"
                ));
            }
            self.held[writer] = next;
        }
        self.counts = None;
        Ok(())
    }
}

impl subject::Model for Model {
    fn began(&mut self, life: u64) {
        self.life = life;
        self.counts = Some([0; WRITERS as usize]);
    }

    fn hear(&mut self, words: &[&str]) -> Result<(), String> {
        let number = |at| number(words, at);
        match words.first().copied() {
            Some("ack") => {
                let (writer, count) = (number(1)?, number(2)?);
                let counts = self.counts.as_mut().ok_or("an answer before the writing began")?;
                let next = counts.get_mut(writer as usize).ok_or("no such writer")?;
                if *next != count {
                    return Err(format!("operation {count} was acknowledged instead of {next}"));
                }
                *next += 1;
                change(&mut self.held[writer as usize], self.life, writer, count);
                self.told += 1;
            }
            Some("first") => self.found = Default::default(),
            Some("has") => {
                let found = self.found.get_mut(number(1)? as usize).ok_or("no such writer")?;
                found.insert(number(2)?, (number(3)?, number(4)?));
            }
            Some("whole") => return self.check(),
            _ => return Err(format!("unknown line {}", words.join(" "))),
        }
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Model as _, hear};

    /// Lines of a store in which writer 2 has done `done` operations and no other writer any.
    fn lines(done: u64) -> Vec<String> {
        let mut held = BTreeMap::new();
        (0..done).for_each(|count| change(&mut held, 1, 2, count));
        let has = held.iter().map(|(key, (life, count))| format!("has 2 {key} {life} {count}"));
        std::iter::once("first".to_string()).chain(has).chain(["whole".to_string()]).collect()
    }

    #[test]
    fn only_what_was_acknowledged_and_the_next_operation_may_be_there() {
        let acked = 500;
        for done in [0, 1, acked - 1, acked, acked + 1, acked + 2] {
            let mut model = Model::default();
            model.began(1);
            let acks: Vec<_> = (0..acked).map(|count| format!("ack 2 {count}")).collect();
            hear(&mut model, &acks).expect("acknowledged");
            assert_eq!(hear(&mut model, &lines(done)).is_ok(), (acked..=acked + 1).contains(&done), "{done}");
        }
    }

    #[test]
    fn values_tell_whose_they_are() {
        let mut lens = Vec::new();
        for count in 0..200 {
            let made = value([1, 2, count]);
            assert_eq!(words(&made), Some([1, 2, count]));
            assert_eq!(words(&made[..made.len() - 1]), None);
            let mut torn = made.clone();
            torn[made.len() - 1] ^= 1;
            assert_eq!(words(&torn), None);
            lens.push(made.len() as u64);
        }
        let long = lens.iter().filter(|len| **len > LONG).count();
        assert!((5..30).contains(&long), "{long} of 200 values are long");
        assert_eq!(words(&[]), None);
    }

    /// The guest's and the host's half together, on this machine, over two lives without a cut: the workload has what it
    /// is to have, and the model knows it.
    #[test]
    fn a_store_has_what_its_model_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let engine = Engine::start(forebay::Config::new()).expect("an engine");
        let (model, most) = (std::sync::Mutex::new(Model::default()), 1_500);
        let say = |line: &str| {
            let mut model = model.lock().expect("no thread has panicked");
            model.hear(&line.split(' ').collect::<Vec<_>>()).expect("the model knows it");
            model.acknowledged() % most != 0
        };
        for life in 1..3 {
            let open = recover(&engine, dir.path(), &say).expect("a store");
            model.lock().expect("no thread has panicked").began(life);
            // The other threads end with their next line.
            let ended = std::sync::atomic::AtomicBool::new(false);
            let say = |line: &str| {
                let goes_on = say(line);
                ended.fetch_or(!goes_on, std::sync::atomic::Ordering::Relaxed);
                !ended.load(std::sync::atomic::Ordering::Relaxed)
            };
            Box::new(open).write(life, &say).expect("a life");
        }
        drop(recover(&engine, dir.path(), &say).expect("a store"));
        let store = Store::open(&engine, dir.path(), options()).wait().expect("a store");
        store.flush().wait().expect("a flush");
        let (stats, verified) = (store.stats(), store.verify().wait().expect("a verification"));
        let levels = stats.keyspaces.iter().flat_map(|keyspace| &keyspace.levels);
        let (bytes, saved) =
            levels.fold((0, 0), |(bytes, saved), level| (bytes + level.bytes, saved + level.saved_bytes));
        assert!(saved > bytes / 20, "{saved} bytes saved by compression beside {bytes}");
        assert!(verified.blobs > 10, "{} long values", verified.blobs);
        assert!(stats.flushes > 0 && verified.is_whole());
        store.close().wait().expect("an end");
    }
}
