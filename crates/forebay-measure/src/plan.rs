//! The sizes of the file and the memory, and the number and length of samples.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::cgroup::MemoryLimit;
use crate::context::{Context, Target};
use crate::system_counters::value;
use crate::units::show_bytes;
use forebay_report::failure::Failure;

/// The least memory of a sample. A process and its buffers do not fit into less.
pub(super) const MEMORY_MIN_BYTES: u64 = 32 << 20;

const MIB: u64 = 1 << 20;
/// The most bytes of a file: more than any file has, and few enough to be rounded up.
const FILE_BYTES_MAX: u64 = 1 << 62;

/// Sizes of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    /// The memory that a sample may use, page cache included.
    pub(super) memory_bytes: u64,
    /// The size of a file that this program creates.
    pub(super) file_bytes: u64,
    /// The most bytes used of an existing file; `None` means all of it.
    pub(super) limit_bytes: Option<u64>,
}

impl Sizes {
    /// Chooses sizes from the user's options (`memory`, `size`) and the machine's resources.
    ///
    /// # Errors
    /// [`Failure::Unsuitable`] when the file would not be larger than the memory.
    pub(super) fn choose(context: &Context, memory: Option<u64>, size: Option<u64>) -> Result<Self, Failure> {
        Self::within(affordable_bytes(), context, memory, size)
    }

    /// Does the same where samples can use `affordable` bytes.
    ///
    /// # Errors
    /// As for [`choose`](Self::choose).
    pub(super) fn within(
        affordable: u64,
        context: &Context,
        memory: Option<u64>,
        size: Option<u64>,
    ) -> Result<Self, Failure> {
        let (default_memory, factor) = if context.quick { (256 * MIB, 4) } else { (1024 * MIB, 3) };
        let default_memory = default_memory.min(affordable);
        let existing = match &context.target {
            Target::Directory(_) => None,
            Target::Existing(path) | Target::Overwritten(path) => Some((path, length_of(path)?)),
        };
        // An existing file has no more than its length, with any limit.
        let known = existing.iter().map(|(_, length)| *length).chain(size).min();
        let memory_bytes = memory.unwrap_or_else(|| {
            default_memory.min(known.map_or(u64::MAX, |bytes| bytes / factor)).max(MEMORY_MIN_BYTES)
        });
        if memory_bytes < MEMORY_MIN_BYTES {
            return Err(Failure::Usage(format!(
                "--memory {} leaves no room for the process itself: give at least {}",
                show_bytes(memory_bytes),
                show_bytes(MEMORY_MIN_BYTES)
            )));
        }
        let file_bytes = known.unwrap_or(memory_bytes.saturating_mul(factor)).min(FILE_BYTES_MAX);
        if file_bytes <= memory_bytes {
            return Err(too_small(
                existing.as_ref().map(|(path, _)| path.as_path()),
                file_bytes,
                memory_bytes,
            ));
        }
        Ok(Self {
            memory_bytes,
            file_bytes: file_bytes.next_multiple_of(MIB),
            limit_bytes: size.or_else(|| {
                matches!(context.target, Target::Overwritten(_)).then(|| memory_bytes.saturating_mul(factor))
            }),
        })
    }
}

fn too_small(path: Option<&Path>, file_bytes: u64, memory_bytes: u64) -> Failure {
    let what = path.map_or_else(|| "the file".to_owned(), |path| path.display().to_string());
    let remedy = if memory_bytes > MEMORY_MIN_BYTES {
        format!("give a larger --size, or a smaller --memory (at least {})", show_bytes(MEMORY_MIN_BYTES))
    } else if path.is_some() {
        format!(
            "name a file larger than {}, or a directory in which one may be made",
            show_bytes(MEMORY_MIN_BYTES)
        )
    } else {
        "give a larger --size".to_owned()
    };
    Failure::Unsuitable(format!(
        "{what} is too small: its {} fit into the {} of memory that a sample may use, so the device would not be measured; {remedy}",
        show_bytes(file_bytes),
        show_bytes(memory_bytes)
    ))
}

fn length_of(path: &Path) -> Result<u64, Failure> {
    use std::io::Seek;
    let mut file = fs::File::open(path).map_err(|error| Failure::missing(path, &error))?;
    file.seek(std::io::SeekFrom::End(0)).map_err(|error| Failure::missing(path, &error))
}

/// Returns the memory that a sample may use on this machine: half of the memory available without swapping.
pub(super) fn affordable_bytes() -> u64 {
    available_bytes().map_or(u64::MAX, |bytes| (bytes / 2).max(MEMORY_MIN_BYTES))
}

/// Refuses samples that need more memory than is available: `what` needs it, and `remedy` ends the sentence.
///
/// # Errors
/// [`Failure::Unsuitable`].
pub(super) fn check_memory(what: &str, needed: u64, remedy: &str) -> Result<(), Failure> {
    let available = available_bytes().unwrap_or(u64::MAX);
    if needed <= available {
        return Ok(());
    }
    let [needed, available] = [needed, available].map(show_bytes);
    Err(Failure::Unsuitable(format!(
        "{what} need {needed} of memory, and {available} are available: {remedy}"
    )))
}

