//! Behaviour where the system refuses: no io_uring, no locked memory, few descriptors. Each scene is this
//! test program again, started with the restriction in place, so that all of it lives under it from the first
//! instruction.

use forebay::{Config, DriverChoice, Engine, ErrorKind, Open};
use forebay_test::children::{Restriction, Restriction::Limit, restricted, run_tests, set_limit};

#[test]
fn without_io_uring_all_operations_work_on_threads() {
    run_tests(
        &["basic::", "refused::scenes::io_uring_is_refused", "refused::scenes::tasks_use_native_aio"],
        "io_uring",
        vec![Restriction::no_io_uring_and(&[])],
    );
}

#[test]
fn without_io_uring_no_write_of_a_task_sends_a_signal() {
    // Alone: it changes a limit of the process.
    let test = "refused::scenes::a_task_overwrites_beyond_the_limit";
    run_tests(&[test], "io_uring", vec![Restriction::no_io_uring_and(&[])]);
}

#[test]
fn without_native_aio_too_all_operations_work_on_threads() {
    for call in [libc::SYS_io_setup, libc::SYS_io_submit] {
        let tests = ["basic::", "refused::scenes::both_interfaces_are_refused"];
        run_tests(&tests, "io_uring and AIO", vec![Restriction::no_io_uring_and(&[call])]);
    }
}

#[test]
fn without_locked_memory_all_operations_work_unregistered() {
    // Enough for the rings, not for the I/O memory.
    run_tests(&["basic::", "refused::scenes::memory_is_not_registered"], "memory", lock_at_most(2 << 20));
}

#[test]
fn without_any_locked_memory_all_operations_work() {
    run_tests(&["basic::", "refused::scenes::no_memory_may_be_locked"], "memory", lock_at_most(0));
}

fn lock_at_most(bytes: libc::rlim_t) -> Vec<Restriction> {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    // A process with this capability has no limit.
    vec![Restriction::Capability(CAP_IPC_LOCK), Limit(libc::RLIMIT_MEMLOCK, bytes)]
}

#[test]
fn with_few_descriptors_all_operations_work_and_errors_name_the_limit() {
    let tests = ["basic::", "refused::scenes::files_are_not_registered"];
    run_tests(&tests, "descriptors", vec![Limit(libc::RLIMIT_NOFILE, 100)]);
    // Alone: it leaves no descriptor to a concurrent test.
    let test = "refused::scenes::descriptors_run_out";
    run_tests(&[test], "descriptors", vec![Limit(libc::RLIMIT_NOFILE, 100)]);
}

#[test]
fn without_descriptors_the_start_fails_clearly() {
    let test = "refused::scenes::no_descriptor_for_a_ring";
    run_tests(&[test], "descriptors", vec![Limit(libc::RLIMIT_NOFILE, 100)]);
}

/// Run by the tests above, in children. Elsewhere (`--include-ignored`) they test nothing.
mod scenes {
    use super::*;

