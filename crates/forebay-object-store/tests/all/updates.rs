//! Shows: updates by many processes are never lost, and no two objects have the same tag, even if processes are killed. How:
//! processes add lines to one object, and put, delete, copy and update another, while some are killed; the lines that they report
//! are compared with the object.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::path::{Path as FsPath, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use forebay::{Config, Durability, Engine};
use forebay_object_store::ForebayStore;
use forebay_test::children::end_with_parent;
use forebay_test::draw::mix;
use forebay_test::killed::say;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};

use crate::common::dir;

/// At a time.
const PROCESSES: u64 = 8;
const LINES: u64 = 200;
/// Variables with the directory, the number and the lines of a process.
const DIR: &str = "FOREBAY_TEST_UPDATES_DIR";
const NUMBER: &str = "FOREBAY_TEST_UPDATES_NUMBER";
const COUNT: &str = "FOREBAY_TEST_UPDATES_LINES";

async fn open(root: &FsPath) -> ForebayStore {
    let engine = Engine::start(Config::new().shards(1)).unwrap();
    let settings = ForebayStore::builder(&engine, root).put_durability(Durability::None);
    settings.open().await.unwrap()
}

fn update(e_tag: Option<String>) -> PutMode {
    PutMode::Update(UpdateVersion { e_tag, version: None })
}

/// Adds a line to the ledger.
async fn append(store: &ForebayStore, line: &str) -> object_store::Result<()> {
    let at = Path::from("ledger");
    loop {
        let (text, mode) = match store.get(&at).await {
            Ok(got) => {
                let mode = update(got.meta.e_tag.clone());
                (String::from_utf8_lossy(&got.bytes().await?).into_owned(), mode)
            }
            Err(Error::NotFound { .. }) => (String::new(), PutMode::Create),
            Err(error) => return Err(error),
        };
        match store.put_opts(&at, format!("{text}{line}\n").into(), mode.into()).await {
            Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
            put => return put.map(drop),
        }
    }
}

/// Does something with an object of one byte, and reports the tags that it removed and added.
async fn disturb(store: &ForebayStore, drawn: u64) -> object_store::Result<()> {
    let at = Path::from("d/object");
    let (old, put) = match drawn % 5 {
        0 => (None, store.put(&at, "p".into()).await),
        1 => (None, store.put_opts(&at, "c".into(), PutMode::Create.into()).await),
        2 => {
            let copied = Path::from(format!("copies/{}", drawn / 5 % 3));
            return store.copy(&Path::from("ledger"), &copied).await;
        }
        3 => {
            return match store.delete(&at).await {
                Err(Error::NotFound { .. }) => Ok(()),
                deleted => deleted,
            };
        }
        _ => {
            let Ok(head) = store.head(&at).await else { return Ok(()) };
            let old = head.e_tag.clone();
            (old, store.put_opts(&at, "u".into(), update(head.e_tag).into()).await)
        }
    };
    match put {
        Ok(put) => say(&format!("tags {} {}", old.unwrap_or("-".into()), put.e_tag.unwrap_or_default())),
        Err(Error::Precondition { .. } | Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A process of the test below.
#[test]
#[ignore = "started by another test"]
fn worker() {
    let Some(root) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let (own, lines) = (number(NUMBER), number(COUNT));
    futures::executor::block_on(async {
        let store = open(&root).await;
        for line in 0..lines {
            append(&store, &format!("{own}:{line}")).await.unwrap();
            say(&format!("line {own}:{line}"));
            disturb(&store, mix(own << 32 | line)).await.unwrap();
        }
    });
}

/// Runs a process, which is killed once it has reported this many things. Returns its reports.
fn run(root: &FsPath, number: u64, lines: u64, killed_after: Option<usize>) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["updates::worker", "--exact", "--ignored", "--nocapture"])
        .envs([
            (DIR, root.as_os_str()),
            (NUMBER, OsStr::new(&number.to_string())),
            (COUNT, OsStr::new(&lines.to_string())),
        ])
        .stdout(Stdio::piped());
    let mut child = end_with_parent(&mut command).spawn().unwrap();
    let mut reports = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        // The test's name is before the first one.
        let report = line.rsplit("... ").next().unwrap_or_default();
        if report.starts_with("line ") || report.starts_with("tags ") {
            reports.push(report.to_string());
        }
        if killed_after.is_some_and(|count| reports.len() >= count) {
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert!(killed_after.is_some() || status.success(), "process {number}: {status}");
    reports
}

#[test]
fn no_update_of_many_processes_is_lost() {
    let root = dir();
    let lines = LINES / forebay_test::one_in(4).max(forebay_test::one_in_daily(2)) as u64;
    let reports: Vec<String> = thread::scope(|threads| {
        let lane = |lane: u64| {
            let root = root.path();
            threads.spawn(move || {
                // Of each second lane one process is killed, and another replaces it.
                let killed_after = 1 + mix(lane) as usize % lines as usize;
                let killed =
                    lane.is_multiple_of(2).then(|| run(root, PROCESSES + lane, lines, Some(killed_after)));
                let mut reports = killed.unwrap_or_default();
                reports.extend(run(root, lane, lines, None));
                reports
            })
        };
        let lanes: Vec<_> = (0..PROCESSES).map(lane).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });

    let (ledger, listed) = futures::executor::block_on(async {
        let store = open(root.path()).await;
        let ledger = store.get(&Path::from("ledger")).await.unwrap().bytes().await.unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        (String::from_utf8(ledger.to_vec()).unwrap(), listed)
    });
    let mut next = BTreeMap::new();
    for line in ledger.lines() {
        let (number, at) = line.split_once(':').expect("a whole line");
        let next = next.entry(number.to_string()).or_insert(0_u64);
        assert_eq!(at.parse::<u64>().unwrap(), *next, "process {number} has added each line once, in order");
        *next += 1;
    }
    let in_ledger: BTreeSet<&str> = ledger.lines().collect();
    for line in reports.iter().filter_map(|report| report.strip_prefix("line ")) {
        assert!(in_ledger.contains(line), "{line} was added, and is lost");
    }
    let (mut taken, mut given) = (BTreeSet::new(), BTreeSet::new());
    for tags in reports.iter().filter_map(|report| report.strip_prefix("tags ")) {
        let (old, new) = tags.split_once(' ').expect("two tags");
        assert!(old == "-" || taken.insert(old), "two updates have replaced the object of the tag {old}");
        assert!(given.insert(new), "two objects have the tag {new}");
    }
    assert!(given.len() as u64 > lines, "{} objects were put", given.len());
    for meta in listed {
        let name = meta.location.as_ref();
        assert!(name == "ledger" || name == "d/object" || name.starts_with("copies/"), "{name} is listed");
    }
}
