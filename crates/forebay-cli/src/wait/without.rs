//! `wait` in a build without the feature: it names the build that has it.

use std::process::ExitCode;

use forebay_report::check::Check;
use forebay_report::failure::Failure;

use super::WaitArgs;

const WITHOUT: &str = "this build of forebay has no `wait`";
const REMEDY: &str = "install it from a checkout: cargo install --path crates/forebay-cli --features wait (needs a C compiler, \
    make, pkg-config, and the headers of libelf and zlib)";

/// Fails, because this build lacks the feature.
///
/// # Errors
/// Always [`Failure::Lacking`].
pub(crate) fn run(_: &WaitArgs) -> anyhow::Result<ExitCode> {
    Err(Failure::Lacking(format!("{WITHOUT}: {REMEDY}")).into())
}

/// Returns the doctor's line.
pub(crate) fn examine() -> Check {
    Check::degraded("wait", "feature", WITHOUT, REMEDY)
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    #[test]
    fn a_build_without_the_feature_names_the_build_that_has_it() {
        let command = WaitArgs::augment_args(Command::new("wait"));
        let arguments =
            WaitArgs::from_arg_matches(&command.get_matches_from(["wait", "--", "true"])).unwrap();
        let error = run(&arguments).unwrap_err();
        assert_eq!(error.downcast_ref::<Failure>().map(Failure::code), Some(5));
        let text = error.to_string();
        assert!(
            text.contains("this build of forebay has no `wait`") && text.contains("--features wait"),
            "{text}"
        );
        let check = examine();
        assert!(check.why.contains("this build of forebay has no `wait`"), "{}", check.why);
        assert!(check.remedy.unwrap().contains("--features wait"));
    }
}
