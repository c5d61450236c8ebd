//! One table of damages against every way to read a store. Parts of its files are zeroed, flipped, cut or
//! deleted at each boundary. Then the results are compared: those of an open with reads of everything, of a
//! verification, and of a verification of the open store. They agree on each row, all name the damaged file,
//! and no row has a wrong value.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::{dir, engine, key, named, options, value};
use forebay::Engine;
use forebay_kv::{Compression, Error, ErrorKind, Store};
use forebay_test::live_files::copy;

const PAGE: u64 = 4096;
/// Enough for two inner levels of the loaded table.
const LOADED: u64 = 3_000;

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Copy, Debug)]
enum Damage {
    /// Zeros a page.
    Zero,
    /// Flips one bit, behind a page's first fields.
    Flip,
    /// Ends the file here.
    Cut,
    /// Deletes the file.
    Delete,
}

/// Makes a closed store with a loaded table of three levels, an ingested one, a flushed one with long values and
/// deletions, and a log with newer values than all of them.
fn made(engine: &Engine, at: &Path, compression: Compression) -> Values {
    let options = options().memtable_bytes(512 << 10).log_segment_bytes(64 << 10).compression(compression);
    let store = Store::open(engine, at, options).wait().expect("a new store");
    let keys = store.default_keyspace();
    let mut values: Values = (0..LOADED).map(|number| (key(number), value(number))).collect();
    keys.bulk_load(values.clone()).wait().expect("a load");
    let path = at.with_extension("sorted");
    let mut file = store.sorted_file(&path).wait().expect("a sorted file");
    for number in LOADED..LOADED + 400 {
        let (name, value) = (key(number), value(number));
        file.put(&name, &value).wait().expect("a put");
        values.insert(name, value);
    }
    let long = vec![7; 9_000];
    file.put("key long", &long).wait().expect("a put");
    values.insert(b"key long".to_vec(), long);
    file.finish().wait().expect("an end");
    store.ingest([(&keys, &path)]).wait().expect("an ingest");
    let put = |values: &mut Values, name: Vec<u8>, value: Vec<u8>| {
        keys.put(&name, &value).wait().expect("a put");
        values.insert(name, value);
    };
    for number in 0..4 {
        put(
            &mut values,
            format!("long {number}").into_bytes(),
            vec![number + 1; 10_000 + 4_000 * usize::from(number)],
        );
    }
    for number in 10..20 {
        keys.delete(key(number)).wait().expect("a deletion");
        values.remove(&key(number));
    }
    store.flush().wait().expect("a flush");
    for number in 100..140 {
        put(&mut values, key(number), format!("newer {number}").into_bytes());
    }
    store.close().wait().expect("an end");
    values
}

/// Returns the offsets of a table's parts (header, leaves, each inner level, filter, footer) and of a page
/// within each.
fn boundaries_of_table(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).expect("a table");
    let footer = bytes.len() - PAGE as usize;
    let word = |at: usize| u32::from_le_bytes(bytes[footer + 18 + at..][..4].try_into().expect("four bytes"));
    let (leaf_end, filter, partitions, levels) = (word(48), word(52), word(56), word(60));
    let mut units = vec![0, 1, leaf_end / 2, leaf_end - 1, filter, filter + partitions - 1];
    units.extend((0..levels as usize).map(|level| word(64 + 4 * level)));
    units.push((footer as u64 / PAGE) as u32);
    units.sort_unstable();
    units.dedup();
    units.into_iter().map(|unit| u64::from(unit) * PAGE).collect()
}

/// Returns the offsets of the first pages of a segment, and of those around its end.
fn boundaries_of_segment(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).expect("a segment");
    let Some(last) = bytes.iter().rposition(|&byte| byte != 0) else { return Vec::new() };
    let pages = last as u64 / PAGE;
    let mut all = vec![0, 1, 2, pages / 2, pages.saturating_sub(1), pages];
    all.retain(|page| *page <= pages);
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|page| page * PAGE).collect()
}

fn inflict(path: &Path, at: u64, damage: Damage) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the file");
    match damage {
        Damage::Zero => file.write_all_at(&[0; PAGE as usize], at).expect("zeros"),
        Damage::Flip => {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at + 40).expect("a byte");
            file.write_all_at(&[byte[0] ^ 0x04], at + 40).expect("the same but for a bit");
        }
        Damage::Cut => file.set_len(at).expect("a cut"),
        Damage::Delete => std::fs::remove_file(path).expect("it goes"),
    }
}

