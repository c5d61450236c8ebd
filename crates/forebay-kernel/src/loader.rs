//! Loads a BPF object for a ring or a session of the module, and attaches it.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};

use libbpf_rs::{Link, MapCore, MapType, Object, ObjectBuilder, PrintLevel};

use crate::process::Process;
use crate::rights;

/// The section that contains the program's settings (`struct loop_settings` of `kernel/bpf/loop.bpf.h`,
/// `struct module_settings` of `kernel/bpf/module.bpf.h`).
const SETTINGS: &str = ".rodata.settings";
/// Offset, in the attached structure, of the descriptor that the program is attached to.
const FD_AT: usize = 8;

/// A program in the kernel, attached. Dropping it detaches it.
#[derive(Debug)]
pub(crate) struct AttachedProgram {
    // Detached before its program is dropped.
    _link: Link,
    _object: Object,
}

/// Loads `object` with its settings, and attaches it to the object behind `fd`: a ring, or a session of the
/// module.
///
/// # Errors
/// Why it failed, as a sentence without its full stop, with the last messages of the kernel's verifier.
pub(crate) fn load(object: &[u8], settings: &[u8], fd: &impl AsRawFd) -> Result<AttachedProgram, String> {
    listen(|| load_quietly(object, settings, fd.as_raw_fd()))
}

fn load_quietly(object: &[u8], settings: &[u8], fd: RawFd) -> Result<AttachedProgram, String> {
    let failed = |what: &str, error: libbpf_rs::Error| format!("{what} ({error:#})");
    // The reader of ELF files needs eight bytes' alignment. A copy on the heap has it in practice, and not by
    // promise.
    let mut words = vec![0_u64; object.len().div_ceil(8)];
    for (word, bytes) in words.iter_mut().zip(object.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    // SAFETY: the words are initialised, and have at least as many bytes.
    let aligned = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), object.len()) };
    let mut open = ObjectBuilder::default()
        .open_memory(aligned)
        .map_err(|error| failed("the BPF object cannot be read", error))?;
    let mut told = (false, false);
    for mut map in open.maps_mut() {
        let is_settings = map.name().to_string_lossy() == SETTINGS;
        let is_attached = map.map_type() == MapType::StructOps;
        let Some(value) = map.initial_value_mut() else { continue };
        if is_settings && let Some(place) = value.get_mut(..settings.len()) {
            place.copy_from_slice(settings);
            told.0 = true;
        }
        if is_attached && let Some(place) = value.get_mut(FD_AT..FD_AT + 4) {
            place.copy_from_slice(&fd.to_ne_bytes());
            told.1 = true;
        }
    }
    if told != (true, true) {
        return Err("the BPF object is not one of a walk: it has no settings or no step".to_owned());
    }
    let mut object = open.load().map_err(|error| {
        let said = failed("the kernel refused the program", error);
        // The number of EPERM, as the loader prints it; a refusal of the verifier has another one.
        match (said.contains("os error 1)"), rights::missing()) {
            (false, _) => said,
            (true, Some(_)) => rights::with_missing(said),
            (true, None) => format!(
                "{said}; this thread has CAP_BPF and CAP_PERFMON, so a lockdown of the kernel, a security module or a user \
                 namespace forbids it"
            ),
        }
    })?;
    let mut link = None;
    for mut map in object.maps_mut() {
        if map.map_type() == MapType::StructOps {
            let attached = map.attach_struct_ops();
            link = Some(attached.map_err(|error| failed("the program cannot be attached", error))?);
        }
    }
    match link {
        Some(link) => Ok(AttachedProgram { _link: link, _object: object }),
        None => Err("the BPF object is not one of a walk".to_owned()),
    }
}

/// Descriptors that the loading of a program may use at a time.
const DESCRIPTORS: usize = 16;

/// Returns whether a process ran out of descriptors while it loaded a program: the loader's own error is often another one.
fn lacks_descriptors(heard: &[String]) -> bool {
    let is_full = |error: io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    let spare: io::Result<Vec<File>> = (0..DESCRIPTORS).map(|_| File::open("/dev/null")).collect();
    heard.iter().any(|line| line.contains("-EMFILE") || line.contains("-ENFILE")) || spare.is_err_and(is_full)
}

