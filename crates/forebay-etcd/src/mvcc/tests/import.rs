//! A state restored from a snapshot equals the saved state: entry by entry, and in later changes.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::path::Path;

use super::harness::{Node, alarm, compact, delete, grant, revoke};
use super::model::Model;
use super::random::{Random, is_proposed};
use crate::accounts::Auth;
use crate::bolt::Writer;
use crate::mvcc::codec::{At, Record, State};
use crate::mvcc::{Failure, Import, ImportSummary, KEYSPACES, View};
use crate::proto::authpb::{Permission, Role, User, UserAddOptions};
use crate::proto::mvccpb::KeyValue;
use crate::proto::peer::command::Change;
use crate::snapshot::source::Source;
use crate::snapshot::{self, Around, Sink};
use crate::types::Command;
use prost::Message;
use sha2::{Digest, Sha256};

#[derive(Default)]
struct Parts(Vec<u8>);

impl Sink for Parts {
    type Error = Failure;

    async fn take(&mut self, part: Vec<u8>) -> Result<(), Failure> {
        self.0.extend(part);
        Ok(())
    }
}

async fn save(view: &View, path: &Path) {
    let around = Around { members: Vec::new(), cluster_version: "3.5.0".to_owned(), index: 1, term: 1 };
    let mut parts = Parts::default();
    let meta = snapshot::write(view, &around, &mut parts).await.unwrap();
    let file = [meta.first_pages(), parts.0].concat();
    let sum = Sha256::digest(&file);
    std::fs::File::create(path).unwrap().write_all(&[&file[..], &sum].concat()).unwrap();
}

async fn restore(path: &Path, bump: u64) -> Result<(Node, ImportSummary), Failure> {
    let mut node = Node::new().await;
    let imported = {
        let keyspaces = node.store.keyspaces();
        let source = Source::open(path, true).unwrap();
        source.import(Import::new(&keyspaces)?, bump).await?
    };
    node.reopen().await;
    Ok((node, imported))
}

type Entries = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

/// Returns all entries of a state, except parts that are not saved. An event does not name its predecessor if that is removed.
async fn entries(node: &Node) -> Entries {
    let (keyspaces, mut entries) = (node.store.keyspaces(), Entries::new());
    for (name, keyspace) in KEYSPACES.iter().zip(keyspaces.iter()) {
        let mut all = keyspace.iter();
        while let Some((key, value)) = all.next().await.transpose().unwrap() {
            if ![&b"member/"[..], b"checkpoint/"].iter().any(|prefix| key.starts_with(prefix)) {
                entries.insert((*name, key), value.to_vec());
            }
        }
    }
    let known: HashSet<Vec<u8>> =
        entries.keys().filter(|(name, _)| *name == "events").map(|(_, key)| key.clone()).collect();
    for ((name, _), value) in &mut entries {
        if *name != "events" {
            continue;
        }
        let mut record = Record::decode(value).unwrap();
        record.previous = record.previous.filter(|previous| known.contains(&previous.at.key()[..]));
        let mut encoded = Vec::new();
        record.encode(&mut encoded);
        *value = encoded;
    }
    entries
}

fn state(entries: &mut Entries) -> State {
    let state = entries.remove(&("meta", b"state".to_vec())).unwrap();
    State::decode(&state).unwrap()
}

/// Users and roles as etcd's buckets have them, before and after a restore.
#[tokio::test]
async fn users_and_roles_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let options = |no_password| Some(UserAddOptions { no_password });
    let root = User {
        name: b"root".to_vec(),
        password: b"hash".to_vec(),
        roles: vec!["readers".into(), "root".into()],
        options: options(false),
    };
    let plain = User { name: b"plain".to_vec(), options: options(true), ..User::default() };
    let permission = Permission { key: b"a".to_vec(), range_end: b"b".to_vec(), perm_type: 2 };
    let readers = Role { name: b"readers".to_vec(), key_permission: vec![permission] };
    let auth = Auth::of(true, 12, vec![root, plain], vec![readers]).unwrap();
    let mut buckets = vec![
        (
            "auth",
            vec![(b"authEnabled".to_vec(), vec![1]), (b"authRevision".to_vec(), 12u64.to_be_bytes().into())],
        ),
        ("authRoles", auth.roles().map(|(name, role)| (name.into(), role.encode_to_vec())).collect()),
        ("authUsers", auth.users().map(|(name, user)| (name.into(), user.encode_to_vec())).collect()),
    ];
    buckets.push(("key", Vec::new()));
    write(&path, &buckets);
    let (first, _) = restore(&path, 0).await.unwrap();
    assert!(first.view().await.auth().await.unwrap() == auth);
    assert_eq!(first.seen.opened.lock().unwrap().last().unwrap().auth.revision(), 12);
    save(&first.view().await, &path).await;
    let (second, _) = restore(&path, 0).await.unwrap();
    assert!(second.view().await.auth().await.unwrap() == auth);
}

