//! The reason why the kernel refused a program: the loader only prints it.

use std::sync::{Mutex, PoisonError};

use libbpf_rs::PrintLevel;

/// The most informative line so far.
static REASON: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the loader from printing; [`reason`] returns its message on a failure.
pub(crate) fn listen() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, heard)));
    drop(reason());
}

/// Returns the most informative line on the last failure, if any.
pub(crate) fn reason() -> Option<String> {
    REASON.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn heard(_: PrintLevel, text: String) {
    let Some(line) = telling(&text) else { return };
    let mut reason = REASON.lock().unwrap_or_else(PoisonError::into_inner);
    // The name of the program follows the fault.
    *reason = Some(reason.take().map_or_else(|| line.clone(), |known| format!("{known}; {line}")));
}

/// Returns a type that this kernel does not have, or the name of the program: never the verifier's whole log.
fn telling(text: &str) -> Option<String> {
    let line = text.lines().find(|line| {
        line.contains("failed to resolve") || (line.contains("prog '") && line.contains("failed to load"))
    })?;
    Some(line.trim_start_matches("libbpf: ").trim().chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a kernel that had moved a field was only "Invalid argument".
    #[test]
    fn a_type_that_is_not_there_is_told_and_the_log_is_not() {
        let log = "libbpf: prog 'mm_filemap_fault': -- BEGIN PROG LOAD LOG --\n0: R1=ctx() R10=fp0\n\
                   failed to resolve CO-RE relocation <byte_off> [141] struct dentry.d_u.d_alias (0:2:0 @ offset 16)\n";
        assert!(
            telling(log).is_some_and(|line| line.ends_with("struct dentry.d_u.d_alias (0:2:0 @ offset 16)"))
        );
        assert_eq!(
            telling("libbpf: prog 'mm_filemap_fault': failed to load: -EINVAL\n").as_deref(),
            Some("prog 'mm_filemap_fault': failed to load: -EINVAL")
        );
        assert_eq!(telling("libbpf: map 'calls': created successfully, fd=4\n"), None);
    }
}
