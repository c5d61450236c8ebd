//! The BPF object: its requirements, its loading, and the reading of its totals.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapMut, Object, ObjectBuilder, OpenProgramMut, btf::Btf, btf::BtfKind,
};

use crate::calls::{CALLS, RING_CALLS, ring_table, table};
use crate::error::Error;
use crate::layout::{self, CallStats, Clock, FileKey, FileState};
use crate::refusal;

/// The reader of ELF files needs eight bytes' alignment.
#[repr(C, align(8))]
struct AlignedBytes<Bytes: ?Sized>(Bytes);

static OBJECT: &AlignedBytes<[u8]> = &AlignedBytes(*include_bytes!("../bpf/wait.bpf.o"));

/// Programs whose tracepoint some kernels do not have; the others measure without them.
const OPTIONAL: [&str; 9] = [
    "page_fault_user",
    "mm_filemap_fault",
    "mm_filemap_add_to_page_cache",
    "io_uring_create",
    "io_uring_cqring_wait",
    "io_uring_submit_req",
    "io_uring_complete",
    "block_io_start",
    "block_rq_issue",
];
const ITERATORS: [&str; 2] = ["take_in", "take_out"];
const SETTINGS: &str = ".rodata.settings";

/// The loaded programs. Dropping it removes them from the kernel.
pub(crate) struct Tracer {
    object: Object,
    // Attached for as long as they live.
    links: Vec<Link>,
    iterators: BTreeMap<&'static str, Link>,
    /// Tracepoints that this kernel does not have.
    pub(crate) missing: Vec<String>,
}

/// The totals of a measurement.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) clock: Clock,
    pub(crate) calls: BTreeMap<(FileKey, u32), CallStats>,
    pub(crate) files: BTreeMap<FileKey, FileState>,
    pub(crate) names: BTreeMap<FileKey, String>,
}