/// Lines of the loader's messages that are kept, from the end.
const LINES: usize = 6;

thread_local! {
    static HEARD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}
/// One for each of a process's descendants in turn: a child that is forked while another thread loads has that lock held forever.
static LOADING: [Mutex<()>; 8] = [const { Mutex::new(()) }; 8];

/// Returns the messages that this thread has heard, once. A handler of exit(3) runs on a thread without its locals, and hears none.
fn take_heard() -> Vec<String> {
    HEARD.try_with(RefCell::take).unwrap_or_default()
}

/// Runs `load` with the loader's messages in the error, and not on the program's standard error. The loader
/// has one message callback for the whole process: messages of another thread during this time are lost.
fn listen<T>(load: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let lock = &LOADING[Process::here().forks() as usize % LOADING.len()];
    let _alone = lock.lock().unwrap_or_else(PoisonError::into_inner);
    drop(take_heard());
    let before = libbpf_rs::set_print(Some((PrintLevel::Warn, |_, line| {
        let _ = HEARD.try_with(|heard| heard.borrow_mut().extend(line.lines().map(str::to_owned)));
    })));
    let result = load();
    libbpf_rs::set_print(before);
    let heard = take_heard();
    result.map_err(|error| match verdict(&heard) {
        _ if lacks_descriptors(&heard) => {
            format!("{error}; too few descriptors are left: {}", rights::MORE_DESCRIPTORS)
        }
        verdict if verdict.is_empty() => error,
        verdict => format!("{error}; the verifier says: {verdict}"),
    })
}

/// Returns the end of the verifier's log, without the instructions that it checked.
fn verdict(heard: &[String]) -> String {
    let end = heard.iter().position(|line| line.starts_with("processed ")).unwrap_or(heard.len());
    let begin = heard.iter().position(|line| line.contains("BEGIN PROG LOAD LOG")).map_or(end, |at| at + 1);
    let said: Vec<&str> = heard[begin.min(end)..end]
        .iter()
        .map(|line| line.trim())
        .filter(|line| {
            !line.is_empty() && !line.starts_with(|first: char| first.is_ascii_digit() || first == ';')
        })
        .filter(|line| {
            !line.starts_with("from ") && !line.starts_with("func '") && !line.contains(" state: R")
        })
        // The registers' state: R1=ctx() R10=fp0.
        .filter(|line| {
            !line.split(' ').next().is_some_and(|word| word.starts_with('R') && word.contains('='))
        })
        .collect();
    let tail: Vec<&str> = said.iter().rev().take(LINES).rev().copied().collect();
    tail.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_is_what_stands_last_without_instructions() {
        let heard = [
            "libbpf: prog 'x': BPF program load failed: -13",
            "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --",
            "func 'loop_step' arg0 has btf_id 92013 type STRUCT 'iou_ctx'",
            "R1=ctx() R10=fp0",
            "; int x(u64 *arguments) @ y.c:1",
            "0: (79) r6 = *(u64 *)(r1 +0)",
            "invalid access to memory, mem_size=512 off=512 size=8",
            "R0 min value is outside of the allowed memory range",
            "processed 12 insns (limit 1000000)",
            "-- END PROG LOAD LOG --",
        ];
        let heard = heard.map(str::to_owned);
        assert_eq!(
            verdict(&heard),
            "invalid access to memory, mem_size=512 off=512 size=8; R0 min value is outside of the allowed memory range"
        );
        assert_eq!(verdict(&[]), "");
        assert_eq!(verdict(&["libbpf: failed to find BTF".to_owned()]), "");
    }

    /// Regression: under `ulimit -n 12` the error was "the kernel refused the program (Invalid argument)".
    #[test]
    fn descriptors_that_ran_out_are_named() {
        let of = |line: &str| lacks_descriptors(&[line.to_owned()]);
        assert!(of("libbpf: failed to get BTF object #7 FD: -EMFILE"));
        assert!(!of("libbpf: prog 'x': BPF program load failed: -EINVAL"));
    }
}