/// Returns the memory available without swapping, or less where a cgroup limits this process.
fn available_bytes() -> Option<u64> {
    let machine = value(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")?;
    Some(MemoryLimit::of_this_process().map_or(machine, |limit| limit.bytes.min(machine)))
}

/// The time of a sample in addition to its reading: process, engine, cgroup, eviction.
const OVERHEAD: Duration = Duration::from_millis(150);

/// Returns the seconds for each of `samples` so that one repeat fits into the rest of the budget.
pub(super) fn fit_seconds(wanted: f64, samples: usize, remaining: Option<Duration>) -> f64 {
    let Some(remaining) = remaining else { return wanted };
    let each = remaining.as_secs_f64() / samples.max(1) as f64 - OVERHEAD.as_secs_f64();
    // A sample below a tenth of a second has little value. The budget is then exceeded rather than the
    // figure spoiled.
    wanted.min(each.max(0.1))
}

/// Returns whether another repeat can start. Its time is estimated from the time `spent` on the `done` repeats so far.
pub(super) fn another_repeat(done: usize, spent: Duration, remaining: Option<Duration>) -> bool {
    done == 0 || remaining.is_none_or(|remaining| spent / done as u32 <= remaining)
}

/// Returns the order in which repeat number `repeat` runs `count` rows. Each repeat starts one row later, so that no row is always
/// first.
pub(super) fn interleaved(repeat: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |position| (position + repeat) % count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cleanup::Cleanup;
    use crate::progress::Progress;

    fn context(target: Target, quick: bool) -> Context {
        let mut context = Context::new(target, Progress::Silent, Cleanup::default(), 1);
        context.quick = quick;
        context
    }

    fn directory() -> Target {
        Target::Directory("/".into())
    }

    #[test]
    fn sizes_the_user_gave_are_kept() {
        let sizes =
            Sizes::choose(&context(directory(), false), Some(64 * MIB), Some(256 * MIB)).expect("they fit");
        assert_eq!(
            sizes,
            Sizes { memory_bytes: 64 * MIB, file_bytes: 256 * MIB, limit_bytes: Some(256 * MIB) }
        );
    }

    #[test]
    fn the_quick_file_is_four_times_its_memory() {
        let sizes = Sizes::choose(&context(directory(), true), None, None).expect("defaults are usable");
        assert!(sizes.memory_bytes <= 256 * MIB);
        assert_eq!(sizes.file_bytes, (sizes.memory_bytes * 4).next_multiple_of(MIB));
    }

    /// Regression: three times a memory of 7 EiB did not fit into a number, and rounding it up
    /// ended the program.
    #[test]
    fn a_memory_beyond_every_machine_is_no_overflow() {
        let context = context(directory(), false);
        for memory in [1 << 61, (1 << 63) - 1, u64::MAX / 2] {
            match Sizes::choose(&context, Some(memory), None) {
                Ok(sizes) => assert!(sizes.file_bytes <= FILE_BYTES_MAX, "{sizes:?}"),
                Err(error) => assert_eq!(error.code(), 4),
            }
        }
    }

    #[test]
    fn a_size_alone_gets_a_memory_below_it() {
        let sizes = Sizes::choose(&context(directory(), false), None, Some(120 * MIB)).expect("it fits");
        assert_eq!(sizes.memory_bytes, 40 * MIB);
    }

    #[test]
    fn a_file_below_its_memory_is_refused_with_the_remedy() {
        let error =
            Sizes::choose(&context(directory(), false), Some(64 * MIB), Some(64 * MIB)).expect_err("equal");
        assert_eq!(error.code(), 4);
        assert!(error.to_string().contains("--memory"), "{error}");
        let error = Sizes::choose(&context(directory(), false), Some(MIB), None).expect_err("no room");
        assert_eq!(error.code(), 2);
    }

    #[test]
    fn a_small_existing_file_is_named() {
        let temp = Cleanup::default().temp_file(&std::env::temp_dir(), "plan").expect("writable");
        temp.file().set_len(MIB).expect("a sparse file");
        let target = Target::Existing(temp.path().to_owned());
        let error = Sizes::choose(&context(target, false), None, None).expect_err("1 MiB");
        assert!(error.to_string().contains(&temp.path().display().to_string()), "{error}");
        assert_eq!(error.code(), 4);
    }

    #[test]
    fn a_budget_shortens_samples_and_ends_repeats() {
        let seconds = Duration::from_secs;
        assert_eq!(fit_seconds(2.0, 8, None), 2.0);
        assert_eq!(fit_seconds(2.0, 8, Some(seconds(80))), 2.0);
        assert!((fit_seconds(2.0, 8, Some(seconds(8))) - 0.85).abs() < 1e-9);
        assert_eq!(fit_seconds(2.0, 8, Some(seconds(0))), 0.1);
        assert!(another_repeat(0, seconds(0), Some(seconds(0))));
        assert!(another_repeat(2, seconds(10), Some(seconds(5))));
        assert!(!another_repeat(2, seconds(10), Some(seconds(4))));
        assert!(another_repeat(2, seconds(10), None));
    }

    #[test]
    fn every_repeat_runs_every_row_once() {
        for repeat in 0..7 {
            let mut order: Vec<usize> = interleaved(repeat, 5).collect();
            assert_eq!(order[0], repeat % 5);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4]);
        }
        assert_eq!(interleaved(3, 0).count(), 0);
    }
}
