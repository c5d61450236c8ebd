//! A separate program, with only one test: the working directory belongs to the process.
//!
//! A store that was opened by a relative path, in a process that changes its working directory.
//!
//! Regression: an open store accessed its files by the relative path. After chdir(2) its next flush failed,
//! or changed the files of another store there.

mod common;

use common::{dir, engine, key, options, value};
use forebay_kv::Store;

#[test]
fn a_store_opened_by_a_relative_path_stays_where_it_is() {
    let (engine, dir) = (engine(), dir());
    let [here, there] = ["here", "there"].map(|name| dir.path().join(name));
    for place in [&here, &there] {
        std::fs::create_dir_all(place.join("data/tables")).unwrap();
    }
    std::fs::remove_dir_all(here.join("data")).unwrap();
    std::env::set_current_dir(&here).unwrap();
    let store = Store::open(&engine, "data", options()).wait().unwrap();
    std::env::set_current_dir(&there).unwrap();
    let keyspace = store.default_keyspace();
    for round in 0..4 {
        for number in round * 50..round * 50 + 80 {
            keyspace.put(key(number), value(number)).wait().unwrap();
        }
        store.flush().wait().unwrap();
    }
    store.compact().wait().unwrap();
    store.close().wait().unwrap();
    assert_eq!(std::fs::read_dir(there.join("data/tables")).unwrap().count(), 0);
    let store = Store::open(&engine, here.join("data"), options()).wait().unwrap();
    for number in 0..230 {
        let found = store.default_keyspace().get(&key(number)).wait().unwrap();
        assert_eq!(found.as_deref(), Some(&value(number)[..]), "key {number}");
    }
}
