//! Programs in C and C++, compiled and linked with the library as `install` installs it. Without a compiler they are left out.
//!
//! `FOREBAY_C_FLAGS` has further flags for the compilers, such as `-fsanitize=address,undefined`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The library, below a separate folder.
struct Installation {
    folder: TempDir,
}

fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the newest library of this crate that cargo has built in this program's directory.
fn built(extension: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let beside = program.parent().unwrap();
    let mut found = Vec::new();
    for folder in [beside, beside.parent().unwrap()] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let is_library = stem == "libforebay_c" || stem.starts_with("libforebay_c-");
            if is_library && path.extension().is_some_and(|found| found == extension) {
                found.push((fs::metadata(&path).unwrap().modified().unwrap(), path));
            }
        }
    }
    found.sort();
    found.pop().unwrap_or_else(|| panic!("there is no libforebay_c.{extension} in {}", beside.display())).1
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{text}{errors}", output.status);
    text
}

/// Returns whether a program of that name is installed; otherwise prints that the test is left out.
fn have(program: &str) -> bool {
    let is_there =
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        println!("left out: there is no {program} here");
    }
    is_there
}

impl Installation {
    fn new() -> Installation {
        Installation::with(&built("so"), None)
    }

    /// Installs the shared library, and the static one if it is given: that has a hundred megabytes.
    fn with(shared: &Path, archive: Option<&Path>) -> Installation {
        let folder = tempfile::tempdir().unwrap();
        let libraries = folder.path().join("built");
        fs::create_dir(&libraries).unwrap();
        symlink(shared, libraries.join("libforebay_c.so")).unwrap();
        match archive {
            Some(archive) => symlink(archive, libraries.join("libforebay_c.a")).unwrap(),
            None => fs::write(libraries.join("libforebay_c.a"), "").unwrap(),
        }
        run(Command::new(crate_path("install")).arg(folder.path()).arg(&libraries).env_remove("DESTDIR"));
        Installation { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles a source file of this crate, and returns the program.
    fn compile(&self, compiler: &str, source: &str, flags: &[&str], libraries: &[&str]) -> PathBuf {
        let program = self.path("program");
        let more = std::env::var("FOREBAY_C_FLAGS").unwrap_or_default();
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread"])
            .args(flags)
            .args(more.split_whitespace())
            .arg("-I")
            .arg(self.path("include"))
            .arg(crate_path(source))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(self.path("lib"))
            .arg(format!("-Wl,-rpath,{}", self.path("lib").display()))
            .args(libraries));
        program
    }

    /// Runs a program with a folder for its files.
    fn run_in_folder(&self, program: &Path) {
        let files = self.path("files");
        fs::create_dir(&files).unwrap();
        assert_eq!(run(Command::new(program).arg(&files)), "ok\n");
    }
}

const C: [&str; 1] = ["-std=gnu11"];
const CPP: [&str; 1] = ["-std=c++17"];
const SHARED: [&str; 1] = ["-lforebay"];

fn run_c(name: &str) {
    if !have("cc") {
        return;
    }
    let installation = Installation::new();
    let program = installation.compile("cc", &format!("tests/c/{name}.c"), &C, &SHARED);
    installation.run_in_folder(&program);
}

#[test]
fn blocking_calls() {
    run_c("blocking");
}

#[test]
fn operations_with_callbacks_eventfds_waits_and_batches() {
    run_c("submitted");
}

#[test]
fn cancelled_operations_and_a_close_with_operations_in_flight() {
    run_c("ends");
}

#[test]
fn a_forked_child() {
    run_c("forked");
}

/// A program in C called `forebay_rocksdb_env`, as the guide says, and had to declare it: its header was one of C++ alone.
#[test]
fn the_headers_in_c99() {
    if !have("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("headers.c");
    let call = "char *error = NULL; return forebay_rocksdb_env(NULL, &error) == NULL;";
    fs::write(&program, format!("#include <forebay_rocksdb.h>\nint main(void) {{ {call} }}\n")).unwrap();
    run(Command::new("cc")
        .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
        .arg(crate_path("include"))
        .arg("-I")
        .arg(crate_path("rocksdb"))
        .arg(program));
}

#[test]
fn handles_of_the_wrappers_in_cpp() {
    if !have("c++") {
        return;
    }
    let installation = Installation::new();
    let program = installation.compile("c++", "tests/c/wrappers.cpp", &CPP, &SHARED);
    installation.run_in_folder(&program);
}

/// Returns whether programs with these flags run here: a sanitizer's runtime may be missing, or not get its addresses.
fn have_flags(flags: &[&str]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("empty.c"), folder.path().join("empty"));
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiled = Command::new("cc").args(flags).arg(&source).arg("-o").arg(&program).output();
    let runs = compiled.is_ok_and(|output| output.status.success())
        && Command::new(&program).output().is_ok_and(|output| output.status.success());
    if !runs {
        println!("left out: cc makes no programs with {flags:?} here");
    }
    runs
}

/// The memory that programs lend: after the end of an operation the programs free it, and nothing writes to it.
#[test]
fn the_programs_under_the_address_sanitizer() {
    let flags = ["-std=gnu11", "-fsanitize=address", "-fno-omit-frame-pointer"];
    if !have("cc") || !have_flags(&flags) {
        return;
    }
    // Not `forked`: the sanitizer's allocator does not handle a fork while another thread allocates, and the child waits for its
    // lock forever.
    for name in ["blocking", "submitted", "ends"] {
        let installation = Installation::new();
        let program = installation.compile("cc", &format!("tests/c/{name}.c"), &flags, &SHARED);
        let files = installation.path("files");
        fs::create_dir(&files).unwrap();
        // Threads of the library keep memory for their time.
        let output = run(Command::new(program).arg(&files).env("ASAN_OPTIONS", "detect_leaks=0"));
        assert_eq!(output, "ok\n", "{name}");
    }
}

/// With threads, since valgrind does not see what a ring writes.
#[test]
#[ignore = "valgrind takes a minute for a program; run it after a change of the crate's unsafe code"]
fn the_programs_under_valgrind() {
    if !have("cc") || !have("valgrind") {
        return;
    }
    for name in ["blocking", "submitted", "ends"] {
        let installation = Installation::new();
        let program = installation.compile("cc", &format!("tests/c/{name}.c"), &C, &SHARED);
        let files = installation.path("files");
        fs::create_dir(&files).unwrap();
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=9"]).arg(program).arg(&files);
        assert_eq!(run(command.env("FOREBAY_TEST_DRIVER", "threads")), "ok\n", "{name}");
    }
}

#[test]
fn a_program_with_the_static_library() {
    if !have("cc") {
        return;
    }
    let installation = Installation::with(&built("so"), Some(&built("a")));
    let private = ["-l:libforebay.a", "-lpthread", "-ldl", "-lm", "-lrt", "-lgcc_s"];
    let program = installation.compile("cc", "tests/c/blocking.c", &C, &private);
    installation.run_in_folder(&program);
}

#[test]
fn the_examples() {
    if !have("cc") || !have("c++") {
        return;
    }
    let installation = Installation::new();
    let (from, to) = (installation.path("from"), installation.path("to"));
    let bytes: Vec<u8> = (0..2_500_000u32).map(|at| (at % 251) as u8).collect();
    fs::write(&from, &bytes).unwrap();

    let read = installation.compile("cc", "examples/read.c", &C, &SHARED);
    let sum: u64 = bytes[..65_536].iter().map(|&byte| u64::from(byte)).sum();
    assert_eq!(run(Command::new(&read).arg(&from)), format!("sum {sum}\n"));
    let missing = Command::new(&read).arg(installation.path("missing")).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(text.starts_with("open: not_found: ") && text.contains("missing"), "{text}");

    let copy = installation.compile("c++", "examples/copy.cpp", &CPP, &SHARED);
    run(Command::new(&copy).arg(&from).arg(&to));
    assert!(fs::read(&to).unwrap() == bytes, "the copy differs");
}

/// Returns whether a Go with `runtime.Pinner` is installed; otherwise prints that the test is left out.
fn have_go() -> bool {
    let output = Command::new("go").arg("version").env("GOTOOLCHAIN", "local").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    // "go version go1.26.8 linux/amd64"
    let minor = text.split("go1.").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let is_new = minor.and_then(|minor| minor.parse().ok()).is_some_and(|minor: u32| minor >= 21);
    if !is_new {
        println!("left out: there is no Go from 1.21 on here: {text}");
    }
    is_new
}

#[test]
fn the_example_in_go() {
    if !have("cc") || !have("pkg-config") || !have_go() {
        return;
    }
    let installation = Installation::new();
    let (from, program) = (installation.path("from"), installation.path("program"));
    let bytes: Vec<u8> = (0..70_000u32).map(|at| (at % 253) as u8).collect();
    fs::write(&from, &bytes).unwrap();
    // Go compiles its own packages once for all runs. It would keep the library's folder of an earlier run as well, but for this flag.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    let flags = format!("-O2 -g -I{}", installation.path("include").display());
    run(Command::new("go")
        .args(["build", "-o"])
        .arg(&program)
        .arg(crate_path("examples/read.go"))
        .env("PKG_CONFIG_PATH", installation.path("lib/pkgconfig"))
        .envs([("GOTOOLCHAIN", "local"), ("CGO_ENABLED", "1"), ("GOFLAGS", ""), ("CGO_CFLAGS", &flags)])
        .envs(["GOCACHE", "GOPATH", "XDG_CONFIG_HOME"].map(|name| (name, &cache))));
    let sum: u64 = bytes[..65_536].iter().map(|&byte| u64::from(byte)).sum();
    let mut command = Command::new(&program);
    command.arg(&from).env("LD_LIBRARY_PATH", installation.path("lib"));
    assert_eq!(run(&mut command), format!("sum {sum}\n"));
}

#[test]
fn the_library_exports_the_recorded_symbols_under_its_name() {
    let installation = Installation::new();
    let library = installation.path("lib/libforebay.so");
    let version = env!("CARGO_PKG_VERSION");
    let config = fs::read_to_string(installation.path("lib/pkgconfig/forebay.pc")).unwrap();
    assert!(config.contains(&format!("Version: {version}\n")) && !config.contains('@'), "{config}");
    if have("nm") {
        let symbols = run(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library));
        let symbols = symbols.lines().filter_map(|line| line.split_whitespace().next());
        let ours: BTreeSet<_> = symbols.filter(|name| name.starts_with("fb_")).map(str::to_owned).collect();
        let recorded = fs::read_to_string(crate_path("symbols.txt")).unwrap();
        let recorded: BTreeSet<_> = recorded.lines().map(str::to_owned).collect();
        assert_eq!(ours, recorded);
    }
    if have("readelf") {
        let [major, minor] = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
        let name =
            if major == "0" { format!("libforebay.so.0.{minor}") } else { format!("libforebay.so.{major}") };
        let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
        assert!(dynamic.contains(&format!("soname: [{name}]")), "{dynamic}");
        assert!(installation.path("lib").join(name).exists());
    }
}
