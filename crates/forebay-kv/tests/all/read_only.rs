//! A store that is opened to be read alone. Nothing in its directory changes, readers share it, and refusals name the processes.
//!
//! Regression: a store on a file system that was mounted read-only, such as a backup, could be verified and not be read.

use std::path::Path;
use std::process::Command;

use crate::common::{dir, engine, engines, everything, key, open, options, value};
use forebay::Engine;
use forebay_kv::{Batch, Error, ErrorKind, Isolation, Options, Store};
use forebay_sim::{self as sim, Fault, Profile, Rule, World};
use forebay_test::children::{Scene, end_with_parent, is_child};
use forebay_test::live_files::copy;

/// Keys in tables, and keys behind them that only the log has.
const KEYS: u64 = 400;
const LOGGED: u64 = 50;

fn to_read(engine: &Engine, dir: &Path) -> Result<Store, Error> {
    Store::open(engine, dir, options().read_only(true)).wait()
}

fn put(store: &Store, numbers: std::ops::Range<u64>) {
    for number in numbers {
        store.default_keyspace().put(key(number), value(number)).wait().expect("a put");
    }
}

/// Returns a copy of an open store with tables, with records that only its log has, and with a file that nothing names: as a kill
/// leaves one.
fn left_by_a_kill(engine: &Engine) -> tempfile::TempDir {
    let (place, left) = (dir(), dir());
    let store = open(engine, &place);
    let users = store.keyspace("users").wait().expect("a keyspace");
    put(&store, 0..KEYS);
    store.compact().wait().expect("a compaction");
    store.settle().wait().expect("rest");
    put(&store, KEYS..KEYS + LOGGED);
    store.default_keyspace().delete(key(5)).wait().expect("a delete");
    users.put("anna", "1").wait().expect("a put");
    copy(place.path(), left.path());
    store.close().wait().expect("an end");
    std::fs::write(left.path().join("tables/00099999.fkv"), []).expect("a file that nothing names");
    left
}

/// Checks that all that such a store has can be read.
fn check(store: &Store) {
    assert_eq!(store.keyspaces(), ["default", "users"]);
    let (keys, users) = (store.default_keyspace(), store.keyspace("users").wait().expect("a keyspace"));
    for number in 0..KEYS + LOGGED {
        let found = keys.get(&key(number)).wait().expect("a get");
        let expected = (number != 5).then(|| value(number));
        assert_eq!(found.as_deref(), expected.as_deref(), "key {number}");
    }
    let snapshot = store.snapshot();
    let (mut range, mut count) = (snapshot.iter(&keys), 0);
    while range.next().wait().transpose().expect("an entry").is_some() {
        count += 1;
    }
    assert_eq!(count, KEYS + LOGGED - 1);
    let transaction = store.transaction(Isolation::Serializable);
    assert_eq!(transaction.get(&users, "anna").wait().expect("a get").as_deref(), Some(&b"1"[..]));
    transaction.commit().wait().expect("nothing to write");
}

fn refuses_changes(store: &Store, aside: &Path) {
    let keys = store.default_keyspace();
    let mut batch = Batch::new();
    batch.put(&keys, "a", "1");
    let mut transaction = store.transaction(Isolation::Serializable);
    transaction.put(&keys, "a", "1").expect("it is in memory");
    let refused = [
        ("put", keys.put("a", "1").wait().err()),
        ("delete", keys.delete("a").wait().err()),
        ("write", store.write(&batch).wait().err()),
        ("commit", transaction.commit().wait().err()),
        ("delete_range", keys.delete_range::<&[u8]>(..).wait().err()),
        ("bulk_load", keys.bulk_load([("b", "1")]).wait().err()),
        ("keyspace", store.keyspace("new").wait().err()),
        ("drop_keyspace", store.drop_keyspace("users").wait().err()),
        ("sync", store.sync().wait().err()),
        ("flush", store.flush().wait().err()),
        ("compact", store.compact().wait().err()),
        ("settle", store.settle().wait().err()),
        ("checkpoint", store.checkpoint(aside).wait().err()),
    ];
    for (call, error) in refused {
        let error = error.unwrap_or_else(|| panic!("{call} was taken"));
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{call}: {error}");
        assert!(error.to_string().contains("without Options::read_only"), "{call}: {error}");
    }
    assert!(!aside.exists());
}

