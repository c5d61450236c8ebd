//! The command line of the program that `vm/power-cut` runs.

use std::process::Command;

#[test]
fn a_command_line_without_a_command_is_refused_with_the_commands() {
    let outcome = Command::new(env!("CARGO_BIN_EXE_forebay-crash")).output().expect("the program");
    assert_eq!(outcome.status.code(), Some(2));
    let text = String::from_utf8_lossy(&outcome.stderr);
    for command in ["cuts", "guest", "replay"] {
        assert!(text.contains(command), "{text}");
    }
}
