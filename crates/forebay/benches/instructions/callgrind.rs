//! Runs a program under callgrind and reads its counts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;
use crate::rows::{PAIRS, Row};

/// The test file's name in the scratch folder.
pub(crate) const TEST_FILE: &str = "pages.bin";
/// Prefix of the files that callgrind writes.
const OUT: &str = "counts";

/// Checks that valgrind is installed.
pub(crate) fn require() -> Result<()> {
    let tried =
        Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match tried {
        Ok(status) if status.success() => Ok(()),
        _ => Err("valgrind does not run here; install the package valgrind".into()),
    }
}

/// A run takes seconds; `--operations` makes it longer.
const RUN_SECONDS_MAX: &str = "900";

/// Returns instructions an operation of the row, once for each pair of segments.
pub(crate) fn measure(program: &Path, row: &Row, operations: u64, scratch: &Path) -> Result<Vec<f64>> {
    // A version of valgrind that supports less of rings than this program allows for would wait for ever.
    let output = Command::new("timeout")
        .args(["--foreground", "--kill-after=5", RUN_SECONDS_MAX, "valgrind"])
        .args(["--tool=callgrind", "--separate-threads=yes", "--dump-before=*forebay_segment_ends*"])
        .args(["--toggle-collect=*forebay_ring_enter*", "--toggle-collect=*forebay_caller_rests*"])
        .arg("--collect-atstart=yes")
        .arg(format!("--callgrind-out-file={}", scratch.join(OUT).display()))
        .arg(program)
        .args(["child", row.name, &operations.to_string()])
        .arg(scratch.join(TEST_FILE))
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{} under callgrind: {}\n{text}", row.name, output.status).into());
    }
    let totals = collect(scratch)?;
    // Part 1 is the start and the warm-up; the pairs follow.
    let total = |part: usize| {
        let found = totals.get(&part).copied();
        found.ok_or_else(|| format!("callgrind counted nothing in segment {part} of {}", row.name))
    };
    (0..PAIRS)
        .map(|pair| {
            let (once, twice) = (total(2 + pair * 2)?, total(3 + pair * 2)?);
            Ok((twice as f64 - once as f64) / operations as f64)
        })
        .collect()
}

/// Reads and removes callgrind's files: the instructions of each segment, on the thread that ended it.
fn collect(scratch: &Path) -> Result<BTreeMap<usize, u64>> {
    let mut totals = BTreeMap::new();
    for entry in fs::read_dir(scratch)? {
        let path = entry?.path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(OUT)) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        fs::remove_file(&path)?;
        let field = |name| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        // The files that are written at the end of the program have another trigger.
        let at_mark = field("desc: Trigger:").is_some_and(|trigger| trigger.contains("forebay_segment_ends"));
        let (true, Some(part), Some(total)) = (at_mark, field("part:"), field("summary:")) else { continue };
        totals.insert(part.parse()?, total.parse()?);
    }
    Ok(totals)
}
