//! Opening files, names and directories.

use std::ffi::OsStr;
use std::future::IntoFuture;

use forebay::{ErrorKind, FileKind, Open};

use super::check::{Outcome, fails_os, fails_with, holds, or_skip, same, same_bytes};
use super::tools::{all, bytes_of, content, modes, poll_now, put, put_bytes};
use crate::Env;

super::group! { "names":
    files_are_opened_as_asked [FileSystem],
    opening_what_is_not_there_names_the_path [FileSystem],
    a_rename_moves_and_replaces [FileSystem],
    an_open_file_stays_the_same_whatever_its_name [FileSystem],
    hard_links_are_the_same_file [FileSystem],
    names_change_without_a_sync_as_well [FileSystem],
    metadata_of_many_names_is_that_of_each [FileSystem],
    directories_are_made_listed_and_removed [FileSystem],
    unnamed_files_are_private [FileSystem],
    many_calls_at_once_are_all_answered [FileSystem],
    a_call_whose_answer_is_dropped_harms_nobody [FileSystem],
    an_open_directory_stays_the_same_wherever_it_is_moved [FileSystem],
    a_removed_directory_holds_nothing [FileSystem],
    a_name_in_a_directory_is_one_name [FileSystem],
}

async fn files_are_opened_as_asked(env: &Env) -> Outcome {
    let engine = env.engine();
    for (number, open) in modes(env, Open::create_new()).into_iter().enumerate() {
        let path = env.path(&number.to_string());
        let file = engine.open(&path, open.permissions(0o600)).await?;
        same("the permissions", file.metadata().await?.mode() & 0o777, 0o600)?;
        same("the path", file.path(), path.as_path())?;
        holds("offsets are aligned to a power of two", file.alignment().offset.is_power_of_two())?;
        file.write(0, bytes_of(0..4096)).await?;
        fails_os("create_new of what is there", engine.open(&path, open).await, libc::EEXIST)?;
        // A directory of the name was reported as an invalid argument, so a caller that looked for a free name gave up.
        fails_os("create_new of a directory", engine.open(env.dir(), open).await, libc::EEXIST)?;
    }
    for open in modes(env, Open::create()) {
        let file = engine.open(env.path("0"), open).await?;
        same_bytes("create keeps what is there", &file.read(0..4096).await?, &bytes_of(0..4096))?;
    }
    for open in modes(env, Open::write().truncate()) {
        put(env, "1", 5_000).await?;
        let file = engine.open(env.path("1"), open).await?;
        same("truncate leaves nothing", file.len().await?, 0)?;
    }
    for shard in 0..engine.shard_count() {
        let file = engine.open(env.path("0"), Open::read().shard(shard)).await?;
        same("the home shard", file.home_shard(), shard)?;
        file.read(0..1).await?;
    }
    for shard in [engine.shard_count(), 1000, usize::MAX] {
        let opened = engine.open(env.path("new"), Open::create().shard(shard)).await;
        fails_with("a shard that does not exist", opened, ErrorKind::InvalidInput)?;
        fails_os("its file", engine.open(env.path("new"), Open::read()).await, libc::ENOENT)?;
    }
    Ok(())
}

async fn opening_what_is_not_there_names_the_path(env: &Env) -> Outcome {
    let missing = env.path("missing");
    for open in modes(env, Open::read()).into_iter().chain(modes(env, Open::write())) {
        let error = fails_os("open", env.engine().open(&missing, open).await, libc::ENOENT)?;
        same("operation and path", (error.operation(), error.path()), ("open", Some(missing.as_path())))?;
        let deep = missing.join("below");
        let error = fails_os("open below", env.engine().open(&deep, open).await, libc::ENOENT)?;
        holds("the text names the path", error.to_string().contains("missing"))?;
    }
    let calls = [
        ("metadata", env.engine().metadata(&missing).await.map(drop)),
        ("read_dir", env.engine().read_dir(&missing).await.map(drop)),
        ("remove_file", env.engine().remove_file(&missing).await),
        ("remove_dir", env.engine().remove_dir(&missing).await),
        ("sync_dir", env.engine().sync_dir(&missing).await),
        ("rename", env.engine().rename(&missing, env.path("x")).await),
        ("hard_link", env.engine().hard_link(&missing, env.path("x")).await),
        ("create_dir", env.engine().create_dir(missing.join("a")).await),
        ("temp_file", env.engine().temp_file(&missing, Open::create()).await.map(drop)),
    ];
    for (operation, result) in calls {
        let error = fails_os(operation, result, libc::ENOENT)?;
        same("the operation of the error", error.operation(), operation)?;
        holds("the error has a path", error.path().is_some_and(|path| path.starts_with(&missing)))?;
    }
    Ok(())
}

