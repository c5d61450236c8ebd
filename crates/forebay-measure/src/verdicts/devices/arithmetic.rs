//! Recomputes the figures in the summary's sentences. Each figure must be that of one cell of the
//! data, the one that the sentence names, and each product and share must be of figures of that cell.

use super::observe::{self, ReadFigures};
use super::saturate_of;
use super::simulated::{Device, devices};
use crate::kind::adopt;
use crate::lanes::test_row;
use forebay_report::environment::Environment;
use forebay_report::page::advice::advice;
use forebay_report::page::questions::{KeyQuestion, key_questions};
use forebay_report::result::{CacheState, Condition, DEVICE_BYTES, Experiment, Report, Row, metric};

const BLOCK: f64 = 4096.0;
/// Tolerance of numbers, which are written with three digits.
const ROUNDED: f64 = 0.006;

/// Returns a row of the experiment with `times` times the rate, a cost of `cost_us`, and `moved` as
/// the share of its bytes that the device moved.
fn beside(row: &Row, name: &str, times: f64, cost_us: f64, cache: CacheState, moved: Option<f64>) -> Row {
    let figures = [
        (metric::IOPS, row.metrics.get(metric::IOPS).expect("measured") * times),
        (metric::MEAN_US, row.metrics.get(metric::MEAN_US).expect("measured") / times),
        (metric::CPU_US_PER_IO, cost_us),
    ];
    row_of(name, &figures, cache, moved)
}

fn row_of(name: &str, figures: &[(&str, f64)], cache: CacheState, moved: Option<f64>) -> Row {
    let mut row = test_row(name, &[1.0], figures).cache(cache);
    row.conditions.extend(moved.map(|share| Condition::within(DEVICE_BYTES, share, 0.95, 1.02)));
    row
}

/// Returns a sweep in which reads get cheaper with the load, together with rows that are faster and do not describe the device.
fn report(seen: &[ReadFigures]) -> Report {
    let sweep = |seen: &ReadFigures| {
        let mut experiment =
            saturate_of(seen).parameter("load", seen.readers).parameter("block_bytes", BLOCK);
        let own = experiment.rows.remove(0);
        let cost_us = 300.0 + 3000.0 / f64::from(seen.readers);
        experiment.rows = vec![
            beside(&own, "forebay", 1.0, cost_us, CacheState::Direct, Some(1.0)),
            beside(&own, "cached", 1.3, 400.0, CacheState::MemoryLimited, None),
            beside(&own, "short", 1.5, 200.0, CacheState::Direct, Some(0.78)),
        ];
        experiment
    };
    let mut experiments: Vec<Experiment> = seen.iter().map(sweep).collect();
    let alone = saturate_of(&seen[0]).rows.remove(0);
    let cpu = Experiment::new("cpu", "").parameter("readers", 1).with_rows([
        beside(&alone, "io_uring", 1.0, 2000.0, CacheState::Direct, Some(1.0)),
        beside(&alone, "tokio-fs", 0.8, 4000.0, CacheState::Evicted, None),
    ]);
    let mut scan = Experiment::new("scan", "");
    for (name, rate, cache, moved) in [
        ("direct-large", 40.0, CacheState::Direct, Some(1.0)),
        ("buffered", 90.0, CacheState::Warm, None),
        ("default", 80.0, CacheState::Direct, Some(0.5)),
    ] {
        scan.rows.push(row_of(name, &[(metric::MB_PER_S, rate)], cache, moved));
    }
    experiments.extend([cpu, scan]);
    let mut report = Report::new(Environment { cpus_allowed: 2, ..Environment::default() }, experiments);
    adopt(&mut report);
    report
}

/// Returns the number between the two texts.
fn between(sentence: &str, before: &str, after: &str) -> Option<f64> {
    let (_, rest) = sentence.split_once(before)?;
    rest.split_once(after)?.0.replace(',', "").parse().ok()
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= ROUNDED * other.abs().max(1e-9)
}

/// Returns a figure of a cell of the sweep.
fn figure(report: &Report, row: &str, readers: f64, name: &str) -> Option<f64> {
    let sweep = report.experiments.iter().filter(|found| found.name == "saturate");
    sweep
        .filter(|found| found.number("readers") == Some(readers))
        .find_map(|found| found.row(row)?.metrics.get(name))
}

