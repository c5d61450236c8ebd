//! Behaviour where the system refuses: no io_uring, no locked memory, few descriptors. Each scene is this
//! test program again, started with the restriction in place, so that all of it lives under it from the first
//! instruction.

use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay::{Config, DriverChoice, Engine, ErrorKind, Open};

/// The environment variable that is set where a restriction is in place.
const RESTRICTED: &str = "FOREBAY_TEST_RESTRICTED";

/// Runs the named tests of this program in a child in which `restrict` was called before the program began.
fn run_restricted(tests: &[&str], restrict: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(tests).args(["--include-ignored", "--test-threads=2"]).env_remove("FOREBAY_TEST_DRIVER");
    command.env(RESTRICTED, "1");
    // SAFETY: the closure makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(restrict) };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("test result: ok") && !text.contains(" 0 passed"), "nothing ran:\n{text}");
}

/// The calls of io_uring.
const IO_URING: [libc::c_long; 3] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Installs a filter in the kernel's classic BPF (seccomp(2)): the calls of io_uring and `another` one fail with EPERM, as under
/// container runtimes; all others pass.
fn refuse_io_uring_and(another: libc::c_long) -> std::io::Result<()> {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let program = [
        // The first word of struct seccomp_data is the call's number.
        step(LOAD_WORD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 4, 0, IO_URING[0] as u32),
        step(JUMP_IF_EQUAL, 3, 0, IO_URING[1] as u32),
        step(JUMP_IF_EQUAL, 2, 0, IO_URING[2] as u32),
        step(JUMP_IF_EQUAL, 1, 0, another as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: prctl(2) reads the program and its steps, which outlive the call. Without new privileges any user may
    // set a filter; it binds this process, which is about to become the child, and those it starts.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program, 0, 0) != 0
        {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

fn refuse_io_uring() -> std::io::Result<()> {
    refuse_io_uring_and(IO_URING[0])
}

fn limit(resource: libc::__rlimit_resource_t, value: libc::rlim_t) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: setrlimit(2) reads the structure.
    match unsafe { libc::setrlimit(resource, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn without_io_uring_all_operations_work_on_threads() {
    run_restricted(
        &["basic::", "refused::scenes::io_uring_is_refused", "refused::scenes::tasks_use_native_aio"],
        refuse_io_uring,
    );
}

#[test]
fn without_io_uring_no_write_of_a_task_sends_a_signal() {
    // Alone: it changes a limit of the process.
    run_restricted(&["refused::scenes::a_task_overwrites_beyond_the_limit"], refuse_io_uring);
}

#[test]
fn without_native_aio_too_all_operations_work_on_threads() {
    for call in [libc::SYS_io_setup, libc::SYS_io_submit] {
        run_restricted(&["basic::", "refused::scenes::both_interfaces_are_refused"], move || {
            refuse_io_uring_and(call)
        });
    }
}

#[test]
fn without_locked_memory_all_operations_work_unregistered() {
    // Enough for the rings, not for the I/O memory.
    run_restricted(&["basic::", "refused::scenes::memory_is_not_registered"], || lock_at_most(2 << 20));
}

#[test]
fn without_any_locked_memory_all_operations_work() {
    run_restricted(&["basic::", "refused::scenes::no_memory_may_be_locked"], || lock_at_most(0));
}

fn lock_at_most(bytes: libc::rlim_t) -> std::io::Result<()> {
    const CAP_IPC_LOCK: libc::c_ulong = 14;
    // A process with this capability has no limit. Not root: the call fails, and there is nothing to drop.
    // SAFETY: prctl(2) with plain numbers; the child's program starts without the capability.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) };
    limit(libc::RLIMIT_MEMLOCK, bytes)
}

#[test]
fn with_few_descriptors_all_operations_work_and_errors_name_the_limit() {
    run_restricted(&["basic::"], || limit(libc::RLIMIT_NOFILE, 100));
    // Alone: it leaves no descriptor to a test beside it.
    run_restricted(&["refused::scenes::descriptors_run_out"], || limit(libc::RLIMIT_NOFILE, 100));
}

#[test]
fn without_descriptors_the_start_fails_clearly() {
    run_restricted(&["refused::scenes::no_descriptor_for_a_ring"], || limit(libc::RLIMIT_NOFILE, 100));
}

/// Run by the tests above, in children. Elsewhere (`--include-ignored`) there is nothing to test.
mod scenes {
    use super::*;

    fn is_restricted() -> bool {
        std::env::var_os(RESTRICTED).is_some()
    }

    #[test]
    #[ignore = "needs a process to which io_uring is refused"]
    fn io_uring_is_refused() {
        if !is_restricted() {
            return;
        }
        let engine = Engine::start(Config::default()).unwrap();
        assert_eq!(engine.driver(), "threads");
        let health = engine.health();
        let told =
            health.degraded.iter().find(|degradation| degradation.what == "io_uring").expect("a degradation");
        assert!(told.why.contains("not permitted"), "{told}");
        assert!(told.remedy.contains("seccomp") && told.remedy.contains("io_uring_disabled"), "{told}");
        let error = Engine::start(Config::default().driver(DriverChoice::Uring)).unwrap_err();
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

    /// Creates a directory on a real file system beside the build, where O_DIRECT works.
    #[cfg(feature = "tokio")]
    fn dir() -> tempfile::TempDir {
        tempfile::Builder::new().prefix("forebay-refused-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
    }

    #[cfg(feature = "tokio")]
    #[test]
    #[ignore = "needs a process to which io_uring is refused"]
    fn tasks_use_native_aio() {
        if !is_restricted() {
            return;
        }
        let (engine, dir) = (Engine::start(Config::default()).unwrap(), dir());
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
        if !is_restricted() {
            return;
        }
        let (engine, dir) = (Engine::start(Config::default()).unwrap(), dir());
        in_tasks::read_and_write(&engine, dir.path());
        let file = engine.open(dir.path().join("pages"), Open::create()).wait().unwrap();
        limit(libc::RLIMIT_FSIZE, 4096 * in_tasks::PAGES / 2).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let task = runtime.spawn(async move {
            // The thread's first operation may go elsewhere.
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
        if !is_restricted() {
            return;
        }
        let engine = Engine::start(Config::default()).unwrap();
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
        if !is_restricted() {
            return;
        }
        let engine = Engine::start(Config::default().driver(DriverChoice::Uring)).unwrap();
        // Regions are registered with a shard's first operation.
        let file = engine.open(std::env::current_exe().unwrap(), Open::read()).wait().unwrap();
        let head = engine.block_on(async { file.read(0..4).await }).unwrap();
        assert_eq!(&head.unwrap()[..], b"\x7fELF");
        let health = engine.health();
        let told = health.degraded.iter().find(|degradation| degradation.what == "registered buffers");
        let told = told.unwrap_or_else(|| panic!("nothing is said about it: {:?}", health.degraded));
        assert!(told.remedy.contains("RLIMIT_MEMLOCK"), "{told}");
    }

    /// Since Linux 6.14 or so the rings count too, and then threads do the work; before, only the I/O memory counts.
    #[test]
    #[ignore = "needs a process that may not lock memory"]
    fn no_memory_may_be_locked() {
        if !is_restricted() {
            return;
        }
        let engine = Engine::start(Config::default()).unwrap();
        let file = engine.open(std::env::current_exe().unwrap(), Open::read()).wait().unwrap();
        assert_eq!(&file.read(0..4).wait().unwrap()[..], b"\x7fELF");
        let told = engine.health().degraded;
        assert!(told.iter().any(|known| known.remedy.contains("RLIMIT_MEMLOCK")), "{told:?}");
    }

    #[test]
    #[ignore = "needs a process that may open few files"]
    fn descriptors_run_out() {
        if !is_restricted() {
            return;
        }
        let engine = Engine::start(Config::default()).unwrap();
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
        if !is_restricted() {
            return;
        }
        let mut taken = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            taken.push(file);
        }
        let error = Engine::start(Config::default().driver(DriverChoice::Uring)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        assert!(error.to_string().contains("ulimit -n"), "{error}");
        let engine = Engine::start(Config::default()).unwrap();
        let told = engine.health().degraded;
        assert!(
            told.iter().any(|known| known.what == "io_uring" && known.remedy.contains("ulimit -n")),
            "{told:?}"
        );
        engine.nop().wait().unwrap();
    }
}
