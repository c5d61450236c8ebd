//! Test programs as cargo names them, and the tests in them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Arguments;

/// A test program that cargo has built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// `lib`, `bin`, or the name of an integration test.
    pub(crate) name: String,
    /// The package's folder.
    pub(crate) folder: PathBuf,
    pub(crate) path: PathBuf,
}

impl Program {
    pub(crate) fn id(&self, test: &str) -> String {
        format!("{}/{}::{test}", self.package, self.name)
    }

    /// The options with which `cargo test` runs this program alone.
    pub(crate) fn cargo_options(&self) -> String {
        match self.name.as_str() {
            "lib" => format!("-p {} --lib", self.package),
            "bin" => format!("-p {} --bins", self.package),
            name => format!("-p {} --test {name}", self.package),
        }
    }
}

/// The programs in cargo's messages (`--message-format json`).
///
/// # Errors
///
/// A file that cannot be read, or names no program: then the build was another one.
pub(crate) fn in_messages(file: &Path) -> Result<Vec<Program>, String> {
    let mut programs: Vec<Program> = messages(file)?.iter().filter_map(program).collect();
    programs.sort_by(|a, b| (&a.package, &a.name).cmp(&(&b.package, &b.name)));
    programs.dedup();
    if programs.is_empty() {
        Err(format!("{}: cargo named no test program", file.display()))
    } else {
        Ok(programs)
    }
}

fn messages(file: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// `forebay-gate built`: the path of a program, as the build has named it.
pub(crate) fn built(arguments: &[String]) -> Result<bool, String> {
    let arguments = Arguments::parse(arguments, &["messages"], &[])?;
    let [package, kind, name] = &arguments.words[..] else {
        return Err("built wants a package, a kind and a name".to_owned());
    };
    let file = arguments.wanted("messages")?;
    let found = messages(Path::new(file))?.into_iter().rev().find(|message| {
        let folder = message["manifest_path"]
            .as_str()
            .and_then(|path| Path::new(path).parent())
            .and_then(Path::file_name);
        let test = message["profile"]["test"] == true;
        folder.is_some_and(|folder| folder == package.as_str())
            && message["target"]["kind"][0] == kind.as_str()
            && message["target"]["name"] == name.as_str()
            && message["executable"].is_string()
            && test == (kind == "test")
    });
    let path = found.ok_or_else(|| format!("{file} has no {kind} {name} of {package}"))?;
    println!("{}", path["executable"].as_str().unwrap_or_default());
    Ok(true)
}

/// `forebay-gate remove`: removes the test programs.
pub(crate) fn remove(arguments: &[String]) -> Result<bool, String> {
    let arguments = Arguments::parse(arguments, &["messages"], &[])?;
    for program in in_messages(Path::new(arguments.wanted("messages")?))? {
        let _ = std::fs::remove_file(program.path);
    }
    Ok(true)
}

fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let name = match message["target"]["kind"][0].as_str()? {
        "test" => message["target"]["name"].as_str()?,
        "bin" => "bin",
        "example" | "bench" => return None,
        _ => "lib",
    };
    Some(Program { package, name: name.to_owned(), folder, path })
}

/// The names of a program's tests, without the ignored tests unless these are wanted, too.
///
/// # Errors
///
/// The program does not start.
pub(crate) fn tests(program: &Program, ignored: bool) -> Result<Vec<String>, String> {
    let list = |arguments: &[&str]| -> Result<Vec<String>, String> {
        let output = Command::new(&program.path)
            .args(arguments)
            .current_dir(&program.folder)
            .output()
            .map_err(|error| format!("{}: {error}", program.path.display()))?;
        if !output.status.success() {
            return Err(format!("{} --list: {}", program.path.display(), output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let mut all = list(&["--list", "--format", "terse"])?;
    if !ignored {
        let left_out = list(&["--list", "--format", "terse", "--ignored"])?;
        all.retain(|name| !left_out.contains(name));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_in_cargos_messages() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("messages");
        let message = |kind: &str, name: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/x/crates/pkg/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let lines = [
            "warning: not json".to_owned(),
            message("lib", "pkg", true, r#""/t/pkg-1""#),
            message("lib", "pkg", false, "null"),
            message("test", "all", true, r#""/t/all-2""#),
            message("bin", "pkg", true, r#""/t/pkg-3""#),
            message("example", "shown", true, r#""/t/shown-4""#),
        ];
        std::fs::write(&file, lines.join("\n")).unwrap();
        let found = in_messages(&file).unwrap();
        assert_eq!(
            found.iter().map(|program| program.id("x")).collect::<Vec<_>>(),
            ["pkg/all::x", "pkg/bin::x", "pkg/lib::x"]
        );
        assert_eq!(found[0].cargo_options(), "-p pkg --test all");
        std::fs::write(&file, "").unwrap();
        assert!(in_messages(&file).unwrap_err().contains("no test program"));
    }
}
