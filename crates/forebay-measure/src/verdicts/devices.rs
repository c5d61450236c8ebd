//! Tests of the verdicts against simulated devices. Each device has planted properties. Every verdict must find those of its kind,
//! and must make no claim for other devices. All verdicts run on all devices.
//!
//! The devices are those of the core's simulator, used through Forebay in virtual time, so that the same seed gives the same
//! numbers on every machine. A step of a simulated processor lasts half a microsecond; reads last milliseconds here, so that the
//! devices are the limit.

mod arithmetic;
mod observe;
mod simulated;

use std::time::Duration;

use observe::ReadFigures;
use simulated::{Device, devices};

use crate::experiment::Experiment as _;
use crate::latency::Latency;
use crate::reads::Saturate;
use crate::writes;
use crate::writes::sustain::{self, Sustain};
use forebay_report::page::knee::{Level, saturation};
use forebay_report::result::{Experiment, Row, metric};

fn mean_us(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64
}

fn text(times: &[Duration]) -> String {
    let mut latency = Latency::new().expect("memory");
    times.iter().for_each(|time| latency.record(*time));
    latency.to_text().expect("memory")
}

/// Builds the experiment in the form of `measure saturate`.
fn saturate_of(seen: &ReadFigures) -> Experiment {
    let figures = [(metric::IOPS, seen.per_second), (metric::MEAN_US, mean_us(&seen.times))];
    let mut row = Row::of_repeats("forebay", [figures]);
    row.histograms.insert("latency".to_owned(), text(&seen.times));
    let experiment = Experiment::new("saturate", "").parameter("loop", "closed");
    experiment.parameter("readers", seen.readers).with_rows([row])
}

/// Returns the number before `fragment` in the sentences.
fn number_before(sentences: &[String], fragment: &str) -> Option<f64> {
    let sentence = sentences.iter().find(|sentence| sentence.contains(fragment))?;
    let before = sentence.split(fragment).next()?;
    before.rsplit([' ', '(']).next()?.replace(',', "").parse().ok()
}

/// Returns a text for each fault: the device, the fault, and the sentences of `verdicts`.
fn wrong(
    devices: &[Device],
    verdicts: impl Fn(&Device, u64) -> (Vec<String>, Vec<Option<String>>),
) -> Vec<String> {
    let complaints = |(index, device): (usize, &Device)| {
        let (sentences, complaints) = verdicts(device, 1 + index as u64);
        let found =
            move |complaint: String| format!("{}: {complaint}\n  {}", device.name, sentences.join("\n  "));
        complaints.into_iter().flatten().map(found).collect::<Vec<_>>()
    };
    devices.iter().enumerate().flat_map(complaints).collect()
}

fn reads_of(device: &Device, seed: u64) -> (Vec<String>, Vec<Option<String>>) {
    let seen = observe::reads(device, seed);
    let experiments: Vec<Experiment> = seen.iter().map(saturate_of).collect();
    let sentences = Saturate.verdicts(&experiments.iter().collect::<Vec<_>>());
    let curve: Vec<Level> = seen
        .iter()
        .map(|seen| Level {
            readers: f64::from(seen.readers),
            per_second: seen.per_second,
            mean_us: mean_us(&seen.times),
        })
        .collect();
    let complaints = vec![limit(device, &sentences), knees(device, &curve), sorts(device, &sentences)];
    (sentences, complaints)
}

fn writes_of(device: &Device, seed: u64) -> (Vec<String>, Vec<Option<String>>) {
    let seen = observe::writes(device, seed);
    let plain: Vec<_> = seen.iter().map(|seen| (seen.writes, seen.write, Some(seen.left_out))).collect();
    let durable: Vec<_> = seen.iter().map(|seen| (seen.durables, seen.durable, None)).collect();
    let sentences = writes::simulated(&[("o-direct", plain), ("o-direct-dsync", durable)]);
    let complaints = vec![flush(device, &sentences), cache(device, &sentences)];
    (sentences, complaints)
}

fn load_of(device: &Device, seed: u64) -> (Vec<String>, Vec<Option<String>>) {
    let ended = observe::load(device, seed);
    let experiment = sustain::simulated(observe::LOAD, observe::LOAD_DEPTH as usize, &ended);
    let sentences = Sustain.verdicts(&[&experiment]);
    let complaints = vec![stall(device, &sentences), burst_credits(device, &sentences)];
    (sentences, complaints)
}

fn assert_right(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} of the verdicts are wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Limits, token buckets, two levels of latency.
#[test]
fn simulated_properties_of_reads_are_found_and_nothing_else() {
    let devices: Vec<Device> = devices().into_iter().filter(|device| !device.remembers).collect();
    assert!(devices.len() > 40, "{}", devices.len());
    assert_right(&wrong(&devices, reads_of));
}