async fn a_rename_moves_and_replaces(env: &Env) -> Outcome {
    let engine = env.engine();
    let (from, to) = (put_bytes(env, "from", b"new").await?, put_bytes(env, "to", b"old").await?);
    engine.rename(&from, &to).await?;
    same_bytes("replaced", &content(env, &to).await?, b"new")?;
    fails_os("the old name", engine.metadata(&from).await, libc::ENOENT)?;
    engine.create_dir(env.path("below")).await?;
    let there = env.path("below").join("there");
    engine.rename(&to, &there).await?;
    same_bytes("moved", &content(env, &there).await?, b"new")?;
    fails_os("what is gone", engine.rename(&to, &from).await, libc::ENOENT)?;
    // A directory too, with its content.
    engine.rename(env.path("below"), env.path("above")).await?;
    same_bytes("moved along", &content(env, env.path("above").join("there")).await?, b"new")
}

async fn an_open_file_stays_the_same_whatever_its_name(env: &Env) -> Outcome {
    for (number, open) in modes(env, Open::write()).into_iter().enumerate() {
        let path = put(env, &number.to_string(), 10_000).await?;
        let file = env.engine().open(&path, open).await?;
        env.engine().rename(&path, env.path("renamed")).await?;
        same_bytes("renamed", &file.read(5..9_000).await?, &bytes_of(5..9_000))?;
        let other = put_bytes(env, "other", b"other").await?;
        env.engine().rename(&other, env.path("renamed")).await?;
        same_bytes("replaced", &file.read(5..9_000).await?, &bytes_of(5..9_000))?;
        same("names left", file.metadata().await?.links(), 0)?;
        file.write(4096, vec![1; 4096]).await?;
        same_bytes("written", &file.read(4096..8192).await?, &[1; 4096])?;
        same_bytes("the other", &content(env, env.path("renamed")).await?, b"other")?;
        env.engine().remove_file(env.path("renamed")).await?;
    }
    Ok(())
}

async fn hard_links_are_the_same_file(env: &Env) -> Outcome {
    let engine = env.engine();
    let (one, two) = (put_bytes(env, "one", b"abc").await?, env.path("two"));
    or_skip("hard_link", engine.hard_link(&one, &two).await)?;
    let (first, second) = (engine.metadata(&one).await?, engine.metadata(&two).await?);
    same("the file", (first.inode(), first.device()), (second.inode(), second.device()))?;
    same("its names", (first.links(), second.links()), (2, 2))?;
    fails_os("a name that is taken", engine.hard_link(&one, &two).await, libc::EEXIST)?;
    let file = engine.open(&one, Open::write().buffered()).await?;
    file.write(1, b"X").await?;
    engine.remove_file(&one).await?;
    same_bytes("by the other name", &content(env, &two).await?, b"aXc")?;
    same("its names", engine.metadata(&two).await?.links(), 1)
}

