//! How each of the five questions is answered from the numbers.

use super::{Answer, Verdict, page};
use crate::doctor::units::{bytes, number};
use crate::report::facts::{self, Curve, rows};
use crate::report::waits::{command, short};
use crate::report::{columns, view};
use crate::result::{Report, Row, metric};
use crate::saved::waited;

/// From this share of the bandwidth on a pattern is said to reach it, and below the other to be kept from it.
const REACHED: f64 = 0.8;
const KEPT_FROM: f64 = 0.5;
/// From this share of the processors on they are the limit.
const BUSY: f64 = 0.9;

pub(super) fn pattern(report: &Report) -> Answer {
    let question = "Does the pattern keep the device from its bandwidth?";
    let best = |found: Vec<facts::Found<'_>>| {
        found.into_iter().max_by(|a, b| a.value.total_cmp(&b.value)).map(|found| (found.value, found.section))
    };
    let Some((bandwidth, _)) = best(rows(report, "scan", metric::MB_PER_S)) else {
        return Answer::unknown(
            question,
            "How fast the device reads in sequence was not measured.",
            "forebay measure scan",
        );
    };
    let Some(curve) = facts::curve(report) else {
        return Answer::unknown(
            question,
            &format!(
                "In sequence this device gives {} MB/s; reads at random were not measured.",
                number(bandwidth)
            ),
            "forebay measure random",
        );
    };
    let block = rows(report, "random", metric::IOPS)
        .iter()
        .chain(&rows(report, "saturate", metric::IOPS))
        .find_map(|found| found.experiment.number("block_bytes"))
        .unwrap_or(4096.0);
    let (alone, most) = (iops(curve.first().1) * block / 1e6, curve.most() * block / 1e6);
    let share = most / bandwidth;
    let verdict = match share {
        share if share >= REACHED => Verdict::No,
        share if share < KEPT_FROM => Verdict::Yes,
        _ => Verdict::Partly,
    };
    Answer {
        question,
        verdict,
        figure: Some(format!("{} % of the bandwidth", number(share * 100.0))),
        sentence: format!(
            "In sequence this device gives {} MB/s. Reads of {} at random reach {} MB/s of it with many in flight, and {} MB/s \
             ({} %) one at a time.",
            number(bandwidth),
            bytes(block as u64),
            number(most),
            number(alone),
            number(alone / bandwidth * 100.0)
        ),
        section: Some(curve.section),
        command: None,
    }
}

