//! The doctor's findings as lines for a terminal.

use std::fmt::Write as _;

use super::check::Verdict;
use super::units::bytes;
use crate::environment::Environment;

/// Returns one line for each finding, with headings. `color` selects colours for a terminal.
pub fn render(environment: &Environment, color: bool) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", machine_line(environment));
    if let Some(path) = &environment.path {
        let _ = writeln!(text, "{} ({})", path.path, path.kind);
    }
    let mut group = "";
    for check in &environment.checks {
        if check.group != group {
            group = &check.group;
            let _ = writeln!(text, "\n{group}");
        }
        let (start, end) = if color { paint(check.verdict) } else { ("", "") };
        let _ = write!(text, "  {start}{:<11}{end} {:<24} {}", check.verdict.label(), check.name, check.why);
        if let Some(remedy) = &check.remedy {
            let _ = write!(text, " | remedy: {remedy}");
        }
        text.push('\n');
    }
    let count = |verdict| environment.checks.iter().filter(|check| check.verdict == verdict).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} degraded, {} unavailable",
        count(Verdict::Ok),
        count(Verdict::Degraded),
        count(Verdict::Unavailable)
    );
    text
}

/// Returns the description of the machine in one line.
pub fn machine_line(environment: &Environment) -> String {
    let mut line = environment.kernel.clone();
    if !environment.architecture.is_empty() {
        let _ = write!(line, " on {}", environment.architecture);
    }
    if let Some(model) = &environment.cpu_model {
        let _ = write!(line, ", {model}");
    }
    // Results of other programs, and of `forebay wait`, do not contain these figures.
    if environment.cpus_online > 0 {
        let _ = write!(
            line,
            ", {} of {} processors, {} memory",
            environment.cpus_allowed,
            environment.cpus_online,
            bytes(environment.memory_total_bytes)
        );
    }
    if let Some(limit) = environment.memory_limit_bytes {
        let _ = write!(line, " ({} allowed)", bytes(limit));
    }
    if environment.virtual_machine {
        line.push_str(", a virtual machine (the host may cache)");
    }
    line
}

fn paint(verdict: Verdict) -> (&'static str, &'static str) {
    let start = match verdict {
        Verdict::Ok => "\x1b[32m",
        Verdict::Degraded => "\x1b[33m",
        Verdict::Unavailable => "\x1b[31m",
    };
    (start, "\x1b[0m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;

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
    }
}