async fn names_change_without_a_sync_as_well(env: &Env) -> Outcome {
    let engine = env.engine();
    let (from, to) = (put_bytes(env, "from", b"new").await?, put_bytes(env, "to", b"old").await?);
    engine.rename_unsynced(&from, &to).await?;
    same_bytes("replaced", &content(env, &to).await?, b"new")?;
    for operation in ["rename_unsynced", "hard_link_unsynced"] {
        let gone = match operation {
            "rename_unsynced" => engine.rename_unsynced(&from, &to).await,
            _ => engine.hard_link_unsynced(&from, env.path("other")).await,
        };
        let error = fails_os(operation, gone, libc::ENOENT)?;
        same("the operation of the error", error.operation(), operation)?;
        same("the path of the error", error.path(), Some(&*from))?;
    }
    or_skip("hard_link_unsynced", engine.hard_link_unsynced(&to, &from).await)?;
    same("its names", engine.metadata(&to).await?.links(), 2)?;
    fails_os("a name that is taken", engine.hard_link_unsynced(&to, &from).await, libc::EEXIST)?;
    engine.create_dir(env.path("below")).await?;
    engine.rename_unsynced(&from, env.path("below").join("there")).await?;
    same_bytes("moved", &content(env, env.path("below").join("there")).await?, b"new")
}

async fn metadata_of_many_names_is_that_of_each(env: &Env) -> Outcome {
    let engine = env.engine();
    let mut paths = Vec::new();
    for number in 0..20_usize {
        paths.push(put_bytes(env, &number.to_string(), &vec![1; number]).await?);
    }
    paths[7] = env.path("none");
    paths.push(paths[3].clone());
    let found = engine.metadata_many(&paths).await?;
    same("results", found.len(), paths.len())?;
    for (path, found) in paths.iter().zip(found) {
        if path.ends_with("none") {
            let error = fails_os("no such file", found, libc::ENOENT)?;
            same("the path of the error", error.path(), Some(&**path))?;
        } else {
            same("metadata", found?, engine.metadata(path).await?)?;
        }
    }
    same("of a name itself", engine.symlink_metadata(&paths[3]).await?, engine.metadata(&paths[3]).await?)?;
    same("of no names", engine.metadata_many::<&std::path::Path>([]).await?.len(), 0)?;
    // The immediately known metadata are the same. A simulated world, or an older kernel, may know nothing.
    if let Some(found) = engine.try_metadata(&paths[3]) {
        same("at once", found?, engine.metadata(&paths[3]).await?)?;
    }
    Ok(())
}

async fn directories_are_made_listed_and_removed(env: &Env) -> Outcome {
    let engine = env.engine();
    let deep = env.path("a").join("b").join("c");
    fails_os("without those above", engine.create_dir(&deep).await, libc::ENOENT)?;
    engine.create_dir_all(&deep).await?;
    engine.create_dir_all(&deep).await?;
    fails_os("once more", engine.create_dir(&deep).await, libc::EEXIST)?;
    for name in ["z", "m", "y"] {
        engine.open(deep.join(name), Open::create_new().buffered()).await?.close().await?;
    }
    engine.create_dir(deep.join("d")).await?;
    engine.sync_dir(&deep).await?;
    let entries = engine.read_dir(&deep).await?;
    let found: Vec<_> = entries.iter().map(|entry| (entry.name(), entry.kind())).collect();
    let name = |name| OsStr::new(name);
    let (file, dir) = (FileKind::File, FileKind::Dir);
    same("entries", found, vec![(name("d"), dir), (name("m"), file), (name("y"), file), (name("z"), file)])?;
    fails_os("not empty", engine.remove_dir(&deep).await, libc::ENOTEMPTY)?;
    fails_os("a file is not a directory", engine.remove_dir(deep.join("m")).await, libc::ENOTDIR)?;
    for entry in &entries {
        let path = deep.join(entry.name());
        match entry.kind() {
            FileKind::Dir => engine.remove_dir(path).await?,
            _ => engine.remove_file(path).await?,
        }
    }
    same("entries left", engine.read_dir(&deep).await?.len(), 0)?;
    engine.remove_dir(&deep).await?;
    fails_os("removed", engine.metadata(&deep).await, libc::ENOENT).map(drop)
}

async fn unnamed_files_are_private(env: &Env) -> Outcome {
    for open in modes(env, Open::create()) {
        let file = env.engine().temp_file(env.dir(), open).await?;
        file.write(0, bytes_of(0..8192)).await?;
        same_bytes("its bytes", &file.read(100..8000).await?, &bytes_of(100..8000))?;
        same("its names", file.metadata().await?.links(), 0)?;
        let other = env.engine().temp_file(env.dir(), open).await?;
        same("another is another", other.len().await?, 0)?;
        same("names in the directory", env.engine().read_dir(env.dir()).await?.len(), 0)?;
        file.close().await?;
    }
    Ok(())
}

