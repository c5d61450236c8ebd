//! Programs in simulated worlds: power cuts, failing disks, full disks.

use std::io::{self, ErrorKind, SeekFrom};

use forebay_fs as fs;
use forebay_sim::{Fault, Loss, Profile, Rule, World};
use forebay_test::worlds::explore;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::common::bytes;

/// A program that knows nothing of worlds: it replaces a file so that a power cut leaves the old or the new contents.
async fn replace(dir: &str, contents: &[u8]) -> io::Result<()> {
    let (new, old) = (format!("{dir}/new"), format!("{dir}/table"));
    let mut file = fs::File::create(&new).await?;
    file.write_all(contents).await?;
    file.flush().await?;
    file.sync_all().await?;
    fs::rename(new, old).await?;
    fs::File::open(dir).await?.sync_all().await
}

#[test]
fn a_file_that_is_replaced_is_the_old_or_the_new_one_after_a_power_cut() {
    explore(100, |world| {
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let cut = 20 + world.seed() % 60;
        world.add_disk(Profile::nand().at("/disk").lost(Loss::Subset).torn(true));
        world.power_cut_at_operation(cut);
        let mut durable = 0;
        let run = world.run(async |engine| {
            let _world = fs::enter(&engine);
            for version in 1..=40_u8 {
                replace("/disk", &vec![version; 10_000]).await?;
                durable = version;
            }
            io::Result::Ok(())
        });
        match run {
            Ok(result) => result.map_err(|error| failed(&error))?,
            Err(failure) if failure.is_power_cut() => world.reboot(),
            Err(failure) => return Err(failed(&failure)),
        }
        world.clear_faults();
        let found = world.run(async |engine| {
            let _world = fs::enter(&engine);
            fs::read("/disk/table").await
        });
        match found.map_err(|failure| failed(&failure))? {
            Ok(contents) => {
                let version = contents.first().copied().unwrap_or_default();
                let is_whole = contents == vec![version; 10_000];
                let is_right = is_whole && (version == durable || version == durable + 1);
                is_right.then_some(()).ok_or_else(|| {
                    format!("version {version} of {} bytes, {durable} was durable", contents.len())
                })
            }
            Err(error) if error.kind() == ErrorKind::NotFound && durable == 0 => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    });
}

fn in_a_world<T>(program: impl AsyncFnOnce() -> io::Result<T>) -> io::Result<T> {
    let mut world = World::new(5).disk(Profile::nand().at("/disk"));
    let run = world.run(async |engine| {
        let _world = fs::enter(&engine);
        program().await
    });
    run.expect("the world runs to its end")
}

#[test]
fn names_and_whole_files_are_those_of_the_world() {
    in_a_world(async || {
        fs::create_dir_all("/disk/a/b").await?;
        fs::write("/disk/a/b/one", bytes(3_000_000)).await?;
        assert!(fs::read("/disk/a/b/one").await? == bytes(3_000_000));
        assert_eq!(fs::copy("/disk/a/b/one", "/disk/a/two").await?, 3_000_000);
        fs::hard_link("/disk/a/two", "/disk/a/three").await?;
        fs::write("/disk/a/text", "some text").await?;
        assert_eq!(fs::read_to_string("/disk/a/text").await?, "some text");
        let metadata = fs::metadata("/disk/a/text").await?;
        assert!(metadata.is_file() && metadata.len() == 9);
        assert!(fs::symlink_metadata("/disk/a").await?.is_dir());
        assert_eq!(fs::canonicalize("/disk/./a/b/../text").await?, std::path::Path::new("/disk/a/text"));

        let mut entries = fs::read_dir("/disk/a").await?;
        let mut names = Vec::new();
        while let Some(entry) = entries.next_entry().await? {
            assert_eq!(entry.file_type().await?.is_dir(), entry.metadata().await?.is_dir());
            names.push(entry.file_name().into_string().expect("text"));
        }
        names.sort();
        assert_eq!(names, ["b", "text", "three", "two"]);

        assert_eq!(fs::remove_dir("/disk/a").await.unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        fs::remove_dir_all("/disk/a").await?;
        assert!(!fs::try_exists("/disk/a").await?);
        assert_eq!(fs::read("/disk/a/text").await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::symlink("a", "/disk/b").await.unwrap_err().kind(), ErrorKind::Unsupported);
        Ok(())
    })
    .unwrap();
}

#[test]
fn files_have_cursors_clones_and_ranges() {
    in_a_world(async || {
        let mut file = fs::File::options().read(true).write(true).create(true).open("/disk/file").await?;
        file.write_all(&bytes(10_000)).await?;
        let mut clone = file.try_clone().await?;
        assert_eq!(clone.seek(SeekFrom::Current(-4_000)).await?, 6_000);
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).await?;
        assert!(rest == bytes(10_000)[6_000..]);
        assert_eq!(file.seek(SeekFrom::End(-10)).await?, 9_990);
        assert_eq!(file.seek(SeekFrom::Start(9_995)).await?, 9_995);
        assert_eq!(clone.read(&mut [0; 100]).await?, 5);
        file.seek(SeekFrom::Current(-20_000)).await.unwrap_err();

        let mut part = [0; 100];
        file.read_exact_at(&mut part, 50).await?;
        assert_eq!(part, bytes(10_000)[50..150]);
        file.write_all_at(&[7; 10], 100).await?;
        file.sync_range(100..110).await?;
        file.read_exact_at(&mut part[..10], 100).await?;
        assert_eq!(part[..10], [7; 10]);
        file.set_len(120).await?;
        assert_eq!(file.metadata().await?.len(), 120);

        let mut log = fs::File::options().append(true).open("/disk/file").await?;
        log.write_all(b"end").await?;
        log.flush().await?;
        assert_eq!(fs::metadata("/disk/file").await?.len(), 123);
        log.read(&mut part).await.unwrap_err();
        let mut direct = fs::File::options();
        let refused = direct.append(true).direct(true).open("/disk/file").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);

        let mut read = fs::File::open("/disk/file").await?;
        read.write_all(b"refused").await?;
        read.flush().await.unwrap_err();
        read.flush().await?;
        assert_eq!(fs::File::options().open("/disk/file").await.unwrap_err().kind(), ErrorKind::InvalidInput);
        Ok(())
    })
    .unwrap();
}

