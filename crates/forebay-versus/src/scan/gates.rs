//! The ratios and the gates of the scan.

use crate::cell::Cell;
use crate::gate::{Bound, Gate};
use crate::report::Experiment;
use crate::statistics::median;

/// The cells of the bare loop on hugepage memory; the limit is the best of them.
const LIMITS: &[&str] = &["bare-512k-x8", "bare-512k-x5", "bare-1m-x8", "bare-256k-x16", "bare-512k-x20"];

/// Forebay's gated rows and the memory that each may hold in buffers, in MiB.
const GATED: &[(&str, f64)] = &[("forebay-default", 8.0), ("forebay-large", 4.0)];

/// Sets the ratios of every row and the gates of Forebay's rows.
pub(crate) fn judge(experiment: &mut Experiment, cell: &Cell) {
    let rate = |experiment: &Experiment, row: &str| experiment.get(row, "mb_per_s");
    let best = LIMITS.iter().copied().filter(|row| rate(experiment, row).is_finite());
    let best = best.max_by(|a, b| rate(experiment, a).total_cmp(&rate(experiment, b)));
    for row in cell.rows().iter().map(|row| row.name.as_str()) {
        let rates: Vec<f64> = cell.values(row, "mb_per_s").into_iter().flatten().collect();
        experiment.set_ratio(row, "mb_per_s", &rates);
        if let Some(best) = best {
            experiment.set_ratio(row, "ratio_to_limit", &cell.ratios(row, best, "mb_per_s"));
        }
    }
    let spread = cell.spread("bare-512k-x8", "bare-512k-x8-again", "mb_per_s");
    experiment.set("bare-512k-x8-again", "a_a_spread", spread);
    for (row, buffers_mib) in GATED {
        if !cell.has(&[row]) {
            continue;
        }
        if let Some(best) = best {
            let name = format!("scan: {row} / best bare loop on hugepages ({best})");
            let to_limit = experiment.get(row, "ratio_to_limit");
            experiment.add_gate(row, Gate::new(name, Bound::AtLeast, 0.95, to_limit, spread));
        }
        for (other, target) in [("fio", 1.0), ("bare-512k-x8-4k-pages", 2.0)] {
            if cell.has(&[other]) {
                let measured = median(&cell.ratios(row, other, "mb_per_s"));
                experiment.add_gate(
                    row,
                    Gate::new(format!("scan: {row} / {other}"), Bound::AtLeast, target, measured, spread),
                );
            }
        }
        for other in ["mmap", "dontcache-1m", "std-fs-128k"] {
            experiment.set_ratio(row, &format!("ratio_to_{other}"), &cell.ratios(row, other, "mb_per_s"));
        }
        let cpu = experiment.get(row, "cpu_s_per_gb");
        experiment
            .add_gate(row, Gate::new(format!("scan: {row} CPU s per GB"), Bound::AtMost, 0.04, cpu, 0.0));
        let held = experiment.get(row, "buffers_peak_bytes") / f64::from(1 << 20);
        experiment.add_gate(
            row,
            Gate::new(format!("scan: {row} MiB in buffers"), Bound::AtMost, *buffers_mib, held, 0.0),
        );
    }
}