/// Opens a store, verifies it while it is open, and reads all of it in every way. Returns the failures, and
/// the findings of the verification if the store opened. A wrong value fails the test.
fn read_all(engine: &Engine, at: &Path, values: &Values, row: &str) -> (Vec<Error>, Option<Vec<Error>>) {
    let store = match Store::open(engine, at, options()).wait() {
        Ok(store) => store,
        Err(error) => return (vec![error], None),
    };
    let verified = store.verify().wait().unwrap_or_else(|error| panic!("{row}: {error}"));
    let keys = store.default_keyspace();
    let mut errors = Vec::new();
    let asked: Vec<Vec<u8>> =
        (0..LOADED).map(key).chain((0..4).map(|n| format!("long {n}").into_bytes())).collect();
    for some in asked.chunks(8) {
        match keys.multi_get(some).wait() {
            Ok(found) => {
                for (name, found) in some.iter().zip(found) {
                    assert_eq!(
                        found.as_deref(),
                        values.get(name).map(|value| &value[..]),
                        "{row}: a wrong value"
                    );
                }
            }
            Err(error) => errors.push(error),
        }
    }
    let scanned: Result<Values, Error> = engine
        .block_on(async {
            let (mut range, mut found) = (keys.iter(), Values::new());
            while let Some(entry) = range.next().await {
                let (name, value) = entry?;
                found.insert(name, value.to_vec());
            }
            Ok(found)
        })
        .expect("not on a shard");
    match scanned {
        Ok(found) => assert!(found == *values, "{row}: a scan has other entries"),
        Err(error) => errors.push(error),
    }
    // A failing table may make the store read-only.
    let _ = store.close().wait();
    (errors, Some(verified.findings))
}

/// Returns findings of tables in a comparable form: file, kind and place.
fn of_tables(findings: &[Error]) -> Vec<String> {
    let is_table =
        |error: &&Error| error.path().is_some_and(|path| path.extension().is_some_and(|end| end == "fkv"));
    let mut all: Vec<String> = findings
        .iter()
        .filter(is_table)
        .map(|error| format!("{:?} {:?} {:?}", error.path(), error.kind(), error.offset()))
        .collect();
    all.sort();
    all
}

/// Opens a damaged store with salvage. If that opens, no key has a value that it never had (it has one of `values` or of `older`),
/// and after a close the store opens without salvage. Returns whether it opened.
fn salvage(engine: &Engine, at: &Path, [values, older]: [&Values; 2], row: &str) -> bool {
    let Ok(store) = Store::open(engine, at, options().salvage(true)).wait() else { return false };
    let keys = store.default_keyspace();
    let was = |name: &[u8], found: &[u8]| {
        [values, older].into_iter().any(|values| values.get(name).is_some_and(|value| value == found))
    };
    engine
        .block_on(async {
            let mut range = keys.iter();
            // A damaged table makes the range fail and end.
            while let Some(Ok((name, found))) = range.next().await {
                assert!(was(&name, &found), "{row}: salvage made up a value of {name:?}");
            }
        })
        .expect("not on a shard");
    let _ = store.close().wait();
    let again = Store::open(engine, at, options())
        .wait()
        .unwrap_or_else(|error| panic!("{row}: salvaged, and then {error}"));
    let _ = again.close().wait();
    true
}

/// The shared setup of a table's rows: the undamaged store, the directory for its damaged copies, and its
/// values.
struct Scene<'a> {
    engine: &'a Engine,
    made: &'a Path,
    row_at: PathBuf,
    values: &'a Values,
    /// What was loaded first.
    older: Values,
}

/// Checks one row of the table. Returns whether the verification has findings. Whether a salvage opened the
/// store is recorded in `salvaged`.
fn check(
    scene: &Scene<'_>,
    file: &Path,
    at: u64,
    damage: Damage,
    salvaged: &mut Vec<(String, bool)>,
) -> bool {
    let Scene { engine, made, row_at, values, older } = scene;
    let relative = file.strip_prefix(made).expect("a file of the store");
    let row = format!("{} at {at}, {damage:?}", relative.display());
    copy(made, row_at);
    let damaged = row_at.join(relative);
    inflict(&damaged, at, damage);
    let tables = named(&row_at.join("tables"), "fkv").len();
    let verified = forebay_kv::verify(engine, row_at).wait();
    let findings = match &verified {
        Ok(verified) => verified.findings.clone(),
        Err(error) => vec![error.clone()],
    };
    let (errors, open_findings) = read_all(engine, row_at, values, &row);
    if let Some(open_findings) = &open_findings {
        assert_eq!(of_tables(open_findings), of_tables(&findings), "{row}: open and closed");
        assert!(
            open_findings.is_empty() || !findings.is_empty(),
            "{row}: whole, and open it has {open_findings:?}"
        );
    }
    assert!(errors.is_empty() || !findings.is_empty(), "{row}: whole, and reading it says {errors:?}");
    let is_table = relative.starts_with("tables");
    for error in findings.iter().chain(&errors) {
        let path = error.path().unwrap_or_else(|| panic!("{row}: {error} names no file"));
        // For missing files the log's directory is named.
        let is_named =
            if is_table { path == damaged } else { path.starts_with(damaged.parent().expect("a directory")) };
        assert!(is_named || path == row_at, "{row}: {error} names another file");
        let is_known =
            matches!(error.kind(), ErrorKind::Corruption | ErrorKind::MissingTable | ErrorKind::Foreign);
        assert!(is_known, "{row}: {error:?}");
        if is_table && error.kind() == ErrorKind::Corruption {
            assert!(
                error.offset().is_some_and(|offset| offset <= at + PAGE),
                "{row}: {error} names no place"
            );
        }
    }
    if !errors.is_empty() {
        let left = named(&row_at.join("tables"), "fkv").len();
        assert!(left >= tables, "{row}: a table went away");
    }
    if open_findings.is_none() {
        std::fs::remove_dir_all(row_at).expect("a row goes");
        copy(made, row_at);
        inflict(&damaged, at, damage);
        salvaged.push((row.clone(), salvage(engine, row_at, [values, older], &row)));
    }
    std::fs::remove_dir_all(row_at).expect("a row goes");
    !findings.is_empty()
}