async fn many_calls_at_once_are_all_answered(env: &Env) -> Outcome {
    let made = all((0..1100).map(|n| env.engine().create_dir(env.path(&n.to_string())).into_future())).await;
    for result in made {
        result?;
    }
    same("names in the directory", env.engine().read_dir(env.dir()).await?.len(), 1100)?;
    let opened = all((0..100).map(|n| {
        let (engine, path) = (env.engine(), env.path(&format!("{n}-file")));
        async move { engine.open(path, Open::create_new()).await }
    }))
    .await;
    for (n, file) in opened.into_iter().enumerate() {
        holds("each opened its own", file?.path().ends_with(format!("{n}-file")))?;
    }
    Ok(())
}

async fn a_call_whose_answer_is_dropped_harms_nobody(env: &Env) -> Outcome {
    let path = put(env, "a", 4096).await?;
    for n in 0..100 {
        let mut making = env.engine().create_dir(env.path(&n.to_string()));
        let mut opening = env.engine().open(&path, Open::read());
        if n % 2 == 0 {
            let _ = (poll_now(&mut making), poll_now(&mut opening));
        }
    }
    env.engine().create_dir(env.path("last")).await?;
    let file = env.engine().open(&path, Open::read()).await?;
    same_bytes("the file", &file.read(0..4096).await?, &bytes_of(0..4096))?;
    file.close().await?;
    let closed = env.engine().open(&path, Open::write()).await?;
    closed.clone().close().await?;
    fails_with("a closed file", closed.len().await, ErrorKind::FileClosed).map(drop)
}

/// Story: a store that named its files by path changed any file at that path later. `mv data data.old; mv good data` under it
/// destroyed the good copy.
async fn an_open_directory_stays_the_same_wherever_it_is_moved(env: &Env) -> Outcome {
    let engine = env.engine();
    let (data, moved) = (env.path("data"), env.path("moved"));
    for dir in [&data, &env.path("good")] {
        engine.create_dir(dir).await?;
        let file = engine.open(dir.join("kept"), Open::create_new().buffered()).await?;
        file.write(0, dir.as_os_str().as_encoded_bytes().to_vec()).await?;
        file.close().await?;
    }
    let dir = engine.open_dir(&data).await?;
    same("the path", dir.path(), data.as_path())?;
    engine.rename(&data, &moved).await?;
    engine.rename(env.path("good"), &data).await?;

    for open in modes(env, Open::create_new()) {
        let file = dir.open("new", open.permissions(0o600)).await?;
        same("the permissions", file.metadata().await?.mode() & 0o777, 0o600)?;
        same("the path of a file", file.path(), data.join("new").as_path())?;
        file.write(0, bytes_of(0..4096)).await?;
        fails_os("create_new of what is there", dir.open("new", open).await, libc::EEXIST)?;
        let found = (dir.metadata("new").await?, engine.metadata(moved.join("new")).await?);
        same("the file under both names", found.0.inode(), found.1.inode())?;
        dir.rename("new", "newer").await?;
        same_bytes("renamed", &content(env, moved.join("newer")).await?, &bytes_of(0..4096))?;
        dir.remove_file("newer").await?;
    }
    dir.rename("kept", "other").await?;
    or_skip("hard_link", dir.hard_link("other", &dir, "linked").await)?;
    dir.create_dir("below").await?;
    let below = dir.open_dir("below").await?;
    dir.rename_into("linked", &below, "deep").await?;
    below.hard_link("deep", &dir, "linked").await?;
    dir.sync().await?;
    let names: Vec<_> =
        dir.read_dir().await?.iter().map(|entry| (entry.name().to_owned(), entry.kind())).collect();
    let expected = [("below", FileKind::Dir), ("linked", FileKind::File), ("other", FileKind::File)];
    same("entries", names, expected.map(|(name, kind)| (name.into(), kind)).to_vec())?;
    same_bytes(
        "moved along",
        &content(env, moved.join("below").join("deep")).await?,
        data.as_os_str().as_encoded_bytes(),
    )?;
    let unnamed = dir.temp_file(Open::create()).await?;
    same("names of an unnamed file", unnamed.metadata().await?.links(), 0)?;
    fails_os("a file is not a directory", dir.open_dir("other").await, libc::ENOTDIR)?;
    fails_os("not empty", dir.remove_dir("below").await, libc::ENOTEMPTY)?;
    below.remove_file("deep").await?;
    dir.remove_dir("below").await?;

    let entries = engine.read_dir(&data).await?;
    same("what was put into its place", entries.len(), 1)?;
    let good = env.path("good");
    same_bytes(
        "it is untouched",
        &content(env, data.join("kept")).await?,
        good.as_os_str().as_encoded_bytes(),
    )
}