#[test]
fn nothing_of_a_store_that_a_kill_left_changes_and_all_of_it_is_read() {
    for engine in engines() {
        let (left, aside) = (left_by_a_kill(&engine), dir());
        let before = everything(left.path());
        let store = to_read(&engine, left.path()).expect("a store");
        check(&store);
        let recovery = store.recovery();
        assert!(recovery.replayed > LOGGED, "{recovery:?}");
        assert!(recovery.removed.is_empty() && recovery.kept.is_empty(), "{recovery:?}");
        assert!(store.verify().wait().expect("a verification").is_whole());
        refuses_changes(&store, &aside.path().join("copy"));
        check(&store);
        assert!(store.stats().failed.is_none());
        store.close().wait().expect("an end");
        // Its drop closes it in the background, and the next open waits for that.
        drop(to_read(&engine, left.path()).expect("a store"));
        to_read(&engine, left.path()).expect("a store").close().wait().expect("an end");
        assert!(everything(left.path()) == before, "reading changed something");
        let store = open(&engine, &left);
        check(&store);
        let removed = &store.recovery().removed;
        assert!(removed.iter().any(|path| path.ends_with("tables/00099999.fkv")), "{removed:?}");
        store.close().wait().expect("an end");
    }
}

/// In a new mount namespace, where this user may create one.
#[test]
fn a_store_on_a_read_only_file_system_is_read() {
    const TEST: &str = "read_only::a_store_on_a_read_only_file_system_is_read";
    const PLACE: &str = "FOREBAY_KV_READ_ONLY_MOUNT";
    if let Some(place) = std::env::var_os(PLACE) {
        let place = Path::new(&place);
        std::fs::write(place.join("tables/new"), []).expect_err("it is mounted read-only");
        let store = to_read(&engine(), place).expect("a store");
        check(&store);
        return store.close().wait().expect("an end");
    }
    let left = left_by_a_kill(&engine());
    let mount =
        r#"mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && echo it is mounted && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", mount]).arg(left.path());
    command.arg(std::env::current_exe().expect("this program")).args([TEST, "--exact", "--nocapture"]);
    let output = match end_with_parent(command.env(PLACE, left.path())).output() {
        Ok(output) => output,
        Err(error) => return println!("skipped: no unshare(1): {error}"),
    };
    let [said, failed] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !said.contains("it is mounted") {
        return println!("skipped: no read-only mount: {failed}");
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{failed}");
}

#[test]
fn readers_share_a_store_and_a_writer_beside_them_is_refused() {
    let (engine, other) = (engine(), engine());
    let left = left_by_a_kill(&engine);
    let before = everything(left.path());
    let readers = [&engine, &other].map(|engine| to_read(engine, left.path()).expect("a store"));
    readers.iter().for_each(check);
    assert!(forebay_kv::verify(&engine, left.path()).wait().expect("a verification").is_whole());
    let refused = |error: Error, how: &str| {
        let said = format!("{how} in this process ({})", std::process::id());
        assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, Some(left.path())), "{error}");
        assert!(error.to_string().contains(&said), "{error} does not say {said}");
    };
    refused(Store::open(&other, left.path(), options()).wait().expect_err("it is read"), "read");
    for reader in readers {
        reader.close().wait().expect("an end");
    }
    assert!(everything(left.path()) == before, "readers or a refused writer changed something");
    let store = open(&engine, &left);
    refused(to_read(&other, left.path()).expect_err("it is open"), "open");
    store.close().wait().expect("an end");
}

#[test]
fn a_refusal_names_the_process_that_writes_or_reads() {
    const TEST: &str = "read_only::a_refusal_names_the_process_that_writes_or_reads";
    const PLACE: &str = "FOREBAY_KV_READ_ONLY_PLACE";
    if is_child(TEST) {
        let place = std::env::var_os(PLACE).expect("the parent gave it");
        let engine = engine();
        for (name, options) in [("writer", options()), ("reader", options().read_only(true))] {
            match Store::open(&engine, &place, options).wait() {
                Err(error) => println!("the {name} is refused: {error}"),
                Ok(store) => {
                    store.close().wait().expect("an end");
                    println!("the {name} opens it");
                }
            }
        }
        return;
    }
    let (engine, place) = (engine(), dir());
    let child = || Scene::new(TEST).give(PLACE, place.path()).run().expect("a child");
    let store = open(&engine, &place);
    let said = child();
    let named = format!("open in process {}:", std::process::id());
    assert_eq!(said.matches(&named).count(), 2, "{said} does not say {named}");
    store.close().wait().expect("an end");

    let store = to_read(&engine, place.path()).expect("a store");
    let said = child();
    let named = format!("read in process {}:", std::process::id());
    assert_eq!(said.matches(&named).count(), 1, "{said} does not say {named}");
    assert!(said.contains("the writer is refused") && said.contains("the reader opens it"), "{said}");
    store.close().wait().expect("an end");
}

