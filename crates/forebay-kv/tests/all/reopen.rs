//! When a store can be opened: not while it is open, and immediately after its last handle is dropped.

use crate::common::{self, dir, engine, key, open, open_after_drop, options, value};
use forebay_kv::{ErrorKind, Store};
use forebay_test::children::{Scene, is_child};

/// Regression: the error called a locked store a log, and did not name the process that had it open.
#[test]
fn a_locked_store_is_called_a_store_and_its_holder_is_named() {
    let (engine, place) = (engine(), dir());
    let store = open(&engine, &place);
    let refused = [
        Store::open(&engine, place.path(), options()).wait().expect_err("it is open"),
        forebay_kv::verify(&engine, place.path()).wait().expect_err("it is open"),
    ];
    for error in refused {
        let text = error.to_string();
        assert_eq!((error.kind(), error.path()), (ErrorKind::Locked, Some(place.path())), "{text}");
        // Without the path, which may contain any word.
        let said = text.replace(&*place.path().to_string_lossy(), "");
        assert!(said.contains("store") && !said.contains("log"), "{text}");
        let process = format!("in this process ({})", std::process::id());
        assert!(text.contains(&process), "{text} does not name {process}");
    }
    store.close().wait().expect("an end");
}

/// As above, for a store that another process has open.
#[test]
fn a_store_that_another_process_has_open_names_that_process() {
    const TEST: &str = "reopen::a_store_that_another_process_has_open_names_that_process";
    const PLACE: &str = "FOREBAY_KV_REOPEN_PLACE";
    if is_child(TEST) {
        let place = std::env::var_os(PLACE).expect("the parent gave it");
        let error = Store::open(&engine(), &place, options()).wait().expect_err("the parent has it open");
        return println!("child: {error}");
    }
    let (engine, place) = (engine(), dir());
    let store = open(&engine, &place);
    let said = Scene::new(TEST).give(PLACE, place.path()).run().expect("a child");
    let process = format!("open in process {}:", std::process::id());
    assert!(said.contains(&process), "{said} does not say {process}");
    store.close().wait().expect("an end");
}

/// Regression: dropping the last handle closes in the background, and an open right after it found the store
/// locked.
#[test]
fn a_store_opens_right_after_its_last_handle_was_dropped() {
    let (engine, place) = (engine(), dir());
    for round in 0..20 {
        let store = open_after_drop(&engine, &place);
        let found = store.default_keyspace().get(&key(round.max(1) - 1)).wait().expect("a get");
        assert_eq!(found.as_deref(), (round > 0).then(|| value(round - 1)).as_deref());
        store.default_keyspace().put(key(round), value(round)).wait().expect("a put");
        if round % 2 == 0 {
            store.default_keyspace().put("unflushed", vec![7; 30_000]).wait().expect("a put");
        }
        drop(store);
    }
    // From another engine as well.
    let other = common::engine();
    let store = open_after_drop(&engine, &place);
    drop(store);
    open_after_drop(&other, &place).close().wait().expect("an end");
}