/// Applies each damage at one boundary in `parts`, at different boundaries for each damage.
fn rows(engine: &Engine, made: &Path, values: &Values, damages: &[Damage], parts: usize) {
    let (place, step) = (dir(), parts * forebay_test::one_in(4).max(forebay_test::one_in_daily(2)));
    let older = (0..LOADED).map(|number| (key(number), value(number))).collect();
    let scene = Scene { engine, made, row_at: place.path().join("row"), values, older };
    let (mut found, mut whole, mut salvaged) = (0, 0, Vec::new());
    let tables =
        named(&made.join("tables"), "fkv").into_iter().map(|path| (boundaries_of_table(&path), path));
    let logs = ["log", "manifest"].into_iter().flat_map(|log| named(&made.join(log), "wal"));
    let logs = logs.map(|path| (boundaries_of_segment(&path), path));
    for (boundaries, path) in tables.chain(logs) {
        let is_table = path.extension().is_some_and(|end| end == "fkv");
        for (index, &damage) in damages.iter().enumerate() {
            for &at in boundaries.iter().skip(index % step).step_by(step) {
                let is_found = check(&scene, &path, at, damage, &mut salvaged);
                // Each byte of a table is covered. Damage to a log's padding and marks may lose nothing.
                assert!(is_found || !is_table, "{} at {at}, {damage:?}: nobody sees it", path.display());
                if is_found { found += 1 } else { whole += 1 }
            }
        }
        if !boundaries.is_empty() {
            check(&scene, &path, 0, Damage::Delete, &mut salvaged);
        }
    }
    let refused: Vec<&String> = salvaged.iter().filter(|(_, opened)| !opened).map(|(row, _)| row).collect();
    println!(
        "{found} rows with a finding, {whole} without; salvage refused {refused:?} of {}",
        salvaged.len()
    );
    assert!(found > 40 / step, "{found} rows with a finding");
}

#[test]
fn all_that_look_at_a_damaged_store_agree() {
    let (engine, place) = (engine(), dir());
    let at = place.path().join("store");
    let values = made(&engine, &at, Compression::None);
    assert!(read_all(&engine, &at, &values, "the whole store").0.is_empty());
    rows(&engine, &at, &values, &[Damage::Zero, Damage::Flip, Damage::Cut], 1);
}

#[test]
fn all_that_look_at_a_damaged_compressed_store_agree() {
    let (engine, place) = (engine(), dir());
    let at = place.path().join("store");
    let values = made(&engine, &at, Compression::Lz4);
    assert!(read_all(&engine, &at, &values, "the whole store").0.is_empty());
    // The log and the tables' ends are as without compression.
    rows(&engine, &at, &values, &[Damage::Zero, Damage::Flip, Damage::Cut], 2);
}

#[test]
#[cfg(feature = "zstd")]
fn all_that_look_at_a_damaged_store_of_zstd_agree() {
    let (engine, place) = (engine(), dir());
    let at = place.path().join("store");
    let values = made(&engine, &at, Compression::Zstd(3));
    assert!(read_all(&engine, &at, &values, "the whole store").0.is_empty());
    rows(&engine, &at, &values, &[Damage::Flip, Damage::Cut], 2);
}

#[test]
fn all_that_look_at_a_damaged_checkpoint_agree() {
    let (engine, place) = (engine(), dir());
    let (at, copy) = (place.path().join("store"), place.path().join("copy"));
    let values = made(&engine, &at, Compression::None);
    let store = Store::open(&engine, &at, options()).wait().expect("a whole store");
    store.checkpoint(&copy).wait().expect("a checkpoint");
    store.close().wait().expect("an end");
    assert!(read_all(&engine, &copy, &values, "the whole checkpoint").0.is_empty());
    rows(&engine, &copy, &values, &[Damage::Flip, Damage::Cut], 1);
}