/// Returns the faults of the results.
fn wrong(report: &Report, questions: &[KeyQuestion; 5], gains: &[String]) -> Vec<String> {
    let rate = |readers: f64| figure(report, "forebay", readers, metric::IOPS).unwrap_or(f64::NAN);
    let loads: Vec<f64> = report
        .experiments
        .iter()
        .filter_map(|found| found.number("readers").filter(|_| found.name == "saturate"))
        .collect();
    let most = loads.iter().map(|load| rate(*load)).fold(0.0, f64::max);
    let last = loads.iter().copied().fold(0.0, f64::max);
    let mut wrong = Vec::new();
    let mut check = |is_right: Option<bool>, what: &str, sentence: &str| {
        if is_right != Some(true) {
            wrong.push(format!("{what}: {sentence}"));
        }
    };
    let [pattern, saturated, processor, ..] = questions;

    // The bandwidth is that of the scan that the device served. Both rates are those of the loads named.
    let text = &pattern.sentence;
    let (bandwidth, at) = (between(text, "` gets ", " MB/s"), between(text, "(readers: ", ")"));
    check(bandwidth.map(|found| near(found, 40.0)), "a bandwidth that no device gave", text);
    let reach = between(text, "reaches ", " MB/s").zip(at);
    check(reach.map(|(found, at)| near(found * 1e6, rate(at) * BLOCK)), "MB/s of another cell", text);
    let share = pattern.figure.as_deref().and_then(|figure| between(&format!("={figure}"), "=", " %"));
    check(share.map(|found| near(found, most * BLOCK / 40e6 * 100.0)), "a share of other figures", text);

    // Rate, cost and product are of one cell, the fastest one proven to be of the device.
    let text = &processor.sentence;
    let (per_second, at) = (between(text, "the most, ", " IOPS"), between(text, "(readers: ", ")"));
    let cost = between(text, "), at ", " µs");
    check(per_second.map(|found| near(found, most)), "not the most", text);
    check(per_second.zip(at).map(|(found, at)| near(found, rate(at))), "a rate of another cell", text);
    let own = at.and_then(|at| figure(report, "forebay", at, metric::CPU_US_PER_IO));
    check(cost.zip(own).map(|(found, own)| near(found, own)), "a cost of another cell", text);
    let product = own.map(|own| most * own / 1e6);
    let found = processor.figure.as_deref().and_then(|figure| between(&format!("={figure}"), "=", " of "));
    check(found.zip(product).map(|(found, product)| near(found, product)), "a product of two cells", text);

    // Claims about more load need a measurement.
    let text = &saturated.sentence;
    let unmeasured = between(text, "more than ", " was not measured");
    let measured = between(text, "measured up to ", ")");
    check(Some(unmeasured.is_some() != measured.is_some()), "both, or nothing, of more load", text);
    check(Some(unmeasured.or(measured) == Some(last)), "not the last load", text);
    if let Some(more) = between(text, "at most ", " % more") {
        let at = between(text, "% more, at ", " (");
        check(at.map(|at| near(rate(at), most)), "the most of another cell", text);
        check(Some(more <= 20.0), "much more, and still the knee", text);
    }
    for text in gains {
        let (after, at) = (between(text, "): ", " IOPS"), between(text, "with ", " instead"));
        check(after.zip(at).map(|(found, at)| near(found, rate(at))), "a gain of another cell", text);
    }
    // Rows that do not show the device's work are not in these sentences.
    for text in [&pattern.sentence, &saturated.sentence, &processor.sentence].into_iter().chain(gains) {
        let has = ["`cached`", "`short`", "`buffered`", "`default`"].iter().any(|name| text.contains(name));
        check(Some(!has), "a row that is not the device's work", text);
    }
    wrong
}

fn gains(report: &Report) -> Vec<String> {
    let all = advice(report).into_iter();
    all.filter(|advice| advice.what.contains("in flight")).map(|advice| advice.gain).collect()
}

/// Regression: the report multiplied the cost of a read at depth 1 with the rate at depth 128 ("2.95
/// of 2 processors"). It attributed a row to the device although the page cache served a fifth of it.
/// It also said that more than the last load gives nothing.
#[test]
fn every_figure_is_of_the_cell_that_its_sentence_names() {
    // One of three has limits, sorts and jitter enough; the verdicts above see them all.
    let devices: Vec<Device> = devices().into_iter().filter(|device| !device.remembers).step_by(3).collect();
    let mut all = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let report = report(&observe::reads(device, 1 + index as u64));
        let wrong = wrong(&report, &key_questions(&report), &gains(&report));
        all.extend(wrong.into_iter().map(|complaint| format!("{}: {complaint}", device.name)));
    }
    assert!(all.is_empty(), "{} sentences are wrong\n{}", all.len(), all.join("\n"));
}

/// The check itself must notice figures of other cells.
#[test]
fn figures_of_other_cells_are_noticed() {
    let all = devices();
    let device = all.iter().find(|device| device.name == "16 at a time").expect("it is in the table");
    let report = report(&observe::reads(device, 1));
    let right = key_questions(&report);
    let gains = gains(&report);
    assert_eq!(wrong(&report, &right, &gains), [""; 0]);
    let with = |change: &dyn Fn(&mut [KeyQuestion; 5])| {
        let mut questions = right.clone();
        change(&mut questions);
        wrong(&report, &questions, &gains).join("\n")
    };
    // The cost at one reader, times the rate of all.
    let most = figure(&report, "forebay", 16.0, metric::IOPS).expect("measured");
    let product = format!("{:.2} of 2 processors", most * 3300.0 / 1e6);
    assert!(
        with(&|questions| questions[2].figure = Some(product.clone())).contains("a product of two cells")
    );
    let other = |questions: &mut [KeyQuestion; 5]| {
        questions[2].sentence = questions[2].sentence.replace("readers: ", "readers: 1,");
    };
    assert!(with(&other).contains("of another cell"));
    let none = |questions: &mut [KeyQuestion; 5]| {
        questions[1].sentence = questions[1].sentence.replace("measured up to 256", "measured up to 512");
    };
    assert!(with(&none).contains("not the last load"));
    let cached = |questions: &mut [KeyQuestion; 5]| {
        questions[0].sentence = questions[0].sentence.replace("`forebay`", "`cached`");
    };
    assert!(with(&cached).contains("not the device's work"));
}
