//! The keyspaces that have work for compaction, by the kind of work: of thousands of keyspaces a choice looks at these alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// What compaction has to do with the tables of a keyspace, as far as it follows from them alone. Where values expire only `level0`
/// does, and `is_expiring` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Needs {
    /// The tables in level 0.
    pub(crate) level0: usize,
    /// The bytes to move out of levels with targets.
    pub(crate) pending_bytes: u64,
    /// The highest score of a level, and the same where all keyspaces together have many tables in level 0.
    pub(crate) score: f64,
    pub(crate) score_if_crowded: f64,
    /// Whether files are emptied that are mostly dead; at rest, those that are partly dead.
    pub(crate) has_waste: bool,
    pub(crate) has_waste_at_rest: bool,
    /// Whether the levels above the last are too heavy for a store at rest.
    pub(crate) is_restless: bool,
    /// Whether values expire, so that the needs depend on the time.
    pub(crate) is_expiring: bool,
}

/// Keyspaces with a score above 1, the highest last. Scores are positive, so that their bits are in the same order. Of keyspaces
/// with the same score the lowest is the last.
type ByScore = BTreeSet<(u64, Reverse<u32>)>;

/// The sums of the needs of all keyspaces, and the keyspaces with work of each kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorkIndex {
    pending_bytes: u64,
    /// The number of keyspaces by their tables in level 0, of those that have some.
    level0: BTreeMap<usize, usize>,
    by_score: ByScore,
    by_score_if_crowded: ByScore,
    wasteful: BTreeSet<u32>,
    wasteful_at_rest: BTreeSet<u32>,
    restless: BTreeSet<u32>,
    expiring: BTreeSet<u32>,
}

impl WorkIndex {
    /// Adds the needs of a keyspace that it does not have.
    pub(crate) fn add(&mut self, keyspace: u32, needs: &Needs) {
        self.pending_bytes += needs.pending_bytes;
        if needs.level0 > 0 {
            *self.level0.entry(needs.level0).or_default() += 1;
        }
        for (scores, bits) in self.scores(needs) {
            scores.insert((bits, Reverse(keyspace)));
        }
        for set in self.sets(needs) {
            set.insert(keyspace);
        }
    }

    /// Removes the needs that were added for a keyspace.
    pub(crate) fn remove(&mut self, keyspace: u32, needs: &Needs) {
        self.pending_bytes -= needs.pending_bytes;
        if let Some(keyspaces) = self.level0.get_mut(&needs.level0) {
            *keyspaces -= 1;
        }
        self.level0.retain(|_, keyspaces| *keyspaces > 0);
        for (scores, bits) in self.scores(needs) {
            scores.remove(&(bits, Reverse(keyspace)));
        }
        for set in self.sets(needs) {
            set.remove(&keyspace);
        }
    }

    fn scores(&mut self, needs: &Needs) -> impl Iterator<Item = (&mut ByScore, u64)> {
        let (score, if_crowded) = (needs.score, needs.score_if_crowded);
        let scores = [(&mut self.by_score, score), (&mut self.by_score_if_crowded, if_crowded)];
        scores.into_iter().filter(|(_, score)| *score > 1.0).map(|(scores, score)| (scores, score.to_bits()))
    }

    fn sets(&mut self, needs: &Needs) -> impl Iterator<Item = &mut BTreeSet<u32>> {
        let sets = [
            (&mut self.wasteful, needs.has_waste),
            (&mut self.wasteful_at_rest, needs.has_waste_at_rest),
            (&mut self.restless, needs.is_restless),
            (&mut self.expiring, needs.is_expiring),
        ];
        sets.into_iter().filter(|(_, is_member)| *is_member).map(|(set, _)| set)
    }

    /// Returns the bytes to move out of levels with targets, without keyspaces whose values expire.
    pub(crate) fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Returns the number of tables in level 0 of all keyspaces.
    pub(crate) fn level0_tables(&self) -> usize {
        self.level0.iter().map(|(tables, keyspaces)| tables * keyspaces).sum()
    }

