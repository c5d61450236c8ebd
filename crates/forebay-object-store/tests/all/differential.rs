//! Shows: the store does what object_store's `LocalFileSystem` does. How: both get the same random operations, each on a separate
//! tree, while files, directories and symbolic links appear and vanish; results, kinds of errors and trees are compared after each.
//! `FOREBAY_DIFFERENTIAL_SEED=N` repeats one seed, `FOREBAY_DIFFERENTIAL_SEEDS=N` runs that many.
#![allow(clippy::single_range_in_vec_init, reason = "a batch of one range")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path as FsPath;
use std::time::{Duration, Instant};

use crate::common::{Numbers, dir, settings, tree};
use bytes::Bytes;
use forebay::{Durability, Mode};
use futures::TryStreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt,
    PutMode, PutOptions, PutPayload, RenameOptions, RenameTargetMode, UpdateVersion,
};

/// Few, so that operations meet: files, directories, names below files, links, staged names, odd names.
const LOCATIONS: [&str; 16] = [
    "a", "b", "d/a", "d/b", "d/e/b", "d/e/f/c", "a/x", "d", "d/e", "link", "link/a", "z#1/a", "a#2", "π/ü",
    "L%3AC", "",
];

#[derive(Clone, Debug)]
enum Op {
    Put(Path, Vec<usize>, bool),
    /// With the tag that the object has, or with another one.
    Update(Path, Vec<usize>, bool),
    Parts(Path, Vec<usize>, End),
    Get(Path, Option<GetRange>, Option<Condition>),
    Ranges(Path, Vec<Range<u64>>),
    Head(Path),
    Delete(Vec<Path>),
    Copy(Path, Path, bool),
    Rename(Path, Path, bool),
    List(Path, Option<Path>),
    Level(Path),
    Beside(Beside),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete,
    Abort,
    Drop,
}

#[derive(Clone, Copy, Debug)]
enum Condition {
    Matches,
    MatchesNot,
    Other,
    OtherNot,
    Modified,
    Unmodified,
}

