//! Claims of five published texts on storage, each held against the tables of a result: `forebay report --claims`, and
//! `docs/claims.md`.
//!
//! An experiment has the claims that its tables can decide ([`Experiment::claims`](super::experiment::Experiment::claims));
//! `UNSEEN` has those that no experiment can.

use forebay_report::page::summary::{WIDTH, wrapped};
use forebay_report::result::{Experiment as Table, Row};
use forebay_report::units::number;

use super::experiment::once;
use super::kind::{self, Entry, without_implausible};

pub(crate) const GLOMMIO: &str = "Glommio's introduction: direct I/O with io_uring";
pub(crate) const IOPS: &str = "A storage engineer's case against IOPS";
pub(crate) const BIO_CACHE: &str = "A cache of I/O descriptors for each processor in Linux (bio cache)";
pub(crate) const XRP: &str = "XRP (OSDI 2022): dependent reads decided in the kernel";
pub(crate) const XLINE: &str = "I/O on async runtimes, by the authors of Xline";

/// The texts, in the order in which they are shown.
const SOURCES: [&str; 5] = [GLOMMIO, IOPS, BIO_CACHE, XRP, XLINE];

/// Claims that no experiment of this program can decide: text, claim, and the command that shows it.
static UNSEEN: [(&str, Claim, &str); 2] = [
    (
        XRP,
        claim(
            "Lookups that the kernel continues by itself take less time than with one call for each read",
            "up to 40 % less at the 99th percentile",
            Check::Unseen(
                "walks in the kernel need a module or Linux 7.1, the right to load programs, and a device for them; \
                 docs/kernel-walks.md has such a session and its figures",
            ),
        ),
        "scripts/checks/kernel-walks --instructions",
    ),
    (
        XLINE,
        claim(
            "RocksDB takes batches of 256-byte keys and 1,024-byte values slower through spawn_blocking",
            "0.507 ms beside 0.395; +46 % for all of bench_rocksdb",
            Check::Unseen(
                "this program contains no RocksDB, but forebay-versus does; the row `store-spawn-blocking` of \
                 `forebay measure blocking` is the same comparison with Forebay's store",
            ),
        ),
        "scripts/bench kv --rows rocksdb",
    ),
];

/// A metric of a row.
pub(crate) type Figure = (&'static str, &'static str);
/// Whether a claim holds, and the figures behind that; or why it is not seen.
pub(crate) type Decision = Result<(bool, String), String>;
/// Parameters of the tables that count.
pub(crate) type Only = &'static [(&'static str, &'static str)];

/// The claims of one text that an experiment decides.
#[derive(Debug)]
pub struct Claims {
    /// The text.
    pub(crate) source: &'static str,
    /// Options with which the experiment decides them, each after a space.
    pub(crate) options: &'static str,
    pub(crate) all: &'static [Claim],
}

impl Claims {
    pub(crate) const NONE: Self = Self { source: "", options: "", all: &[] };
}

/// A claim of a published text.
#[derive(Debug)]
pub(crate) struct Claim {
    /// A sentence without its end.
    text: &'static str,
    /// The figures that the text gives.
    figure: &'static str,
    check: Check,
}

/// Returns a claim with the figures that its text gives.
pub(crate) const fn claim(text: &'static str, figure: &'static str, check: Check) -> Claim {
    Claim { text, figure, check }
}

/// How a claim is decided.
#[derive(Debug)]
pub(crate) enum Check {
    /// A figure, or its ratio to another one of the same table, lies within limits.
    Within(Within),
    /// A function of all tables.
    By(fn(&[&Table]) -> Decision),
    /// Never, for this reason.
    Unseen(&'static str),
}

/// A figure of which the claim depends. Of several tables the one with the median decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within {
    of: Figure,
    per: Option<Figure>,
    only: Only,
    least: f64,
    most: f64,
}

impl Check {
    /// Returns a check of a figure.
    pub(crate) const fn value(of: Figure) -> Within {
        Within { of, per: None, only: &[], least: f64::NEG_INFINITY, most: f64::INFINITY }
    }

    /// Returns a check of the ratio of two figures of one table.
    pub(crate) const fn ratio(of: Figure, per: Figure) -> Within {
        Within { per: Some(per), ..Self::value(of) }
    }
}

