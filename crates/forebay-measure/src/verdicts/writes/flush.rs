//! The cost of a flush, in words.

use super::{ADVERTISED, above, hint, spread, title};
use forebay_report::result::{Experiment, Sample, metric};
use forebay_report::units::number;

/// Minimum cost factor of durability: below it, a write that must be durable is as good as durable
/// without a flush.
const DURABLE_COSTS: f64 = 1.5;
/// Cost factor from which a flush is worth planning for.
const FLUSH_COSTS: f64 = 10.0;
/// Minimum factor between a flush of many writes and one of a single write: from here on it had data
/// to write to the medium.
const DRAINS: f64 = 5.0;
/// Minimum share of the time until all was durable, for the same conclusion.
const DRAIN_SHARE: f64 = 0.05;

/// Returns sentences on the cost of a flush and on the data flushed, by the rows that write past the
/// page cache.
pub(super) fn flush(experiment: &Experiment) -> Vec<String> {
    let measured = |name: &str| {
        let clients = experiment.number("clients").unwrap_or(1.0);
        let row = experiment.row(name)?;
        Some((row, 1e6 * clients / row.metrics.get(ADVERTISED).filter(|rate| *rate > 0.0)?))
    };
    let (Some((plain, write_us)), Some((durable, durable_us))) =
        (measured("o-direct"), measured("o-direct-dsync"))
    else {
        return Vec::new();
    };
    let title = title(experiment);
    let hint = hint(&[plain, durable]);
    let flush_us = durable_us - write_us;
    let is_slower = durable_us >= DURABLE_COSTS * write_us;
    if is_slower
        && !above(plain, ADVERTISED, durable, ADVERTISED)
        && let Some(spread) = spread(&[(plain, ADVERTISED), (durable, ADVERTISED)])
    {
        return vec![format!(
            "{title}: {spread} to show the cost of a flush: a write that must be durable takes {} µs and any other \
             {} µs, as medians{hint}",
            number(durable_us),
            number(write_us)
        )];
    }
    if !is_slower {
        return vec![format!(
            "{title}: a write that must be durable takes {} µs and any other {} µs: nothing shows that the device \
             acknowledges writes before they are durable{hint}",
            number(durable_us),
            number(write_us)
        )];
    }
    let mut sentences = Vec::new();
    if flush_us >= FLUSH_COSTS * write_us {
        sentences.push(format!(
            "{title}: a flush costs {} times as much as a write: `o-direct` takes {} µs a write, and {} µs more when each is \
             flushed (`o-direct-dsync`); one flush for many writes saves most of it{hint}",
            number(flush_us / write_us),
            number(write_us),
            number(flush_us)
        ));
    }
    // The sync of many writes against that of one, in every repeat.
    let left_out_us = |sample: &Sample| Some(1000.0 * sample.metrics.get(metric::SYNC_LEFT_OUT_MS)?);
    let least = plain.samples.iter().filter_map(left_out_us).min_by(f64::total_cmp);
    let (Some(least), Some(left_out_ms), Some(total_ms)) =
        (least, plain.metrics.get(metric::SYNC_LEFT_OUT_MS), plain.metrics.get(metric::TOTAL_MS))
    else {
        return sentences;
    };
    let share = left_out_ms / (left_out_ms + total_ms);
    if least >= DRAINS * flush_us && share >= DRAIN_SHARE {
        sentences.push(format!(
            "{title}: writes are acknowledged from a volatile cache: when the last write of `o-direct` completed, {} \
             of the {} ms were still to come until all was durable{hint}",
            number(left_out_ms),
            number(left_out_ms + total_ms)
        ));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::super::tests::{experiment, row};
    use super::*;

    /// Returns the sentences on flushes: a write takes `write_us`, a durable one `durable_us`, and a
    /// sync of 1,000 `sync_ms`.
    fn flushes(write_us: f64, durable_us: f64, sync_ms: f64) -> Vec<String> {
        let mut plain = row("o-direct", 1e6 / write_us, None);
        for metrics in plain.samples.iter_mut().map(|sample| &mut sample.metrics).chain([&mut plain.metrics])
        {
            metrics.set(metric::TOTAL_MS, write_us).set(metric::SYNC_LEFT_OUT_MS, sync_ms);
        }
        let durable = row("o-direct-dsync", 1e6 / durable_us, Some(1e6 / durable_us));
        flush(&experiment("dense", 1, vec![plain, durable]))
    }

    #[test]
    fn a_slow_flush_and_a_volatile_cache_are_distinguished() {
        let slow = flushes(100.0, 5_100.0, 5.0);
        assert_eq!(slow.len(), 1, "{slow:?}");
        assert!(
            slow[0].contains("a flush costs 50 times as much as a write: `o-direct` takes 100 µs"),
            "{slow:?}"
        );
        let cache = flushes(20.0, 80.0, 60.0);
        assert_eq!(cache.len(), 1, "{cache:?}");
        assert!(
            cache[0].contains(
                "from a volatile cache: when the last write of `o-direct` completed, 60 of the 80 ms"
            ),
            "{cache:?}"
        );
        assert_eq!(flushes(20.0, 420.0, 200.0).len(), 2, "both");
        assert!(flushes(100.0, 400.0, 0.5).is_empty(), "neither, and a durable write costs something");
        let none = flushes(100.0, 120.0, 0.1);
        assert!(none.len() == 1 && none[0].contains("nothing shows that the device"), "{none:?}");
    }
}