impl Tracer {
    /// Loads and attaches everything. With `begin_at_exec` the measurement starts when the process given to
    /// [`follow`](Self::follow) executes its program, otherwise immediately.
    pub(crate) fn load(begin_at_exec: bool) -> Result<Self, Error> {
        may_load()?;
        refusal::listen();
        let mut open =
            ObjectBuilder::default().open_memory(&OBJECT.0).map_err(Error::bpf("the BPF object"))?;
        let known = tracepoints()?;
        let mut missing = Vec::new();
        for mut program in open.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if ITERATORS.contains(&name.as_str()) || known.contains(&name) {
                continue;
            }
            if !OPTIONAL.contains(&name.as_str()) {
                return Err(Error::unavailable(
                    format!("this kernel has no tracepoint {name}"),
                    "use a kernel of 5.18 or later with CONFIG_FTRACE_SYSCALLS and CONFIG_BPF_EVENTS",
                ));
            }
            OpenProgramMut::set_autoload(&mut program, false);
            missing.push(name);
        }
        let settings = settings(begin_at_exec);
        for mut map in open.maps_mut() {
            if map.name().to_string_lossy() == SETTINGS
                && let Some(place) = map.initial_value_mut().and_then(|bytes| bytes.get_mut(..settings.len()))
            {
                place.copy_from_slice(&settings);
            }
        }
        let object = open.load().map_err(refused)?;
        let mut tracer = Self { object, links: Vec::new(), iterators: BTreeMap::new(), missing };
        tracer.attach()?;
        Ok(tracer)
    }

    /// Returns whether the system has rings whose operations cannot be followed.
    pub(crate) fn misses_rings(&self) -> bool {
        let missing = |name: &&str| self.missing.iter().any(|missing| missing == name);
        if !["io_uring_submit_req", "io_uring_complete"].iter().any(missing) {
            return false;
        }
        // SAFETY: a ring without entries is refused before the null pointer is looked at.
        let made = unsafe { libc::syscall(libc::SYS_io_uring_setup, 0, std::ptr::null::<u8>()) };
        made >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
    }

    fn attach(&mut self) -> Result<(), Error> {
        for program in self.object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            if self.missing.contains(&name) {
                continue;
            }
            let link = program.attach().map_err(refused)?;
            match ITERATORS.iter().find(|iterator| **iterator == name) {
                Some(iterator) => drop(self.iterators.insert(iterator, link)),
                None => self.links.push(link),
            }
        }
        Ok(())
    }

    /// Includes the threads of `processes`; the measurement ends with `root`, unless it is ended before.
    pub(crate) fn follow(&mut self, root: u32, processes: &[u32]) -> Result<(), Error> {
        let failed = "the process cannot be entered into a BPF map";
        let clock = self.map("clocks")?;
        clock.update(&0_u32.to_ne_bytes(), &Clock::fresh(root), MapFlags::ANY).map_err(Error::bpf(failed))?;
        let map = self.map("processes")?;
        for process in processes {
            map.update(&process.to_ne_bytes(), &[1], MapFlags::ANY).map_err(Error::bpf(failed))?;
        }
        self.iterate("take_in")
    }

    /// Ends the measurement and returns its totals.
    pub(crate) fn finish(mut self) -> Result<Totals, Error> {
        self.iterate("take_out")?;
        // Nothing is counted from here on, so that the totals read belong together.
        self.links.clear();
        let mut totals = Totals::default();
        let clock = self.map("clocks")?;
        if let Ok(Some(bytes)) = clock.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY) {
            totals.clock = Clock::read(&bytes);
        }
        self.read("calls", |key, value| {
            let (file, row) = FileKey::read(key);
            totals.calls.insert((file, row), CallStats::read(value));
        })?;
        self.read("files", |key, value| {
            totals.files.insert(FileKey::read(key).0, FileState::read(value));
        })?;
        self.read("names", |key, value| {
            totals.names.insert(FileKey::read(key).0, layout::path(value));
        })?;
        Ok(totals)
    }

    fn iterate(&self, name: &str) -> Result<(), Error> {
        let failed = "the list of threads cannot be read";
        let Some(link) = self.iterators.get(name) else { return Ok(()) };
        let mut nothing = Vec::new();
        Iter::new(link)
            .map_err(Error::bpf(failed))?
            .read_to_end(&mut nothing)
            .map_err(Error::failed(failed))?;
        Ok(())
    }

    fn map(&mut self, name: &str) -> Result<MapMut<'_>, Error> {
        self.object
            .maps_mut()
            .find(|map| map.name() == name)
            .ok_or_else(|| Error::unavailable(format!("the BPF object has no map {name}"), "build it again"))
    }

    fn read(&mut self, name: &str, mut each: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        let map = self.map(name)?;
        for key in map.keys() {
            if let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY) {
                each(&key, &value);
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tracer").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

/// `struct settings`.
fn settings(begin_at_exec: bool) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(CALLS * 2 + RING_CALLS + 16);
    bytes.extend(table().iter().flat_map(|entry| entry.to_ne_bytes()));
    bytes.extend(ring_table());
    // SAFETY: sysconf only looks a number up.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let page_shift = u64::try_from(page).unwrap_or(4096).max(1).ilog2();
    bytes.extend(page_shift.to_ne_bytes());
    bytes.extend(libc::O_DIRECT.to_ne_bytes());
    bytes.extend(libc::O_DSYNC.to_ne_bytes());
    bytes.extend(u32::from(begin_at_exec).to_ne_bytes());
    bytes
}

/// Returns the tracepoints that the kernel lists in its type information.
fn tracepoints() -> Result<BTreeSet<String>, Error> {
    let btf = Btf::from_vmlinux().map_err(Error::bpf("the kernel's type information cannot be read"))?;
    let mut names = BTreeSet::new();
    for number in 1..btf.len() as u32 {
        let Some(kind) = btf.type_by_id::<libbpf_rs::btf::BtfType<'_>>(number.into()) else { continue };
        if kind.kind() == BtfKind::Typedef
            && let Some(name) = kind.name().and_then(|name| name.to_str())
            && let Some(name) = name.strip_prefix("btf_trace_")
        {
            names.insert(name.to_owned());
        }
    }
    Ok(names)
}

/// Checks the requirements that can be checked before trying.
fn may_load() -> Result<(), Error> {
    const SYS_ADMIN: u32 = 21;
    const PERFMON: u32 = 38;
    const BPF: u32 = 39;
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Err(Error::unavailable(
            "this kernel has no type information (/sys/kernel/btf/vmlinux), which the BPF programs need",
            "use a kernel built with CONFIG_DEBUG_INFO_BTF, as those of the distributions are",
        ));
    }
    let capabilities = effective_capabilities();
    let has = |bit: u32| capabilities >> bit & 1 == 1;
    if has(SYS_ADMIN) || (has(BPF) && has(PERFMON)) {
        return Ok(());
    }
    let lacking: Vec<&str> = [(BPF, "CAP_BPF"), (PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|(bit, _)| !has(*bit))
        .map(|(_, name)| name)
        .collect();
    Err(Error::unavailable(
        format!("this user may not load BPF programs ({} missing)", lacking.join(" and ")),
        "run as root, or give the program the capabilities (setcap cap_bpf,cap_perfmon+ep on its file)",
    ))
}

fn effective_capabilities() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

fn refused(error: libbpf_rs::Error) -> Error {
    let what = match refusal::reason() {
        Some(reason) => format!("the kernel refused the BPF programs ({error:#}: {reason})"),
        None => format!("the kernel refused the BPF programs ({error:#})"),
    };
    let remedy = remedy(&what);
    Error::unavailable(what, remedy)
}

/// Returns the remedy of a refusal: a limit's, by the number of the error, or that of a kernel which allows no programs.
fn remedy(what: &str) -> &'static str {
    const LIMITS: [(&str, &str); 3] = [
        ("os error 24)", "raise the limit on open files (ulimit -n)"),
        ("os error 23)", "raise the system's limit on open files (sysctl fs.file-max)"),
        ("os error 12)", "raise the memory limit of the cgroup"),
    ];
    let of_limit = LIMITS.iter().find(|(error, _)| what.contains(*error)).map(|(_, remedy)| *remedy);
    of_limit.unwrap_or(
        "a container's seccomp profile, kernel lockdown or a kernel before 5.18 does that; run outside of it",
    )
}