pub(super) fn saturated(report: &Report) -> Answer {
    let question = "Is the device saturated already, and by how many?";
    let Some(curve) = facts::curve(report) else {
        return Answer::unknown(
            question,
            "How throughput goes with the number of readers was not measured.",
            "forebay measure saturate",
        );
    };
    let (knee, row) = curve.knee();
    let (last, last_row) = curve.last();
    let waits = |row: &Row| row.metrics.get(metric::P99_US);
    let command = (!report.experiments.iter().any(|experiment| experiment.name == "saturate"))
        .then_some("forebay measure saturate");
    if knee >= last {
        return Answer {
            question,
            verdict: Verdict::No,
            figure: Some(format!("{} IOPS and rising", number(curve.most()))),
            sentence: format!(
                "Throughput still grew at the largest load measured ({}: {}), so the limit is further out.",
                curve.load,
                number(last)
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
    Answer {
        question,
        verdict: if knee <= curve.first().0 { Verdict::Yes } else { Verdict::Partly },
        figure: Some(format!("from {} on", number(knee))),
        sentence: format!(
            "{} of them ({}) reach what this device gives, {} IOPS; each further one only adds latency.{latency}",
            number(knee),
            curve.load,
            number(curve.most())
        ),
        section: Some(curve.section),
        command,
    }
}

pub(super) fn processor(report: &Report) -> Answer {
    let question = "Is a processor the limit?";
    let limit = facts::curve(report).map(|curve| (curve.most(), curve.section));
    let mut costs = rows(report, "cpu", metric::CPU_US_PER_IO);
    let own = !costs.is_empty();
    if costs.is_empty() {
        costs = limit.map_or_else(Vec::new, |(_, section)| {
            let all = rows(report, "random", metric::CPU_US_PER_IO).into_iter();
            all.chain(rows(report, "saturate", metric::CPU_US_PER_IO))
                .filter(|found| found.section == section)
                .collect()
        });
    }
    costs.sort_by(|a, b| a.value.total_cmp(&b.value));
    let (Some(least), Some(most), Some((iops, _))) = (costs.first(), costs.last(), limit) else {
        return Answer::unknown(
            question,
            "The processor time of a read beside what the device gives was not measured.",
            "forebay measure cpu",
        );
    };
    let processors = report.environment.cpus_allowed.max(1) as f64;
    let needs = |found: &facts::Found<'_>| iops * found.value / 1e6;
    let verdict = match (needs(least) / processors >= BUSY, needs(most) / processors >= BUSY) {
        (true, _) => Verdict::Yes,
        (false, true) => Verdict::Partly,
        (false, false) => Verdict::No,
    };
    let (low, high) = (number(needs(least)), number(needs(most)));
    let range = if verdict == Verdict::Partly { format!("{low} to {high}") } else { low };
    Answer {
        question,
        verdict,
        figure: Some(format!("{range} of {} processors", number(processors))),
        sentence: format!(
            "The {} IOPS that the device gives cost {} processors with `{}` ({} µs a read, so one drives {} a second) and {} \
             with `{}` ({} µs).",
            number(iops),
            number(needs(least)),
            least.row.name,
            number(least.value),
            number(1e6 / least.value.max(1e-3)),
            number(needs(most)),
            most.row.name,
            number(most.value)
        ),
        section: Some(least.section),
        command: (!own).then_some("forebay measure cpu"),
    }
}

pub(super) fn starving(report: &Report) -> Answer {
    let question = "Do many users starve each other?";
    let groups = columns::groups(&report.experiments);
    if let Some((section, group)) = groups.iter().enumerate().find(|(_, group)| group[0].name == "fairness") {
        return Answer {
            question,
            verdict: Verdict::Measured,
            figure: None,
            sentence: view::sentences(group).first().map_or_else(
                || "It was measured; the numbers are below.".to_owned(),
                |sentence| format!("{}.", page::capital(sentence)),
            ),
            section: Some(section),
            command: None,
        };
    }
    let known = "Shares of users beside each other were not measured.";
    let tail = facts::curve(report).and_then(|curve| tail(&curve).map(|sentence| (sentence, curve.section)));
    let mut answer = Answer::unknown(question, known, "forebay measure fairness");
    if let Some((sentence, section)) = tail {
        answer.sentence = format!("{known} {sentence}");
        answer.section = Some(section);
    }
    answer
}

/// How far the slowest reads are from the middle at the largest load.
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

pub(super) fn waiting(report: &Report) -> Answer {
    let question = "How long does the program wait?";
    let waits = rows(report, waited::NAME, metric::FULL_WAIT_SHARE);
    if let Some(wait) = waits.first() {
        let some = wait.row.metrics.get(metric::SOME_WAIT_SHARE).map_or_else(String::new, |some| {
            format!(", and in {} % of it at least one thread did", number(some * 100.0))
        });
        return Answer {
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
    let mut answer = Answer::unknown(
        question,
        "Only the program itself can tell; the time it stands still counts, not the device's figures. `forebay report` \
         with `--wait WAIT.json` puts the answer here.",
        "forebay wait --json WAIT.json -- COMMAND",
    );
    let each =
        rows(report, "writes", "sync_ms").into_iter().filter(|found| found.row.name.ends_with("-each"));
    let share = each.filter_map(|found| Some((found.value / found.row.metrics.get("total_ms")?, found)));
    if let Some((share, found)) = share.filter(|(share, _)| *share <= 1.0).max_by(|a, b| a.0.total_cmp(&b.0))
    {
        answer.sentence.push_str(&format!(
            " As an example, a writer that syncs each of its writes (`{}`) waits {} % of its time in sync here.",
            found.row.name,
            number(share * 100.0)
        ));
        answer.section = Some(found.section);
    }
    answer
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
    use crate::report::answers::answers;
    use crate::report::facts::tests::{random, report, row};
    use crate::result::Experiment;

    fn scan(mb_per_s: f64) -> Experiment {
        let mut experiment = Experiment::new("scan", "");
        experiment.rows = vec![row("direct-large", &[(metric::MB_PER_S, mb_per_s)])];
        experiment
    }

    #[test]
    fn without_numbers_each_question_names_the_command_that_answers_it() {
        for answer in answers(&report(Vec::new())) {
            assert_eq!(answer.verdict, Verdict::Unknown, "{answer:?}");
            assert!(answer.command.is_some_and(|command| command.starts_with("forebay ")), "{answer:?}");
        }
    }

    #[test]
    fn a_pattern_that_keeps_the_device_from_its_bandwidth_is_told() {
        let figures = [(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)];
        let mut experiments = random(figures);
        experiments.push(scan(2400.0));
        let answer = pattern(&report(experiments));
        assert_eq!(answer.verdict, Verdict::Yes);
        assert!(
            answer.sentence.contains("reach 336 MB/s of it with many in flight, and 41.0 MB/s (1.71 %)"),
            "{answer:?}"
        );
        let mut experiments = random(figures);
        experiments.push(scan(340.0));
        assert_eq!(pattern(&report(experiments)).verdict, Verdict::No);
    }

    #[test]
    fn saturation_is_told_with_its_knee_and_latency() {
        let answer = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)])));
        assert_eq!((answer.verdict, answer.figure.as_deref()), (Verdict::Partly, Some("from 32 on")));
        assert!(answer.sentence.contains("600 µs there, and 2.34 ms at 128"), "{answer:?}");
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

    #[test]
    fn a_processor_that_is_the_limit_is_told_with_the_dearest_and_the_cheapest_way() {
        let cpu = |cheap: f64, dear: f64| {
            let mut experiment = Experiment::new("cpu", "");
            experiment.rows = vec![
                row("io_uring", &[(metric::CPU_US_PER_IO, cheap)]),
                row("tokio-fs", &[(metric::CPU_US_PER_IO, dear)]),
            ];
            experiment
        };
        let verdict = |cheap, dear| {
            let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
            experiments.push(cpu(cheap, dear));
            processor(&report(experiments)).verdict
        };
        assert_eq!(verdict(2.0, 5.0), Verdict::No);
        assert_eq!(verdict(2.0, 30.0), Verdict::Partly);
        assert_eq!(verdict(25.0, 30.0), Verdict::Yes);
    }
}
