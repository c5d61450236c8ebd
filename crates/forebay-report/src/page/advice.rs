//! The most useful changes and their gains: the usual way of programs against the best row, ordered by
//! the factor between them.

use maud::{Markup, html};

use super::facts::{self, counts};
use super::html as page;
use super::noise::{Difference, difference};
use crate::result::columns::{groups, together};
use crate::result::view::{self, Gain};
use crate::result::{Experiment, Report, Row, metric};
use crate::units::{largest, number};

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
                            div { a href=(format!("#{}", page::id(advice.section))) { (advice.what) } p.small { (page::prose(&advice.gain)) } }
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
    let groups = groups(&report.experiments);
    let of_groups = groups.iter().enumerate().flat_map(|(section, group)| {
        group[0].view.gains.iter().filter_map(move |gain| {
            let compared = group.iter().filter_map(|experiment| compare(gain, section, group, experiment));
            largest(compared, |advice| advice.times)
        })
    });
    let mut all: Vec<Advice> = of_groups.chain(at_once(report)).collect();
    all.retain(|advice| advice.times >= WORTHWHILE);
    all.sort_by(|a, b| b.times.total_cmp(&a.times));
    let changes = together(all, |one, other| one.what == other.what);
    changes.into_iter().filter_map(|change| change.into_iter().next()).collect()
}

fn compare(rule: &Gain, section: usize, group: &[&Experiment], experiment: &Experiment) -> Option<Advice> {
    let value = |row: &Row| row.get(&rule.metric).filter(|value| counts(row) && *value > 0.0);
    let known = |row| Some((row, value(row)?));
    let (usual, before) = rule.usual.iter().find_map(|name| known(experiment.row(name)?))?;
    let changed = experiment.rows.iter().filter(|row| rule.is_made_by(experiment, &row.name));
    let times = |after: f64| if rule.more { after / before } else { 1.0 / (after / before) };
    let (best, after) = largest(changed.filter_map(known), |(_, after)| times(*after))?;
    if !times(after).is_finite() || difference(best, usual, &rule.metric) == Some(Difference::Equal) {
        return None;
    }
    Some(Advice {
        times: times(after),
        what: rule.change.to_string(),
        gain: format!(
            "`{}` instead of `{}`: {} against {} {}{}",
            best.name,
            usual.name,
            number(after),
            number(before),
            rule.counts,
            view::place(group, experiment)
        ),
        section,
    })
}

/// Returns the advice to raise the depth from one operation to as many as the device can use.
fn at_once(report: &Report) -> Option<Advice> {
    let curve = facts::curve(report)?;
    let ((alone, first), (knee, row)) = (curve.first(), curve.knee());
    if difference(row, first, metric::IOPS) == Some(Difference::Equal) {
        return None;
    }
    let (after, before) = (row.get(metric::IOPS)?, first.get(metric::IOPS)?);
    Some(Advice {
        times: after / before,
        what: "Have more reads in flight at once".to_owned(),
        gain: format!(
            "`{}` with {} instead of {} ({}): {} IOPS against {}",
            row.name,
            number(knee),
            number(alone),
            curve.load,
            number(after),
            number(before)
        ),
        section: curve.section,
    })
}

#[cfg(test)]
mod tests {
    use super::super::facts::tests::{random, report, row};
    use super::*;
    use crate::result::columns::SHARED;
    use crate::result::view::{Role, View};

    fn scan() -> Experiment {
        let mut view = View::of(Role::Sequential, SHARED);
        let to = &["direct-large"];
        view.gains = vec![Gain::new(metric::MB_PER_S, true, &["buffered"], to, "MB/s", "Read whole files")];
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
                    == "`direct` with 32 instead of 1 (reads in flight): 80,000 IOPS against 10,000",
            "{advice:?}"
        );
        assert!(
            advice[1].factor() == "2.40\u{d7}"
                && advice[1].gain == "`direct-large` instead of `buffered`: 2,400 against 1,000 MB/s",
            "{advice:?}"
        );
    }

    /// Regression: the best of all other rows stood next to the change, though it was another row ("durable together, where no task
    /// waits for each": `o-direct-dsync`; "past the page cache": `mmap`).
    #[test]
    fn a_row_that_is_not_the_change_is_no_advice_for_it() {
        let mut scan = scan();
        scan.rows =
            vec![row("buffered", &[(metric::MB_PER_S, 1000.0)]), row("mmap", &[(metric::MB_PER_S, 9000.0)])];
        assert!(advice(&report(vec![scan.clone()])).is_empty());
        scan.rows.push(row("direct-large", &[(metric::MB_PER_S, 2400.0)]));
        let found = advice(&report(vec![scan.clone()]));
        assert!(found.len() == 1 && found[0].gain.starts_with("`direct-large`"), "{found:?}");
        // With a single read in flight nothing is different.
        let mut view = (*scan.view).clone();
        view.gains = vec![view.gains[0].clone().from_load(2)];
        let at =
            |depth: u32| advice(&report(vec![scan.clone().shown(view.clone()).parameter("depth", depth)]));
        assert_eq!((at(1).len(), at(2).len()), (0, 1));
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
