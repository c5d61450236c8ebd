//! The manual page and the completions of shells, generated from the definition of the command line.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;

/// Returns a script that completes this command line in `shell`.
pub(crate) fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Returns one manual page with a section for each command, in roff.
///
/// # Errors
/// None: it is written into memory.
pub(crate) fn page() -> io::Result<String> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let (man, mut out) = (Man::new(program.clone()), Vec::new());
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    sections(&program, &mut out)?;
    let mut page = String::from_utf8_lossy(&out).into_owned();
    program.get_subcommands().try_for_each(|command| add(command, &mut page))?;
    // Each part starts with the same definition of quotes.
    let definition = ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n";
    let page = page.replace(definition, "").replace(" EXTRA\n", " \"EXIT STATUS\"\n");
    Ok(definition.to_owned() + &page)
}

fn sections(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let man = Man::new(command.clone());
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.get_after_help().is_some() { man.render_extra_section(out) } else { Ok(()) }
}

/// Adds a section for `command` and for each below it; their parts are subsections.
fn add(command: &Command, page: &mut String) -> io::Result<()> {
    let mut out = Vec::new();
    sections(command, &mut out)?;
    let parts = String::from_utf8_lossy(&out).replace(".SH ", ".SS ");
    let name = command.get_bin_name().unwrap_or(command.get_name());
    *page += &format!(".SH \"{name}\"\n{parts}");
    command.get_subcommands().try_for_each(|command| add(command, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    use clap::ValueEnum;

    /// The names that only the program itself uses, as scripts may write them.
    const OWN: [&str; 5] = ["measure-child", "measure__child", "agent-worker", "agent__worker", "start-line"];

    fn walk(command: &Command, visit: &mut impl FnMut(&Command)) {
        visit(command);
        command.get_subcommands().for_each(|command| walk(command, visit));
    }

    #[test]
    fn the_page_has_every_command_and_option() {
        let (page, mut program) =
            (page().expect("it is memory"), Cli::command().disable_help_subcommand(true));
        program.build();
        let mut count = 0;
        walk(&program, &mut |command| {
            let name = command.get_bin_name().unwrap_or(command.get_name());
            let (_, section) = page.split_once(&format!(".SH \"{name}\"\n")).unwrap_or(("", &page));
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                let option = format!("\\-\\-{}", option.replace('-', "\\-"));
                let own = section.split(".SH \"forebay ").next().unwrap_or_default();
                assert!(own.contains(&option), "{name} has no {option}:\n{own}");
            }
            count += 1;
        });
        assert!(count > 35 && page.matches(".TH ").count() == 1, "{count} commands");
        assert!(page.matches("EXIT STATUS").count() == 3 && !page.contains("EXTRA"), "{page}");
        assert!(OWN.iter().all(|name| !page.contains(&name.replace('-', "\\-"))), "{page}");
    }

    #[test]
    fn completions_have_every_command_and_no_other() {
        let mut program = Cli::command();
        program.build();
        for shell in Shell::value_variants() {
            let script = completions(*shell);
            walk(&program, &mut |command| assert!(script.contains(command.get_name()), "{shell}: {command}"));
            assert!(script.contains("json") && script.contains("destroy-data"), "{shell}");
            assert!(OWN.iter().all(|name| !script.contains(name)), "{shell}");
        }
    }
}
