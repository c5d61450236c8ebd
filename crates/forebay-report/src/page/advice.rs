//! The most useful changes and their gains: the usual way of programs against the best row, ordered by
//! the factor between them.

use maud::{Markup, html};

use super::facts::{self, counts};
use super::noise::{Difference, difference};
use super::view::{self, Gain};
use super::{columns, html as page, sections};
use crate::check::Verdict;
use crate::result::{Experiment, Report, Row, metric};
use crate::units::number;

/// Minimum factor: less is not worth a change.
const WORTHWHILE: f64 = 1.2;
/// Number of changes shown.
const SHOWN: usize = 6;

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

/// Returns the list on the page, followed by the doctor's findings.
pub(crate) fn of(report: &Report) -> Markup {
    let advice = advice(report);
    let groups = columns::groups(&report.experiments);
    let remedies: Vec<_> = report
        .environment
        .checks
        .iter()
        .filter(|check| check.verdict != Verdict::Ok && check.remedy.is_some())
        .collect();
    html! {
        section aria-labelledby="change" {
            h2 id="change" { "Changes with the largest gain" }
            @if advice.is_empty() {
                p { "No measured way is clearly better than the usual one." }
            } @else {
                ol.advice {
                    @for advice in advice.iter().take(SHOWN) {
                        li { strong { (advice.what) } ": " (page::prose(&advice.gain)) ". See " (sections::link(advice.section, &groups)) "." }
                    }
                }
                p.small {
                    "Each compares the usual way of doing the work with the best that was measured beside it. It \
                     holds for this device and this load, and for the part of a program's time that is such work."
                }
            }
            @if !remedies.is_empty() {
                p { "Degraded or unavailable features, as the doctor found:" }
                ul { @for check in remedies { li { strong { (check.name) } ": " (page::prose(check.remedy.as_deref().unwrap_or(""))) } } }
            }
        }
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
    let axis = view::axis(group);
    let place = axis
        .as_ref()
        .and_then(|axis| Some(format!(", {}: {}", axis.label, number(experiment.number(&axis.parameter)?))));
    Some(Advice {
        times,
        what: rule.change.to_string(),
        gain: format!(
            "`{}` instead of `{}` gives {} times {} {} ({} against {}{})",
            best.name,
            usual.name,
            number(times),
            if rule.more { "more" } else { "less" },
            rule.counts,
            number(best.metrics.get(&rule.metric)?),
            number(usual.metrics.get(&rule.metric)?),
            place.unwrap_or_default()
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
        gain: page::capital(&format!(
            "{} instead of {} ({}) gives {} times more IOPS from `{}`; {}",
            number(knee),
            number(alone),
            curve.load,
            number(times),
            row.name,
            curve.beyond_knee()
        )),
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
            advice[0].gain.starts_with("32 instead of 1 (reads in flight) gives 8 times more IOPS from `direct`; more gives at most 2 % more, at 128 (measured up to 128)"),
            "{advice:?}"
        );
        assert!(
            advice[1].gain.contains(
                "`direct-large` instead of `buffered` gives 2.40 times more MB/s (2,400 against 1,000)"
            ),
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
        assert!(of(&report(Vec::new())).into_string().contains("No measured way is clearly better"));
    }
}
