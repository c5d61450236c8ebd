//! The file `.ci/tests`: peculiarities of some tests. A line is `WORD PATTERN | REASON`; the first part of a test's name is
//! `PACKAGE/PROGRAM::`.

use crate::glob;

/// The time limit of a test unless a line says otherwise. Few tests last a tenth of it; it exists to name a test that hangs.
const LIMIT_S: u64 = 300;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Word {
    /// Left to `--all`.
    All,
    /// Runs while no other test does.
    Alone,
    /// Starts before the others, as it is long.
    First,
    /// Its limit in seconds.
    Limit(u64),
    /// Depends on its seed alone: `steady` runs it once.
    Once,
    /// Has failed by chance: `steady` runs it 100 times.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Rules {
    rules: Vec<(Word, String)>,
    limit_s: u64,
}

impl Default for Rules {
    fn default() -> Self {
        Self { rules: Vec::new(), limit_s: LIMIT_S }
    }
}

impl Rules {
    /// # Errors
    ///
    /// A line of an unknown kind, or without a reason.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| format!("line {} of the rules: {what}: {line}", number + 1);
            let (rule, reason) = line.split_once(" | ").ok_or_else(|| wrong("no reason after ` | `"))?;
            if reason.trim().len() < 10 {
                return Err(wrong("the reason is too short"));
            }
            let (word, pattern) = rule.trim().split_once(' ').ok_or_else(|| wrong("no pattern"))?;
            let word = match word {
                "all" => Word::All,
                "alone" => Word::Alone,
                "first" => Word::First,
                "once" => Word::Once,
                "failed" => Word::Failed,
                _ => match word.strip_prefix("limit=").map(str::parse) {
                    Some(Ok(seconds)) => Word::Limit(seconds),
                    _ => return Err(wrong("unknown word")),
                },
            };
            rules.push((word, pattern.trim().to_owned()));
        }
        Ok(Self { rules, ..Self::default() })
    }

    fn has(&self, word: &Word, id: &str) -> bool {
        self.rules.iter().any(|(given, pattern)| given == word && glob::matches(pattern, id))
    }

    pub(crate) fn only_with_all(&self, id: &str) -> bool {
        self.has(&Word::All, id)
    }

    pub(crate) fn alone(&self, id: &str) -> bool {
        self.has(&Word::Alone, id)
    }

    pub(crate) fn first(&self, id: &str) -> bool {
        self.has(&Word::First, id)
    }

    /// How often `steady` runs a test, of which `runs` is usual.
    pub(crate) fn runs(&self, id: &str, runs: usize) -> usize {
        if self.has(&Word::Failed, id) {
            runs * 5
        } else if self.has(&Word::Once, id) {
            1
        } else {
            runs
        }
    }

    pub(crate) fn limit_s(&self, id: &str) -> u64 {
        let mut limits = self.rules.iter().filter_map(|(word, pattern)| match word {
            Word::Limit(seconds) if glob::matches(pattern, id) => Some(*seconds),
            _ => None,
        });
        limits.next_back().unwrap_or(self.limit_s)
    }

    /// The same rules with limits this many times as long, for a machine that is kept busy.
    pub(crate) fn slower(mut self, times: u64) -> Self {
        self.limit_s *= times;
        for (word, _) in &mut self.rules {
            if let Word::Limit(seconds) = word {
                *seconds *= times;
            }
        }
        self
    }

    /// Patterns that match none of these tests: a test was renamed, and its rule was not.
    pub(crate) fn stale<'a>(&'a self, ids: &[&str]) -> Vec<&'a str> {
        let mut stale: Vec<&str> = self.rules.iter().map(|(_, pattern)| pattern.as_str()).collect();
        stale.retain(|pattern| !ids.iter().any(|id| glob::matches(pattern, id)));
        stale.sort_unstable();
        stale.dedup();
        stale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_is_special() {
        let rules = Rules::parse(
            "# a comment\n\nall a/all::slow::* | measures for seconds\nlimit=900 a/* | they are long, all of them\n\
             limit=20 a/all::quick | it is a quick one\nfailed a/lib::x | failed in a fresh clone\nonce a/lib::world* | a world has one history\n",
        )
        .unwrap();
        assert!(rules.only_with_all("a/all::slow::one") && !rules.only_with_all("a/all::quick"));
        assert_eq!(
            (rules.limit_s("a/lib::x"), rules.limit_s("a/all::quick"), rules.limit_s("b/lib::y")),
            (900, 20, LIMIT_S)
        );
        assert_eq!(
            (rules.runs("a/lib::x", 20), rules.runs("a/lib::world_1", 20), rules.runs("b", 20)),
            (100, 1, 20)
        );
        assert_eq!(rules.stale(&["a/lib::x", "a/all::quick"]), ["a/all::slow::*", "a/lib::world*"]);
    }

    #[test]
    fn a_rule_without_a_reason_is_refused() {
        for text in [
            "all a/*",
            "all a/* | no",
            "slow a/* | a word that is unknown",
            "limit=x a/* | no number of seconds",
        ] {
            assert!(Rules::parse(text).unwrap_err().contains("line 1"), "{text}");
        }
    }
}