/// Something that another program does.
#[derive(Clone, Debug)]
enum Beside {
    Write(&'static str, usize),
    Replace(&'static str, usize),
    Dir(&'static str),
    Link(&'static str, &'static str),
    Remove(&'static str),
}

/// What an operation returned, as far as both must agree; of an error the kind.
type Outcome = Result<String, Error>;

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Generic { .. } => "generic",
        Error::NotFound { .. } => "not found",
        Error::InvalidPath { .. } => "invalid path",
        Error::AlreadyExists { .. } => "already exists",
        Error::Precondition { .. } => "precondition",
        Error::NotModified { .. } => "not modified",
        Error::NotImplemented { .. } => "not implemented",
        Error::NotSupported { .. } => "not supported",
        Error::PermissionDenied { .. } => "permission denied",
        _ => "another one",
    }
}

fn location(numbers: &mut Numbers) -> Path {
    Path::parse(LOCATIONS[numbers.below(LOCATIONS.len() as u64) as usize]).unwrap()
}

fn draw(numbers: &mut Numbers) -> Op {
    let sizes = |numbers: &mut Numbers| -> Vec<usize> {
        let size = |numbers: &mut Numbers| [0, 1, 7, 5000, 70_000][numbers.below(5) as usize];
        (0..numbers.below(4)).map(|_| size(numbers)).collect()
    };
    let range = |numbers: &mut Numbers| {
        let start = numbers.below(6000);
        start..start + numbers.below(3000)
    };
    // Not the name of a staged file: existing staged files are the stores' own.
    let name = |numbers: &mut Numbers| match LOCATIONS[numbers.below(LOCATIONS.len() as u64 - 1) as usize] {
        "a#2" => "a",
        name => name,
    };
    match numbers.below(40) {
        0..6 => Op::Put(location(numbers), sizes(numbers), numbers.below(3) == 0),
        6..8 => Op::Update(location(numbers), sizes(numbers), numbers.below(4) > 0),
        8..11 => {
            let end = [End::Complete, End::Complete, End::Abort, End::Drop][numbers.below(4) as usize];
            Op::Parts(location(numbers), sizes(numbers), end)
        }
        11..16 => {
            let part = match numbers.below(5) {
                0 => Some(GetRange::Bounded(range(numbers))),
                1 => Some(GetRange::Offset(numbers.below(6000))),
                2 => Some(GetRange::Suffix(numbers.below(6000))),
                _ => None,
            };
            use Condition::*;
            let condition = match numbers.below(12) {
                0 => Some(Matches),
                1 => Some(MatchesNot),
                2 => Some(Other),
                3 => Some(OtherNot),
                4 => Some(Modified),
                5 => Some(Unmodified),
                _ => None,
            };
            Op::Get(location(numbers), part, condition)
        }
        16..20 => {
            let count = numbers.below(5);
            Op::Ranges(location(numbers), (0..count).map(|_| range(numbers)).collect())
        }
        20..22 => Op::Head(location(numbers)),
        22..24 => Op::Delete(vec![location(numbers)]),
        // Deletions of a stream run concurrently: none of these is below another.
        24 => Op::Delete(["a", "L%3AC", "π/ü"].map(|name| Path::parse(name).unwrap()).to_vec()),
        25..28 => Op::Copy(location(numbers), location(numbers), numbers.below(2) == 0),
        28..31 => Op::Rename(location(numbers), location(numbers), numbers.below(2) == 0),
        31..33 => Op::List(location(numbers), (numbers.below(2) == 0).then(|| location(numbers))),
        33..35 => Op::Level(location(numbers)),
        35 => Op::Beside(Beside::Write(name(numbers), numbers.below(9000) as usize)),
        36 => Op::Beside(Beside::Replace(name(numbers), numbers.below(9000) as usize)),
        37 => Op::Beside(Beside::Dir(name(numbers))),
        38 => {
            let target = ["a", "d", "none", ".", "..", "link", "d/e"][numbers.below(7) as usize];
            Op::Beside(Beside::Link(if numbers.below(3) == 0 { "d/link" } else { "link" }, target))
        }
        _ => Op::Beside(Beside::Remove(name(numbers))),
    }
}

fn chunks(sizes: &[usize], tag: u64) -> Vec<Bytes> {
    let chunk = |(number, size): (usize, &usize)| {
        let first = tag as usize + number;
        Bytes::from((0..*size).map(|at| ((first + at) % 251) as u8).collect::<Vec<_>>())
    };
    sizes.iter().enumerate().map(chunk).collect()
}

/// Bytes, short enough for a failed comparison.
fn digest(bytes: &[u8]) -> String {
    let sum = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    format!("{} bytes {sum:x}", bytes.len())
}

async fn run(store: &dyn ObjectStore, root: &FsPath, op: &Op, tag: u64) -> Outcome {
    let named = |error: Error| kind(&error);
    match op.clone() {
        Op::Put(location, sizes, creates) => {
            let mode = if creates { PutMode::Create } else { PutMode::Overwrite };
            let payload = PutPayload::from_iter(chunks(&sizes, tag));
            let put = store.put_opts(&location, payload, PutOptions::from(mode)).await?;
            let head = store.head(&location).await?;
            assert_eq!(head.e_tag, put.e_tag, "{op:?}");
            Ok("put".to_string())
        }
        Op::Update(location, sizes, is_current) => {
            let head = match store.head(&location).await {
                Err(Error::NotFound { .. }) => None,
                head => Some(head?),
            };
            let payload = PutPayload::from_iter(chunks(&sizes, tag));
            let e_tag = head
                .clone()
                .filter(|_| is_current)
                .map_or_else(|| Some("\"other\"".to_string()), |head| head.e_tag);
            let update = PutMode::Update(UpdateVersion { e_tag, version: None });
            match store.put_opts(&location, payload.clone(), update.into()).await {
                // LocalFileSystem has no updates. Nothing runs concurrently, so an update is either a put or refused.
                Err(Error::NotImplemented { .. }) if is_current && head.is_some() => {
                    store.put(&location, payload).await?;
                }
                Err(Error::NotImplemented { .. }) => {
                    return Err(Error::Precondition {
                        path: location.to_string(),
                        source: "another tag".into(),
                    });
                }
                put => {
                    let put = put?;
                    assert_eq!(store.head(&location).await?.e_tag, put.e_tag, "{op:?}");
                    assert_ne!(head.and_then(|head| head.e_tag), put.e_tag, "{op:?}");
                }
            }
            Ok("updated".to_string())
        }
        Op::Parts(location, sizes, end) => {
            let mut upload: Box<dyn MultipartUpload> = store.put_multipart(&location).await?;
            let parts = chunks(&sizes, tag).into_iter().map(|chunk| upload.put_part(chunk.into()));
            let mut parts: Vec<_> = parts.collect();
            // In another order, and each on its own.
            parts.reverse();
            futures::future::try_join_all(parts).await?;
            match end {
                End::Complete => {
                    let put = upload.complete().await?;
                    let head = store.head(&location).await?;
                    assert_eq!(head.e_tag, put.e_tag, "{op:?}");
                    let again = upload.complete().await.map(drop).map_err(named);
                    Ok(format!("completed, then {again:?}"))
                }
                End::Abort => {
                    upload.abort().await?;
                    Ok(format!("aborted, then {:?}", upload.complete().await.map(drop).map_err(named)))
                }
                End::Drop => Ok("dropped".to_string()),
            }
        }
        Op::Get(location, range, condition) => {
            let mut options = GetOptions { range, ..GetOptions::default() };
            if let Some(condition) = condition {
                let head = store.head(&location).await?;
                let hour = std::time::Duration::from_secs(3600);
                let e_tag = head.e_tag.clone();
                match condition {
                    Condition::Matches => options.if_match = e_tag,
                    Condition::MatchesNot => options.if_none_match = e_tag,
                    Condition::Other => options.if_match = Some("\"other\"".to_string()),
                    Condition::OtherNot => options.if_none_match = Some("\"other\"".to_string()),
                    Condition::Modified => options.if_modified_since = Some(head.last_modified + hour),
                    Condition::Unmodified => options.if_unmodified_since = Some(head.last_modified - hour),
                }
            }
            let got = store.get_opts(&location, options).await?;
            let (range, size) = (got.range.clone(), got.meta.size);
            Ok(format!("{range:?} of {size}: {}", digest(&got.bytes().await?)))
        }
        Op::Ranges(location, ranges) => {
            let parts = store.get_ranges(&location, &ranges).await?;
            Ok(format!("{:?}", parts.iter().map(|part| digest(part)).collect::<Vec<_>>()))
        }
        Op::Head(location) => Ok(format!("{} bytes", store.head(&location).await?.size)),
        Op::Delete(locations) => {
            let all = futures::stream::iter(locations.into_iter().map(Ok));
            let deleted: Vec<_> = futures::StreamExt::collect(store.delete_stream(Box::pin(all))).await;
            // They run concurrently: of equal deletions any may be the first.
            let mut deleted: Vec<_> =
                deleted.into_iter().map(|result| format!("{:?}", result.map_err(named))).collect();
            deleted.sort();
            Ok(format!("{deleted:?}"))
        }
        Op::Copy(from, to, creates) => {
            let mode = if creates { CopyMode::Create } else { CopyMode::Overwrite };
            let options = CopyOptions::new().with_mode(mode);
            store.copy_opts(&from, &to, options).await?;
            Ok("copied".to_string())
        }
        Op::Rename(from, to, creates) => {
            let mode = if creates { RenameTargetMode::Create } else { RenameTargetMode::Overwrite };
            let options = RenameOptions::new().with_target_mode(mode);
            store.rename_opts(&from, &to, options).await?;
            if !creates {
                remove_other_name(&root.join(from.as_ref()), &root.join(to.as_ref()));
            }
            Ok("renamed".to_string())
        }
        Op::List(prefix, offset) => {
            let listed = match &offset {
                Some(offset) => store.list_with_offset(Some(&prefix), offset),
                None => store.list(Some(&prefix)),
            };
            let listed: Vec<_> = listed.try_collect().await?;
            let mut listed: Vec<_> =
                listed.iter().map(|meta| format!("{} {}", meta.location, meta.size)).collect();
            listed.sort();
            Ok(format!("{listed:?}"))
        }
        Op::Level(prefix) => {
            let level = store.list_with_delimiter(Some(&prefix)).await?;
            let mut objects: Vec<_> =
                level.objects.iter().map(|meta| format!("{} {}", meta.location, meta.size)).collect();
            objects.sort();
            Ok(format!("{:?} {objects:?}", level.common_prefixes))
        }
        Op::Beside(beside) => Ok(format!("{:?}", do_beside(root, &beside, tag).is_ok())),
    }
}

fn do_beside(root: &FsPath, beside: &Beside, tag: u64) -> std::io::Result<()> {
    use std::fs;
    let content = |len: usize| chunks(&[len], tag).concat();
    match *beside {
        Beside::Write(name, len) => fs::write(root.join(name), content(len)),
        Beside::Replace(name, len) => {
            let other = root.join("beside#9");
            fs::write(&other, content(len))?;
            let renamed = fs::rename(&other, root.join(name));
            let _ = fs::remove_file(&other);
            renamed
        }
        Beside::Dir(name) => fs::create_dir_all(root.join(name)),
        Beside::Link(name, target) => {
            let _ = fs::remove_file(root.join(name));
            std::os::unix::fs::symlink(target, root.join(name))
        }
        Beside::Remove(name) => {
            let path = root.join(name);
            fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path))
        }
    }
}