    #[test]
    #[ignore = "needs a process to which io_uring is refused"]
    fn io_uring_is_refused() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new()).unwrap();
        assert_eq!(engine.driver(), "threads");
        let health = engine.health();
        let told =
            health.degraded.iter().find(|degradation| degradation.what == "io_uring").expect("a degradation");
        assert!(told.why.contains("not permitted"), "{told}");
        assert!(told.remedy.contains("seccomp") && told.remedy.contains("io_uring_disabled"), "{told}");
        let error = Engine::start(Config::new().driver(DriverChoice::Uring)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        assert!(error.to_string().contains("io_uring"), "{error}");
    }

    #[cfg(feature = "tokio")]
    mod in_tasks {
        use super::*;

        pub(super) const PAGES: u64 = 256;

        /// A file whose pages hold their number, and its engine. Reads and writes it in tasks of a Tokio runtime.
        pub(super) fn read_and_write(engine: &Engine, dir: &std::path::Path) {
            let path = dir.join("pages");
            let content: Vec<u8> = (0..PAGES).flat_map(|number| number.to_le_bytes().repeat(512)).collect();
            std::fs::write(&path, content).unwrap();
            let file = engine.open(&path, Open::create()).wait().unwrap();
            file.sync(forebay::Durability::All).wait().unwrap();
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            let work = async |file: forebay::File, task: u64| {
                for turn in 0..200 {
                    let number = (task * 31 + turn * 7) % PAGES;
                    let range = number * 4096..(number + 1) * 4096;
                    let block = file.read(range.clone()).await.unwrap();
                    assert_eq!(block[..8], number.to_le_bytes());
                    if turn % 8 == 0 {
                        file.write(range.start, number.to_le_bytes().repeat(512)).await.unwrap();
                    }
                }
            };
            runtime.block_on(async {
                let mut tasks = tokio::task::JoinSet::new();
                (0..16).for_each(|task| drop(tasks.spawn(work(file.clone(), task))));
                tasks.join_all().await;
            });
        }
    }

    /// Creates a directory on a real file system next to the build, where O_DIRECT works.
    #[cfg(feature = "tokio")]
    fn dir() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("forebay-refused-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
    }

    #[cfg(feature = "tokio")]
    #[test]
    #[ignore = "needs a process to which io_uring is refused"]
    fn tasks_use_native_aio() {
        if restricted().is_none() {
            return;
        }
        let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
        assert_eq!(engine.health().worker_rings, None);
        in_tasks::read_and_write(&engine, dir.path());
        let health = engine.health();
        assert_eq!(health.worker_rings, Some("aio"), "{health}");
        assert!(health.to_string().contains("on threads, worker rings on aio, "), "{health}");
        let stats = engine.stats().wait().unwrap();
        let enters: u64 = stats.worker_rings.iter().map(|ring| ring.enters).sum();
        assert!(enters > 100, "{stats:?}");
        assert_eq!(engine.close().wait().unwrap().leaked_operations, 0);
    }

    /// Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ to the thread that submits, even for bytes that exist. That ends a program.
    #[cfg(feature = "tokio")]
    #[test]
    #[ignore = "needs a process to which io_uring is refused"]
    fn a_task_overwrites_beyond_the_limit() {
        if restricted().is_none() {
            return;
        }
        let (engine, dir) = (Engine::start(Config::new()).unwrap(), dir());
        in_tasks::read_and_write(&engine, dir.path());
        let file = engine.open(dir.path().join("pages"), Open::create()).wait().unwrap();
        set_limit(libc::RLIMIT_FSIZE, 4096 * in_tasks::PAGES / 2);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let task = runtime.spawn(async move {
            // The thread's first operation may use a shard.
            file.read(0..4096).await.unwrap();
            tokio::task::yield_now().await;
            for _ in 0..20 {
                file.write(0, vec![1; 4096]).await.unwrap();
                let error = file.write(4096 * (in_tasks::PAGES - 1), vec![1; 4096]).await.unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
            }
        });
        runtime.block_on(task).unwrap();
    }

    #[test]
    #[ignore = "needs a process to which io_uring and native AIO are refused"]
    fn both_interfaces_are_refused() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new()).unwrap();
        assert_eq!(engine.driver(), "threads");
        #[cfg(feature = "tokio")]
        {
            let dir = dir();
            in_tasks::read_and_write(&engine, dir.path());
            let health = engine.health();
            assert_eq!(health.worker_rings, None, "{health}");
            let told =
                health.degraded.iter().find(|known| known.what == "worker rings").expect("a degradation");
            assert!(told.why.contains("io_uring") && told.why.contains("native AIO"), "{told}");
            assert!(told.remedy.contains("seccomp"), "{told}");
            assert!(engine.stats().wait().unwrap().worker_rings.is_empty());
        }
        engine.nop().wait().unwrap();
    }

    #[test]
    #[ignore = "needs a process that may not lock memory"]
    fn memory_is_not_registered() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new().driver(DriverChoice::Uring)).unwrap();
        // Regions are registered with a shard's first operation.
        let file = engine.open(std::env::current_exe().unwrap(), Open::read()).wait().unwrap();
        let head = engine.block_on(async { file.read(0..4).await }).unwrap();
        assert_eq!(&head.unwrap()[..], b"\x7fELF");
        let health = engine.health();
        let told = health.degraded.iter().find(|degradation| degradation.what == "registered buffers");
        let told = told.unwrap_or_else(|| panic!("nothing is said about it: {:?}", health.degraded));
        assert!(told.remedy.contains("RLIMIT_MEMLOCK"), "{told}");
    }

    /// Regression: with `ulimit -n 64` on Linux 6.18 the health's advice was to use Linux 5.19 or later.
    #[test]
    #[ignore = "needs a process that may have few files open"]
    fn files_are_not_registered() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new().shards(1)).unwrap();
        engine.nop().wait().unwrap();
        if engine.driver() != "uring" {
            return;
        }
        let health = engine.health();
        let told =
            health.degraded.iter().find(|known| known.what == "registered files").expect("a degradation");
        assert!(told.remedy.contains("ulimit -n") && !told.remedy.contains("Linux"), "{told}");
    }

    /// Since Linux 6.14 or so the rings count too, and then threads do the work; before, only the I/O memory counts.
    #[test]
    #[ignore = "needs a process that may not lock memory"]
    fn no_memory_may_be_locked() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new()).unwrap();
        let file = engine.open(std::env::current_exe().unwrap(), Open::read()).wait().unwrap();
        assert_eq!(&file.read(0..4).wait().unwrap()[..], b"\x7fELF");
        let told = engine.health().degraded;
        assert!(told.iter().any(|known| known.remedy.contains("RLIMIT_MEMLOCK")), "{told:?}");
    }

    #[test]
    #[ignore = "needs a process that may open few files"]
    fn descriptors_run_out() {
        if restricted().is_none() {
            return;
        }
        let engine = Engine::start(Config::new()).unwrap();
        let mut files = Vec::new();
        let error = loop {
            match engine.open(std::env::current_exe().unwrap(), Open::read()).wait() {
                Ok(file) => files.push(file),
                Err(error) => break error,
            }
            assert!(files.len() < 100, "the limit was 100");
        };
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        for file in &files {
            assert_eq!(&file.read(1..4).wait().unwrap()[..], b"ELF");
        }
    }

    #[test]
    #[ignore = "needs a process that may open few files"]
    fn no_descriptor_for_a_ring() {
        if restricted().is_none() {
            return;
        }
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        let error = Engine::start(Config::new().driver(DriverChoice::Uring)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        let engine = Engine::start(Config::new()).unwrap();
        let told = engine.health().degraded;
        assert!(
            told.iter().any(|known| known.what == "io_uring" && known.remedy.contains("ulimit -n")),
            "{told:?}"
        );
        engine.nop().wait().unwrap();
    }
}
