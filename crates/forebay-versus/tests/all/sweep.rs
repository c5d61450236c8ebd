//! `forebay-versus sweep` along a few points.

use std::path::Path;
use std::process::{Command, Output};

/// Measures two neighbours, twice each, within a second.
fn run(dir: &Path, out: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forebay-versus"))
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
        .arg(dir)
        .arg("--out")
        .arg(out)
        .output()
        .unwrap()
}

#[test]
fn a_sweep_has_a_summary_csv_and_a_chart_and_keeps_the_files_of_others() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sweep-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let out = dir.join("out");
    let first = run(&dir, &out);
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    let text = String::from_utf8(first.stdout).unwrap();
    assert!(text.contains("lowest ratio") && text.contains("object-get at 4097 B: forebay"), "{text}");
    let csv = std::fs::read_to_string(out.join("sweep.csv")).unwrap();
    let lines: Vec<&str> = csv.lines().skip(1).map(|line| line.split(",2,").next().unwrap()).collect();
    let sides = ["4096,forebay", "4096,local", "4097,forebay", "4097,local"];
    assert_eq!(lines, sides.map(|side| format!("object-get,{side}")), "{csv}");
    assert!(std::fs::read_to_string(out.join("object-get.svg")).unwrap().contains("</svg>"));

    let second = run(&dir, &out);
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("has files already"));
    assert_eq!(std::fs::read_to_string(out.join("sweep.csv")).unwrap(), csv);
    let left: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["out"], "files of its own are left");
    std::fs::remove_dir_all(&dir).unwrap();
}