#[cfg(test)]
mod tests {
    use libbpf_rs::AsRawLibbpf;

    use super::*;

    #[test]
    fn a_limit_has_its_own_remedy() {
        assert!(remedy("refused (map: Too many open files (os error 24))").contains("ulimit -n"));
        assert!(remedy("refused (Cannot allocate memory (os error 12))").contains("memory limit"));
        assert!(remedy("refused (Operation not permitted (os error 1))").contains("seccomp"));
    }

    /// The structures are written twice, in C and here: a field that is added in only one of them must fail.
    #[test]
    fn the_maps_have_the_sizes_that_are_read() {
        let mut open = ObjectBuilder::default().open_memory(&OBJECT.0).expect("the object is whole");
        let mut seen = 0;
        for map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let wanted = match name.as_str() {
                "calls" => CallStats::BYTES,
                "files" => FileState::BYTES,
                "names" => layout::NAME_BYTES,
                "clocks" => Clock::BYTES,
                SETTINGS => settings(true).len(),
                _ => continue,
            };
            // SAFETY: the map belongs to the object, which lives until the end of this function.
            let size = unsafe { libbpf_rs::libbpf_sys::bpf_map__value_size(map.as_libbpf_object().as_ptr()) };
            assert_eq!(size as usize, wanted, "{name}");
            seen += 1;
        }
        assert_eq!(seen, 5);
    }
}
