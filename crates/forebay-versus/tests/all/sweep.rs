//! `forebay-versus sweep` along a few points.

use std::path::Path;
use std::process::Command;

/// Measures two neighbours, twice each, within a second.
#[test]
fn a_sweep_has_a_summary_and_rows_of_each_side_and_leaves_no_file() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sweep-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let rows = dir.join("rows");
    let done = Command::new(env!("CARGO_BIN_EXE_forebay-versus"))
        .args([
            "sweep",
            "--axis",
            "object-get",
            "--points",
            "4097,4096",
            "--rounds",
            "2",
            "--seconds",
            "0.02",
        ])
        .arg("--dir")
        .arg(&dir)
        .env("FOREBAY_BENCH_ROWS", &rows)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(text.contains("lowest ratio") && text.contains("object-get at 4097 B: forebay"), "{text}");
    let rows = std::fs::read_to_string(rows).unwrap();
    let found: Vec<Vec<&str>> = rows.lines().map(|line| line.split('\t').collect()).collect();
    let named: Vec<[&str; 3]> = found.iter().map(|fields| [fields[0], fields[1], fields[3]]).collect();
    let units = ["gets/s of forebay", "gets/s of local", "forebay over local"];
    let of = |at: &'static str| units.map(|unit| ["sweep-object-get", at, unit]);
    assert_eq!(named, [of("4096 B"), of("4097 B")].concat());
    for fields in &found {
        assert!(
            fields[2].replace(',', "").parse::<f64>().is_ok() && fields[4].contains(" to "),
            "{fields:?}"
        );
    }
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["rows"], "files of its own are left");
    std::fs::remove_dir_all(&dir).unwrap();
}
