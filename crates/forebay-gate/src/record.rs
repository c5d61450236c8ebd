//! Steps that are not repeated while their inputs are as they were. `.ci/steps` says what a step reads, `.ci/passed` at which commit
//! it passed.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const STEPS: &str = ".ci/steps";
const PASSED: &str = ".ci/passed";

/// Inputs of every step.
const EVERYWHERE: [&str; 8] = [
    "Cargo.toml",
    "Cargo.lock",
    "rust-toolchain.toml",
    ".cargo",
    ".ci/steps",
    ".ci/run",
    "scripts/test",
    "scripts/lib",
];

/// A line counts for so long.
const DAYS: i64 = 14;

/// The inputs of a step.
#[derive(Debug, Default, PartialEq, Eq)]
struct Inputs {
    /// Packages of the workspace; the packages that they depend on are inputs as well.
    packages: Vec<String>,
    paths: Vec<String>,
    /// Commands that print the versions of programs from outside.
    tools: Vec<String>,
}

/// A line of `.ci/passed`: the step, the commit, the day, its seconds, and the versions of compiler and tools.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    step: String,
    commit: String,
    date: String,
    seconds: String,
    tools: String,
}

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(5, ' ').map(str::to_owned);
        let (step, commit, date, seconds) = (words.next()?, words.next()?, words.next()?, words.next()?);
        Some(Self { step, commit, date, seconds, tools: words.next().unwrap_or_default() })
    }

    fn short(&self) -> &str {
        self.commit.get(..10).unwrap_or(&self.commit)
    }

    fn text(&self) -> String {
        format!("{} {} {} {} {}", self.step, self.commit, self.date, self.seconds, self.tools)
    }
}

fn lines(text: &str) -> Vec<Line> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(Line::parse).collect()
}

/// The steps of `.ci/steps`: `[NAME]`, then lines of `packages` and `paths`, and of a `tool` each.
fn steps(text: &str) -> Result<Vec<(String, Inputs)>, String> {
    let mut all: Vec<(String, Inputs)> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            all.push((name.to_owned(), Inputs::default()));
            continue;
        }
        let (word, values) = line.split_once(' ').unwrap_or((line, ""));
        let (_, inputs) = all.last_mut().ok_or_else(|| format!("before the first step: {line}"))?;
        let values = values.split_whitespace().map(str::to_owned);
        match word {
            "packages" => inputs.packages.extend(values),
            "paths" => inputs.paths.extend(values),
            "tool" => inputs.tools.push(line["tool".len()..].trim().to_owned()),
            _ => return Err(format!("unknown word in the steps: {line}")),
        }
    }
    Ok(all)
}

/// The folders of these packages and of those that they depend on in the workspace, relative to its root, from `cargo metadata`.
/// Development dependencies count for the packages themselves, with what is optional in them as far as their features ask for it. Of dependencies the folders `tests`, `benches` and
/// `examples` are left out: nothing that depends on them reads these.
fn folders(metadata: &Value, packages: &[String]) -> Result<Vec<String>, String> {
    let root = metadata["workspace_root"].as_str().ok_or("cargo metadata names no root")?;
    let all = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let find = |name: &str| {
        all.iter()
            .find(|package| package["name"] == name)
            .ok_or_else(|| format!("there is no package {name}"))
    };
    // With the features of the package that count; `None` is all of them.
    let mut found: Vec<(&str, Option<Vec<String>>)> = Vec::new();
    let mut left: Vec<(&str, Option<Vec<String>>)> =
        packages.iter().map(|package| (package.as_str(), None)).collect();
    let mut folders = Vec::new();
    while let Some((name, features)) = left.pop() {
        if found.iter().any(|known| known.0 == name && (known.1.is_none() || known.1 == features)) {
            continue;
        }
        let asked_for = packages.iter().any(|package| package == name);
        let package = find(name)?;
        let manifest = package["manifest_path"].as_str().ok_or("a package without a manifest")?;
        let folder = Path::new(manifest)
            .parent()
            .and_then(|folder| folder.strip_prefix(root).ok())
            .and_then(Path::to_str);
        let folder = folder.ok_or_else(|| format!("{manifest} is outside of the workspace"))?;
        if found.iter().all(|known| known.0 != name) {
            folders.push(format!("{folder}/"));
            if !asked_for {
                let parts = ["tests", "benches", "examples"];
                folders.extend(parts.map(|part| format!(":(exclude){folder}/{part}/")));
            }
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_dev = dependency["kind"] == "dev";
            if let Some(below) = dependency["name"].as_str()
                && dependency["path"].is_string()
                && (asked_for || !is_dev)
                && features.as_deref().is_none_or(|on| dependency["optional"] != true || enables(on, below))
            {
                let on = if is_dev { Some(enabled(find(below)?, dependency)) } else { None };
                left.push((below, on));
            }
        }
        found.push((name, features));
    }
    Ok(folders)
}