    /// Returns the largest number of tables in level 0 of any keyspace: the tables that a get has to search.
    pub(crate) fn level0_max(&self) -> usize {
        self.level0.last_key_value().map_or(0, |(tables, _)| *tables)
    }

    /// Returns whether some work does not wait for rest, of keyspaces whose values do not expire.
    pub(crate) fn is_urgent(&self, is_crowded: bool) -> bool {
        !self.wasteful.is_empty() || self.by_score(is_crowded).next().is_some()
    }

    /// Returns the keyspaces with a score above 1, the highest first, and the lowest keyspace of those with the same; without
    /// keyspaces whose values expire.
    pub(crate) fn by_score(&self, is_crowded: bool) -> impl Iterator<Item = u32> {
        let scores = if is_crowded { &self.by_score_if_crowded } else { &self.by_score };
        scores.iter().rev().map(|(_, Reverse(keyspace))| *keyspace)
    }

    /// Returns the keyspaces whose values expire, by number.
    pub(crate) fn expiring(&self) -> impl Iterator<Item = u32> {
        self.expiring.iter().copied()
    }

    /// Returns the keyspaces that may have files to be emptied or expired entries, by number.
    pub(crate) fn wasteful(&self) -> impl Iterator<Item = u32> {
        self.wasteful_at_rest.union(&self.expiring).copied()
    }

    /// Returns the keyspaces that may have work at rest with levels above the last, by number.
    pub(crate) fn restless(&self) -> impl Iterator<Item = u32> {
        self.restless.union(&self.expiring).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns needs that differ from one number to the next.
    fn needs(number: u64) -> Needs {
        let score = (number % 5) as f64 / 2.0;
        Needs {
            level0: (number % 7) as usize,
            pending_bytes: number % 11 * 1_000,
            score,
            score_if_crowded: score + (number % 3) as f64,
            has_waste: number.is_multiple_of(13),
            has_waste_at_rest: number.is_multiple_of(4),
            is_restless: number.is_multiple_of(2),
            is_expiring: number.is_multiple_of(9),
        }
    }

    #[test]
    fn an_index_with_changes_is_that_of_the_needs_at_the_end() {
        let (mut index, mut known) = (WorkIndex::default(), BTreeMap::new());
        for step in 0..2_000_u64 {
            let keyspace = (step * 31 % 97) as u32;
            if let Some(before) = known.remove(&keyspace) {
                index.remove(keyspace, &before);
            }
            if step % 5 > 0 {
                known.insert(keyspace, needs(step * step));
                index.add(keyspace, &needs(step * step));
            }
        }
        let mut fresh = WorkIndex::default();
        for (keyspace, needs) in &known {
            fresh.add(*keyspace, needs);
        }
        assert_eq!(index, fresh);
        let all = || known.values();
        assert_eq!(index.level0_tables(), all().map(|needs| needs.level0).sum::<usize>());
        assert_eq!(index.level0_max(), all().map(|needs| needs.level0).max().unwrap());
        assert_eq!(index.pending_bytes(), all().map(|needs| needs.pending_bytes).sum::<u64>());
        let restless = known.iter().filter(|(_, needs)| needs.is_restless || needs.is_expiring);
        assert!(index.restless().eq(restless.map(|(keyspace, _)| *keyspace)));
        let score = |keyspace: u32| known[&keyspace].score_if_crowded;
        let scores: Vec<f64> = index.by_score(true).map(score).collect();
        assert!(scores.is_sorted_by(|higher, lower| higher >= lower) && scores[0] > 1.0, "{scores:?}");
    }

    #[test]
    fn of_keyspaces_with_the_same_score_the_lowest_is_first() {
        let mut index = WorkIndex::default();
        assert!(!index.is_urgent(false));
        for (keyspace, score) in [(5, 1.5), (3, 1.5), (4, 1.0), (9, 2.25), (7, 1.5)] {
            index.add(keyspace, &Needs { score, ..Needs::default() });
        }
        assert_eq!(index.by_score(false).collect::<Vec<_>>(), [9, 3, 5, 7]);
        assert!(index.is_urgent(false) && !index.is_urgent(true));
    }
}
