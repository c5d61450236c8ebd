//! The derivation of each of the five results from the numbers.

use super::{KeyQuestion, Verdict, page};
use crate::page::columns;
use crate::page::facts::{self, Curve, rows};
use crate::page::view::Role;
use crate::page::waits::{command, short};
use crate::result::{Report, Row, metric};
use crate::units::{bytes, number};

/// Share of the bandwidth from which a pattern counts as reaching it; below the other constant, it is
/// kept from it.
const REACHED: f64 = 0.8;
const KEPT_FROM: f64 = 0.5;
/// Share of the processors from which they are the limit.
const BUSY: f64 = 0.9;

pub(crate) fn pattern(report: &Report) -> KeyQuestion {
    let question = "Does the pattern keep the device from its bandwidth?";
    let scans = facts::of_device(report, Role::Sequential, metric::MB_PER_S).into_iter();
    let Some(scan) = scans.max_by(|a, b| a.value.total_cmp(&b.value)) else {
        return KeyQuestion::unknown(
            question,
            "How fast the device reads in sequence was not measured.",
            "forebay measure scan",
        );
    };
    let bandwidth = scan.value;
    let Some(curve) = facts::curve(report) else {
        return KeyQuestion::unknown(
            question,
            &format!(
                "In sequence `{}` gets {} MB/s of the device; reads at random were not measured.",
                scan.row.name,
                number(bandwidth)
            ),
            "forebay measure random",
        );
    };
    let block = curve.experiment.number("block_bytes").unwrap_or(4096.0);
    let ((fewest, first), (at, best)) = (curve.first(), curve.best());
    let (alone, most) = (iops(first) * block / 1e6, iops(best) * block / 1e6);
    let share = most / bandwidth;
    let verdict = match share {
        share if share >= REACHED => Verdict::No,
        share if share < KEPT_FROM => Verdict::Yes,
        _ => Verdict::Partly,
    };
    KeyQuestion {
        question,
        verdict,
        figure: Some(format!("{} % of the bandwidth", number(share * 100.0))),
        sentence: format!(
            "In sequence `{}` gets {} MB/s of the device. Reads of {} at random with `{}` reach {} MB/s ({}: {}), and {} MB/s \
             ({} %) with {}.{}",
            scan.row.name,
            number(bandwidth),
            bytes(block as u64),
            best.name,
            number(most),
            curve.load,
            number(at),
            number(alone),
            number(alone / bandwidth * 100.0),
            number(fewest),
            unproven(&curve)
        ),
        section: Some(curve.section),
        command: None,
    }
}

/// Returns the remark for a device without counters that prove its work.
fn unproven(curve: &Curve<'_>) -> &'static str {
    if curve.proven { "" } else { " No counter of a device proves that these reads came from it." }
}

pub(crate) fn saturated(report: &Report) -> KeyQuestion {
    let question = "Is the device saturated already, and by how many?";
    let Some(curve) = facts::curve(report) else {
        return KeyQuestion::unknown(
            question,
            "How throughput goes with the number of readers was not measured.",
            "forebay measure saturate",
        );
    };
    let (knee, row) = curve.knee();
    let (last, last_row) = curve.last();
    let waits = |row: &Row| row.metrics.get(metric::P99_US);
    let command = (!report.experiments.iter().any(|experiment| experiment.view.role == Role::Saturation))
        .then_some("forebay measure saturate");
    let limit = curve
        .limit()
        .map_or_else(String::new, |limit| format!(" That is {limit}: the device may have more to give."));
    if knee >= last {
        return KeyQuestion {
            question,
            verdict: Verdict::No,
            figure: Some(format!("{} IOPS and rising", number(curve.most()))),
            sentence: format!(
                "Throughput of `{}` still grew at the largest load measured ({}: {}); {}.{limit}{}",
                row.name,
                curve.load,
                number(last),
                curve.beyond_knee(),
                unproven(&curve)
            ),
            section: Some(curve.section),
            command,
        };
    }
    let latency = match (waits(row), waits(last_row)) {
        (Some(at_knee), Some(at_end)) => format!(
            " 99 of 100 reads take at most {} there, and {} at {}.",
            time(at_knee),
            time(at_end),
            number(last)
        ),
        _ => String::new(),
    };
    KeyQuestion {
        question,
        verdict: if knee <= curve.first().0 { Verdict::Yes } else { Verdict::Partly },
        figure: Some(format!("from {} on", number(knee))),
        sentence: format!(
            "{} of them ({}) reach {} IOPS with `{}`; {}.{latency}{limit}{}",
            number(knee),
            curve.load,
            number(iops(row)),
            row.name,
            curve.beyond_knee(),
            unproven(&curve)
        ),
        section: Some(curve.section),
        command,
    }
}

/// A row in one experiment. Only rate and cost of the same reads may be multiplied.
struct Cell<'a> {
    row: &'a Row,
    /// `readers: 32`.
    load: String,
    per_second: f64,
    cost_us: f64,
    section: usize,
}

