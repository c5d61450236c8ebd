//! Shows: a file that accepted `O_DIRECT` and refuses each direct request is still read and written. How: an overlay over a file
//! system without direct I/O, which is what an image of squashfs or erofs is to a container.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay::{Class, Engine, ErrorKind, File, Open};

use crate::common::{byte_at, bytes_of, config, dir};

const LEN: u64 = 100_001;

/// An overlay whose files accept the flag by fcntl(2) and refuse the requests; unmounted with this value.
struct Overlay {
    mounts: Vec<PathBuf>,
    top: PathBuf,
    _dir: tempfile::TempDir,
}

impl Overlay {
    /// Mounts an overlay with the files `data`, of known bytes, and `empty`. The error is the reason for a failure.
    fn mount() -> Result<Overlay, String> {
        let dir = dir();
        let (below, top) = (dir.path().join("below"), dir.path().join("top"));
        std::fs::create_dir(&below).unwrap();
        std::fs::create_dir(&top).unwrap();
        let mut overlay = Overlay { mounts: Vec::new(), top: top.clone(), _dir: dir };
        overlay.add(Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&below), &below)?;
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| below.join(name));
        for dir in [&lower, &upper, &work] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(lower.join("data"), bytes_of(0..LEN)).unwrap();
        std::fs::write(lower.join("empty"), b"").unwrap();
        let [lower, upper, work] = [lower, upper, work].map(|dir| dir.display().to_string());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        overlay
            .add(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&top), &top)?;
        Ok(overlay)
    }

    fn add(&mut self, command: &mut Command, at: &Path) -> Result<(), String> {
        let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        self.mounts.push(at.to_path_buf());
        Ok(())
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        while let Some(mount) = self.mounts.pop() {
            // Lazily, in case that a test failed and left a file open.
            let _ = Command::new("umount").arg("--lazy").arg(mount).output();
        }
    }
}

/// Runs `body` with an overlay, where one can be mounted.
fn with_overlay(body: impl FnOnce(&Path)) {
    match Overlay::mount() {
        Ok(overlay) => body(&overlay.top),
        Err(why) => println!("skipped: no overlay can be mounted here: {why}"),
    }
}

/// Returns whether the engine reports files that use the page cache although their mode bypasses it.
fn is_reported(engine: &Engine) -> bool {
    engine
        .health()
        .degraded
        .iter()
        .any(|found| found.what.contains("direct I/O") && found.why.contains("O_DIRECT"))
}

#[track_caller]
fn check(file: &File) {
    assert_eq!(file.read(0..LEN).wait().unwrap()[..], bytes_of(0..LEN)[..]);
    let ranges = [5..4097, 70_000..LEN];
    let blocks = file.read_many(ranges.clone()).wait().unwrap();
    for (range, block) in ranges.iter().zip(blocks) {
        assert!(block.unwrap().iter().zip(range.clone()).all(|(&byte, offset)| byte == byte_at(offset)));
    }
    let mut scan = file.scan().start();
    let mut read = 0;
    while let Some(block) = scan.next().wait() {
        read += block.unwrap().len() as u64;
    }
    assert_eq!(read, LEN);
}

/// An adaptive file of a container's image, which lay on squashfs below overlayfs, opened and failed every read with EINVAL, and
/// the engine's health said nothing: the overlay accepts the flag, the file system below refuses the requests, and no alignment is
/// reported.
#[test]
fn an_adaptive_file_without_direct_requests_is_read_through_the_page_cache() {
    with_overlay(|top| {
        let engine = Engine::start(config()).unwrap();
        let file = engine.open(top.join("data"), Open::read().adaptive()).wait().unwrap();
        assert!(!file.alignment().direct, "one read at the open finds out");
        assert!(is_reported(&engine), "{}", engine.health());
        check(&file);
        file.close().wait().unwrap();
        let refused = engine.open(top.join("data"), Open::read()).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert!(refused.to_string().contains("Open::buffered()"), "{refused}");
        engine.close().wait().unwrap();
    });
}

/// An empty file may accept direct I/O at its open and refuse direct requests. Its first operation on any path detects that, and
/// each operation in flight is repeated.
#[test]
fn an_empty_file_without_direct_requests_is_written_and_read() {
    with_overlay(|top| {
        for (number, (name, open)) in
            ["empty", "new"].into_iter().zip([Open::write(), Open::create()]).enumerate()
        {
            let engine = Engine::start(config()).unwrap();
            let file = engine.open(top.join(name), open.adaptive()).wait().unwrap();
            let whole = bytes_of(0..8192);
            if number == 0 {
                file.write(0, whole).wait().unwrap();
            } else {
                let file = file.clone();
                let write = move || async move {
                    let (front, back) = whole.split_at(4096);
                    let (first, second) =
                        futures::future::join(file.write(0, front.to_vec()), file.write(4096, back.to_vec()))
                            .await;
                    first.and(second)
                };
                engine.spawn_on_shard(0, Class::DEFAULT, write).wait().unwrap().unwrap();
            }
            assert!(!file.alignment().direct);
            assert!(is_reported(&engine), "{}", engine.health());
            assert_eq!(file.read(1..8190).wait().unwrap()[..], bytes_of(1..8190)[..]);
            file.close().wait().unwrap();
            engine.close().wait().unwrap();
        }
    });
}

/// A new file on a file system without direct I/O failed to open and stayed there, empty: the open that the error advises, with
/// `Open::buffered()`, failed as well, because the file existed.
#[test]
fn a_new_file_that_is_refused_can_be_created_as_the_error_says() {
    with_overlay(|top| {
        let path = top.with_file_name("below").join("refused");
        let engine = Engine::start(config()).unwrap();
        let refused = engine.open(&path, Open::create_new()).wait().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        assert!(!path.exists());
        let file = engine.open(&path, Open::create_new().buffered()).wait().unwrap();
        file.write(0, b"abc".to_vec()).wait().unwrap();
        file.close().wait().unwrap();
        let exists = engine.open(&path, Open::create_new()).wait().unwrap_err();
        assert_eq!(exists.raw_os_error(), Some(libc::EEXIST), "{exists}");
        assert_eq!(std::fs::read(&path).unwrap(), b"abc");
        engine.close().wait().unwrap();
    });
}