#[tokio::test]
async fn a_restored_state_is_the_one_that_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let mut were_cleaning = 0;
    for seed in 0..12 {
        let (mut random, mut model) = (Random::new(500 + seed), Model::new());
        let mut saved = Node::new().await;
        for _ in 0..150 {
            let change = random.change(&model);
            if is_proposed(&change) {
                model.apply(&change);
                saved.apply(change).await;
            }
        }
        saved.done(alarm(7, 2, true)).await;
        saved.done(alarm(7, 2, false)).await;
        saved.done(alarm(9, 1, true)).await;
        if seed % 2 == 1 && model.revision - 1 > model.compacted {
            let compact = compact(model.revision - 1);
            model.apply(&compact);
            saved.done(compact).await;
        }
        let view = saved.view().await;
        save(&view, &path).await;
        let (mut restored, imported) = restore(&path, 0).await.unwrap();
        assert_eq!(
            (imported.revision, imported.leases),
            (model.revision, view.leases().await.unwrap().len() as u64)
        );
        let (mut expected, mut found) = (entries(&saved).await, entries(&restored).await);
        let (before, after) = (state(&mut expected), state(&mut found));
        assert_eq!(found, expected, "seed {seed}");
        // The entries to be removed are searched from the start. The first entry writes the sums.
        let cleaned = if before.is_cleaning() { At::default() } else { before.cleaned };
        assert_eq!(after, State { cleaned, sums: None, ..before }, "seed {seed}");
        were_cleaning += u32::from(before.is_cleaning());
        let current = restored.view().await;
        for revision in model.compacted.max(1)..=model.revision {
            assert_eq!(current.hash(revision).await.unwrap(), view.hash(revision).await.unwrap());
            let range =
                crate::proto::etcdserverpb::RangeRequest { revision, ..super::harness::range([0], [0]) };
            assert_eq!(current.range(&range).await.unwrap(), view.range(&range).await.unwrap());
        }
        // Both continue alike.
        drop((view, current));
        for node in [&mut saved, &mut restored] {
            node.done(alarm(9, 1, false)).await;
        }
        for _ in 0..100 {
            let change = random.change(&model);
            if is_proposed(&change) {
                model.apply(&change);
                assert_eq!(restored.apply(change.clone()).await, saved.apply(change).await, "seed {seed}");
            }
        }
        for node in [&mut saved, &mut restored] {
            while node.view().await.is_cleaning() {
                node.apply_command(Command(Vec::new())).await;
            }
        }
        let (expected, found) = (entries(&saved).await, entries(&restored).await);
        assert_eq!(found, expected, "seed {seed}");
    }
    assert!(were_cleaning > 2, "{were_cleaning} of the states were being cleaned");
}

