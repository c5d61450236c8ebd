//! Five questions that show whether a program can use its storage: each with a verdict, a figure and one sentence, derived
//! from the numbers.

use maud::{Markup, html};

use super::facts::{self, FoundRow, rate, rows};
use super::headline;
use super::html as page;
use super::noise::{Difference, difference};
use crate::result::view::Role;
use crate::result::{Condition, Report, Row, metric};
use crate::saved::waited;
use crate::units::{largest, number, percent, time};

/// Share of the bandwidth from which a pattern counts as reaching it; below the other constant, it is
/// kept from it.
const REACHED: f64 = 0.8;
const KEPT_FROM: f64 = 0.5;
/// Share of the processors from which they are the limit.
const BUSY: f64 = 0.9;
/// The figures of a reader by which it starves, the most telling first, each with its name in sentences and whether it is a
/// rate. A reader that starves has too few reads for a p99.
const OF_A_READER: [(&str, &str, bool); 3] =
    [(metric::P99_US, "p99", false), (metric::P50_US, "p50", false), (metric::IOPS, "rate", true)];
/// Factor of such a figure with other load from which a reader starves, and from which it notices them.
const STARVES: f64 = 3.0;
const NOTICES: f64 = 1.25;
/// Share of its time for which a program is blocked from which I/O is its limit, and from which it counts.
const BLOCKED: f64 = 0.5;
const SLOWED: f64 = 0.1;

/// The possible verdicts on a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Yes,
    /// Depends on a condition that the sentence gives.
    Partly,
    /// No.
    No,
    /// A figure, for a question without a verdict.
    Measured,
    /// The experiment was not run.
    Unknown,
}

impl Verdict {
    /// Returns the verdict in words.
    pub(crate) fn label(self) -> String {
        format!("{self:?}")
    }

    /// Returns the verdict for a value that is `yes` or more, `partly` or more, or less.
    fn over(value: f64, yes: f64, partly: f64) -> Self {
        match value {
            value if value >= yes => Self::Yes,
            value if value >= partly => Self::Partly,
            _ => Self::No,
        }
    }
}

/// A question with its verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyQuestion {
    /// The question.
    pub question: &'static str,
    /// The verdict.
    pub verdict: Verdict,
    /// The figure behind it, with its unit.
    pub figure: Option<String>,
    /// A sentence of at most 20 words.
    pub sentence: String,
    /// Number of the section with the measurement.
    pub section: Option<usize>,
    /// The command that measures it, or measures it better.
    pub command: Option<&'static str>,
}

impl KeyQuestion {
    fn unknown(question: &'static str, sentence: &str, command: &'static str) -> Self {
        let (sentence, command) = (sentence.to_owned(), Some(command));
        Self { question, verdict: Verdict::Unknown, figure: None, sentence, section: None, command }
    }

    /// Returns the question with what was measured.
    fn found(self, verdict: Verdict, figure: String, sentence: String, section: usize) -> Self {
        let (figure, section) = (Some(figure), Some(section));
        Self { verdict, figure, sentence, section, command: None, ..self }
    }
}

