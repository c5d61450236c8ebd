//! The cells of an experiment: every row in every setting, taken in turn, repeat after repeat.

use std::time::Instant;

use super::pattern::SplitMix;
use super::plan::{another_repeat, interleaved};
use crate::context::Context;
use crate::progress::Unit;
use crate::result::{CacheState, Metrics, Row, Sample};

/// One row in one setting.
#[derive(Debug)]
pub(super) struct Cell<Setting, Way> {
    pub(super) setting: Setting,
    pub(super) row: Way,
    /// Or why there are none.
    pub(super) samples: Result<Vec<Sample>, String>,
}

/// All cells; those of one setting stand beside each other, so that rows which are compared run one after the other.
pub(super) fn cells<Setting: Copy, Way: Copy>(settings: &[Setting], rows: &[Way]) -> Vec<Cell<Setting, Way>> {
    let all = settings.iter().flat_map(|setting| rows.iter().map(|row| (*setting, *row)));
    all.map(|(setting, row)| Cell { setting, row, samples: Ok(Vec::new()) }).collect()
}

/// Runs the cells up to `repeats` times, as long as the budget lasts, and says how many times that was. `one` is a
/// sample: it gets the cell's setting and row, and a seed that all cells of a repeat share.
///
/// # Errors
/// Every cell failed: the first one's reason.
pub(super) fn run<Setting: Copy, Way: Copy>(
    context: &Context,
    label: &str,
    repeats: usize,
    cells: &mut [Cell<Setting, Way>],
    name: impl Fn(&Cell<Setting, Way>) -> String,
    mut one: impl FnMut(Setting, Way, u64) -> anyhow::Result<Metrics>,
) -> anyhow::Result<usize> {
    let count = cells.len();
    let step = context.step(format!("measure {label}"), (count * repeats) as u64, Unit::Count);
    let (mut seeds, mut done, begun) = (SplitMix::new(context.seed), 0, Instant::now());
    while done < repeats && another_repeat(done, begun.elapsed(), context.remaining()) {
        // 53 bits: every reader of the JSON can hold it exactly.
        let seed = seeds.next_u64() >> 11;
        for (position, index) in interleaved(done, count).enumerate() {
            let cell = &mut cells[index];
            step.set((done * count + position) as u64);
            step.message(name(cell));
            let Ok(samples) = &mut cell.samples else { continue };
            match one(cell.setting, cell.row, seed) {
                Ok(metrics) => samples.push(Sample { repeat: done as u32, metrics }),
                Err(error) => cell.samples = Err(format!("{error:#}")),
            }
        }
        done += 1;
    }
    step.finish(&format!("{done} repeats of {count} cells"));
    let failed: Vec<&String> = cells.iter().filter_map(|cell| cell.samples.as_ref().err()).collect();
    if let Some(why) = failed.first().filter(|_| failed.len() == count) {
        anyhow::bail!("nothing could be measured in {}: {why}", context.target.path().display());
    }
    Ok(done)
}

impl<Setting, Way> Cell<Setting, Way> {
    /// The row of a table.
    pub(super) fn into_row(self, name: &str, description: &str, cache: Option<CacheState>) -> Row {
        let row = match self.samples {
            Ok(samples) => Row::from_samples(name, samples),
            Err(why) => Row::skipped(name, why),
        };
        let row = row.describe(description);
        match cache {
            Some(cache) => row.cache(cache),
            None => row,
        }
    }
}

/// Checks the name of a row that was asked for.
///
/// # Errors
/// A sentence with the names that there are.
pub(super) fn known(text: &str, names: &[&str]) -> Result<String, String> {
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("there is no row {text:?}; there are {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::context::Target;
    use crate::progress::Progress;
    use crate::result::metric;

    fn context() -> Context {
        Context::new(Target::Directory("/".into()), Progress::Silent, Cleanup::default(), 1)
    }

    #[test]
    fn cells_take_turns_and_share_a_repeats_seed() {
        let mut cells = cells(&[1, 2], &['a', 'b']);
        let mut order = Vec::new();
        let done = run(
            &context(),
            "test",
            2,
            &mut cells,
            |cell| cell.row.to_string(),
            |setting, row, seed| {
                order.push((setting, row, seed));
                let mut metrics = Metrics::default();
                metrics.set(metric::IOPS, f64::from(setting));
                Ok(metrics)
            },
        );
        assert_eq!(done.expect("all of them ran"), 2);
        let places: String = order.iter().map(|(setting, row, _)| format!("{setting}{row} ")).collect();
        assert_eq!(places, "1a 1b 2a 2b 1b 2a 2b 1a ");
        assert!(order[..4].iter().all(|(_, _, seed)| *seed == order[0].2));
        assert_ne!(order[0].2, order[4].2);
        let row = cells.remove(2).into_row("a", "what it does", Some(CacheState::Direct));
        assert_eq!((row.metrics.get(metric::IOPS), row.samples.len()), (Some(2.0), 2));
    }

    #[test]
    fn one_failing_cell_is_told_and_all_failing_ones_are_an_error() {
        let mut two = cells(&[0], &['a', 'b']);
        let outcome = run(
            &context(),
            "test",
            2,
            &mut two,
            |_| String::new(),
            |_, row, _| {
                anyhow::ensure!(row == 'b', "no a here");
                Ok(Metrics::default())
            },
        );
        assert_eq!(outcome.expect("b ran"), 2);
        let row = two.remove(0).into_row("a", "", None);
        assert_eq!((row.skipped.as_deref(), row.cache), (Some("no a here"), None));
        let mut one = cells(&[0], &['a']);
        let outcome = run(&context(), "test", 2, &mut one, |_| String::new(), |_, _, _| anyhow::bail!("no"));
        assert!(outcome.is_err_and(|error| error.to_string().contains("nothing could be measured in /: no")));
    }

    #[test]
    fn rows_are_known_by_name() {
        assert_eq!(known("b", &["a", "b"]), Ok("b".to_owned()));
        assert!(known("c", &["a", "b"]).is_err_and(|sentence| sentence.contains("there are a, b")));
    }
}