#[tokio::test]
async fn the_revision_is_raised_and_history_counts_as_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let mut saved = Node::new().await;
    for number in 0..10 {
        saved.put("key", number.to_string()).await;
    }
    saved.put("gone", "value").await;
    saved.done(Change::DeleteRange(delete("gone", ""))).await;
    let revision = saved.view().await.revision();
    save(&saved.view().await, &path).await;
    let (mut restored, imported) = restore(&path, 1000).await.unwrap();
    assert_eq!((imported.revision, imported.keys), (revision + 1000, 1));
    let view = restored.view().await;
    assert_eq!((view.revision(), view.compacted()), (revision + 1000, revision + 1000));
    let found = restored.range(super::harness::range("key", "")).await.kvs;
    assert_eq!((&found[0].value[..], found[0].mod_revision, found[0].version), (&b"9"[..], 11, 10));
    assert_eq!(restored.put("key", "next").await, revision + 1001);
    while restored.view().await.is_cleaning() {
        restored.apply_command(Command(Vec::new())).await;
    }
    let left: Vec<_> = entries(&restored).await.into_keys().filter(|(name, _)| *name == "events").collect();
    assert_eq!(left.len(), 2, "the last value, and the one before that a watch may want");
    // And a snapshot of that.
    save(&restored.view().await, &path).await;
    let (again, _) = restore(&path, 0).await.unwrap();
    assert_eq!(again.view().await.hash(0).await.unwrap(), restored.view().await.hash(0).await.unwrap());
    assert!(matches!(restore(&path, u64::MAX).await, Err(Failure::Damaged(_))));
    assert!(matches!(restore(&path, i64::MAX as u64 / 2).await, Err(Failure::Damaged(_))));
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A snapshot with these keys and values of buckets, in their order.
fn write(path: &Path, buckets: &[(&str, Pairs)]) {
    let (mut writer, mut out) = (Writer::new(), Vec::new());
    for (name, pairs) in buckets {
        pairs.iter().for_each(|(key, value)| writer.add(key, value, &mut out));
        writer.end_bucket(name, &mut out);
    }
    let meta = writer.end(&mut out);
    let file = [meta.first_pages(), out].concat();
    let sum = Sha256::digest(&file);
    std::fs::write(path, [&file[..], &sum].concat()).unwrap();
}

fn at(main: i64, sub: i64) -> Vec<u8> {
    [&main.to_be_bytes()[..], b"_", &sub.to_be_bytes()].concat()
}

fn pair(key: &str, create: i64, modified: i64, version: i64, lease: i64) -> Vec<u8> {
    let (create_revision, mod_revision) = (create, modified);
    KeyValue { key: key.to_owned().into(), create_revision, mod_revision, version, value: "v".into(), lease }
        .encode_to_vec()
}

/// Files of etcd have what those of this server do not: tombstones without their puts, unfinished compactions, records without a
/// key that raise the revision, and missing leases.
#[tokio::test]
async fn files_of_etcd_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let tombstone = |main: i64| [at(main, 0), b"t".to_vec()].concat();
    let of_key = |key: &str| KeyValue { key: key.to_owned().into(), ..KeyValue::default() }.encode_to_vec();
    let keys = vec![
        (at(3, 0), pair("a", 3, 3, 1, 0)),
        (at(5, 0), pair("a", 3, 5, 2, 77)),
        (tombstone(6), of_key("b")),
        (at(6, 1), pair("c", 6, 6, 1, 0)),
        (tombstone(7), of_key("c")),
        (at(8, 0), pair("b", 8, 8, 1, 0)),
        (at(20, 0), Vec::new()),
    ];
    let meta = vec![(b"finishedCompactRev".to_vec(), at(4, 0)), (b"scheduledCompactRev".to_vec(), at(7, 0))];
    write(&path, &[("key", keys), ("meta", meta)]);
    let (mut node, imported) = restore(&path, 0).await.unwrap();
    assert_eq!(imported, ImportSummary { revision: 20, keys: 2, leases: 0 });
    let view = node.view().await;
    assert_eq!((view.revision(), view.compacted(), view.is_cleaning()), (20, 7, true));
    let found = node.range(super::harness::range([0], [0])).await.kvs;
    let found: Vec<_> = found.iter().map(|pair| (&pair.key[..], pair.mod_revision, pair.lease)).collect();
    assert_eq!(found, [(&b"a"[..], 5, 77), (b"b", 8, 0)]);
    while node.view().await.is_cleaning() {
        node.apply_command(Command(Vec::new())).await;
    }
    let events: Vec<_> =
        entries(&node).await.into_keys().filter(|(name, _)| *name == "events").map(|(_, key)| key).collect();
    let expected = [(5, 0), (6, 1), (7, 0), (8, 0)].map(|(main, sub)| At { main, sub }.key().to_vec());
    assert_eq!(events, expected, "a delete of the compacted revision stays, with what it deleted");
    // As after a restart of etcd, the key belongs to the lease if that is granted again.
    node.done(grant(77, 60)).await;
    node.done(revoke(77)).await;
    assert_eq!(node.range(super::harness::range([0], [0])).await.kvs.len(), 1);

    // The compaction extends further than the last change.
    let meta = vec![(b"finishedCompactRev".to_vec(), at(9, 0)), (b"scheduledCompactRev".to_vec(), at(9, 0))];
    write(&path, &[("key", vec![(at(3, 0), pair("a", 3, 3, 1, 0))]), ("meta", meta)]);
    let (node, _) = restore(&path, 0).await.unwrap();
    let view = node.view().await;
    assert_eq!((view.revision(), view.compacted(), view.is_cleaning()), (9, 9, false));
    write(&path, &[("key", Vec::new())]);
    let (mut node, imported) = restore(&path, 0).await.unwrap();
    assert_eq!(imported, ImportSummary { revision: 1, keys: 0, leases: 0 });
    assert_eq!(node.put("first", "v").await, 2);
}