/// The features that a dependency switches on in a package: the features that it names and what these include, in the words of a manifest.
fn enabled(package: &Value, dependency: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut on: Vec<String> =
        dependency["features"].as_array().into_iter().flatten().filter_map(text).collect();
    if dependency["uses_default_features"] != false {
        on.push("default".to_owned());
    }
    let mut at = 0;
    while at < on.len() {
        let included = package["features"][on[at].as_str()].as_array().into_iter().flatten();
        let new: Vec<String> = included.filter_map(text).filter(|feature| !on.contains(feature)).collect();
        on.extend(new);
        at += 1;
    }
    on
}

/// Whether one of these words switches an optional dependency on: `dep:NAME`, `NAME`, or a feature of it.
fn enables(features: &[String], dependency: &str) -> bool {
    features.iter().any(|feature| {
        let name = feature.strip_prefix("dep:").unwrap_or(feature);
        name.split(['/', '?']).next() == Some(dependency)
    })
}

/// The tree that is checked, its steps, and when they passed.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    steps: Vec<(String, Inputs)>,
    passed: Vec<Line>,
    /// The output of `cargo metadata`, once it was needed.
    metadata: OnceCell<Value>,
}

impl Tree {
    fn read(root: &Path) -> Result<Self, String> {
        let file = root.join(STEPS);
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let passed = std::fs::read_to_string(root.join(PASSED)).unwrap_or_default();
        Ok(Self {
            root: root.to_owned(),
            steps: steps(&text)?,
            passed: lines(&passed),
            metadata: OnceCell::new(),
        })
    }