/// Removes the old name of an object that was moved onto another name of its file, where `LocalFileSystem` leaves both.
fn remove_other_name(from: &FsPath, to: &FsPath) {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &FsPath| fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let place = |path: &FsPath| {
        let above = path.parent().and_then(|above| fs::canonicalize(above).ok());
        above.map(|above| above.join(path.file_name().unwrap_or_default()))
    };
    let is_one_file = identity(from).is_some() && identity(from) == identity(to);
    if is_one_file && place(from) != place(to) && fs::metadata(to).is_ok_and(|found| found.nlink() > 1) {
        fs::remove_file(from).expect("a second name");
    }
}

fn is_staged(name: &str, content: &Option<Vec<u8>>) -> bool {
    let (name, is_link) = name.split_once(" -> ").map_or((name, false), |(name, _)| (name, true));
    let suffix = name.rsplit('/').next().unwrap_or_default().split_once('#');
    (is_link || content.is_some())
        && suffix.is_some_and(|(_, suffix)| suffix.bytes().all(|byte| byte.is_ascii_digit()))
}

fn has_staged(root: &FsPath) -> bool {
    tree(root).iter().any(|(name, content)| is_staged(name, content))
}

/// Returns a tree without staged files, which are removed: `LocalFileSystem` leaves one where it copies an object onto its copy.
fn without_staged(root: &FsPath) -> BTreeMap<String, Option<Vec<u8>>> {
    let (staged, others): (BTreeMap<_, _>, _) =
        tree(root).into_iter().partition(|(name, content)| is_staged(name, content));
    for name in staged.into_keys() {
        let _ = std::fs::remove_file(root.join(name.split(" -> ").next().unwrap_or_default()));
    }
    others
}

