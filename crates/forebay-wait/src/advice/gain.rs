//! The gain of a device from several reads in flight: the advice states only measured gains.

use super::{bytes_text, factor};
use crate::report::{Call, DeviceRates, File};

/// Below this factor a device gains nothing from reads in flight.
const GAIN: f64 = 1.1;

/// Returns a sentence on the gain from several reads in flight. It has figures only as far as they were
/// measured.
pub(super) fn gain(file: &File, call: &Call, served: &[DeviceRates]) -> String {
    let what = "ask for several before waiting for the first (threads, io_uring, read_many)";
    let bytes = call.usual_bytes();
    let of_device: Vec<&DeviceRates> =
        served.iter().filter(|found| found.device_number == file.device_number).collect();
    let Some(found) = of_device.iter().find(|found| Some(found.block_bytes) == bytes) else {
        let missing = match (of_device.first(), served.first()) {
            (Some(other), _) => format!(
                "{} tells it for {} only; forebay measure saturate --block BYTES measures this size",
                other.source,
                bytes_text(other.block_bytes)
            ),
            (None, Some(other)) => {
                format!("{} is of another device; measure saturate where this file is", other.source)
            }
            (None, None) => "forebay measure saturate --json tells it where this file is, and forebay wait \
                --report FILE puts it here"
                .to_owned(),
        };
        return format!("{what}; what this device gains by it is not known: {missing}");
    };
    let DeviceRates { in_flight, per_s, alone_per_s, source, .. } = found;
    let factor_served = per_s / alone_per_s.max(1.0);
    let figures = format!(
        "{} a second one at a time, {} with {in_flight}; {source}",
        count(*alone_per_s),
        count(*per_s)
    );
    if factor_served < GAIN {
        return format!(
            "this device serves no more when several are in flight ({figures}): only fewer reads, a cache or another \
             device help"
        );
    }
    format!(
        "this device serves {} times more at depth {in_flight} ({figures}): {what}; see forebay measure saturate",
        factor(factor_served)
    )
}

/// Returns a number to three significant digits, as in `79,100`.
fn count(value: f64) -> String {
    let grain = 10_f64.powf((value.max(1.0).log10().floor() - 2.0).max(0.0));
    let digits = format!("{:.0}", (value / grain).round() * grain);
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{knowing, read};
    use super::*;

    fn served(device_number: &str, block_bytes: u64, per_s: f64) -> DeviceRates {
        DeviceRates {
            device_number: device_number.to_owned(),
            block_bytes,
            alone_per_s: 18_000.0,
            in_flight: 8,
            per_s,
            source: "base.json".to_owned(),
        }
    }

    #[test]
    fn the_gain_is_that_of_the_measured_device_and_size_or_none_is_told() {
        let told = |served: &[DeviceRates]| knowing(read(0.01, 4096), 1.0, served);
        let known = told(&[served("8:0", 4096, 79_140.0)]);
        assert!(
            known.contains(
                "one at a time: this device serves 4.4 times more at depth 8 (18,000 a second one at a time, 79,100 with 8; \
                 base.json)"
            ),
            "{known}"
        );
        assert!(told(&[served("8:0", 4096, 18_100.0)]).contains("serves no more when several are in flight"));
        for (served, why) in [
            (served("8:16", 4096, 79_000.0), "base.json is of another device"),
            (served("8:0", 65_536, 79_000.0), "base.json tells it for 64 KiB only"),
        ] {
            let text = told(&[served]);
            assert!(text.contains("is not known") && text.contains(why), "{text}");
            assert!(!text.contains("times more"), "{text}");
        }
        let unknown = told(&[]);
        assert!(unknown.contains("is not known: forebay measure saturate --json"), "{unknown}");
    }

    #[test]
    fn counts_have_three_digits_that_count() {
        assert_eq!([79_149.0, 999.6, 12.0, 1_234_567.0].map(count), ["79,100", "1,000", "12", "1,230,000"]);
    }
}
