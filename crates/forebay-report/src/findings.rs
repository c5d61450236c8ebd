//! The doctor's findings and the machine as lines for a terminal.

use std::fmt::Write as _;

use crate::check::Verdict;
use crate::environment::Environment;
use crate::units::{bytes, printable};

/// Returns one line for each finding, with headings. `color` selects colours for a terminal.
pub fn render(environment: &Environment, color: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", machine_line(environment));
    if let Some(path) = &environment.path {
        let _ = writeln!(text, "{} ({})", printable(&path.path), path.kind);
    }
    let mut group = "";
    for check in &environment.checks {
        if check.group != group {
            group = &check.group;
            let _ = writeln!(text, "\n{group}");
        }
        let (start, end) = match check.verdict {
            _ if !color => ("", ""),
            Verdict::Ok => ("\x1b[32m", "\x1b[0m"),
            Verdict::Degraded => ("\x1b[33m", "\x1b[0m"),
            Verdict::Unavailable => ("\x1b[31m", "\x1b[0m"),
        };
        let why = printable(&check.why);
        let _ = write!(text, "  {start}{:<11}{end} {:<24} {why}", check.verdict.label(), check.name);
        if let Some(remedy) = &check.remedy {
            let _ = write!(text, " | remedy: {}", printable(remedy));
        }
        text.push('\n');
    }
    let verdicts = [Verdict::Ok, Verdict::Degraded, Verdict::Unavailable].map(|verdict| {
        let count = environment.checks.iter().filter(|check| check.verdict == verdict).count();
        format!("{count} {}", verdict.label())
    });
    let _ = writeln!(text, "\n{}", verdicts.join(", "));
    text
}

/// Returns the description of the machine in one line.
pub fn machine_line(environment: &Environment) -> String {
    let Environment { kernel, architecture, cpus_allowed, cpus_online, .. } = environment;
    let architecture = if architecture.is_empty() { String::new() } else { format!(" on {architecture}") };
    let model = environment.cpu_model.as_ref().map_or_else(String::new, |model| format!(", {model}"));
    let memory = bytes(environment.memory_total_bytes);
    // Results of other programs, and of `forebay wait`, do not contain these figures.
    let figures = match cpus_online {
        0 => String::new(),
        _ => format!(", {cpus_allowed} of {cpus_online} processors, {memory} memory"),
    };
    let limit = environment.memory_limit_bytes.map(bytes);
    let limit = limit.map_or_else(String::new, |limit| format!(" ({limit} allowed)"));
    let host = if environment.virtual_machine { ", a virtual machine (the host may cache)" } else { "" };
    format!("{kernel}{architecture}{model}{figures}{limit}{host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;
    use crate::environment::PathInfo;

    #[test]
    fn every_finding_is_one_line_with_its_remedy() {
        let environment = Environment {
            checks: vec![
                Check::ok("io_uring", "setup", "works"),
                Check::degraded("memory", "memlock", "small", "raise it"),
            ],
            ..Environment::default()
        };
        let text = render(&environment, false);
        assert!(text.contains("ok          setup"));
        assert!(text.lines().any(|line| line.contains("memlock") && line.ends_with("remedy: raise it")));
        assert!(text.contains("1 ok, 1 degraded, 0 unavailable"));
        assert!(!text.contains('\x1b'));
        let named = |name: &str| Environment {
            path: Some(PathInfo { path: name.to_owned(), ..PathInfo::default() }),
            ..Environment::default()
        };
        assert!(render(&named("/a\x1b[2J\nb"), false).contains("/a\\u{1b}[2J\\nb ("), "one line, no control");
    }
}