async fn compare(seed: u64, steps: usize) {
    let mut numbers = Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    // Links lead to the directories above the stores, too.
    let above = [dir(), dir()];
    let [ours, theirs] = [&above[0], &above[1]].map(|dir| dir.path().join("store"));
    for root in [&ours, &theirs] {
        std::fs::create_dir(root).unwrap();
    }
    let cleans = numbers.below(2) == 0;
    let modes = [Mode::Adaptive, Mode::Direct, Mode::Buffered];
    let mode = modes[numbers.below(3) as usize];
    let durability = if numbers.below(4) == 0 { Durability::Data } else { Durability::None };
    let files = 1 + numbers.below(4) as usize;
    let settings = settings(&ours).read_mode(mode).put_durability(durability);
    let store = settings.open_files_max(files).automatic_cleanup(cleans).open().await.unwrap();
    let local = LocalFileSystem::new_with_prefix(&theirs).unwrap().with_automatic_cleanup(cleans);
    let mut log = Vec::new();
    for step in 0..steps {
        let op = draw(&mut numbers);
        log.push(format!("{op:?}"));
        let tag = step as u64;
        let one = run(&store, &ours, &op, tag).await;
        let two = run(&local, &theirs, &op, tag).await;
        if let Op::Parts(_, _, End::Drop) = op {
            // The staged file is removed eventually. If the test removed it, the next one would reuse its name, and be removed in
            // its place.
            let begun = Instant::now();
            while [&ours, &theirs].into_iter().any(|root| has_staged(root)) {
                assert!(begun.elapsed() < Duration::from_secs(60), "a staged file stays");
                tokio::task::yield_now().await;
            }
        }
        let story = || format!("seed {seed}, step {step}, {mode:?}, {durability:?}:\n{}", log.join("\n"));
        let kinds = (one.as_ref().map_err(|error| kind(error)), two.as_ref().map_err(|error| kind(error)));
        let names: Vec<_> = without_staged(&theirs).into_keys().collect();
        assert!(kinds.0 == kinds.1, "ours: {one:?}\ntheirs: {two:?}\n{names:?}\n{}", story());
        assert!(!has_staged(&ours), "{:?}\n{}", tree(&ours).keys(), story());
        let (one, two) = (without_staged(&ours), without_staged(&theirs));
        let names: Vec<_> = one.keys().zip(two.keys()).collect();
        assert!(one == two, "the trees differ: {names:?}\n{}", story());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_have_the_results_of_local_file_system() {
    if let Ok(seed) = std::env::var("FOREBAY_DIFFERENTIAL_SEED") {
        return compare(seed.parse().expect("a number"), 400).await;
    }
    let parts = forebay_test::one_in(4).max(forebay_test::one_in_daily(2)) as u64;
    let seeds = std::env::var("FOREBAY_DIFFERENTIAL_SEEDS")
        .map_or(20 / parts, |seeds| seeds.parse().expect("a number"));
    for seed in 1..=seeds {
        compare(seed, 400).await;
    }
}

/// Both on one tree, by turns: each sees what the other has done, with the same tags.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_sees_what_the_other_has_done() {
    let root = dir();
    let store = settings(root.path()).put_durability(Durability::None).open().await.unwrap();
    let local = LocalFileSystem::new_with_prefix(root.path()).unwrap();
    let stores: [&dyn ObjectStore; 2] = [&store, &local];
    for round in 0..20_usize {
        let (writer, reader) = (stores[round % 2], stores[(round + 1) % 2]);
        let location = Path::from(format!("d/{}", round / 4 % 3));
        let content = chunks(&[1000 + round], round as u64).concat();
        let put = writer.put(&location, content.clone().into()).await.unwrap();
        for other in stores {
            let got = other.get(&location).await.unwrap();
            assert_eq!(got.meta.e_tag, put.e_tag);
            assert_eq!(got.bytes().await.unwrap(), content);
            assert_eq!(other.get_ranges(&location, &[3..20, 0..1]).await.unwrap()[0], content[3..20]);
        }
        let listed = |store: &dyn ObjectStore| {
            let listed = store.list(None);
            async { listed.try_collect::<Vec<_>>().await.unwrap() }
        };
        let (mut one, mut two) = (listed(writer).await, listed(reader).await);
        one.sort_by(|a, b| a.location.cmp(&b.location));
        two.sort_by(|a, b| a.location.cmp(&b.location));
        assert_eq!(one, two);
        if round % 5 == 4 {
            reader.delete(&location).await.unwrap();
            assert!(matches!(writer.get_ranges(&location, &[]).await, Err(Error::NotFound { .. })));
        }
    }
}
