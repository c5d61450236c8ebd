//! The question whether a fault is put in on purpose.

/// Returns whether a fault of the crate that asks is put in on purpose; never outside of the workspace's own tests. For all crates
/// of the workspace that have mutants.
#[doc(hidden)]
#[macro_export]
#[allow(clippy::crate_in_macro_def, reason = "each crate asks for its own mutants")]
macro_rules! _is_broken {
    ($mutant:ident) => {{
        #[cfg(feature = "_mutants")]
        let is_on = crate::mutants::Mutant::$mutant.is_on();
        #[cfg(not(feature = "_mutants"))]
        let is_on = false;
        is_on
    }};
}
