//! A histogram of the times for which callers waited.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

/// The significant digits. Two keep a percentile within 1 % and one histogram within a few kilobytes, so
/// that the threads' histograms do not show in the measured memory.
const DIGITS: u8 = 2;

/// Times of operations in nanoseconds, up to a minute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct Latency {
    nanoseconds: Histogram<u32>,
}

impl Latency {
    /// Returns an empty histogram.
    ///
    /// # Errors
    /// Fails when memory for the counters is missing.
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { nanoseconds: Histogram::new_with_bounds(1, 60_000_000_000, DIGITS)? })
    }

    pub(super) fn record(&mut self, time: Duration) {
        self.nanoseconds.saturating_record(time.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    /// Adds the times of another histogram.
    ///
    /// # Errors
    /// Never for histograms of this type; the library's signature has one.
    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        Ok(self.nanoseconds.add(&other.nanoseconds)?)
    }

    pub(super) fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// Returns the mean; `None` when nothing was recorded.
    pub(super) fn mean_us(&self) -> Option<f64> {
        (self.count() > 0).then(|| self.nanoseconds.mean() / 1000.0)
    }

    /// Returns a quantile; `None` when nothing was recorded.
    pub(super) fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.nanoseconds.value_at_quantile(quantile) as f64 / 1000.0)
    }

    /// Returns the histogram as HdrHistogram V2, compressed, in base64: the format of its log files.
    ///
    /// # Errors
    /// Fails when memory for the text is missing.
    pub(super) fn to_text(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(&self.nanoseconds, &mut bytes);
        written.map_err(|error| anyhow::anyhow!("a histogram could not be written: {error}"))?;
        Ok(STANDARD.encode(bytes))
    }
}

impl TryFrom<String> for Latency {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        let bytes = STANDARD.decode(text).context("a histogram that is not base64")?;
        let read = Deserializer::new().deserialize(&mut bytes.as_slice());
        let nanoseconds = read.map_err(|error| anyhow::anyhow!("not a histogram: {error}"))?;
        Ok(Self { nanoseconds })
    }
}

impl From<Latency> for String {
    /// Converts to text. A histogram that cannot be written becomes an empty text, which cannot be read.
    fn from(latency: Latency) -> Self {
        latency.to_text().unwrap_or_default()
    }
}

/// Adds histograms to those of the same names.
///
/// # Errors
/// As for [`Latency::add`].
pub(super) fn merge(
    all: &mut BTreeMap<String, Latency>,
    own: BTreeMap<String, Latency>,
) -> anyhow::Result<()> {
    for (name, latency) in own {
        match all.get_mut(&name) {
            Some(all) => all.add(&latency)?,
            None => drop(all.insert(name, latency)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_percent_and_parts_add_up() {
        let mut odd = Latency::new().expect("a few kilobytes");
        let mut even = odd.clone();
        assert_eq!(odd.quantile_us(0.5), None);
        for microseconds in 1..=1000 {
            let part = if microseconds % 2 == 1 { &mut odd } else { &mut even };
            part.record(Duration::from_micros(microseconds));
        }
        odd.add(&even).expect("the same bounds");
        assert_eq!(odd.count(), 1000);
        assert!(odd.mean_us().is_some_and(|mean| (mean / 500.5 - 1.0).abs() <= 0.01));
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = odd.quantile_us(quantile).expect("it has values");
            assert!((found / expected - 1.0).abs() <= 0.01, "{quantile}: {found}");
        }
    }

    #[test]
    fn a_histogram_survives_its_text_and_other_texts_are_none() {
        let mut latency = Latency::new().expect("a few kilobytes");
        for microseconds in 1..=1000 {
            latency.record(Duration::from_micros(microseconds * microseconds));
        }
        let text = latency.to_text().expect("memory");
        // The prefix by which other tools recognise the format.
        assert!(text.starts_with("HISTFAAA"), "{text}");
        assert_eq!(Latency::try_from(text.clone()).expect("its own text"), latency);
        for wrong in ["", "x", "HISTFAAA", &text[..text.len() / 2 / 4 * 4]] {
            assert!(Latency::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_above_a_minute_count_as_a_minute() {
        let mut latency = Latency::new().expect("a few kilobytes");
        latency.record(Duration::from_secs(1000));
        assert!(latency.quantile_us(0.5).is_some_and(|us| us > 59e6));
    }
}
