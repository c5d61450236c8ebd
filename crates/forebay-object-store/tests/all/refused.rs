//! Shows: where the system refuses io_uring, as container runtimes do, the store does all the same. How: the other tests of the store, in
//! a child process whose system calls a filter refuses from its first instruction on.
#![cfg(target_os = "linux")]

use forebay::{Config, Engine, ErrorKind};
use forebay_object_store::ForebayStore;
use forebay_test::children::{Restriction, restricted, run_tests};

#[test]
fn without_io_uring() {
    let tests =
        ["refused::refused_for::it_is_refused", "integration::automatic", "paths::", "puts::", "reads::"];
    run_tests(&tests, "io_uring", vec![Restriction::no_io_uring_and(&[])]);
}

/// The names are then looked up by the pool's threads.
#[test]
fn without_io_uring_and_openat2() {
    let tests = ["refused::refused_for::it_is_refused", "integration::automatic", "reads::"];
    run_tests(&tests, "openat2", vec![Restriction::no_io_uring_and(&[libc::SYS_openat2])]);
}

/// Scenes for the children; in the parent they pass without a look.
mod refused_for {
    use super::*;

    #[test]
    fn it_is_refused() {
        let Some(restricted) = restricted() else { return };
        let engine = Engine::start(Config::new()).unwrap();
        assert_eq!(engine.driver(), "threads");
        let ring = forebay::Config::new().driver(forebay::DriverChoice::Uring);
        assert!(Engine::start(ring).is_err(), "rings are refused");
        assert_eq!(engine.try_metadata("Cargo.toml").is_none(), restricted == "openat2");
        let missing = ForebayStore::builder(&engine, "none").open().wait().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}