impl Within {
    /// Counts only tables with these parameters.
    pub(crate) const fn only(self, only: Only) -> Self {
        Self { only, ..self }
    }

    /// Holds from this value on.
    pub(crate) const fn at_least(self, least: f64) -> Check {
        Check::Within(Self { least, ..self })
    }

    /// Holds up to this value.
    pub(crate) const fn at_most(self, most: f64) -> Check {
        Check::Within(Self { most, ..self })
    }

    /// Returns whether the claim holds, and the figures behind that.
    ///
    /// # Errors
    /// The reason why no table has the figures.
    fn decide(&self, tables: &[&Table]) -> Decision {
        let has = |table: &Table, name: &str, value: &str| {
            table.parameters.get(name).is_some_and(|found| found.to_string().trim_matches('"') == value)
        };
        let is_fitting = |table: &&&Table| self.only.iter().all(|(name, value)| has(table, name, value));
        let fitting: Vec<_> = tables.iter().filter(is_fitting).collect();
        let mut found: Vec<_> = fitting.iter().filter_map(|table| self.figures(table)).collect();
        found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let count = found.len();
        if count > 0 {
            let (value, mut figures) = found.swap_remove(count / 2);
            if count > 1 {
                figures.push_str(&format!(", the median of {count} tables"));
            }
            let is_low = self.most.is_finite();
            let (limit, words) = if is_low { (self.most, "up to") } else { (self.least, "from") };
            let holds = (self.least..=self.most).contains(&value);
            return Ok((holds, format!("{figures} (holds {words} {})", number(limit))));
        }
        let names = || [Some(self.of), self.per].into_iter().flatten().map(|(row, _)| row);
        let skipped = |table: &&&Table| names().find_map(|name| table.row(name)?.skipped.clone());
        Err(fitting.iter().find_map(skipped).unwrap_or_else(|| match (fitting.len(), self.only) {
            (0, [(name, value), ..]) => format!("no table of this result has `{name}` {value}"),
            _ => format!("this result has no figures of `{}`", names().collect::<Vec<_>>().join("` and `")),
        }))
    }

    /// Returns the value in one table, and the figures behind it.
    fn figures(&self, table: &Table) -> Option<(f64, String)> {
        let shown = |(name, metric): Figure| -> Option<(&Row, f64, String)> {
            let row = table.row(name)?;
            let value = row.metrics.get(metric)?;
            Some((row, value, format!("`{name}` {metric} {}", number(value))))
        };
        let (row, value, text) = shown(self.of)?;
        let Some(per) = self.per else { return Some((value, text + once(&[row]))) };
        let (other, divisor, beside) = shown(per)?;
        let ratio = value / divisor;
        Some((ratio, format!("{text} by {beside}: {}{}", number(ratio), once(&[row, other]))))
    }
}

impl Claim {
    /// Returns the verdict and the reason, from the tables of the claim's experiment.
    fn judge(&self, tables: &[&Table]) -> (&'static str, String) {
        let decided = match &self.check {
            Check::Unseen(why) => Err((*why).to_owned()),
            _ if tables.is_empty() => Err("not measured in this result".to_owned()),
            Check::By(decide) => decide(tables),
            Check::Within(within) => within.decide(tables),
        };
        match decided {
            Ok((true, why)) => ("holds", why),
            Ok((false, why)) => ("holds not", why),
            Err(why) => ("cannot be seen here", why),
        }
    }
}

/// Returns all claims, by text, each with its text, the name of its experiment, and its command.
fn all() -> Vec<(&'static str, &'static Claim, &'static str, String)> {
    let of = |kind: &'static Entry| {
        let (name, claims) = (kind.name(), kind.0.claims());
        let command = format!("forebay measure {name}{}", claims.options);
        claims.all.iter().map(move |claim| (claims.source, claim, name, command.clone()))
    };
    let unseen = UNSEEN.iter().map(|(source, claim, command)| (*source, claim, "", (*command).to_owned()));
    let mut all: Vec<_> = kind::ALL.iter().flat_map(of).chain(unseen).collect();
    all.sort_by_key(|(source, ..)| SOURCES.iter().position(|known| known == source));
    all
}