    /// The output of a command, or the reason for its absence.
    fn output(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(program).args(arguments).current_dir(&self.root).output();
        let output = output.map_err(|error| format!("{program}: {error}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!(
                "{program} {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            ))
        }
    }

    fn git(&self, arguments: &[&str]) -> Result<String, String> {
        self.output("git", arguments)
    }

    fn inputs(&self, step: &str) -> Result<&Inputs, String> {
        let found = self.steps.iter().find(|(name, _)| name == step);
        found.map(|(_, inputs)| inputs).ok_or_else(|| format!("the step {step} states no inputs in {STEPS}"))
    }

    /// Compiler and tools on this machine. A tool that is absent has no version.
    fn versions(&self, inputs: &Inputs) -> Result<String, String> {
        let mut all = vec![self.output("rustc", &["--version"])?.trim().to_owned()];
        for tool in &inputs.tools {
            let text = self.output("sh", &["-c", tool])?;
            let first = text.lines().next().map(str::trim).filter(|line| !line.is_empty());
            all.push(first.ok_or_else(|| format!("`{tool}` prints nothing"))?.replace(';', ","));
        }
        Ok(all.join("; "))
    }

    /// The step's inputs, as git's pathspecs: paths, and packages. They are apart, as what packages leave out may be among the paths.
    fn paths(&self, step: &str) -> Result<Vec<Vec<String>>, String> {
        let inputs = self.inputs(step)?;
        let paths =
            EVERYWHERE.iter().map(|path| (*path).to_owned()).chain(inputs.paths.iter().cloned()).collect();
        let mut all = vec![paths];
        if !inputs.packages.is_empty() {
            if self.metadata.get().is_none() {
                let arguments = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
                let text = self.output("cargo", &arguments)?;
                let _ = self.metadata.set(serde_json::from_str(&text).map_err(|error| error.to_string())?);
            }
            all.push(folders(self.metadata.get().unwrap_or(&Value::Null), &inputs.packages)?);
        }
        Ok(all)
    }

    /// The lines that git prints of the step's inputs.
    fn git_of(&self, step: &str, arguments: &[&str]) -> Result<String, String> {
        let mut lines = String::new();
        for paths in self.paths(step)? {
            let paths = paths.iter().map(String::as_str);
            lines += &self.git(&arguments.iter().copied().chain(["--"]).chain(paths).collect::<Vec<_>>())?;
        }
        Ok(lines)
    }

    /// The line that stands for a run of the step, or why it must run.
    fn judge(&self, step: &str) -> Result<Result<&Line, String>, String> {
        let inputs = self.inputs(step)?;
        if self.git(&["rev-parse", "--is-shallow-repository"])?.trim() != "false" {
            return Ok(Err("this is a shallow clone".to_owned()));
        }
        let Some(line) = self.passed.iter().rev().find(|line| line.step == step) else {
            return Ok(Err(format!("{PASSED} has no line of it")));
        };
        let commit = line.short();
        let age_s = || -> Result<i64, String> {
            let seconds = |text: String| text.trim().parse::<i64>().map_err(|error| error.to_string());
            Ok(seconds(self.output("date", &["+%s"])?)?
                - seconds(self.output("date", &["-u", "-d", &line.date, "+%s"])?)?)
        };
        let age_s = age_s()?;
        if age_s > DAYS * 86_400 {
            return Ok(Err(format!("it passed more than {DAYS} days ago")));
        }
        // By a clock that was wrong. A day on, as that of another machine may be a little fast.
        if age_s < -86_400 {
            return Ok(Err(format!("it passed on {}, which is still to come", line.date)));
        }
        if self.git(&["merge-base", "--is-ancestor", &line.commit, "HEAD"]).is_err() {
            return Ok(Err(format!("{commit}, where it passed, is no ancestor of this commit")));
        }
        match self.versions(inputs) {
            Err(error) => return Ok(Err(format!("a tool has no version here ({error})"))),
            Ok(versions) if versions != line.tools => {
                return Ok(Err(format!("it passed with {}, and here is {versions}", line.tools)));
            }
            Ok(_) => {}
        }
        let changed = self.git_of(step, &["diff", "--name-only", &line.commit])?
            + &self.git_of(step, &["ls-files", "--others", "--exclude-standard"])?;
        Ok(changed.lines().next().map_or(Ok(line), |file| Err(format!("{file} has changed since {commit}"))))
    }

    /// The step that this commit repeats although its inputs have not changed: chosen by the commit's hash.
    fn repeated(&self) -> Result<Option<&str>, String> {
        let mut unchanged = Vec::new();
        for (step, _) in &self.steps {
            if self.judge(step)?.is_ok() {
                unchanged.push(step.as_str());
            }
        }
        let head = self.git(&["rev-parse", "HEAD"])?;
        let number =
            usize::from_str_radix(head.get(..8).unwrap_or("0"), 16).map_err(|error| error.to_string())?;
        Ok(if unchanged.is_empty() { None } else { Some(unchanged[number % unchanged.len()]) })
    }

    /// Records that the step has passed at this commit. Returns an uncommitted change, if any: then nothing is recorded.
    fn record(&self, step: &str, seconds: &str) -> Result<Option<String>, String> {
        if let Some(changed) = self.git_of(step, &["status", "--porcelain"])?.lines().next() {
            return Ok(Some(changed.trim().to_owned()));
        }
        let line = Line {
            step: step.to_owned(),
            commit: self.git(&["rev-parse", "HEAD"])?.trim().to_owned(),
            date: self.output("date", &["-u", "+%F"])?.trim().to_owned(),
            seconds: seconds.to_owned(),
            tools: self.versions(self.inputs(step)?)?,
        };
        let file = self.root.join(PASSED);
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        std::fs::write(&file, with_line(&text, &line))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(None)
    }
}

/// `forebay-gate unchanged STEP`: whether it need not run, with the reason on one line.
pub(crate) fn unchanged(arguments: &[String]) -> Result<bool, String> {
    let [step] = arguments else { return Err("unchanged wants a step".to_owned()) };
    let tree = Tree::read(Path::new("."))?;
    match tree.judge(step)? {
        Err(reason) => {
            println!("run: {reason}");
            Ok(false)
        }
        Ok(line) if tree.repeated()? == Some(step) => {
            println!("repeat: unchanged since {}, and chosen by this commit's hash", line.short());
            Ok(false)
        }
        Ok(line) => {
            println!(
                "unchanged since {}, where it passed on {} in {} s",
                line.short(),
                line.date,
                line.seconds
            );
            Ok(true)
        }
    }
}

/// `forebay-gate passed STEP SECONDS`: records it.
pub(crate) fn passed(arguments: &[String]) -> Result<bool, String> {
    let [step, seconds] = arguments else { return Err("passed wants a step and its seconds".to_owned()) };
    if let Some(changed) = Tree::read(Path::new("."))?.record(step, seconds)? {
        println!("{step} is not recorded, as this is not committed: {changed}");
    }
    Ok(true)
}

/// The file with this line in place of the step's older lines.
fn with_line(text: &str, line: &Line) -> String {
    let start = format!("{} ", line.step);
    let mut kept: Vec<String> =
        text.lines().filter(|old| !old.starts_with(&start)).map(str::to_owned).collect();
    let at = kept.iter().position(|old| !old.starts_with('#') && *old > start).unwrap_or(kept.len());
    kept.insert(at, line.text());
    kept.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_STEPS: &str = "[one]\npackages above\npaths data extra\ntool cat version\n[two]\npaths other\n\
        [both]\npackages below above\n[named]\npackages above\npaths crates/below/tests/named.rs\n";

    /// A repository of packages: `above` depends on `below`, which is tested with `tool` and its optional `part`; nothing that is
    /// switched on needs `aside`.
    struct Repository(tempfile::TempDir);

    impl Repository {
        fn new() -> Self {
            let new = Self(tempfile::tempdir().unwrap());
            new.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
            new.write("Cargo.lock", "version = 4\n");
            for (name, dependencies) in [
                ("above", "[dependencies]\nbelow = { path = \"../below\" }\n"),
                ("below", "[dev-dependencies]\ntool = { path = \"../tool\", features = [\"all\"] }\n"),
                ("aside", ""),
                (
                    "tool",
                    "[features]\nall = [\"part\"]\npart = [\"dep:part\"]\nother = [\"dep:aside\"]\n[dependencies]\n\
                     part = { path = \"../part\", optional = true }\naside = { path = \"../aside\", optional = true }\n",
                ),
                ("part", ""),
            ] {
                let head = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
                new.write(&format!("crates/{name}/Cargo.toml"), &(head + dependencies));
                new.write(&format!("crates/{name}/src/lib.rs"), "");
            }
            for file in ["data/file", "other", "scripts/test", "scripts/lib/part", ".ci/run"] {
                new.write(file, "first\n");
            }
            new.write(STEPS, OF_STEPS);
            new.write("version", "7.2\n");
            new.write(".gitignore", "version\n");
            new.git(&["init", "-q"]);
            new.commit("first");
            new
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn git(&self, arguments: &[&str]) {
            let who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"];
            self.tree_of("[one]\n").git(&who.iter().chain(arguments).copied().collect::<Vec<_>>()).unwrap();
        }

        fn commit(&self, message: &str) {
            self.git(&["add", "-A"]);
            self.git(&["commit", "-q", "--allow-empty", "-m", message]);
        }

        fn tree_of(&self, text: &str) -> Tree {
            Tree {
                root: self.0.path().to_owned(),
                steps: steps(text).unwrap(),
                passed: Vec::new(),
                metadata: OnceCell::new(),
            }
        }

        fn tree(&self) -> Tree {
            Tree::read(self.0.path()).unwrap()
        }

        fn pass(&self, step: &str) {
            assert_eq!(self.tree().record(step, "12").unwrap(), None);
            self.commit("the record");
        }

        /// Why the step runs, or nothing.
        fn reason(&self, step: &str) -> Option<String> {
            self.tree().judge(step).unwrap().err()
        }
    }

    #[test]
    fn a_step_whose_inputs_are_as_they_were_does_not_run() {
        let repository = Repository::new();
        assert_eq!(repository.reason("one").unwrap(), ".ci/passed has no line of it");
        repository.pass("one");
        assert_eq!(repository.reason("one"), None);
        // Nothing of these is an input of it.
        let others = [
            "other",
            "crates/aside/src/lib.rs",
            "crates/tool/src/lib.rs",
            "crates/below/tests/all.rs",
            "README.md",
        ];
        for file in others {
            repository.write(file, "// changed\n");
        }
        assert_eq!(repository.reason("one"), None);
        repository.commit("changed");
        assert_eq!(repository.reason("one"), None);
        assert!(repository.reason("two").is_some());
    }

    #[test]
    fn a_change_of_any_input_makes_it_run() {
        for file in [
            "crates/above/src/lib.rs",
            "crates/below/src/lib.rs",
            "data/file",
            "extra",
            "Cargo.lock",
            "scripts/test",
            "scripts/lib/part",
            STEPS,
        ] {
            let repository = Repository::new();
            repository.pass("one");
            let text = match file {
                STEPS => format!("{OF_STEPS}# changed\n"),
                _ => "# changed\n".to_owned(),
            };
            repository.write(file, &text);
            let expected = format!("{file} has changed since ");
            assert!(repository.reason("one").unwrap().starts_with(&expected), "{file} in the work tree");
            repository.commit("changed");
            assert!(repository.reason("one").unwrap().starts_with(&expected), "{file} in a commit");
        }
    }

    /// Once a package that another one depends on counted as a dependency although the step named it, by the order of the names.
    #[test]
    fn a_named_package_counts_with_its_tests_also_below_another_one() {
        for (step, file) in [
            ("both", "crates/below/tests/all.rs"),
            ("both", "crates/tool/src/lib.rs"),
            ("both", "crates/part/src/lib.rs"),
            ("named", "crates/below/tests/named.rs"),
        ] {
            let repository = Repository::new();
            repository.pass(step);
            repository.write("crates/below/tests/unnamed.rs", "// changed\n");
            assert_eq!(repository.reason(step).is_none(), step == "named", "{step}");
            std::fs::remove_file(repository.0.path().join("crates/below/tests/unnamed.rs")).unwrap();
            // Once it counted, as an optional dependency of what `below` is tested with: a change of the store ran the core's steps.
            repository.write("crates/aside/src/lib.rs", "// changed\n");
            assert_eq!(repository.reason(step), None, "{step}");
            repository.write(file, "// changed\n");
            assert!(
                repository.reason(step).unwrap().starts_with(&format!("{file} has changed since ")),
                "{step}"
            );
        }
    }

    #[test]
    fn other_versions_of_its_tools_make_it_run() {
        let repository = Repository::new();
        repository.pass("one");
        repository.write("version", "7.3\n");
        assert!(repository.reason("one").unwrap().contains("here is rustc"));
        std::fs::remove_file(repository.0.path().join("version")).unwrap();
        assert!(repository.reason("one").unwrap().starts_with("a tool has no version here"));
    }

    #[test]
    fn an_old_line_and_one_of_another_branch_do_not_count() {
        let repository = Repository::new();
        repository.pass("one");
        let mut tree = repository.tree();
        tree.passed[0].date = "2020-02-29".to_owned();
        assert_eq!(tree.judge("one").unwrap().unwrap_err(), "it passed more than 14 days ago");
        // A clock was wrong by years when it passed: the line counted for years.
        tree.passed[0].date = "2200-01-01".to_owned();
        assert_eq!(
            tree.judge("one").unwrap().unwrap_err(),
            "it passed on 2200-01-01, which is still to come"
        );
        repository.git(&["checkout", "-q", "--orphan", "other"]);
        repository.commit("without the past");
        assert!(repository.reason("one").unwrap().ends_with("is no ancestor of this commit"));
    }

    #[test]
    fn in_a_shallow_clone_all_steps_run() {
        let repository = Repository::new();
        repository.pass("one");
        let clone = tempfile::tempdir().unwrap();
        let from = format!("file://{}", repository.0.path().display());
        repository.git(&["clone", "-q", "--depth", "1", &from, clone.path().to_str().unwrap()]);
        std::fs::write(clone.path().join("version"), "7.2\n").unwrap();
        assert_eq!(
            Tree::read(clone.path()).unwrap().judge("one").unwrap().unwrap_err(),
            "this is a shallow clone"
        );
    }

    #[test]
    fn what_is_not_committed_is_not_recorded() {
        let repository = Repository::new();
        repository.write("data/file", "second\n");
        assert_eq!(repository.tree().record("one", "12").unwrap().unwrap(), "M data/file");
        assert!(repository.reason("one").is_some());
    }

    #[test]
    fn each_commit_repeats_one_of_the_recorded_steps() {
        let repository = Repository::new();
        assert_eq!(repository.tree().repeated().unwrap(), None);
        repository.pass("one");
        assert_eq!(repository.tree().repeated().unwrap(), Some("one"));
        repository.pass("two");
        // A commit's hash covers its message: the next commits choose the other as well.
        let mut left = vec!["one", "two"];
        for number in 0.. {
            repository.commit(&format!("commit {number}"));
            left.retain(|step| repository.tree().repeated().unwrap() != Some(step));
            if left.is_empty() {
                break;
            }
        }
    }

    #[test]
    fn a_step_has_one_line() {
        let line = |step: &str, seconds: &str| {
            Line::parse(&format!("{step} 0123456789abcdef 2026-11-28 {seconds} rustc 1.95.0; qemu 7.2"))
                .unwrap()
        };
        let text = ["b", "a", "c"]
            .iter()
            .fold("# a comment\n".to_owned(), |text, step| with_line(&text, &line(step, "1")));
        let text = with_line(&text, &line("b", "2"));
        assert_eq!(lines(&text), [line("a", "1"), line("b", "2"), line("c", "1")]);
        assert!(text.starts_with("# a comment\na "));
    }
}
