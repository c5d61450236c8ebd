//! The rules that decide which faults strike an operation, and the counts of all events.

use std::ops::Range;
use std::path::Path;

use crate::fault::{Dirty, Fault, Rule};
use crate::history::{Fate, What};

/// Counts of the work of disks since the world's start: of one node, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Reads that ended, including failed reads.
    pub reads: u64,
    /// Writes that ended, including failed writes.
    pub writes: u64,
    /// Syncs of files and directories that ended, including failed syncs.
    pub flushes: u64,
    /// Calls about names and open files that ended.
    pub calls: u64,
    /// Bytes that reads moved.
    pub read_bytes: u64,
    /// Bytes that writes moved.
    pub written_bytes: u64,
    /// Additional requests of operations that were split because they exceed a disk's longest request.
    pub splits: u64,
    /// Power cuts.
    pub power_cuts: u64,
    pub(super) fired: [u64; Fault::ALL.len()],
}

impl Counts {
    /// Returns how often a fault struck.
    pub fn fired(&self, fault: Fault) -> u64 {
        self.fired[fault.code()]
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.flushes += other.flushes;
        self.calls += other.calls;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.splits += other.splits;
        self.power_cuts += other.power_cuts;
        self.fired.iter_mut().zip(other.fired).for_each(|(sum, fired)| *sum += fired);
    }
}

/// Rules in force, with their counters.
#[derive(Debug, Default)]
pub(super) struct Rules(Vec<ArmedRule>);

#[derive(Debug)]
struct ArmedRule {
    rule: Rule,
    seen: u64,
    fired: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults(u32);

impl Faults {
    pub(super) const fn of(faults: &[Fault]) -> Faults {
        let (mut bits, mut at) = (0, 0);
        while at < faults.len() {
            bits |= 1 << faults[at] as usize;
            at += 1;
        }
        Faults(bits)
    }

    pub(super) fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault.code()) != 0
    }

    pub(super) fn with(self, fault: Fault, condition: bool) -> Faults {
        Faults(if condition { self.0 | (1 << fault.code()) } else { self.0 & !(1 << fault.code()) })
    }
}

/// The faults that struck one operation.
#[derive(Clone, Debug, Default)]
pub(super) struct Struck {
    faults: Faults,
    pub(super) dirty: Dirty,
    /// The range in which a latent sector error is to lie.
    pub(super) zone: Option<Range<u64>>,
}

impl Struck {
    pub(super) fn by(&self, fault: Fault) -> bool {
        self.faults.has(fault)
    }
}

/// An operation that rules are applied to.
pub(super) struct Target<'a> {
    pub(super) id: u64,
    /// The faults that can strike it at all.
    pub(super) possible: Faults,
    pub(super) path: &'a Path,
    /// The bytes it covers; `None` for all of the file.
    pub(super) range: Option<Range<u64>>,
}

impl Rules {
    pub(super) fn new(rules: &[Rule]) -> Rules {
        let mut armed = Rules::default();
        rules.iter().for_each(|rule| armed.add(rule.clone()));
        armed
    }

    pub(super) fn add(&mut self, rule: Rule) {
        self.0.push(ArmedRule { rule, seen: 0, fired: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Applies every rule, and adds the faults that strike to `struck`.
    pub(super) fn ask(
        &mut self,
        target: &Target<'_>,
        fate: &mut Fate,
        counts: &mut Counts,
        struck: &mut Struck,
    ) {
        for armed in &mut self.0 {
            let rule = &armed.rule;
            let fault = rule.fault;
            let here = rule.path.as_ref().is_none_or(|path| below(target.path, path));
            let touches = match (&rule.zone, &target.range) {
                (Some(zone), Some(range)) => zone.start < range.end && range.start < zone.end,
                _ => true,
            };
            if !target.possible.has(fault) || !here || !touches {
                continue;
            }
            armed.seen += 1;
            if rule.nth.is_some_and(|nth| nth != armed.seen)
                || rule.times.is_some_and(|times| armed.fired >= times)
                || (rule.chance_ppm < 1_000_000 && !fate.source.ppm(rule.chance_ppm))
            {
                continue;
            }
            armed.fired += 1;
            counts.fired[fault.code()] += 1;
            fate.history.note(What::Fault, &[fault.code() as u64, target.id]);
            struck.faults = struck.faults.with(fault, true);
            match fault {
                Fault::FlushError => struck.dirty = rule.dirty,
                Fault::LatentSectorError => struck.zone = rule.zone.clone(),
                _ => {}
            }
        }
    }
}

/// Returns whether a file's path is `path` or below it. Both paths are relative to the root.
fn below(file: &Path, path: &Path) -> bool {
    let relative =
        |path: &Path| path.strip_prefix("/").map(Path::to_path_buf).unwrap_or_else(|_| path.to_path_buf());
    relative(file).starts_with(relative(path))
}