/// Returns the questions on the first screen.
pub(crate) fn of(report: &Report) -> Markup {
    html! {
        section.questions aria-labelledby="summary" {
            h2 id="summary" { "Five questions before buying more IOPS" }
            ol {
                @for key in key_questions(report) {
                    li {
                        span class=(format!("verdict {}", key.verdict.label().to_lowercase())) { (key.verdict.label()) }
                        div {
                            h3 {
                                @if let Some(section) = key.section { a href=(format!("#{}", page::id(section))) { (key.question) } }
                                @else { (key.question) }
                                @if let Some(figure) = &key.figure { " " span.figure { (figure) } }
                            }
                            p { (page::sentence(&key.sentence)) @if let Some(command) = key.command { " " code { (command) } } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns all five, in their order.
pub fn key_questions(report: &Report) -> [KeyQuestion; 5] {
    [pattern(report), saturated(report), processor(report), starving(report), blocked(report)]
}

fn pattern(report: &Report) -> KeyQuestion {
    let unknown = |sentence: &str, command| {
        KeyQuestion::unknown("Does the pattern keep the device from its bandwidth?", sentence, command)
    };
    let shown = headline::sequential_read(report).filter(|(row, _)| facts::is_direct(row));
    let best = || {
        let scans = facts::of_device(report, Role::Sequential, metric::MB_PER_S);
        largest(scans, |scan| scan.value).map(|scan| (scan.row, scan.value))
    };
    let Some((scan, bandwidth)) = shown.or_else(best) else {
        return unknown("Sequential reads of the device were not measured.", "forebay measure scan");
    };
    let in_sequence = format!("`{}` gets {} MB/s in sequence", scan.name, number(bandwidth));
    let random =
        unknown(&format!("{in_sequence}; random reads were not measured."), "forebay measure random");
    let Some(curve) = facts::curve(report) else { return random };
    let block = curve.experiment.number("block_bytes").unwrap_or(4096.0);
    let ((fewest, first), (at, best)) = (curve.first(), curve.best());
    let [alone, most] = [first, best].map(|row| rate(row) * block / 1e6);
    let share = most / bandwidth;
    let verdict = match share {
        REACHED.. => Verdict::No,
        ..KEPT_FROM => Verdict::Yes,
        _ => Verdict::Partly,
    };
    let figure = format!("{} % of the bandwidth", number(share * 100.0));
    let (load, row) = (&curve.load, &best.name);
    let [most, at, alone, fewest] = [most, at, alone, fewest].map(number);
    let sentence = format!(
        "`{row}` reaches {most} MB/s at random ({load}: {at}), {alone} with {fewest}; {in_sequence}."
    );
    random.found(verdict, figure, sentence, curve.section)
}

fn saturated(report: &Report) -> KeyQuestion {
    let key = KeyQuestion::unknown(
        "Is the device saturated?",
        "Throughput over the number of readers was not measured.",
        "forebay measure saturate",
    );
    let Some(curve) = facts::curve(report) else { return key };
    let ((knee, row), (last, _)) = (curve.knee(), curve.last());
    let (name, load, beyond) = (&row.name, &curve.load, curve.beyond_knee());
    let is_rising = knee >= last;
    let p99 = row.get(metric::P99_US).map_or_else(String::new, |us| format!(", p99 {}", time(us)));
    let from = format!("from {} {load} on", number(knee));
    let (verdict, figure) = match knee {
        _ if is_rising => (Verdict::No, format!("{} IOPS and rising", number(curve.most()))),
        knee if knee <= curve.first().0 => (Verdict::Yes, from),
        _ => (Verdict::Partly, from),
    };
    let sentence = match curve.limit() {
        Some(limit) if is_rising => format!("`{name}` comes up to {limit}; {beyond}."),
        Some(limit) => format!("`{name}` comes up to {limit} (measured up to {}).", number(last)),
        None if is_rising => format!("`{name}` still grew at the largest load ({load}); {beyond}."),
        None => format!("`{name}` gets {} IOPS there{p99}; {beyond}.", number(rate(row))),
    };
    let has_loads = report.experiments.iter().any(|experiment| experiment.view.role == Role::Saturation);
    let command = key.command.filter(|_| !has_loads);
    KeyQuestion { command, ..key.found(verdict, figure, sentence, curve.section) }
}

/// Returns rate and processor time of the reads of a row: only those of the same reads may be multiplied.
fn cost(row: &Row) -> Option<[f64; 2]> {
    Some([row.get(metric::IOPS).filter(|rate| *rate > 0.0)?, row.get(metric::CPU_US_PER_IO)?])
}

/// Returns the number of processors that a row keeps busy.
fn processors(row: &Row) -> f64 {
    cost(row).map_or(0.0, |[per_second, cost_us]| per_second * cost_us / 1e6)
}

fn processor(report: &Report) -> KeyQuestion {
    let key = KeyQuestion::unknown(
        "Is a processor the limit?",
        "Processor time of a read, beside the rate of the same reads, was not measured.",
        "forebay measure cpu",
    );
    let readers = |found: &FoundRow<'_>| found.experiment.number("readers").unwrap_or(1.0);
    let mut costs = rows(report, Role::ProcessorTime, metric::CPU_US_PER_IO);
    let most = costs.iter().map(readers).fold(0.0, f64::max);
    costs.retain(|found| readers(found) == most && cost(found.row).is_some());
    let best = facts::curve(report).and_then(|curve| {
        let (load, row) = curve.best();
        Some((row, cost(row)?, format!("{}: {}", curve.load, number(load)), curve.section))
    });
    let fastest = || {
        let found = largest(&costs, |found| rate(found.row))?;
        Some((found.row, cost(found.row)?, format!("readers: {}", number(most)), found.section))
    };
    let Some((row, cost, load, section)) = best.or_else(fastest) else { return key };
    let all = report.environment.cpus_allowed.max(1) as f64;
    let is_busy = |row: &Row| processors(row) / all >= BUSY;
    let is_generator = |gate: &&Condition| gate.name == "generator" && gate.failed();
    // The load of the busiest thread, where that is the limit.
    let thread = row.conditions.iter().find(is_generator).and_then(|gate| gate.value);
    let dear = costs.iter().map(|found| found.row).find(|row| is_busy(row));
    let verdict = match (is_busy(row), thread.is_some() || dear.is_some()) {
        (true, _) => Verdict::Yes,
        (false, true) => Verdict::Partly,
        (false, false) => Verdict::No,
    };
    let rest = match (thread, dear) {
        (Some(share), _) => format!("each; one thread was {} busy", percent(share)),
        (_, Some(dear)) => format!("each; `{}` needs {}", dear.name, number(processors(dear))),
        _ => "of processor time each".to_owned(),
    };
    let figure = format!("{} of {} processors", number(processors(row)), number(all));
    let [per_second, cost_us] = cost.map(number);
    let sentence =
        format!("`{}` gets the most, {per_second} IOPS ({load}), at {cost_us} µs {rest}.", row.name);
    let command = key.command.filter(|_| costs.is_empty());
    KeyQuestion { command, ..key.found(verdict, figure, sentence, section) }
}

fn starving(report: &Report) -> KeyQuestion {
    let key = KeyQuestion::unknown(
        "Do many users starve each other?",
        "A reader beside others was not measured.",
        "forebay measure fairness",
    );
    let beside = facts::measured(report).filter(|(_, experiment, row)| {
        experiment.view.role == Role::Sharing && row.name == "no-classes" && facts::counts(row)
    });
    let compared = beside.filter_map(|(section, experiment, row)| {
        let alone = experiment.row("reader-alone")?;
        OF_A_READER.iter().find_map(|(name, called, is_rate)| {
            let (before, after) = (alone.get(name)?, row.get(name)?);
            let times = match difference(row, alone, name)? {
                Difference::Equal => 1.0,
                _ if *is_rate => before / after,
                _ => after / before,
            };
            let show = |value: f64| if *is_rate { format!("{} IOPS", number(value)) } else { time(value) };
            let with = experiment.row("classes").and_then(|row| row.get(name));
            let with = with.map_or_else(String::new, |with| format!("; with classes it is {}", show(with)));
            let (before, after) = (show(before), show(after));
            let sentence =
                format!("A reader's {called} goes from {before} alone to {after} beside others{with}.");
            let figure = match times {
                1.0 => format!("{called} unchanged"),
                times => {
                    format!("{called} {} times {}", number(times), if *is_rate { "lower" } else { "higher" })
                }
            };
            times.is_finite().then_some((times, figure, sentence, section))
        })
    });
    if let Some((times, figure, sentence, section)) = largest(compared, |(times, ..)| *times) {
        return key.found(Verdict::over(times, STARVES, NOTICES), figure, sentence, section);
    }
    let mut sharing = report.experiments.iter().filter(|one| one.view.role == Role::Sharing);
    if let Some(one) = sharing.find(|one| !one.rows.is_empty()) {
        let sentence = match one.sentence.as_str() {
            "" => "It was measured; the numbers are below.".to_owned(),
            sentence => page::brief(sentence),
        };
        return KeyQuestion { verdict: Verdict::Measured, sentence, command: None, ..key };
    }
    // The distance of the slowest reads from the median at the largest load.
    let tail = facts::curve(report).and_then(|curve| {
        let (load, row) = curve.last();
        let (middle, slow) = (row.get(metric::P50_US)?, row.get(metric::P99_US)?);
        let (load, times, slow, middle) = (number(load), number(slow / middle), time(slow), time(middle));
        let at = format!("{load} ({})", curve.load);
        let sentence = format!("Not measured; with {at} p99 is {times} times p50, {slow} against {middle}.");
        Some((sentence, curve.section))
    });
    match tail {
        Some((sentence, section)) => KeyQuestion { sentence, section: Some(section), ..key },
        None => key,
    }
}

fn blocked(report: &Report) -> KeyQuestion {
    let mut key = KeyQuestion::unknown(
        "Is the program blocked on I/O?",
        "Only the program itself shows it; add its result with `--wait WAIT.json`.",
        "forebay wait --json=WAIT.json -- COMMAND",
    );
    let waits = rows(report, Role::Waiting, metric::FULL_WAIT_SHARE);
    if let Some(wait) = waits.first()
        && let Some(share) = waited::blocked_percent(wait.row)
        && let Some(sentence) = waited::sentence(wait.experiment, wait.row)
    {
        // A possible wait is never reported as no wait.
        let most = wait.value + wait.row.get(metric::MAYBE_WAIT_SHARE).unwrap_or(0.0);
        let verdict = match [wait.value, most].map(|share| Verdict::over(share, BLOCKED, SLOWED)) {
            [Verdict::No, Verdict::Yes | Verdict::Partly] => Verdict::Partly,
            [verdict, _] => verdict,
        };
        return key.found(verdict, format!("{share} % of its time"), format!("{sentence}."), wait.section);
    }
    let each = rows(report, Role::Writes, metric::SYNC_MS).into_iter();
    let each = each.filter(|found| found.row.name.ends_with("-each"));
    let shares = each.filter_map(|found| Some((found.value / found.row.get(metric::TOTAL_MS)?, found)));
    if let Some((share, found)) = largest(shares.filter(|(share, _)| *share <= 1.0), |(share, _)| *share) {
        key.sentence = format!(
            "Only the program itself shows it; a writer that syncs each write (`{}`) waits {} % here.",
            found.row.name,
            number(share * 100.0)
        );
        key.section = Some(found.section);
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::facts::tests::{random, report, row};
    use crate::result::Experiment;
    use crate::result::columns::SHARED;
    use crate::result::view::View;

    fn scan(mb_per_s: f64) -> Experiment {
        let rows = [row("direct-large", &[(metric::MB_PER_S, mb_per_s)])];
        Experiment::new("scan", "").shown(View::of(Role::Sequential, SHARED)).with_rows(rows)
    }

    /// Returns whether a sentence has 20 words at most.
    fn is_short(key: &KeyQuestion) -> bool {
        key.sentence.split_whitespace().count() <= 20
    }

    #[test]
    fn a_reader_starves_where_its_p99_rises_beside_others() {
        let sharing = |beside: f64| {
            let with = |name: &str, us: f64| row(name, &[(metric::P99_US, us)]);
            let rows = [with("reader-alone", 300.0), with("no-classes", beside), with("classes", 700.0)];
            let experiment = Experiment::new("fairness", "").shown(View::of(Role::Sharing, SHARED));
            starving(&report(vec![experiment.with_rows(rows)]))
        };
        let sharing_verdicts = [300.0, 600.0, 900_000.0].map(|beside| sharing(beside).verdict);
        assert_eq!(sharing_verdicts, [Verdict::No, Verdict::Partly, Verdict::Yes]);
        let key = sharing(900_000.0);
        assert_eq!(
            key.sentence,
            "A reader's p99 goes from 300 µs alone to 900 ms beside others; with classes it is 700 µs."
        );
        assert!(is_short(&key));
    }

    /// Regression: a reader that got 14 reads in a second has no p99, and the question had no answer where starvation was worst.
    #[test]
    fn a_reader_without_a_p99_starves_by_its_p50_or_its_rate() {
        let sharing = |alone: &[(&str, f64)], beside: &[(&str, f64)]| {
            let experiment = Experiment::new("fairness", "").shown(View::of(Role::Sharing, SHARED));
            let rows = [row("reader-alone", alone), row("no-classes", beside)];
            starving(&report(vec![experiment.with_rows(rows)]))
        };
        let alone = [(metric::IOPS, 10_106.0), (metric::P50_US, 48.1), (metric::P99_US, 90.0)];
        let key = sharing(&alone, &[(metric::IOPS, 14.0), (metric::P50_US, 81_265.0)]);
        assert_eq!((key.verdict, key.figure.as_deref()), (Verdict::Yes, Some("p50 1,690 times higher")));
        let key = sharing(&alone, &[(metric::IOPS, 14.0)]);
        assert_eq!((key.verdict, key.figure.as_deref()), (Verdict::Yes, Some("rate 722 times lower")));
        assert_eq!(key.sentence, "A reader's rate goes from 10,106 IOPS alone to 14 IOPS beside others.");
        let key = sharing(&alone, &[(metric::IOPS, 10_200.0)]);
        assert_eq!((key.verdict, key.figure.as_deref()), (Verdict::No, Some("rate unchanged")));
        assert!(is_short(&key), "{key:?}");
    }

    fn waiting(command: &str, shares: &[(&str, f64)]) -> Experiment {
        let experiment = Experiment::new("wait", "").shown(View::of(Role::Waiting, SHARED));
        experiment.parameter("command", command).with_rows([row("program", shares)])
    }

    #[test]
    fn a_program_that_stands_still_is_blocked() {
        let program = |full: f64| {
            let shares = [(metric::FULL_WAIT_SHARE, full), (metric::SOME_WAIT_SHARE, 0.9)];
            blocked(&report(vec![waiting("dd if=/dev/zero of=out bs=4k count=1000 oflag=direct", &shares)]))
        };
        assert_eq!(
            [0.01, 0.2, 0.8].map(|full| program(full).verdict),
            [Verdict::No, Verdict::Partly, Verdict::Yes]
        );
        assert!(program(0.8).sentence.starts_with("`dd` was blocked for 80 % of its time"));
        assert!(is_short(&program(0.8)));
    }

    /// Regression: a program that slept in epoll while its reads were in flight was not blocked on I/O.
    #[test]
    fn what_may_be_a_wait_is_no_no() {
        let program = |maybe: f64| {
            let shares = [
                (metric::FULL_WAIT_SHARE, 0.02),
                (metric::SOME_WAIT_SHARE, 0.02),
                (metric::MAYBE_WAIT_SHARE, maybe),
            ];
            blocked(&report(vec![waiting("dd", &shares)]))
        };
        assert_eq!(
            [0.0, 0.2, 0.9].map(|maybe| program(maybe).verdict),
            [Verdict::No, Verdict::Partly, Verdict::Partly]
        );
        assert!(program(0.9).sentence.starts_with("`dd` was blocked for 2 to 92 % of its time"));
        assert!(is_short(&program(0.9)));
    }

    /// Regression: a limit of a control group was called the device's.
    #[test]
    fn a_limit_is_named_instead_of_the_device() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        for experiment in &mut experiments {
            experiment.parameters.insert(facts::IO_LIMIT_BY.to_owned(), "/sys/fs/cgroup/a/io.max".into());
            experiment.parameters.insert(facts::IO_LIMIT_READS.to_owned(), 80_000.into());
        }
        let key = saturated(&report(experiments));
        assert!(key.sentence.contains("the limit of 80,000 reads a second"), "{key:?}");
        assert!(key.sentence.ends_with("(measured up to 128).") && is_short(&key), "{key:?}");
    }

    #[test]
    fn without_numbers_each_question_names_its_command() {
        for key in key_questions(&report(Vec::new())) {
            assert_eq!(key.verdict, Verdict::Unknown, "{key:?}");
            assert!(key.command.is_some_and(|command| command.starts_with("forebay ")), "{key:?}");
            assert!(is_short(&key), "{key:?}");
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
            key.sentence.contains("`direct` reaches 336 MB/s at random (reads in flight: 128), 41.0 with 1;"),
            "{key:?}"
        );
        let mut experiments = random(figures);
        experiments.push(scan(340.0));
        assert_eq!(pattern(&report(experiments)).verdict, Verdict::No);
    }

    /// Regression: the cards had the baseline's sequential read, and the question next to them another of the scan.
    #[test]
    fn a_screen_has_one_sequential_figure() {
        let mut experiments = random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)]);
        experiments.extend([scan(2400.0), headline::tests::baseline()]);
        let key = pattern(&report(experiments));
        assert!(key.sentence.ends_with("`sequential-read` gets 3,120 MB/s in sequence."), "{key:?}");
    }

    #[test]
    fn saturation_is_reported_with_its_knee_and_latency() {
        let key = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 82e3)])));
        assert_eq!(
            (key.verdict, key.figure.as_deref()),
            (Verdict::Partly, Some("from 32 reads in flight on"))
        );
        assert!(key.sentence.contains("80,000 IOPS there, p99 600 µs; at most 2 % more, at 128"), "{key:?}");
        let level = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 88e3)])));
        assert_eq!(
            level.figure.as_deref(),
            Some("from 32 reads in flight on"),
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
            let experiment = Experiment::new("cpu", "").shown(View::of(Role::ProcessorTime, SHARED));
            experiment.parameter("readers", 1).with_rows([
                row("io_uring", &[(metric::CPU_US_PER_IO, cost), (metric::IOPS, 10e3)]),
                row("tokio-fs", &[(metric::CPU_US_PER_IO, 2.0 * cost), (metric::IOPS, 9e3)]),
            ])
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
                "`direct` gets the most, 82,000 IOPS (reads in flight: 128), at 5.40 µs of processor time each."
            ),
            "{key:?}"
        );
        // A way that keeps both processors busy, and a thread that has no time left.
        let key = of(110.0);
        assert_eq!(key.verdict, Verdict::Partly);
        assert!(key.sentence.ends_with("; `tokio-fs` needs 1.98."), "{key:?}");
        let busy = crate::result::Condition::at_most("generator", 0.97, 0.9);
        experiments[3].rows[0].conditions.push(busy);
        let key = processor(&report(experiments));
        assert_eq!(key.verdict, Verdict::Partly);
        assert!(key.sentence.ends_with("; one thread was 97 % busy.") && is_short(&key), "{key:?}");
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
            assert!(is_short(&key), "{key:?}");
            assert!(!key.sentence.contains("110,000") && !key.sentence.contains("120,000"), "{key:?}");
        }
    }

    /// Regression: "more than 128 gives none", where 128 was the maximum measured.
    #[test]
    fn loads_that_were_not_measured_have_no_sentence() {
        let rising = report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 200e3)]));
        assert!(saturated(&rising).sentence.ends_with("more than 128 was not measured."), "{rising:?}");
        let flat = saturated(&report(random([(1, 10e3), (8, 60e3), (32, 80e3), (128, 80e3)])));
        assert!(flat.sentence.contains("more brings none (measured up to 128)"), "{flat:?}");
    }
}