/// Returns what published texts claim, each beside the tables of a result: a block of lines for each claim, of at most 100
/// columns.
pub fn render(tables: &[Table]) -> String {
    let plausible: Vec<Table> = tables.iter().map(without_implausible).collect();
    let (mut lines, mut last) = (vec!["Claims of published texts".to_owned()], "");
    for (source, claim, name, command) in all() {
        if source != last {
            last = source;
            lines.extend([String::new(), source.to_owned()]);
        }
        let own: Vec<&Table> = plausible.iter().filter(|table| table.name == name).collect();
        let (verdict, why) = claim.judge(&own);
        lines.push(format!("  {verdict}"));
        let parts = [claim.text.to_owned(), format!("claimed: {}", claim.figure), format!("here: {why}")];
        let wide = parts.iter().flat_map(|part| wrapped(part, WIDTH - 6));
        lines.extend(wide.chain([command]).map(|line| format!("      {line}")));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_report::result::{Metrics, Sample};

    fn table(depth: u64, figures: &[(&str, f64)]) -> Table {
        let mut table = Table::new("scan", "").parameter("depth", depth).parameter("long", true);
        for (name, value) in figures {
            let mut metrics = Metrics::default();
            metrics.set("iops", *value);
            table.rows.push(Row::from_samples(*name, vec![Sample { repeat: 0, metrics }]));
        }
        table.rows.push(Row::skipped("polled", "no poll queues"));
        table
    }

    fn than(per: &'static str) -> Within {
        Check::ratio(("new", "iops"), (per, "iops"))
    }

    #[test]
    fn a_ratio_is_held_against_its_limits_in_the_middle_table() {
        let tables = [(1, 100.0), (8, 200.0), (32, 900.0)];
        let tables = tables.map(|(depth, value)| table(depth, &[("new", value), ("old", 100.0)]));
        let tables: Vec<&Table> = tables.iter().collect();
        let judge = |check| claim("It is fast", "2 times", check).judge(&tables);
        let (verdict, why) = judge(than("old").at_least(1.5));
        assert_eq!(verdict, "holds");
        let figures = "`new` iops 200 by `old` iops 100: 2 (measured once), the median of 3 tables";
        assert_eq!(why, format!("{figures} (holds from 1.50)"));
        let (verdict, why) = judge(than("old").at_most(1.5));
        assert!(verdict == "holds not" && why.ends_with("(holds up to 1.50)"), "{why}");
        assert_eq!(judge(than("old").only(&[("depth", "32"), ("long", "true")]).at_least(8.0)).0, "holds");
        assert_eq!(judge(Check::value(("old", "iops")).at_most(99.0)).0, "holds not");
        assert_eq!(judge(Check::By(|tables| Ok((tables.len() == 3, "counted".to_owned())))).0, "holds");
    }

    #[test]
    fn a_claim_without_figures_says_why_it_is_not_seen() {
        let table = table(1, &[("new", 1.0)]);
        for (check, why) in [
            (than("polled").at_least(1.0), "no poll queues"),
            (than("old").at_least(1.0), "no figures of `new` and `old`"),
            (than("old").only(&[("depth", "9")]).at_least(1.0), "no table of this result has `depth` 9"),
            (Check::Unseen("no device"), "no device"),
        ] {
            let (verdict, found) = claim("", "", check).judge(&[&table]);
            assert!(verdict == "cannot be seen here" && found.contains(why), "{found}");
        }
        assert_eq!(claim("", "", than("new").at_least(1.0)).judge(&[]).1, "not measured in this result");
    }

    /// The registry and the page `docs/claims.md` have the same claims.
    #[test]
    fn every_claim_stands_in_the_guide() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/claims.md");
        let guide = std::fs::read_to_string(path).expect("a page of the workspace");
        let all = all();
        for (source, claim, _, command) in &all {
            let line = format!("| {} | {} | `{command}` |", claim.text, claim.figure);
            assert!(guide.contains(&line), "docs/claims.md lacks this line:\n{line}");
            assert!(SOURCES.contains(source) && guide.contains(&format!("## {source}\n")), "{source}");
        }
        let lines = guide.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")).count();
        assert_eq!(lines, all.len(), "docs/claims.md has claims that no experiment has");
    }
}