/// The file is dropped with its bytes accepted, as in the machine.
#[test]
fn accepted_bytes_are_written_without_their_file() {
    in_a_world(async || {
        let mut file = fs::File::create("/disk/file").await?;
        file.write_all(&bytes(5_000)).await?;
        drop(file);
        while fs::metadata("/disk/file").await?.len() < 5_000 {}
        assert!(fs::read("/disk/file").await? == bytes(5_000));
        Ok(())
    })
    .unwrap();
}

#[test]
fn errors_of_the_disk_are_those_of_the_system() {
    let errors =
        [(Fault::WriteError, libc::EIO), (Fault::NoSpace, libc::ENOSPC), (Fault::ReadError, libc::EIO)];
    for (fault, errno) in errors {
        let found = in_a_world(async || {
            fs::write("/disk/file", bytes(10_000)).await?;
            fs::File::open("/disk/file").await?.sync_all().await?;
            let mut file = fs::File::options().read(true).write(true).direct(true).open("/disk/file").await?;
            forebay_sim::inject(Rule::new(fault));
            if fault == Fault::ReadError {
                file.read(&mut [0; 10]).await.map(drop)
            } else {
                file.write_all(&[1; 4096]).await?;
                file.flush().await
            }
        });
        assert_eq!(found.unwrap_err().raw_os_error(), Some(errno), "{fault:?}");
    }
}

/// Without a scope a simulated program would work on the machine's own files.
#[test]
fn calls_without_a_scope_are_refused() {
    let mut world = World::new(3);
    let found = world.run(async |_| fs::read("/proc/version").await.map(drop));
    assert_eq!(found.unwrap().unwrap_err().kind(), ErrorKind::Other);
    let found = world.run(async |_| fs::engine().map(drop));
    assert!(found.unwrap().is_err());
}

#[test]
fn one_seed_is_one_history() {
    let digest = || {
        let mut world = World::new(77).disk(Profile::nand().at("/disk"));
        let run = world.run(async |engine| {
            let _world = fs::enter(&engine);
            for version in 0..5 {
                replace("/disk", &bytes(20_000 + version)).await?;
            }
            io::Result::Ok(())
        });
        run.unwrap().unwrap();
        world.history_digest()
    };
    assert_eq!(digest(), digest());
}