impl<'a> Cell<'a> {
    fn new(row: &'a Row, load: String, section: usize) -> Option<Self> {
        let (per_second, cost_us) = (row.metrics.get(metric::IOPS)?, row.metrics.get(metric::CPU_US_PER_IO)?);
        (per_second > 0.0).then_some(Self { row, load, per_second, cost_us, section })
    }

    /// Returns the number of processors that it keeps busy.
    fn processors(&self) -> f64 {
        self.per_second * self.cost_us / 1e6
    }

    /// Returns the load of its busiest thread, where that is its limit.
    fn bound_by_a_thread(&self) -> Option<f64> {
        let gate = self.row.conditions.iter().find(|gate| gate.name == "generator" && gate.failed())?;
        gate.value
    }

    fn text(&self) -> String {
        format!(
            "`{}` {} µs at {} reads a second, {} processors",
            self.row.name,
            number(self.cost_us),
            number(self.per_second),
            number(self.processors())
        )
    }
}

/// Returns the cells of the processor-time measurement with the most readers, the cheapest first.
fn costs(report: &Report) -> Vec<Cell<'_>> {
    let readers = |found: &facts::Found<'_>| found.experiment.number("readers").unwrap_or(1.0);
    let all = rows(report, Role::ProcessorTime, metric::CPU_US_PER_IO);
    let most = all.iter().map(readers).fold(0.0, f64::max);
    let load = format!("readers: {}", number(most));
    let mut cells = Vec::new();
    for found in all.into_iter().filter(|found| readers(found) == most) {
        cells.extend(Cell::new(found.row, load.clone(), found.section));
    }
    cells.sort_by(|a, b| a.cost_us.total_cmp(&b.cost_us));
    cells
}

pub(crate) fn processor(report: &Report) -> KeyQuestion {
    let question = "Is a processor the limit?";
    let costs = costs(report);
    let best = facts::curve(report).and_then(|curve| {
        let ((load, row), section) = (curve.best(), curve.section);
        Cell::new(row, format!("{}: {}", curve.load, number(load)), section)
    });
    let fastest = || self::costs(report).into_iter().max_by(|a, b| a.per_second.total_cmp(&b.per_second));
    let Some(best) = best.or_else(fastest) else {
        return KeyQuestion::unknown(
            question,
            "The processor time of a read, beside how many there were in a second, was not measured.",
            "forebay measure cpu",
        );
    };
    let processors = report.environment.cpus_allowed.max(1) as f64;
    let is_busy = |cell: &Cell<'_>| cell.processors() / processors >= BUSY;
    let mut sentence = format!(
        "`{}` reached the most, {} reads a second ({}). Each took {} µs of processor time: {} of {} processors.",
        best.row.name,
        number(best.per_second),
        best.load,
        number(best.cost_us),
        number(best.processors()),
        number(processors)
    );
    if let Some(share) = best.bound_by_a_thread() {
        sentence.push_str(&format!(
            " Its busiest thread worked {} % of the time.",
            number((share * 100.0).round())
        ));
    }
    if let [first, .., last] = &costs[..] {
        sentence.push_str(&format!(
            " Side by side ({}), a read costs from {} to {}.",
            first.load,
            first.text(),
            last.text()
        ));
    }
    let verdict = if is_busy(&best) {
        Verdict::Yes
    } else if best.bound_by_a_thread().is_some() || costs.iter().any(is_busy) {
        Verdict::Partly
    } else {
        Verdict::No
    };
    KeyQuestion {
        question,
        verdict,
        figure: Some(format!("{} of {} processors", number(best.processors()), number(processors))),
        sentence,
        section: Some(best.section),
        command: costs.is_empty().then_some("forebay measure cpu"),
    }
}

