//! The most useful changes and their gains: the usual way of programs against the best row, ordered by
//! the factor between them.

use maud::{Markup, html};

use super::facts::{self, counts};
use super::noise::{Difference, difference};
use super::view::{self, Gain};
use super::{columns, html as page, sections};
use crate::result::{Experiment, Report, Row, metric};
use crate::units::number;

/// Minimum factor: less is not worth a change.
const WORTHWHILE: f64 = 1.2;
/// Number of changes on the first screen and on a terminal.
pub(crate) const SHOWN: usize = 3;

/// One recommended change.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Factor of the improvement.
    pub times: f64,
    /// The change.
    pub what: String,
    /// The gain, with the figures.
    pub gain: String,
    /// Number of the section with the measurement.
    pub section: usize,
}

/// Returns the list on the first screen.
pub(crate) fn of(report: &Report) -> Markup {
    let advice = advice(report);
    html! {
        section.change aria-labelledby="change" {
            h2 id="change" { "What to change first" }
            @if advice.is_empty() { p { (NONE) } } @else {
                ol {
                    @for advice in advice.iter().take(SHOWN) {
                        li {
                            span.times { (advice.factor()) }
                            div { a href=(format!("#{}", sections::id(advice.section))) { (advice.what) } p.small { (page::prose(&advice.gain)) } }
                        }
                    }
                }
            }
        }
    }
}

/// The sentence where no change is worthwhile.
pub(crate) const NONE: &str = "No measured way is clearly better than the usual one.";

impl Advice {
    /// Returns the factor, short: `15.9x`.
    pub(crate) fn factor(&self) -> String {
        format!("{}\u{d7}", number(self.times))
    }
}

/// Returns all worthwhile changes, the one with the largest gain first.
pub fn advice(report: &Report) -> Vec<Advice> {
    let groups = columns::groups(&report.experiments);
    let mut all: Vec<Advice> = Vec::new();
    for (section, group) in groups.iter().enumerate() {
        for gain in &group[0].view.gains {
            let compared = group.iter().filter_map(|experiment| compare(gain, section, group, experiment));
            let best = compared.max_by(|a, b| a.times.total_cmp(&b.times));
            match best.map(|best| (all.iter_mut().find(|other| other.what == gain.change), best)) {
                Some((Some(other), best)) if best.times > other.times => *other = best,
                Some((None, best)) => all.push(best),
                _ => {}
            }
        }
    }
    all.extend(at_once(report));
    all.retain(|advice| advice.times >= WORTHWHILE);
    all.sort_by(|a, b| b.times.total_cmp(&a.times));
    all
}

fn compare(rule: &Gain, section: usize, group: &[&Experiment], experiment: &Experiment) -> Option<Advice> {
    let usual = rule
        .usual
        .iter()
        .find_map(|name| experiment.row(name).filter(|row| counts(row) && has(row, rule)))?;
    let others = experiment
        .rows
        .iter()
        .filter(|row| counts(row) && has(row, rule) && !rule.usual.iter().any(|name| *name == row.name));
    let better = |row: &Row| {
        let ratio = row.metrics.get(&rule.metric).unwrap_or_default()
            / usual.metrics.get(&rule.metric).unwrap_or(1.0);
        if rule.more { ratio } else { 1.0 / ratio }
    };
    let best = others.max_by(|a, b| better(a).total_cmp(&better(b)))?;
    let times = better(best);
    if !times.is_finite() || difference(best, usual, &rule.metric) == Some(Difference::Equal) {
        return None;
    }
    Some(Advice {
        times,
        what: rule.change.to_string(),
        gain: format!(
            "`{}` instead of `{}`: {} against {} {}{}",
            best.name,
            usual.name,
            number(best.metrics.get(&rule.metric)?),
            number(usual.metrics.get(&rule.metric)?),
            rule.counts,
            view::place(group, experiment)
        ),
        section,
    })
}

fn has(row: &Row, rule: &Gain) -> bool {
    row.metrics.get(&rule.metric).is_some_and(|value| value > 0.0)
}

/// Returns the advice to go from one operation at a time to as many as the device can use.
fn at_once(report: &Report) -> Option<Advice> {
    let curve = facts::curve(report)?;
    let ((alone, first), (knee, row)) = (curve.first(), curve.knee());
    if difference(row, first, metric::IOPS) == Some(Difference::Equal) {
        return None;
    }
    let times = row.metrics.get(metric::IOPS)? / first.metrics.get(metric::IOPS)?;
    Some(Advice {
        times,
        what: "Have more reads in flight at once".to_owned(),
        gain: format!(
            "`{}` with {} instead of {} ({}): {} IOPS against {}; {}",
            row.name,
            number(knee),
            number(alone),
            curve.load,
            number(row.metrics.get(metric::IOPS)?),
            number(first.metrics.get(metric::IOPS)?),
            curve.beyond_knee()
        ),
        section: curve.section,
    })
}

#[cfg(test)]
mod tests {
    use super::super::columns::SHARED;
    use super::super::facts::tests::{random, report, row};
    use super::super::view::{Role, View};
    use super::*;

    fn scan() -> Experiment {
        let mut view = View::of(Role::Sequential, SHARED);
        view.gains = vec![Gain::new(metric::MB_PER_S, true, &["buffered"], "MB/s", "Read whole files")];
        Experiment::new("scan", "").shown(view)
    }

    #[test]
    fn the_largest_gain_comes_first() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        let mut scan = scan();
        scan.rows = vec![
            row("buffered", &[(metric::MB_PER_S, 1000.0)]),
            row("direct-large", &[(metric::MB_PER_S, 2400.0)]),
        ];
        experiments.push(scan);
        let advice = advice(&report(experiments));
        assert_eq!(advice.len(), 2, "{advice:?}");
        assert!(
            advice[0].times == 8.0
                && advice[0].gain
                    == "`direct` with 32 instead of 1 (reads in flight): 80,000 IOPS against 10,000; at most 2 % more, at 128 (measured up to 128)",
            "{advice:?}"
        );
        assert!(
            advice[1].factor() == "2.40\u{d7}"
                && advice[1].gain == "`direct-large` instead of `buffered`: 2,400 against 1,000 MB/s",
            "{advice:?}"
        );
    }

    #[test]
    fn differences_within_the_repeats_are_no_advice() {
        let mut scan = scan();
        scan.rows = vec![
            row("buffered", &[(metric::MB_PER_S, 1000.0)]),
            row("direct-large", &[(metric::MB_PER_S, 1010.0)]),
        ];
        assert!(advice(&report(vec![scan])).is_empty());
        assert!(of(&report(Vec::new())).into_string().contains(NONE));
    }
}
