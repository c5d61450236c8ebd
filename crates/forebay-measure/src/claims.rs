//! Claims of five published texts on storage, each held against the tables of a result: `forebay report --claims`, and
//! `docs/reports.md`.
//!
//! What the texts say stands in `claims/texts.json`, with the rows that decide it here. The limit of a claim with two figures
//! lies half way between no difference and theirs; the others name their limit.

use std::collections::BTreeMap;

use forebay_report::page::summary::{WIDTH, wrapped};
use forebay_report::result::{Experiment as Table, Row};
use forebay_report::units::number;
use serde::Deserialize;

use crate::experiment::once;
use crate::reads;

/// Whether a claim holds, and the figures behind that; or why it is not decided.
pub(crate) type Decision = Result<(bool, String), String>;
/// Values of parameters that a table must have.
type Only = BTreeMap<String, String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    title: String,
    /// Its author.
    by: String,
    /// Date and place, as far as they are known.
    published: String,
    /// Devices and programs that its figures are of.
    setting: String,
    claims: Vec<Claim>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    /// A sentence without its end.
    claim: String,
    /// The figures of the text.
    figures: String,
    /// What decides it. Without: `undecided`.
    check: Option<Check>,
    /// Why nothing decides it here.
    undecided: Option<String>,
    /// The command for more detail, if `check` is absent.
    command: Option<String>,
}

/// A figure of an experiment, or its ratio to another one. Of several tables the one with the median decides.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Check {
    experiment: String,
    /// Options of `forebay measure` without which the experiment does not have the tables.
    options: String,
    /// A row and its metric.
    of: (String, String),
    only: Only,
    /// Another row and metric that it is divided by.
    per: Option<(String, String)>,
    /// The tables of the other row; the same table, if empty.
    per_only: Only,
    /// The same two figures in the text.
    claimed: Option<(f64, f64)>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    /// A rule with a name, in place of a figure.
    rule: Option<String>,
}

fn texts() -> Vec<Text> {
    // A test reads it.
    serde_json::from_str(include_str!("claims/texts.json")).unwrap_or_default()
}

impl Check {
    /// Returns the least and the largest value with which the claim holds.
    fn limits(&self) -> (f64, f64) {
        let (mut least, mut most) =
            (self.at_least.unwrap_or(f64::NEG_INFINITY), self.at_most.unwrap_or(f64::INFINITY));
        if let Some((this, other)) = self.claimed {
            let half = f64::midpoint(1.0, this / other);
            if this > other { least = half } else { most = half }
        }
        (least, most)
    }

    /// Returns whether the claim holds, and the figures behind that.
    ///
    /// # Errors
    /// The reason why no table decides it.
    fn decide(&self, tables: &[&Table]) -> Decision {
        if self.rule.as_deref() == Some("saturation") {
            return reads::past_saturation(tables);
        }
        let of = fitting(tables, &self.only);
        let per = if self.per_only.is_empty() { of.clone() } else { fitting(tables, &self.per_only) };
        // Tables of two settings are in the same order.
        let mut found: Vec<_> = of.iter().zip(&per).filter_map(|pair| self.figures(pair)).collect();
        found.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let count = found.len();
        if count > 0 {
            let (value, mut figures) = found.swap_remove(count / 2);
            if count > 1 {
                figures.push_str(&format!(", the median of {count} tables"));
            }
            let (least, most) = self.limits();
            let (limit, words) = if most.is_finite() { (most, "up to") } else { (least, "from") };
            return Ok((
                (least..=most).contains(&value),
                format!("{figures} (holds {words} {})", number(limit)),
            ));
        }
        let sides = || [Some(&self.of), self.per.as_ref()].into_iter().flatten();
        let names = || sides().map(|(row, _)| row.as_str());
        let skipped = |table: &&Table| names().find_map(|name| table.row(name)?.skipped.clone());
        let left_out = |table: &&Table| {
            sides().find_map(|(name, metric)| {
                let why = table.row(name)?.left_out.get(metric)?;
                Some(format!("`{name}` has no {metric}: {why}"))
            })
        };
        let why = of.iter().chain(&per).find_map(skipped);
        Err(why.or_else(|| of.iter().chain(&per).find_map(left_out)).unwrap_or_else(|| {
            let lacks =
                [(&of, &self.only), (&per, &self.per_only)].into_iter().find(|(found, _)| found.is_empty());
            match lacks.and_then(|(_, only)| only.iter().next()) {
                Some((name, value)) => format!("no table of this result has `{name}` {value}"),
                None => {
                    format!("this result has no figures of `{}`", names().collect::<Vec<_>>().join("` and `"))
                }
            }
        }))
    }