pub(crate) fn starving(report: &Report) -> KeyQuestion {
    let question = "Do many users starve each other?";
    let groups = columns::groups(&report.experiments);
    if let Some((section, group)) =
        groups.iter().enumerate().find(|(_, group)| group[0].view.role == Role::Sharing)
    {
        return KeyQuestion {
            question,
            verdict: Verdict::Measured,
            figure: None,
            sentence: match group[0].sentence.as_str() {
                "" => "It was measured; the numbers are below.".to_owned(),
                sentence => format!("{}.", page::capital(sentence)),
            },
            section: Some(section),
            command: None,
        };
    }
    let known = "Shares of users beside each other were not measured.";
    let tail = facts::curve(report).and_then(|curve| tail(&curve).map(|sentence| (sentence, curve.section)));
    let mut key = KeyQuestion::unknown(question, known, "forebay measure fairness");
    if let Some((sentence, section)) = tail {
        key.sentence = format!("{known} {sentence}");
        key.section = Some(section);
    }
    key
}

/// Returns a sentence on the distance of the slowest reads from the median at the largest load.
fn tail(curve: &Curve<'_>) -> Option<String> {
    let (load, row) = curve.last();
    let (middle, slow) = (row.metrics.get(metric::P50_US)?, row.metrics.get(metric::P99_US)?);
    Some(format!(
        "With the most load ({}: {}) one read of 100 takes {} times as long as the one in the middle ({} against {}).",
        curve.load,
        number(load),
        number(slow / middle),
        time(slow),
        time(middle)
    ))
}

pub(crate) fn waiting(report: &Report) -> KeyQuestion {
    let question = "How long does the program wait?";
    let waits = rows(report, Role::Waiting, metric::FULL_WAIT_SHARE);
    if let Some(wait) = waits.first() {
        let some = wait.row.metrics.get(metric::SOME_WAIT_SHARE).map_or_else(String::new, |some| {
            format!(", and in {} % of it at least one thread did", number(some * 100.0))
        });
        return KeyQuestion {
            question,
            verdict: Verdict::Measured,
            figure: Some(format!("{} % of its time", number(wait.value * 100.0))),
            sentence: format!(
                "So long `{}` stood still for I/O: a thread waited, and none ran{some}.",
                short(command(wait.experiment))
            ),
            section: Some(wait.section),
            command: None,
        };
    }
    let mut key = KeyQuestion::unknown(
        question,
        "Only the program itself shows it; the time for which it stands still counts, not the device's figures. \
         `forebay report` with `--wait WAIT.json` puts the result here.",
        "forebay wait --json=WAIT.json -- COMMAND",
    );
    let each =
        rows(report, Role::Writes, "sync_ms").into_iter().filter(|found| found.row.name.ends_with("-each"));
    let share = each.filter_map(|found| Some((found.value / found.row.metrics.get("total_ms")?, found)));
    if let Some((share, found)) = share.filter(|(share, _)| *share <= 1.0).max_by(|a, b| a.0.total_cmp(&b.0))
    {
        key.sentence.push_str(&format!(
            " As an example, a writer that syncs each of its writes (`{}`) waits {} % of its time in sync here.",
            found.row.name,
            number(share * 100.0)
        ));
        key.section = Some(found.section);
    }
    key
}

fn iops(row: &Row) -> f64 {
    row.metrics.get(metric::IOPS).unwrap_or_default()
}

