//! The subjects under test. In the guest, a subject writes and prints which operations completed as durable.
//! On the host, a model computes the data that must be there after a cut.
//!
//! All written data follows from life (the number of power-ups so far), writer and count, so the host can
//! compute each byte without having seen it. A writer has one operation in flight. So after a cut the data is
//! exactly the result of its acknowledged operations, or of those and the next operation.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::thread::ScopedJoinHandle;

use forebay::Engine;

use crate::random::mix;
use crate::{engines, log, servers, solo, store};

/// The names of all subjects, as the guest prefixes its lines.
pub(crate) const NAMES: [&str; 3] = ["log", "solo", "store"];
/// Stands for one of `NAMES` if all subjects write.
pub(crate) const ALL: &str = "all";
/// The servers, which have a disk for themselves.
pub(crate) const SERVERS: &str = "etcd";
/// Databases on `libforebay`, by the names of their programs.
pub(crate) const ENGINES: [&str; 2] = ["rocks", "tiger"];
/// Stands for one of `ENGINES` if both write.
pub(crate) const BOTH: &str = "both";
/// Stands for a disk on which nothing is.
pub(crate) const NONE: &str = "none";

/// Returns the subjects of a disk on which `writes` writes.
pub(crate) fn on_disk_of(writes: &str) -> &'static [&'static str] {
    match writes {
        SERVERS => &[SERVERS],
        NONE => &[],
        _ if writes == BOTH || ENGINES.contains(&writes) => &ENGINES,
        _ => &NAMES,
    }
}

/// Passes a line about one subject to the checker; returns once the checker has it, with whether to continue.
pub(crate) type Say<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// The guest's half of a subject.
pub(crate) trait Writer: Send {
    /// Writes until the power fails or `say` ends it; returns the error that the writing met.
    fn write(self: Box<Self>, life: u64, say: Say<'_>) -> Result<(), String>;
}

/// Opens a subject in its directory, prints its contents and returns a writer.
pub(crate) fn recover(
    name: &str,
    engine: &Engine,
    dir: &Path,
    life: u64,
    say: Say<'_>,
) -> Result<Box<dyn Writer>, String> {
    match name {
        "log" => Ok(Box::new(log::recover(engine, dir, life, say)?)),
        "solo" => Ok(Box::new(solo::recover(engine, dir, life, say)?)),
        "store" => Ok(Box::new(store::recover(engine, dir, say)?)),
        SERVERS => servers::recover(dir, say),
        _ if ENGINES.contains(&name) => engines::recover(name, dir, life, say),
        other => Err(format!("there is no subject {other}")),
    }
}

/// The host's half of a subject: the data that must be there.
pub(crate) trait Model: Debug + Send + ModelCopy {
    /// Notes that the guest starts to write, in this life.
    fn began(&mut self, life: u64);
    /// Handles a line of the guest about this subject. Returns an error if the line reports a state that must not be.
    fn hear(&mut self, words: &[&str]) -> Result<(), String>;
    /// Returns the number of all acknowledged operations so far.
    fn acknowledged(&self) -> u64;
}

/// The copy of a model of any subject.
pub(crate) trait ModelCopy {
    /// Returns a copy of the current state.
    fn copy(&self) -> Box<dyn Model>;
}

impl<M: Model + Clone + 'static> ModelCopy for M {
    fn copy(&self) -> Box<dyn Model> {
        Box::new(self.clone())
    }
}

pub(crate) fn model(name: &str) -> Option<Box<dyn Model>> {
    match name {
        "log" => Some(Box::new(log::Model::default())),
        "solo" => Some(Box::new(solo::Model::default())),
        "store" => Some(Box::new(store::Model::default())),
        SERVERS => Some(Box::new(servers::Model::default())),
        _ if ENGINES.contains(&name) => Some(Box::new(engines::Model::default())),
        _ => None,
    }
}

/// Returns bytes that identify their writer: `words` over and over, at least one round long.
pub(crate) fn bytes(words: [u64; 3], extra: u64) -> Vec<u8> {
    let len = 24 + mix(&words) % extra;
    words.map(u64::to_le_bytes).concat().into_iter().cycle().take(len as usize).collect()
}

/// Returns the words that [`bytes`] was called with, if `found` is exactly its result.
pub(crate) fn words(found: &[u8], extra: u64) -> Option<[u64; 3]> {
    let word = |at: usize| found.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
    let words = [word(0)?, word(8)?, word(16)?];
    (found == bytes(words, extra)).then_some(words)
}

/// Waits for all threads and returns the first error.
pub(crate) fn ended(threads: Vec<ScopedJoinHandle<'_, Result<(), String>>>) -> Result<(), String> {
    let join = |thread: ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|_| Err("a panic".into()));
    threads.into_iter().map(join).fold(Ok(()), Result::and)
}

/// Returns the word of a line at index `at` as a number.
pub(crate) fn number(words: &[&str], at: usize) -> Result<u64, String> {
    let word = words.get(at).and_then(|word| word.parse().ok());
    word.ok_or_else(|| format!("the guest said something that is not a line: {}", words.join(" ")))
}

/// Returns the first difference between two maps as text.
pub(crate) fn difference<V: PartialEq + Debug>(
    wanted: &BTreeMap<u64, V>,
    found: &BTreeMap<u64, V>,
) -> Option<String> {
    let missing = wanted.iter().find(|(key, value)| found.get(key) != Some(value));
    let unknown = found.iter().find(|(key, _)| !wanted.contains_key(key));
    match (missing, unknown) {
        (Some((key, value)), _) => Some(format!("{key} is {:?} and not {value:?}", found.get(key))),
        (None, Some((key, value))) => Some(format!("{key} is {value:?} and should not be")),
        (None, None) => None,
    }
}

/// Passes lines of the guest to a model, up to the first that it refuses.
#[cfg(test)]
pub(crate) fn hear(model: &mut impl Model, lines: &[impl AsRef<str>]) -> Result<(), String> {
    lines.iter().try_for_each(|line| model.hear(&line.as_ref().split(' ').collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_tell_whose_they_are() {
        let made = bytes([1, 2, 3], 900);
        assert_eq!(words(&made, 900), Some([1, 2, 3]));
        assert_eq!(words(&made[..made.len() - 1], 900), None);
        let mut torn = made.clone();
        torn[30] ^= 1;
        assert_eq!(words(&torn, 900), None);
        assert_eq!(words(&[], 900), None);
    }

    #[test]
    fn the_first_difference_is_named() {
        let one = BTreeMap::from([(1, 'a'), (2, 'b')]);
        assert_eq!(difference(&one, &one), None);
        assert!(
            difference(&one, &BTreeMap::from([(1, 'a')])).is_some_and(|text| text.starts_with("2 is None"))
        );
        assert!(difference(&BTreeMap::new(), &one).is_some_and(|text| text.contains("should not be")));
    }
}