    /// Returns the value, and the figures behind it.
    fn figures(&self, (table, beside): (&&Table, &&Table)) -> Option<(f64, String)> {
        fn shown<'a>(table: &'a Table, (name, metric): &(String, String)) -> Option<(&'a Row, f64, String)> {
            let row = table.row(name)?;
            let value = row.metrics.get(metric)?;
            Some((row, value, format!("`{name}` {metric} {}", number(value))))
        }
        let (row, value, text) = shown(table, &self.of)?;
        let Some(per) = &self.per else { return Some((value, text + once(&[row]))) };
        let (other, divisor, words) = shown(beside, per)?;
        let settings: Vec<_> =
            self.per_only.iter().map(|(name, value)| format!(" with {name} {value}")).collect();
        let (ratio, settings) = (value / divisor, settings.concat());
        Some((ratio, format!("{text} by {words}{settings}: {}{}", number(ratio), once(&[row, other]))))
    }
}

/// Returns the tables with these values of parameters.
fn fitting<'a>(tables: &[&'a Table], only: &Only) -> Vec<&'a Table> {
    let has = |table: &Table, name: &str, value: &str| {
        table.parameters.get(name).is_some_and(|found| found.to_string().trim_matches('"') == value)
    };
    let is_fitting = |table: &&&Table| only.iter().all(|(name, value)| has(table, name, value));
    tables.iter().filter(is_fitting).copied().collect()
}

impl Claim {
    /// Returns the verdict and the reason, from the tables of the claim's experiment.
    fn judge(&self, tables: &[&Table]) -> (&'static str, String) {
        let decided = match (&self.check, &self.undecided) {
            (Some(_), _) if tables.is_empty() => Err("not measured in this result".to_owned()),
            (Some(check), _) => check.decide(tables),
            (None, why) => Err(why.clone().unwrap_or_default()),
        };
        match decided {
            Ok((true, why)) => ("holds", why),
            Ok((false, why)) => ("does not hold", why),
            Err(why) => ("not decided here", why),
        }
    }

    /// Returns the command that measures it longer, or shows more of it.
    fn command(&self) -> String {
        match (&self.check, &self.command) {
            (Some(check), _) => {
                format!("forebay measure {} {}", check.experiment, check.options).trim_end().to_owned()
            }
            (None, command) => command.clone().unwrap_or_default(),
        }
    }
}

