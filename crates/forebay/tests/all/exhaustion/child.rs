//! A scene is a test whose body runs in a separate process: this program again, without the capabilities that lift limits, and with
//! a deadline. So the shortage of a scene affects no other test.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use forebay_test::children::{self, Restriction, Scene};

/// A longer child hangs: the kernel ends it with SIGALRM.
const DEADLINE_S: libc::c_uint = 120;
/// Of capabilities(7): those of root that lift the limits which the scenes set. IPC_LOCK stays: without it the
/// rings of all scenes count against one limit, and scenes about locked memory become another user instead.
const CAPABILITIES: [libc::c_ulong; 2] = [21 /* SYS_ADMIN */, 24 /* SYS_RESOURCE */];

/// Returns the scene of a test of this folder.
pub(crate) fn scene_of(name: &str) -> Scene {
    let [admin, resource] = CAPABILITIES.map(Restriction::Capability);
    Scene::new(&full(name)).without(vec![Restriction::Time(DEADLINE_S), admin, resource])
}

/// Returns the restriction to a control group.
pub(crate) fn of_group(group: &Path) -> Restriction {
    Restriction::Group(CString::new(group.join("cgroup.procs").as_os_str().as_bytes()).unwrap())
}

fn full(name: &str) -> String {
    format!("exhaustion::{name}")
}

/// Returns whether this process is the child that plays the scene `name`.
pub(crate) fn is_child(name: &str) -> bool {
    children::is_child(&full(name))
}

/// Runs `body` in a child without special settings.
pub(crate) fn scene(name: &str, body: impl FnOnce()) {
    scene_of(name).play(body);
}

/// Returns the path that the parent passed with [`Scene::give`].
pub(crate) fn given(name: &str) -> std::path::PathBuf {
    std::env::var_os(name).expect("the parent gave it").into()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