async fn a_removed_directory_holds_nothing(env: &Env) -> Outcome {
    let engine = env.engine();
    engine.create_dir(env.path("data")).await?;
    let dir = engine.open_dir(env.path("data")).await?;
    let file = dir.open("file", Open::create_new().buffered()).await?;
    same(
        "its own inode",
        dir.own_metadata().await?.inode(),
        engine.metadata(env.path("data")).await?.inode(),
    )?;
    holds("it has a name", dir.own_metadata().await?.links() > 0)?;
    same("nothing is removed yet", (dir.is_removed()?, file.is_removed()?), (false, false))?;
    engine.remove_file(env.path("data").join("file")).await?;
    engine.remove_dir(env.path("data")).await?;
    // Another directory of the same name is a different one.
    engine.create_dir(env.path("data")).await?;
    same("its names", dir.own_metadata().await?.links(), 0)?;
    same("the directory is removed", (dir.is_removed()?, file.is_removed()?), (true, true))?;
    file.write(0, b"still open").await?;
    fails_os("a new file", dir.open("new", Open::create().buffered()).await, libc::ENOENT)?;
    fails_os("a directory", dir.create_dir("new").await, libc::ENOENT)?;
    fails_os("a file that was there", dir.remove_file("file").await, libc::ENOENT)?;
    fails_os("a rename", dir.rename("file", "other").await, libc::ENOENT)?;
    same("entries", dir.read_dir().await?.len(), 0)?;
    dir.sync().await?;
    same("the other is empty", engine.read_dir(env.path("data")).await?.len(), 0)
}

async fn a_name_in_a_directory_is_one_name(env: &Env) -> Outcome {
    put(env, "file", 100).await?;
    let dir = env.engine().open_dir(env.dir()).await?;
    for name in ["", ".", "..", "a/b", "/", "/etc", "file/", "./file", "../file"] {
        let calls = [
            ("open", dir.open(name, Open::create().buffered()).await.map(drop)),
            ("open_dir", dir.open_dir(name).await.map(drop)),
            ("create_dir", dir.create_dir(name).await),
            ("rename", dir.rename(name, "x").await),
            ("rename", dir.rename("file", name).await),
            ("hard_link", dir.hard_link(name, &dir, "x").await),
            ("hard_link", dir.hard_link("file", &dir, name).await),
            ("remove_file", dir.remove_file(name).await),
            ("remove_dir", dir.remove_dir(name).await),
            ("metadata", dir.metadata(name).await.map(drop)),
        ];
        for (operation, result) in calls {
            let error = fails_with(operation, result, ErrorKind::InvalidInput)?;
            same("operation and path", (error.operation(), error.path()), (operation, Some(env.dir())))?;
            holds("the text says what a name is", error.to_string().contains("not a name in a directory"))?;
        }
    }
    let missing = fails_os("what is not there", dir.open("none", Open::read()).await, libc::ENOENT)?;
    same("the path", missing.path(), Some(env.path("none").as_path()))?;
    same("names in the directory", dir.read_dir().await?.len(), 1)?;
    fails_os("no directory", env.engine().open_dir(env.path("none")).await, libc::ENOENT)?;
    fails_os("a file", env.engine().open_dir(env.path("file")).await, libc::ENOTDIR).map(drop)
}