/// Returns what published texts claim, each compared with the tables of a result: a block of lines for each claim, of at most 100
/// columns.
pub fn render(tables: &[Table]) -> String {
    let plausible: Vec<Table> = tables.iter().map(Table::without_implausible).collect();
    let mut lines = vec!["Claims of published texts".to_owned()];
    for text in texts() {
        lines.push(String::new());
        let source = format!("{}, by {}, {}; {}", text.title, text.by, text.published, text.setting);
        lines.extend(wrapped(&source, WIDTH));
        for claim in &text.claims {
            let is_own =
                |table: &&Table| claim.check.as_ref().is_some_and(|check| check.experiment == table.name);
            let own: Vec<&Table> = plausible.iter().filter(is_own).collect();
            let (verdict, why) = claim.judge(&own);
            lines.push(format!("  {verdict}"));
            let parts = [claim.claim.clone(), format!("claimed: {}", claim.figures), format!("here: {why}")];
            let wide = parts.iter().flat_map(|part| wrapped(part, WIDTH - 6));
            lines.extend(wide.chain([claim.command()]).map(|line| format!("      {line}")));
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::super::kind;
    use super::*;
    use forebay_report::result::Metrics;

    fn table(depth: u64, figures: &[(&str, f64)]) -> Table {
        let rows = figures.iter().map(|(name, value)| Row::of_repeats(*name, [[("iops", *value)]]));
        let rows = rows.chain([Row::skipped("polled", "no poll queues")]);
        Table::new("scan", "").parameter("depth", depth).parameter("long", true).with_rows(rows)
    }

    /// A claim that compares `new` with another row, by the JSON of its other members.
    fn claim(per: &str, members: &str) -> Claim {
        let check = format!(r#"{{"of": ["new", "iops"], "per": ["{per}", "iops"]{members}}}"#);
        let check = Some(serde_json::from_str(&check).expect("a check"));
        Claim { claim: String::new(), figures: String::new(), check, undecided: None, command: None }
    }

    fn judge(claim: &Claim) -> (&'static str, String) {
        let tables = [(1, 100.0), (8, 200.0), (32, 900.0)];
        let tables = tables.map(|(depth, value)| table(depth, &[("new", value), ("old", 100.0)]));
        claim.judge(&tables.iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_ratio_is_held_against_half_of_the_claimed_distance_in_the_middle_table() {
        let (verdict, why) = judge(&claim("old", r#", "claimed": [30, 10]"#));
        assert_eq!(verdict, "holds");
        let figures = "`new` iops 200 by `old` iops 100: 2 (measured once), the median of 3 tables";
        assert_eq!(why, format!("{figures} (holds from 2)"));
        assert_eq!(judge(&claim("old", r#", "claimed": [31, 10]"#)).0, "does not hold");
        let (verdict, why) = judge(&claim("old", r#", "claimed": [1, 2]"#));
        assert!(verdict == "does not hold" && why.ends_with("(holds up to 0.750)"), "{why}");
        assert_eq!(
            judge(&claim("old", r#", "only": {"depth": "32", "long": "true"}, "at_least": 8"#)).0,
            "holds"
        );
        // Two settings: 900 at a depth of 32 by 100 at a depth of 1.
        let beside = r#", "only": {"depth": "32"}, "per_only": {"depth": "1"}, "at_least": 8.9"#;
        let (verdict, why) = judge(&claim("new", beside));
        assert!(verdict == "holds" && why.contains("by `new` iops 100 with depth 1: 9"), "{why}");
        let of_value = r#"{"of": ["old", "iops"], "at_most": 99}"#;
        let check = Some(serde_json::from_str(of_value).expect("a check"));
        assert_eq!(judge(&Claim { check, ..claim("old", "") }).0, "does not hold");
    }

    #[test]
    fn a_claim_without_figures_says_why_it_is_not_decided() {
        let table = table(1, &[("new", 1.0)]);
        let undecided = Claim { check: None, undecided: Some("no device".to_owned()), ..claim("", "") };
        for (claim, why) in [
            (claim("polled", ""), "no poll queues"),
            (claim("old", ""), "no figures of `new` and `old`"),
            (claim("old", r#", "only": {"depth": "9"}"#), "no table of this result has `depth` 9"),
            (claim("new", r#", "per_only": {"depth": "9"}"#), "no table of this result has `depth` 9"),
            (undecided, "no device"),
        ] {
            let (verdict, found) = claim.judge(&[&table]);
            assert!(verdict == "not decided here" && found.contains(why), "{found}");
        }
        assert_eq!(claim("new", "").judge(&[]).1, "not measured in this result");
        // Regression: "no figures of", where only one of them was left out.
        let mut table = super::tests::table(1, &[("new", 1.0), ("old", 1.0)]);
        table.rows[1].metrics = Metrics::default();
        table.rows[1].left_out.insert("iops".to_owned(), "3 operations".to_owned());
        assert_eq!(claim("old", "").judge(&[&table]).1, "`old` has no iops: 3 operations");
    }

    /// Claims once pointed the wrong way, and had figures of runs of this program without a source.
    #[test]
    fn every_claim_has_its_text_and_a_way_to_decide_it_or_says_why_not() {
        let texts: Vec<Text> = serde_json::from_str(include_str!("claims/texts.json")).expect("the texts");
        assert_eq!(texts.len(), 5);
        for Claim { claim, check, undecided, command, .. } in texts.iter().flat_map(|text| &text.claims) {
            let Some(check) = check else {
                assert!(undecided.is_some() && command.is_some(), "{claim}");
                continue;
            };
            assert!(undecided.is_none() && command.is_none(), "{claim}");
            let entry = kind::part(&check.experiment).expect("an experiment");
            if let Some(rule) = &check.rule {
                assert_eq!(rule, "saturation", "{claim}");
                continue;
            }
            let spec = entry.0.spec();
            let figures = [Some(&check.of), check.per.as_ref()];
            for (row, metric) in figures.into_iter().flatten() {
                assert!(spec.ways.iter().any(|way| way.name == row), "{claim}: {row}");
                assert!(spec.columns.iter().any(|column| column.metric == *metric), "{claim}: {metric}");
            }
            // One limit, in the direction of the text's figures.
            let (least, most) = check.limits();
            assert!(least.is_finite() != most.is_finite(), "{claim}");
            assert!(check.claimed.is_none() || check.at_least.or(check.at_most).is_none(), "{claim}");
        }
    }

    #[test]
    fn the_guide_has_every_claim() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reports.md");
        let page = std::fs::read_to_string(path).expect("a page of the workspace");
        let (_, guide) = page.split_once("\n## Published claims\n").expect("the section");
        let mut rows = 0;
        for text in texts() {
            let heading = format!(
                "### {}\nBy {}, {}. {}.\n",
                text.title,
                text.by,
                text.published,
                capital(&text.setting)
            );
            assert!(guide.contains(&heading), "docs/reports.md lacks:\n{heading}");
            for claim in &text.claims {
                let line = format!("| {} | {} | `{}` |", claim.claim, claim.figures, claim.command());
                assert!(guide.contains(&line), "docs/reports.md lacks this line:\n{line}");
                rows += 1;
            }
        }
        let lines = guide.lines().filter(|line| line.starts_with("| ") && line.ends_with("` |")).count();
        assert_eq!(lines, rows, "docs/reports.md has claims that no text has");
    }

    fn capital(text: &str) -> String {
        text[..1].to_uppercase() + &text[1..]
    }
}
