//! End-to-end tests of `measure --fio`: job files of fio, the tables of their jobs, and refusals.

use std::fs;

use serde_json::json;

use crate::support::{
    Directory, document, experiments, forebay, has_samples, metric, names_of_rows, outcome, rows, run,
    run_with_files,
};

#[test]
fn a_job_file_has_a_table_for_each_job_that_is_compared_with_others() {
    let directory = Directory::new("jobs");
    let file = directory.path().join("a.fio");
    let text = "[global]\nsize=256k\n[log]\nrw=write\nioengine=sync\nfdatasync=1\nbs=2300\n\
        [mix]\nstonewall\nrw=randrw\nnumjobs=2\ndirectory=.\ngroup_reporting\n";
    fs::write(&file, text).expect("it is our directory");
    let file = file.to_str().expect("readable name");
    let outcome = run(&["measure", "--fio", file, directory.text(), "--json", "--quiet", "--repeats", "2"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let [log, mix] = experiments(&value) else { panic!("two jobs: {value}") };
    assert_eq!((&log["name"], &log["parameters"]["job"]), (&"fio".into(), &"log".into()));
    assert_eq!((names_of_rows(log), names_of_rows(mix)), (vec!["write", "sync"], vec!["read", "write"]));
    for row in rows(log).iter().chain(rows(mix)) {
        has_samples(row, 2);
        assert!(metric(row, "p50_us") > 0.0, "{row}");
    }
    assert!(metric(&rows(log)[0], "iops") > 0.0 && metric(&rows(log)[0], "mb_per_s") > 0.0);
    assert!(mix["notes"].to_string().contains("without an effect here: group_reporting"), "{}", mix["notes"]);
    assert_eq!(directory.names(), ["a.fio"]);
    let saved = directory.path().join("a.json");
    fs::write(&saved, &outcome.out).expect("it is our directory");
    let saved = saved.to_str().expect("readable name");
    let page = directory.path().join("page.html");
    let shown = run(&["report", "--from", saved, saved, "--out", page.to_str().expect("readable name")]);
    assert_eq!(shown.code, Some(0), "{}", shown.err);
    assert!(shown.out.contains("fio[") && shown.out.contains("0 changed beyond noise"), "{}", shown.out);
}

#[test]
fn what_is_not_run_is_refused_and_existing_files_stay() {
    let directory = Directory::new("refused");
    let data = directory.file("data", 8192);
    let before = fs::read(&data).expect("readable");
    let file = directory.path().join("a.fio");
    let name = file.to_str().expect("readable name");
    for (text, code, words) in [
        (
            "[a]\nexec_prerun=touch made\nsize=4k\n",
            2,
            "[a] exec_prerun=touch made: commands of a job file are not run",
        ),
        ("[a]\nioengine=rbd\n", 2, "[a] ioengine=rbd: the engines"),
        ("[a]\nsize=1m\nexitwhen=5\n", 2, "line 3, [a] exitwhen=5: this option is not run here"),
        ("no job file\n", 2, "is it a job file of fio?"),
        ("[a]\nfilename=data\nrw=write\nsize=4k\n", 3, "exists and would be written"),
        ("[a]\nfilename=none/data\nsize=4k\n", 3, "nor does its directory"),
        // A user ran a direct job on a file of a system without direct I/O: "Invalid argument", and code 1. kernfs refuses it.
        ("[a]\nfilename=/sys/devices/system/cpu/online\ndirect=1\n", 4, "has no O_DIRECT here"),
    ] {
        fs::write(&file, text).expect("it is our directory");
        let outcome = run(&["measure", "--fio", name, directory.text(), "--quiet"]);
        assert_eq!((outcome.code, outcome.out.as_str()), (Some(code), ""), "{text}: {}", outcome.err);
        assert!(outcome.err.contains(words), "{text}: {}", outcome.err);
    }
    assert!(fs::read(&data).expect("readable") == before);
    // Without a directory it is the current one, as fio has it.
    fs::write(&file, "[a]\nfilename=data\nnumber_ios=1\n").expect("it is our directory");
    let arguments = ["measure", "--fio", "a.fio", "--json", "--quiet", "--repeats", "1"];
    let read = outcome(&forebay(&arguments).current_dir(directory.path()).output().expect("it starts"));
    assert_eq!(read.code, Some(0), "{}", read.err);
    assert_eq!(directory.names(), ["a.fio", "data"]);
    let missing = run(&["measure", "--fio"]);
    assert_eq!(missing.code, Some(2), "{}", missing.err);
    let unknown = run(&["report", directory.text(), "--only", "fio"]);
    assert_eq!(unknown.code, Some(2), "no report runs a job file: {}", unknown.err);
}

/// A generated job file had a product of 200,000 factors: the program ended with a stack overflow.
#[test]
fn a_product_of_any_length_is_calculated() {
    let directory = Directory::new("product");
    let file = directory.path().join("a.fio");
    fs::write(&file, format!("[a]\nsize=$pagesize/$pagesize{}\n", "*1".repeat(200_000))).expect("it is ours");
    let file = file.to_str().expect("readable name");
    let outcome = run(&["measure", "--fio", file, directory.text(), "--quiet"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.err);
    assert!(outcome.err.contains("[a] size=1: is less than a block"), "{}", outcome.err);
}

/// A user ran a job of many threads in a directory with a long path. The job was an argument of the process that measures, and that
/// did not start: "Argument list too long".
#[test]
fn a_job_of_many_threads_with_long_paths_is_measured() {
    let directory = Directory::new("threads");
    let folder = directory.path().join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&folder).expect("it is our directory");
    let file = directory.path().join("a.fio");
    // Together the paths have more than the 128 KiB that the kernel takes of one argument.
    let text = format!("[a]\nfilename={}\nsize=4k\nnumjobs=250\n", "f".repeat(200));
    fs::write(&file, text).expect("it is our directory");
    let [file, folder] = [&file, &folder].map(|path| path.to_str().expect("readable name"));
    let outcome = run(&["measure", "--fio", file, folder, "--json", "--quiet", "--repeats", "1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let [job] = experiments(&value) else { panic!("one job: {value}") };
    assert_eq!(names_of_rows(job), ["read"]);
    has_samples(&rows(job)[0], 1);
}

/// A user put a job beside fio's result of the same job file, and nothing was compared: the file had `readwrite` and `blocksize`,
/// fio's result has `rw` and `bs`.
#[test]
fn options_have_the_names_of_fios_result() {
    let directory = Directory::new("names");
    let file = directory.path().join("a.fio");
    let text = "[global]\nsize=64k\nratemin=1\n[a]\nwait_for_previous\nreadwrite=randread\nblocksize=4k\n";
    fs::write(&file, text).expect("it is our directory");
    let file = file.to_str().expect("readable name");
    let outcome = run(&["measure", "--fio", file, directory.text(), "--json", "--quiet", "--repeats", "1"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    let parameters = experiments(&value)[0]["parameters"].as_object().expect("an object");
    for (name, expected) in [("rw", json!("randread")), ("bs", json!("4k")), ("rate_min", json!(1))] {
        assert_eq!(parameters.get(name), Some(&expected), "{name}: {value}");
    }
    for name in ["readwrite", "blocksize", "ratemin", "stonewall", "wait_for_previous"] {
        assert!(!parameters.contains_key(name), "{name}: {value}");
    }
}

/// A user ran a job of 1,000 threads from a login that lets a process have 1,024 files open, with a higher hard limit: "Too many open
/// files".
#[test]
fn a_job_has_more_threads_than_files_may_be_open() {
    let directory = Directory::new("descriptors");
    let file = directory.path().join("a.fio");
    fs::write(&file, "[a]\nfilename=f\nsize=4k\nnumjobs=300\n").expect("it is our directory");
    let file = file.to_str().expect("readable name");
    let arguments = ["measure", "--fio", file, directory.text(), "--json", "--quiet", "--repeats", "1"];
    let outcome = run_with_files(256, &arguments);
    assert_eq!(outcome.code, Some(0), "{}", outcome.err);
    let value = document(&outcome);
    has_samples(&rows(&experiments(&value)[0])[0], 1);
}
