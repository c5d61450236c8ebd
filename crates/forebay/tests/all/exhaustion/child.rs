//! A scene is a test whose body runs in a process of its own: this program again, without the capabilities
//! that lift limits, and with a deadline. So the shortage of a scene affects no other test.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// The environment variable with the name of the scene that a child plays.
const SCENE: &str = "FOREBAY_EXHAUSTION_SCENE";
/// A child that takes longer hangs: the kernel ends it with SIGALRM.
const DEADLINE_S: libc::c_uint = 120;
/// Of capabilities(7): those of root that lift the limits which the scenes set. IPC_LOCK stays: without it the
/// rings of all scenes count against one limit, and scenes about locked memory become another user instead.
const CAPABILITIES: [libc::c_ulong; 2] = [21 /* SYS_ADMIN */, 24 /* SYS_RESOURCE */];

/// Settings of a child besides the name of its scene.
#[derive(Default)]
pub(crate) struct Scene {
    variables: Vec<(&'static str, OsString)>,
    /// The file that takes processes into a control group.
    group: Option<CString>,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene::default()
    }

    /// Passes `path` to the child, which finds it with [`given`].
    pub(crate) fn give(mut self, name: &'static str, path: &Path) -> Scene {
        self.variables.push((name, path.as_os_str().to_os_string()));
        self
    }

    /// Starts the child in that control group.
    pub(crate) fn in_group(mut self, group: &Path) -> Scene {
        self.group = Some(CString::new(group.join("cgroup.procs").as_os_str().as_bytes()).unwrap());
        self
    }

    /// Runs the test `name` in a child, where this call runs `body`.
    pub(crate) fn play(self, name: &str, body: impl FnOnce()) {
        if is_child(name) {
            return body();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &format!("exhaustion::{name}"), "--nocapture", "--test-threads=1"])
            .env(SCENE, name);
        command.envs(self.variables).stdin(Stdio::null());
        let group = self.group;
        // SAFETY: the closure makes system calls only; it neither allocates nor locks.
        unsafe { command.pre_exec(move || restrict(group.as_ref())) };
        let output = command.output().unwrap();
        let text = format!(
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.signal() != Some(libc::SIGALRM), "{name} hangs:\n{text}");
        assert!(output.status.success(), "{name}: {}\n{text}", output.status);
        assert!(text.contains("1 passed"), "{name} did not run:\n{text}");
        text.lines().filter(|line| line.contains("skipped: ")).for_each(|line| println!("{line}"));
    }
}

/// Returns whether this process is the child that plays the scene `name`.
pub(crate) fn is_child(name: &str) -> bool {
    std::env::var_os(SCENE).is_some_and(|scene| scene == name)
}

/// Runs `body` in a child without special settings.
pub(crate) fn scene(name: &str, body: impl FnOnce()) {
    Scene::new().play(name, body);
}

/// Returns the path that the parent passed with [`Scene::give`].
pub(crate) fn given(name: &str) -> std::path::PathBuf {
    std::env::var_os(name).expect("the parent gave it").into()
}

fn restrict(group: Option<&CString>) -> std::io::Result<()> {
    // SAFETY: system calls with plain numbers, a string that outlives them and one readable byte.
    unsafe {
        libc::alarm(DEADLINE_S);
        if let Some(group) = group {
            let file = libc::open(group.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 || libc::write(file, c"0".as_ptr().cast(), 1) != 1 {
                return Err(std::io::Error::last_os_error());
            }
            libc::close(file);
        }
        for capability in CAPABILITIES {
            // Not root: the call fails, and there is nothing to drop.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
    }
    Ok(())
}

/// Returns the soft and the hard limit of this process.
pub(crate) fn limits(resource: libc::__rlimit_resource_t) -> (libc::rlim_t, libc::rlim_t) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) fills the structure.
    assert_eq!(unsafe { libc::getrlimit(resource, &mut limit) }, 0);
    (limit.rlim_cur, limit.rlim_max)
}

/// Sets the soft limit, at most to the hard one, which stays: so it can be raised again.
pub(crate) fn set_limit(resource: libc::__rlimit_resource_t, soft: libc::rlim_t) {
    let (_, hard) = limits(resource);
    let limit = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: setrlimit(2) reads the structure.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0, "{}", std::io::Error::last_os_error());
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
