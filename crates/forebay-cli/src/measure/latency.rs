//! A histogram of the times that callers waited.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer as _, V2Serializer};

/// Two significant digits keep a percentile within 1 % and one histogram within a few kilobytes, so that the
/// threads' histograms do not show in the memory that is measured.
const DIGITS: u8 = 2;

/// Times of operations in nanoseconds, up to a minute.
#[derive(Debug, Clone)]
pub(super) struct Latency {
    nanoseconds: Histogram<u32>,
}

impl Latency {
    /// # Errors
    /// Memory for the counters is missing.
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self { nanoseconds: Histogram::new_with_bounds(1, 60_000_000_000, DIGITS)? })
    }

    pub(super) fn record(&mut self, time: Duration) {
        self.nanoseconds.saturating_record(time.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    /// # Errors
    /// Never for histograms of this type; the library's signature has one.
    pub(super) fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        Ok(self.nanoseconds.add(&other.nanoseconds)?)
    }

    /// All counts as one line: the histogram library's V2 encoding in base64.
    ///
    /// # Errors
    /// Memory is missing.
    pub(super) fn to_text(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        V2Serializer::new().serialize(&self.nanoseconds, &mut bytes)?;
        Ok(BASE64.encode(bytes))
    }

    /// The opposite of [`to_text`](Self::to_text).
    ///
    /// # Errors
    /// The text is none that it wrote.
    pub(super) fn from_text(text: &str) -> anyhow::Result<Self> {
        let bytes = BASE64.decode(text)?;
        let read: Histogram<u32> = Deserializer::new().deserialize(&mut bytes.as_slice())?;
        let mut latency = Self::new()?;
        latency.nanoseconds.add(read)?;
        Ok(latency)
    }

    pub(super) fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// `None` when nothing was recorded.
    pub(super) fn quantile_us(&self, quantile: f64) -> Option<f64> {
        (self.count() > 0).then(|| self.nanoseconds.value_at_quantile(quantile) as f64 / 1000.0)
    }
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
        for (quantile, expected) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = odd.quantile_us(quantile).expect("it has values");
            assert!((found / expected - 1.0).abs() <= 0.01, "{quantile}: {found}");
        }
    }

    #[test]
    fn a_histogram_survives_its_text() {
        let mut latency = Latency::new().expect("a few kilobytes");
        for microseconds in [1, 50, 50, 7_000, 80_000_000] {
            latency.record(Duration::from_micros(microseconds));
        }
        let text = latency.to_text().expect("memory");
        let back = Latency::from_text(&text).expect("its own text");
        assert_eq!(back.nanoseconds, latency.nanoseconds);
        assert!(Latency::from_text("AAAA").is_err() && Latency::from_text("no base64!").is_err());
    }

    #[test]
    fn what_is_longer_than_a_minute_counts_as_a_minute() {
        let mut latency = Latency::new().expect("a few kilobytes");
        latency.record(Duration::from_secs(1000));
        assert!(latency.quantile_us(0.5).is_some_and(|us| us > 59e6));
    }
}