#[tokio::test]
async fn what_no_server_writes_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("snapshot");
    let good = || (at(3, 0), pair("a", 3, 3, 1, 0));
    let lease = |id: i64, granted_s: i64| {
        let record = snapshot::LeaseRecord { id, granted_s };
        ("lease", vec![(id.to_be_bytes().to_vec(), record.encode_to_vec())])
    };
    let key = |pair: (Vec<u8>, Vec<u8>)| vec![("key", vec![pair])];
    let long = KeyValue {
        key: vec![7; 17_000].into(),
        create_revision: 3,
        mod_revision: 3,
        version: 1,
        ..Default::default()
    };
    let wide = KeyValue {
        key: vec![7].into(),
        value: vec![7; 100_000].into(),
        create_revision: 3,
        mod_revision: 3,
        version: 1,
        ..Default::default()
    };
    let auth = ("auth", vec![(b"authRevision".to_vec(), vec![1])]);
    let user = User { name: b"user".to_vec(), ..User::default() }.encode_to_vec();
    let users = ("authUsers", vec![(b"other".to_vec(), user)]);
    let bytes = Role { name: vec![0xff], ..Role::default() }.encode_to_vec();
    let roles = ("authRoles", vec![(vec![0xff], bytes)]);
    for (buckets, expected) in [
        (vec![("lease", vec![])], "it has no bucket of keys"),
        (key((b"short".to_vec(), vec![])), "is not a record of a key"),
        (key((at(-1, 0), pair("a", 3, 3, 1, 0))), "is not a record of a key"),
        (key((at(3, 1 << 32), pair("a", 3, 3, 1, 0))), "is not a record of a key"),
        (key((at(3, 0), vec![0xff])), "is not a record of a key"),
        (key((at(0, 0), pair("a", 0, 0, 1, 0))), "revision 0.0 comes after a later one"),
        (key((at(i64::MAX, 0), pair("a", 3, i64::MAX, 1, 0))), "or is none"),
        (key((at(3, 0), pair("a", 3, 4, 1, 0))), "revision 3.0 has other revisions in itself"),
        (key((at(3, 0), pair("a", 4, 3, 1, 0))), "has other revisions in itself"),
        (key((at(3, 0), pair("a", 3, 3, 0, 0))), "has other revisions in itself"),
        // The next put of the key overflowed.
        (key((at(3, 0), pair("a", 3, 3, i64::MAX, 0))), "has the version 9223372036854775807, and no key"),
        (key((at(3, 0), pair("a", 3, 3, i64::MAX / 2, 0))), "and no key was put so often"),
        (key((at(3, 0), pair("", 3, 3, 1, 0))), "has a key of 0 bytes"),
        (key((at(3, 0), long.encode_to_vec())), "has a key of 17000 bytes"),
        (key((at(3, 0), wide.encode_to_vec())), "has a value of 100000 bytes"),
        (vec![("key", vec![good()]), lease(0, 5)], "the lease 0 of 5 s is none"),
        (vec![("key", vec![good()]), lease(1, -5)], "the lease 1 of -5 s is none"),
        (vec![("key", vec![good()]), ("lease", vec![(vec![1], vec![])])], "is not a lease"),
        (
            vec![("key", vec![good()]), ("meta", vec![(b"scheduledCompactRev".to_vec(), vec![1])])],
            "is not a revision",
        ),
        (vec![auth, ("key", vec![good()])], "its authRevision is not a revision"),
        (vec![users, ("key", vec![good()])], "is not a record of authUsers"),
        (vec![roles, ("key", vec![good()])], "is not a name"),
    ] {
        write(&path, &buckets);
        match restore(&path, 0).await {
            Err(Failure::Damaged(text)) => {
                assert!(text.starts_with(&path.display().to_string()) && text.contains(expected), "{text}");
            }
            Err(failure) => panic!("{failure:?}, not {expected}"),
            Ok((_, imported)) => panic!("{imported:?}, not {expected}"),
        }
    }
}