#[test]
fn a_store_that_is_written_is_read_through_a_checkpoint() {
    let (engine, place, aside) = (engine(), dir(), dir());
    let live = open(&engine, &place);
    put(&live, 0..KEYS);
    let copy = aside.path().join("copy");
    live.checkpoint(&copy).wait().expect("a checkpoint");
    let before = everything(&copy);
    let store = to_read(&engine, &copy).expect("a store");
    put(&live, KEYS..KEYS + LOGGED);
    live.default_keyspace().delete(key(0)).wait().expect("a delete");
    live.compact().wait().expect("a compaction");
    let found = |store: &Store, number| {
        store.default_keyspace().get(&key(number)).wait().expect("a get").map(|value| value.to_vec())
    };
    for number in 0..KEYS {
        assert_eq!(found(&store, number), Some(value(number)), "key {number}");
    }
    assert_eq!((found(&store, KEYS), found(&live, KEYS)), (None, Some(value(KEYS))));
    assert_eq!(found(&live, 0), None);
    store.close().wait().expect("an end");
    live.close().wait().expect("an end");
    assert!(everything(&copy) == before, "reading changed something");
}

/// An open that writes flushes memtables for which it has no memory; a reader cannot.
#[test]
fn a_log_that_does_not_fit_into_memory_is_refused_with_the_remedies() {
    let (engine, place) = (engine(), dir());
    let large = Options::new().memory_bytes_max(32 << 20);
    let store = Store::open(&engine, place.path(), large.clone()).wait().expect("a store");
    for number in 0..KEYS {
        store.default_keyspace().put(key(number), vec![7; 2000]).wait().expect("a put");
    }
    store.close().wait().expect("an end");
    let before = everything(place.path());
    let error = to_read(&engine, place.path()).expect_err("192 KiB of memtables for 800 KB");
    assert!(matches!(error.kind(), ErrorKind::MemoryBudget { .. }), "{error}");
    assert!(error.to_string().contains("Options::memory_bytes_max"), "{error}");
    let store = Store::open(&engine, place.path(), large.read_only(true)).wait().expect("memory for it");
    assert!(store.default_keyspace().get(&key(KEYS - 1)).wait().expect("a get").is_some());
    store.close().wait().expect("an end");
    assert!(everything(place.path()) == before, "reading changed something");
    open(&engine, &place).close().wait().expect("an end");
    to_read(&engine, place.path()).expect("tables have it now").close().wait().expect("an end");
}

/// Copies may leave out locks, which are empty of data, and empty directories.
#[test]
fn a_copy_without_locks_and_empty_directories_is_read() {
    let (engine, place) = (engine(), dir());
    let store = open(&engine, &place);
    put(&store, 0..1);
    store.close().wait().expect("an end");
    for lock in ["manifest/wal.lock", "log/wal.lock"] {
        std::fs::remove_file(place.path().join(lock)).expect("a lock");
    }
    std::fs::remove_dir(place.path().join("tables")).expect("no table was written");
    let before = everything(place.path());
    let store = to_read(&engine, place.path()).expect("a store");
    let found = store.default_keyspace().get(&key(0)).wait().expect("a get");
    assert_eq!(found.as_deref(), Some(&value(0)[..]));
    store.close().wait().expect("an end");
    assert!(everything(place.path()) == before, "reading changed something");
}

#[test]
fn what_is_no_store_stays_as_it_is() {
    let (engine, place) = (engine(), dir());
    let kind = |path: &Path| to_read(&engine, path).expect_err("no store").kind();
    let none = place.path().join("none");
    assert_eq!((kind(&none), none.exists()), (ErrorKind::NotFound, false));
    assert_eq!(kind(place.path()), ErrorKind::NotFound);
    assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 0);
    let both = options().read_only(true).salvage(true);
    let error = Store::open(&engine, place.path(), both).wait().expect_err("one or the other");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

/// In a world, where a first open can be cut short, and where each attempt to write or to flush can be made to fail.
#[test]
fn a_store_that_was_not_made_yet_is_none_and_no_reader_writes() {
    let mut world = World::new(3).disk(Profile::nand().at("/disk"));
    let ran = world.run(async |engine| {
        let options = options().store_id(7);
        let to_read = options.clone().read_only(true);
        sim::inject(Rule::new(Fault::NoSpace).on("/disk/kv/log"));
        Store::open(&engine, "/disk/kv", options.clone()).await.expect_err("no space for the log");
        let none = Store::open(&engine, "/disk/kv", to_read.clone()).await.expect_err("no log");
        assert_eq!(none.kind(), ErrorKind::NotFound, "{none}");
        assert!(none.to_string().contains("cut short"), "{none}");
        sim::clear_faults();
        let store = Store::open(&engine, "/disk/kv", options).await.expect("the rest is made");
        store.default_keyspace().put("a", "1").await.expect("a put");
        store.close().await.expect("an end");
        for fault in [Fault::WriteError, Fault::FlushError, Fault::NoSpace] {
            sim::inject(Rule::new(fault).on("/disk/kv"));
        }
        let store = Store::open(&engine, "/disk/kv", to_read).await.expect("nothing is written");
        let found = store.default_keyspace().get("a").await.expect("a get");
        assert_eq!(found.as_deref(), Some(&b"1"[..]));
        store.close().await.expect("an end");
    });
    ran.expect("the world runs");
}
