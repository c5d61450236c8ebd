//! Tests of the verdicts against simulated devices. Each device has planted properties. Every verdict must
//! find those of its kind, and must claim none where there is none. All devices go through all verdicts.
//!
//! The devices are those of the core's simulator, used through Forebay in virtual time, so that the
//! same seed gives the same numbers on every machine. A step of a simulated processor takes half a
//! microsecond; reads take milliseconds here, so that the devices are the limit.

mod arithmetic;
mod observe;
mod simulated;

use std::time::Duration;

use observe::Seen;
use simulated::{Device, read_devices, write_devices};

use crate::experiment::Experiment as _;
use crate::latency::Latency;
use crate::saturate::Saturate;
use crate::sustain::{self, Sustain};
use crate::writes;
use forebay_report::page::knee::{Level, saturation};
use forebay_report::result::{Experiment, Metrics, Row, Sample, metric};

fn devices() -> Vec<Device> {
    read_devices().into_iter().chain(write_devices()).collect()
}

fn mean_us(times: &[Duration]) -> f64 {
    times.iter().sum::<Duration>().as_secs_f64() * 1e6 / times.len() as f64
}

fn text(times: &[Duration]) -> String {
    let mut latency = Latency::new().expect("memory");
    times.iter().for_each(|time| latency.record(*time));
    latency.to_text().expect("memory")
}

/// Builds the experiment in the form of `measure saturate`.
fn saturate_of(seen: &Seen) -> Experiment {
    let mut metrics = Metrics::default();
    metrics.set(metric::IOPS, seen.per_second).set(metric::MEAN_US, mean_us(&seen.times));
    let mut row = Row::from_samples("forebay", vec![Sample { repeat: 0, metrics }]);
    row.histograms.insert("latency".to_owned(), text(&seen.times));
    let mut experiment =
        Experiment::new("saturate", "").parameter("loop", "closed").parameter("readers", seen.readers);
    experiment.rows.push(row);
    experiment
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
    assert!(sorts(without, &sentences).is_some_and(|why| why.contains("where there is one")));
    let other = Device { places: Some(24.0), sorts: Some((0.2, 20.0)), ..named("4 at a time").clone() };
    assert!(limit(&other, &sentences).is_some_and(|why| why.contains("24 programs fit")));
    assert!(sorts(&other, &sentences).is_some_and(|why| why.contains("a share of 0.2")));
    let (nothing, _) = reads_of(without, 1);
    assert!(limit(simulated, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(sorts(simulated, &nothing).is_some_and(|why| why.contains("were not found")));
    assert!(limit(simulated, &[]).is_some_and(|why| why.contains("neither")));
}

#[test]
fn wrong_claims_of_writes_are_noticed() {
    let all = devices();
    let named = |name: &str| all.iter().find(|device| device.name == name).expect("it is in the table");
    let (both, without) = (named("write cache and slow flush"), named("no limit"));
    let (sentences, complaints) = writes_of(both, 1);
    assert_eq!(complaints, [None, None], "{sentences:?}");
    assert!(flush(without, &sentences).is_some_and(|why| why.contains("where it is not")));
    assert!(cache(without, &sentences).is_some_and(|why| why.contains("where none is")));
    let slower = Device { flush: Some(30.0), ..both.clone() };
    assert!(flush(&slower, &sentences).is_some_and(|why| why.contains("30 writes")));
    let (nothing, _) = writes_of(without, 1);
    assert!(flush(both, &nothing).is_some_and(|why| why.contains("was not found")));
    assert!(cache(both, &nothing).is_some_and(|why| why.contains("was not found")));

    let (stalling, with_burst_credits) = (named("stalls every second"), named("a purse of 3,000"));
    let (stalls, _) = load_of(stalling, 1);
    let (falls, _) = load_of(with_burst_credits, 1);
    assert!(stall(without, &stalls).is_some_and(|why| why.contains("where none are")));
    assert!(stall(stalling, &falls).is_some_and(|why| why.contains("were not found")));
    let other =
        Device { stall: Some((Duration::from_secs(2), Duration::from_millis(200))), ..stalling.clone() };
    assert!(stall(&other, &stalls).is_some_and(|why| why.contains("every 2s")));
    assert!(burst_credits(without, &falls).is_some_and(|why| why.contains("where none is")));
    assert!(burst_credits(with_burst_credits, &stalls).is_some_and(|why| why.contains("was not found")));
    let other = Device { burst_credits: Some((30_000.0, 4.0)), ..with_burst_credits.clone() };
    assert!(burst_credits(&other, &falls).is_some_and(|why| why.contains("30000 writes")));
}

/// Checks the limit, and how many programs the device serves.
fn limit(device: &Device, sentences: &[String]) -> Option<String> {
    let found = |fragment: &str| sentences.iter().any(|sentence| sentence.contains(fragment));
    let claimed = found(" saturates at ");
    if claimed == found("no saturation up to") {
        return Some("neither a limit nor none, or both".to_owned());
    }
    match (device.places, claimed) {
        (None, true) => Some("a limit where none is".to_owned()),
        (Some(_), false) => Some("its limit was not found".to_owned()),
        (None, false) => None,
        (Some(1.0), true) => {
            (!found("carries one such program")).then(|| "it carries one program".to_owned())
        }
        (Some(places), true) => match number_before(sentences, " such programs") {
            Some(found) if (found / places - 1.0).abs() <= 0.15 || (found - places).abs() <= 1.0 => None,
            found => Some(format!("{places} programs fit, and it says {found:?}")),
        },
    }
}

/// Checks that all three definitions are within the next level of the limit.
fn knees(device: &Device, curve: &[Level]) -> Option<String> {
    let places = device.places?;
    let found = saturation(curve)?.knees.map(|knee| curve[knee].readers);
    let near = |readers: &f64| *readers >= places / 2.0 && *readers <= 2.0 * places;
    (!found.iter().all(near)).then(|| format!("knees at {found:?} of {places}"))
}

fn sorts(device: &Device, sentences: &[String]) -> Option<String> {
    let found = sentences.iter().any(|sentence| sentence.contains("bimodal"));
    match (device.sorts, found) {
        (None, true) => Some("two sorts where there is one".to_owned()),
        (Some(_), false) => Some("its two sorts were not found".to_owned()),
        (Some((share, _)), true) => match number_before(sentences, " % of reads take about") {
            Some(found) if (found / 100.0 / share - 1.0).abs() <= 0.4 => None,
            found => Some(format!("a share of {share}, and it says {found:?} %")),
        },
        (None, false) => None,
    }
}

fn find_sentence<'a>(sentences: &'a [String], fragment: &str) -> Option<&'a String> {
    sentences.iter().find(|sentence| sentence.contains(fragment))
}