/// Slow flushes, and volatile caches.
#[test]
fn simulated_properties_of_writes_are_found_and_nothing_else() {
    assert_right(&wrong(&devices(), writes_of));
}

/// Stalls, and burst credit that runs out.
#[test]
fn simulated_properties_of_a_long_load_are_found_and_nothing_else() {
    assert_right(&wrong(&devices(), load_of));
}

/// Every property with devices that have it and devices that do not.
#[test]
fn every_property_is_simulated_often_enough() {
    type Has = fn(&Device) -> bool;
    let devices = devices();
    let having = |has: Has| devices.iter().filter(|device| has(device)).count();
    let properties: [(&str, Has); 6] = [
        ("limits", |device| device.places.is_some()),
        ("two levels", |device| device.sorts.is_some()),
        ("slow flushes", |device| device.flush.is_some()),
        ("caches", |device| device.cache),
        ("stalls", |device| device.stall.is_some()),
        ("purses", |device| device.burst_credits.is_some()),
    ];
    for (property, has) in properties {
        let count = having(has);
        assert!(count >= 3 && devices.len() - count >= 10, "{property}: {count} of {}", devices.len());
    }
    assert!(devices.len() >= 30, "{}", devices.len());
}

/// The table itself must notice a verdict that claims too much, too little, or the wrong property.
#[test]
fn wrong_claims_are_noticed() {
    let all = devices();
    let named = |name: &str| all.iter().find(|device| device.name == name).expect("it is in the table");
    let simulated = named("16 at a time, two levels");
    let (sentences, complaints) = reads_of(simulated, 1);
    assert_eq!(complaints, [None, None, None], "{sentences:?}");
    let without = named("no limit");
    assert!(limit(without, &sentences).is_some_and(|why| why.contains("where none is")));
    assert!(sorts(without, &sentences).is_some_and(|why| why.contains("where none is")));
    let other = Device { places: Some(24.0), sorts: Some((0.2, 20.0)), ..named("4 at a time").clone() };
    assert!(limit(&other, &sentences).is_some_and(|why| why.contains("24 programs fit")));
    assert!(sorts(&other, &sentences).is_some_and(|why| why.contains("a share of 0.2")));
    let (nothing, _) = reads_of(without, 1);
    assert!(limit(simulated, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(sorts(simulated, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(limit(simulated, &[]).is_some_and(|why| why.contains("neither")));
}

#[test]
fn wrong_claims_of_writes_are_noticed() {
    let all = devices();
    let named = |name: &str| all.iter().find(|device| device.name == name).expect("it is in the table");
    let (both, without) = (named("write cache and slow flush"), named("no limit"));
    let (sentences, complaints) = writes_of(both, 1);
    assert_eq!(complaints, [None, None], "{sentences:?}");
    assert!(flush(without, &sentences).is_some_and(|why| why.contains("where none is")));
    assert!(cache(without, &sentences).is_some_and(|why| why.contains("where none is")));
    let slower = Device { flush: Some(30.0), ..both.clone() };
    assert!(flush(&slower, &sentences).is_some_and(|why| why.contains("30 writes")));
    let (nothing, _) = writes_of(without, 1);
    assert!(flush(both, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(cache(both, &nothing).is_some_and(|why| why.contains("was not found")));

    let (stalling, with_burst_credits) = (named("stalls every second"), named("a purse of 3,000"));
    let (stalls, _) = load_of(stalling, 1);
    let (falls, _) = load_of(with_burst_credits, 1);
    assert!(stall(without, &stalls).is_some_and(|why| why.contains("where none is")));
    assert!(stall(stalling, &falls).is_some_and(|why| why.contains("was not found")));
    let other =
        Device { stall: Some((Duration::from_secs(2), Duration::from_millis(200))), ..stalling.clone() };
    assert!(stall(&other, &stalls).is_some_and(|why| why.contains("every 2s")));
    assert!(burst_credits(without, &falls).is_some_and(|why| why.contains("where none is")));
    assert!(burst_credits(with_burst_credits, &stalls).is_some_and(|why| why.contains("was not found")));
    let other = Device { burst_credits: Some((30_000.0, 4.0)), ..with_burst_credits.clone() };
    assert!(burst_credits(&other, &falls).is_some_and(|why| why.contains("30000 writes")));
}

/// Compares a planted property with the claim of it, which is `None` if the sentences have no claim. `right` compares the figures.
fn claim<T, F: std::fmt::Debug>(
    property: &str,
    planted: Option<T>,
    claimed: Option<F>,
    right: impl FnOnce(&T, &F) -> bool,
    text: impl FnOnce(&T) -> String,
) -> Option<String> {
    match (planted, claimed) {
        (None, None) => None,
        (None, Some(_)) => Some(format!("{property} where none is")),
        (Some(_), None) => Some(format!("{property}: it was not found")),
        (Some(planted), Some(claimed)) => (!right(&planted, &claimed))
            .then(|| format!("{property}: {}, and it says {claimed:?}", text(&planted))),
    }
}

/// Returns whether a claimed figure is there and within a share of the planted one.
fn near(found: Option<f64>, planted: f64, tolerance: f64) -> bool {
    found.is_some_and(|found| (found / planted - 1.0).abs() <= tolerance)
}

/// Returns the sentence with the fragment, as the only one.
fn find_sentence(sentences: &[String], fragment: &str) -> Option<[String; 1]> {
    sentences.iter().find(|sentence| sentence.contains(fragment)).map(|sentence| [sentence.clone()])
}

/// Checks the limit, and how many programs the device serves.
fn limit(device: &Device, sentences: &[String]) -> Option<String> {
    let found = |fragment: &str| find_sentence(sentences, fragment).is_some();
    let claimed = found(" saturates at ");
    if claimed == found("no saturation up to") {
        return Some("neither a limit nor none, or both".to_owned());
    }
    let one = found("carries one such program");
    let programs = if one { Some(1.0) } else { number_before(sentences, " such programs") };
    let right = |places: &f64, programs: &Option<f64>| match *places {
        1.0 => one,
        places => {
            !one && (near(*programs, places, 0.15)
                || programs.is_some_and(|found| (found - places).abs() <= 1.0))
        }
    };
    claim("a limit", device.places, claimed.then_some(programs), right, |places| {
        format!("{places} programs fit")
    })
}

/// Checks that all three definitions are within the next level of the limit.
fn knees(device: &Device, curve: &[Level]) -> Option<String> {
    let places = device.places?;
    let found = saturation(curve)?.knees.map(|knee| curve[knee].readers);
    let near = |readers: &f64| *readers >= places / 2.0 && *readers <= 2.0 * places;
    (!found.iter().all(near)).then(|| format!("knees at {found:?} of {places}"))
}

fn sorts(device: &Device, sentences: &[String]) -> Option<String> {
    let claimed = find_sentence(sentences, "bimodal");
    let percent = claimed.map(|_| number_before(sentences, " % of reads take about"));
    let right = |(share, _): &(f64, f64), percent: &Option<f64>| near(*percent, share * 100.0, 0.4);
    claim("two sorts", device.sorts, percent, right, |(share, _)| format!("a share of {share}"))
}

fn flush(device: &Device, sentences: &[String]) -> Option<String> {
    const WORDS: &str = " times as much as a write";
    let times = find_sentence(sentences, WORDS).map(|found| number_before(&found, WORDS));
    let right = |planted: &f64, times: &Option<f64>| near(*times, *planted, 0.25);
    claim("a slow flush", device.flush, times, right, |times| format!("{times} writes"))
}

fn cache(device: &Device, sentences: &[String]) -> Option<String> {
    let claimed = find_sentence(sentences, "from a volatile cache");
    claim("a volatile cache", device.cache.then_some(()), claimed, |(), _| true, |()| String::new())
}

fn stall(device: &Device, sentences: &[String]) -> Option<String> {
    let figures = |found: [String; 1]| [" s for about", " ms,"].map(|unit| number_before(&found, unit));
    let claimed = find_sentence(sentences, " stalls ").map(figures);
    let right = |(every, length): &(Duration, Duration), [seconds, ms]: &[Option<f64>; 2]| {
        near(*seconds, every.as_secs_f64(), 0.2) && near(*ms, length.as_secs_f64() * 1e3, 0.2)
    };
    claim("stalls", device.stall, claimed, right, |(every, length)| format!("{length:?} every {every:?}"))
}

fn burst_credits(device: &Device, sentences: &[String]) -> Option<String> {
    let figures =
        |found: [String; 1]| [" MiB; ", " to ", " MB/s after"].map(|unit| number_before(&found, unit));
    let claimed = find_sentence(sentences, " falls from ").map(figures);
    let right = |(writes, times): &(f64, f64), [mib, first, then]: &[Option<f64>; 3]| {
        let ratio = first.zip(*then).map(|(first, then)| first / then);
        near(mib.map(|mib| mib * 256.0), *writes, 0.1) && near(ratio, *times, 0.1)
    };
    claim("a change of level", device.burst_credits, claimed, right, |(writes, times)| {
        format!("{times} times less after {writes} writes (MiB, MB/s before and after)")
    })
}