fn time(us: f64) -> String {
    if us < 1000.0 { format!("{} µs", number(us)) } else { format!("{} ms", number(us / 1000.0)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::columns::SHARED;
    use crate::page::facts::tests::{random, report, row};
    use crate::page::questions::key_questions;
    use crate::page::view::View;
    use crate::result::Experiment;

    fn scan(mb_per_s: f64) -> Experiment {
        let mut experiment = Experiment::new("scan", "").shown(View::of(Role::Sequential, SHARED));
        experiment.rows = vec![row("direct-large", &[(metric::MB_PER_S, mb_per_s)])];
        experiment
    }

    #[test]
    fn without_numbers_each_question_names_its_command() {
        for key in key_questions(&report(Vec::new())) {
            assert_eq!(key.verdict, Verdict::Unknown, "{key:?}");
            assert!(key.command.is_some_and(|command| command.starts_with("forebay ")), "{key:?}");
        }
    }

    #[test]
    fn a_pattern_that_keeps_the_device_from_its_bandwidth_is_reported() {
        let figures = [(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)];
        let mut experiments = random(figures);
        experiments.push(scan(2400.0));
        let key = pattern(&report(experiments));
        assert_eq!(key.verdict, Verdict::Yes);
        assert!(
            key.sentence.contains(
                "with `direct` reach 336 MB/s (reads in flight: 128), and 41.0 MB/s (1.71 %) with 1."
            ),
            "{key:?}"
        );
        let mut experiments = random(figures);
        experiments.push(scan(340.0));
        assert_eq!(pattern(&report(experiments)).verdict, Verdict::No);
    }

    #[test]
    fn saturation_is_reported_with_its_knee_and_latency() {
        let key = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)])));
        assert_eq!((key.verdict, key.figure.as_deref()), (Verdict::Partly, Some("from 32 on")));
        assert!(key.sentence.contains("600 µs there, and 2.34 ms at 128"), "{key:?}");
        let level = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 88e3)])));
        assert_eq!(
            level.figure.as_deref(),
            Some("from 32 on"),
            "a tenth more for four times as many is no growth"
        );
        let rising = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 200e3)])));
        assert_eq!(rising.verdict, Verdict::No);
        let flat = saturated(&report(random([(1, 82e3), (8, 82e3), (32, 80e3), (128, 82e3)])));
        assert_eq!(flat.verdict, Verdict::Yes);
    }

    /// Regression: the page said "2.95 of 2 processors", the cost of a read at depth 1 times the rate
    /// at depth 128; of 2 processors 0.44 were busy.
    #[test]
    fn a_processor_is_judged_by_rate_and_cost_of_the_same_reads() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        // Alone a read costs 36 µs, with 127 others in flight 5.4.
        for (experiment, cost) in experiments.iter_mut().zip([36.0, 9.0, 6.0, 5.4]) {
            let rate = experiment.rows[0].metrics.get(metric::IOPS).expect("measured");
            experiment.rows = vec![row("direct", &[(metric::IOPS, rate), (metric::CPU_US_PER_IO, cost)])];
        }
        let alone = |cost: f64| {
            let mut experiment = Experiment::new("cpu", "")
                .shown(View::of(Role::ProcessorTime, SHARED))
                .parameter("readers", 1);
            experiment.rows = vec![
                row("io_uring", &[(metric::CPU_US_PER_IO, cost), (metric::IOPS, 10e3)]),
                row("tokio-fs", &[(metric::CPU_US_PER_IO, 2.0 * cost), (metric::IOPS, 9e3)]),
            ];
            experiment
        };
        let of = |cost: f64| {
            let mut all = experiments.clone();
            all.push(alone(cost));
            processor(&report(all))
        };
        let key = of(36.0);
        assert_eq!((key.verdict, key.figure.as_deref()), (Verdict::No, Some("0.443 of 2 processors")));
        assert!(
            key.sentence.starts_with(
                "`direct` reached the most, 82,000 reads a second (reads in flight: 128). Each took 5.40 µs of processor time: \
                 0.443 of 2 processors."
            ) && key.sentence.contains("`tokio-fs` 72 µs at 9,000 reads a second, 0.648 processors"),
            "{key:?}"
        );
        // A way that keeps both processors busy, and a thread that has no time left.
        assert_eq!(of(110.0).verdict, Verdict::Partly);
        let busy = crate::result::Condition::at_most("generator", 0.97, 0.9);
        experiments[3].rows[0].conditions.push(busy);
        let key = processor(&report(experiments));
        assert_eq!(key.verdict, Verdict::Partly);
        assert!(key.sentence.contains("Its busiest thread worked 97 % of the time."), "{key:?}");
    }

    /// Regression: "IOPS that the device gives" was `buffered`, of which the page cache served 22 %.
    #[test]
    fn reads_partly_from_the_page_cache_are_not_the_device() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        for experiment in &mut experiments {
            let mut cached = row("buffered", &[(metric::IOPS, 110e3), (metric::CPU_US_PER_IO, 9.0)]);
            cached.cache = Some(crate::result::CacheState::MemoryLimited);
            cached.conditions.clear();
            experiment.rows.push(cached);
            // And a row with fewer bytes requested from the device than it claims.
            let mut short = row("direct-tokio", &[(metric::IOPS, 120e3), (metric::CPU_US_PER_IO, 9.0)]);
            short.conditions = vec![crate::result::Condition::within("device_bytes", 0.78, 0.95, 1.02)];
            experiment.rows.push(short);
        }
        for key in key_questions(&report(experiments)) {
            assert!(!key.sentence.contains("110,000") && !key.sentence.contains("120,000"), "{key:?}");
        }
    }

    /// Regression: "more than 128 gives none", where 128 was the maximum measured.
    #[test]
    fn loads_that_were_not_measured_have_no_sentence() {
        let rising = report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 200e3)]));
        assert!(saturated(&rising).sentence.ends_with("more than 128 was not measured."), "{rising:?}");
        let flat = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 80e3)])));
        assert!(flat.sentence.contains("more gives none (measured up to 128)"), "{flat:?}");
    }
}