fn flush(device: &Device, sentences: &[String]) -> Option<String> {
    const WORDS: &str = " times as much as a write";
    match (device.flush, find_sentence(sentences, WORDS)) {
        (None, None) => None,
        (None, Some(_)) => Some("a slow flush where it is not".to_owned()),
        (Some(_), None) => Some("its slow flush was not found".to_owned()),
        (Some(times), Some(_)) => match number_before(sentences, WORDS) {
            Some(found) if (found / times - 1.0).abs() <= 0.25 => None,
            found => Some(format!("a flush of {times} writes, and it says {found:?}")),
        },
    }
}

fn cache(device: &Device, sentences: &[String]) -> Option<String> {
    match (device.cache, find_sentence(sentences, "from a volatile cache").is_some()) {
        (false, true) => Some("a volatile cache where none is".to_owned()),
        (true, false) => Some("its volatile cache was not found".to_owned()),
        _ => None,
    }
}

fn stall(device: &Device, sentences: &[String]) -> Option<String> {
    let found = find_sentence(sentences, " stalls ").map(|sentence| [sentence.clone()]);
    match (device.stall, found) {
        (None, None) => None,
        (None, Some(_)) => Some("stalls where none are".to_owned()),
        (Some(_), None) => Some("its stalls were not found".to_owned()),
        (Some((every, length)), Some(found)) => {
            let found = (number_before(&found, " s for about"), number_before(&found, " ms,"));
            let near = |found: f64, simulated: Duration, unit: f64| {
                (found * unit / simulated.as_secs_f64() - 1.0).abs() <= 0.2
            };
            match found {
                (Some(seconds), Some(ms)) if near(seconds, every, 1.0) && near(ms, length, 1e-3) => None,
                found => Some(format!("a stall of {length:?} every {every:?}, and it says {found:?}")),
            }
        }
    }
}

fn burst_credits(device: &Device, sentences: &[String]) -> Option<String> {
    let found = find_sentence(sentences, " falls from ").map(|sentence| [sentence.clone()]);
    match (device.burst_credits, found) {
        (None, None) => None,
        (None, Some(_)) => Some("a change of level where none is".to_owned()),
        (Some(_), None) => Some("its change of level was not found".to_owned()),
        (Some((writes, times)), Some(found)) => {
            let number = |fragment| number_before(&found, fragment);
            let found = (number(" MiB; "), number(" to "), number(" MB/s after"));
            let near = |found: f64, simulated: f64| (found / simulated - 1.0).abs() <= 0.1;
            match found {
                (Some(mib), Some(first), Some(then))
                    if near(mib * 256.0, writes) && near(first / then, times) =>
                {
                    None
                }
                found => Some(format!(
                    "{times} times less after {writes} writes, and it says {found:?} (MiB, MB/s before and after)"
                )),
            }
        }
    }
}
