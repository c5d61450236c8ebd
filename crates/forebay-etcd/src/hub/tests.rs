//! The hub alone: what is queued, when a watch falls behind, and that it misses nothing.

use forebay_test::draw;

use super::*;
use crate::proto::mvccpb::KeyValue;

fn event(key: &str, revision: i64, bytes: usize) -> Event {
    let kv = KeyValue {
        key: key.to_owned().into(),
        mod_revision: revision,
        value: vec![7; bytes].into(),
        ..Default::default()
    };
    Event { kv: Some(kv), ..Default::default() }
}

fn wanted(key: &str, end: &str) -> EventFilter {
    let keys = Keys::of(key.as_bytes(), end.as_bytes()).unwrap();
    EventFilter { keys, puts: true, deletes: true }
}

fn revisions(taken: &VecDeque<Group>) -> Vec<i64> {
    taken.iter().map(|group| group.revision).collect()
}

#[test]
fn keys_are_one_a_range_or_all_that_follow() {
    let contains = |key: &str, end: &str, other: &str| {
        Keys::of(key.as_bytes(), end.as_bytes()).unwrap().contains(other.as_bytes())
    };
    assert!(contains("a", "", "a") && !contains("a", "", "aa"));
    assert!(contains("a", "c", "a") && contains("a", "c", "bzz") && !contains("a", "c", "c"));
    assert!(contains("b", "\0", "b") && contains("b", "\0", "zzz") && !contains("b", "\0", "a"));
    assert!(contains("", "\0", "\u{1}"));
    // All keys with a common prefix.
    assert!(contains("a/", "a0", "a/") && contains("a/", "a0", "a/b") && !contains("a/", "a0", "a0"));
    assert!(!contains("a/", "a0", "a") && !contains("a/", "a0", "a."));
    let odd = Keys::of(b"a\xff", b"b").unwrap();
    assert_eq!(
        (odd.end.clone(), Keys::of(b"a\xff", b"b\0").unwrap().end),
        (End::Prefix, End::Before(b"b\0".to_vec()))
    );
    assert!(odd.contains(b"a\xff\xff") && !odd.contains(b"a\xfe") && !odd.contains(b"b"));
    assert_eq!(Keys::of(b"b", b"a"), None);
    assert_eq!(Keys::of(b"b", b"b"), None);
}

#[test]
fn each_watch_gets_its_keys_events_with_whole_revisions() {
    let (hub, bell) = (Hub::default(), Arc::default());
    hub.publish(5, Vec::new());
    let (one, at) = hub.add(1, wanted("a", ""), 0, &bell);
    assert_eq!(at, 5);
    let (range, _) = hub.add(2, wanted("a", "c"), 0, &bell);
    let (late, _) = hub.add(3, wanted("a", "\0"), 8, &bell);
    let (past, _) = hub.add(4, wanted("a", "\0"), 3, &bell);
    hub.publish(6, vec![event("a", 6, 1), event("b", 6, 1), event("c", 6, 1)]);
    hub.publish(7, vec![event("z", 7, 1)]);
    hub.publish(8, vec![event("b", 8, 1)]);
    assert_eq!(revisions(&hub.take(&one)), [6]);
    let taken = hub.take(&range);
    assert_eq!((revisions(&taken), taken[0].events.len()), (vec![6, 8], 2));
    assert_eq!(revisions(&hub.take(&late)), [8]);
    // It is behind, and the hub keeps nothing for it.
    assert_eq!((revisions(&hub.take(&past)), past.behind_from()), (vec![], Some(3)));
    assert!(!hub.caught_up(&past, 7), "the hub is at 8");
    assert!(hub.caught_up(&past, 9));
    hub.publish(9, vec![event("b", 9, 1)]);
    assert_eq!(revisions(&hub.take(&past)), [9]);
    for watch in [&one, &range, &late, &past] {
        hub.remove(watch);
    }
    hub.remove(&past);
    assert_eq!(hub.lock().count, 0);
}

/// Once, each removal moved all later watches of the same keys: a client's end with 50,000 of them moved ten gigabytes under the lock.
#[test]
fn watches_of_the_same_keys_are_removed_in_any_order() {
    for keys in [wanted("a", ""), wanted("a", "b"), wanted("a", "c")] {
        let (hub, bell) = (Hub::default(), Arc::default());
        let add = |id| hub.add(id, keys.clone(), 0, &bell).0;
        let mut watches: Vec<_> = (0..20).map(add).collect();
        let mut revision = 0;
        for step in [0, 7, 3, 16, 1] {
            hub.remove(&watches.remove(step % watches.len()));
            watches.push(add(20 + revision));
            hub.remove(&watches.remove(watches.len() / 2));
            revision += 1;
            hub.publish(revision, vec![event("a", revision, 1)]);
            assert_eq!(hub.lock().watches.values().count(), watches.len());
            assert!(watches.iter().all(|watch| revisions(&hub.take(watch)) == [revision]));
        }
        watches.iter().for_each(|watch| hub.remove(watch));
        assert_eq!(hub.lock().count, 0);
        assert_eq!(hub.lock().watches.values().count(), 0);
        assert!(hub.lock().watches.lengths.is_empty());
    }
}

/// Once, an event was compared with each range that started before its key: with 5,000 clients of a prefix each, with thousands.
#[test]
fn prefixes_of_every_length_get_their_events() {
    let (hub, bell) = (Hub::default(), Arc::default());
    let of = |key: &str, end: &str| hub.add(1, wanted(key, end), 0, &bell).0;
    let watches = [
        ("a/", "a0"),
        ("a/b/", "a/b0"),
        ("a/b/", "a/b0"),
        ("a/c/", "a/c0"),
        ("a", "b"),
        ("a/b/c/d", "a/b/c/e"),
    ];
    let watches = watches.map(|(key, end)| (of(key, end), key));
    for (revision, key) in (1..).zip(["a/b/c", "a/", "a", "a/b/c/d", "a/c/", "b"]) {
        hub.publish(revision, vec![event(key, revision, 1)]);
        for (watch, prefix) in &watches {
            assert_eq!(hub.take(watch).len(), usize::from(key.starts_with(prefix)), "{key} for {prefix}");
        }
    }
}

/// Returns a name of up to three letters.
fn name(random: &mut draw::Random) -> Vec<u8> {
    (0..random.below(4)).map(|_| b'a' + random.below(6) as u8).collect()
}

/// Once, an event was compared with each range that started before its key, under the lock that all watches share.
#[test]
fn ranges_are_found_as_by_comparing_each() {
    let (mut random, mut by_keys) = (draw::Random(7), ByKeys::default());
    // The keys of each value, and its place among those of the same keys.
    let mut all: BTreeMap<u64, (Keys, usize)> = BTreeMap::new();
    for step in 0..20_000_u64 {
        // They become more for a while, and then fewer.
        let is_growing = (step / 1_000).is_multiple_of(2);
        if (random.below(4) > 0) == is_growing {
            let start = name(&mut random);
            let end = if random.below(8) == 0 { vec![0] } else { name(&mut random) };
            if let Some(keys) = Keys::of(&start, &end) {
                let place = by_keys.insert(&keys, step);
                all.insert(step, (keys, place));
            }
        } else if !all.is_empty() {
            let at = random.below(all.len() as u64) as usize;
            let value = *all.keys().nth(at).unwrap();
            let (keys, place) = all.remove(&value).unwrap();
            by_keys.remove(&keys, place, |moved| all.get_mut(moved).unwrap().1 = place);
        }
        let key = name(&mut random);
        let mut found: Vec<u64> = by_keys.of(&key).copied().collect();
        found.sort_unstable();
        let expected = all.iter().filter(|(_, (keys, _))| keys.contains(&key)).map(|(value, _)| *value);
        assert_eq!(found, expected.collect::<Vec<_>>(), "step {step}, key {key:?}");
    }
}

/// A client that does not read: its watch continues from the revision that did not fit, and no revision is split.
#[test]
fn a_full_queue_falls_behind_by_whole_revisions() {
    let (hub, bell) = (Hub::default(), Arc::default());
    let (watch, _) = hub.add(1, wanted("a", "\0"), 0, &bell);
    let big = QUEUE_BYTES_MAX / 3;
    hub.publish(1, vec![event("a", 1, big)]);
    hub.publish(2, vec![event("a", 2, big), event("b", 2, big)]);
    hub.publish(3, vec![event("a", 3, 1)]);
    assert_eq!((revisions(&hub.take(&watch)), watch.behind_from()), (vec![1], Some(2)));
    assert!(hub.caught_up(&watch, 4));
    hub.publish(4, vec![event("a", 4, 2 * QUEUE_BYTES_MAX)]);
    assert_eq!(revisions(&hub.take(&watch)), [4], "one alone is queued at any length");
}

/// Story: a client with thousands of watches of all keys on one stream did not read. Each had a queue, of a megabyte without the places of
/// its events: together gigabytes, of short events several times as many, and the server was ended for lack of memory.
#[test]
fn the_queues_of_a_stream_have_a_limit_together() {
    let (hub, bell, other) = (Hub::default(), Arc::<Bell>::default(), Arc::<Bell>::default());
    let watches: Vec<_> = (0..1000).map(|id| hub.add(id, wanted("a", "\0"), 0, &bell).0).collect();
    let (reader, _) = hub.add(1, wanted("a", "\0"), 0, &other);
    let puts = (2 * STREAM_BYTES_MAX / EVENT_BYTES / watches.len()) as i64;
    for revision in 1..=puts {
        hub.publish(revision, vec![event("a", revision, 1)]);
    }
    let queued = hub.counts.pending.load(Ordering::Relaxed) as usize - hub.take(&reader).len();
    assert!(queued * EVENT_BYTES <= STREAM_BYTES_MAX, "{queued} events");
    assert_eq!(reader.behind_from(), None, "a watch of another stream");
    for watch in &watches[1..] {
        let taken = hub.take(watch);
        assert_eq!(revisions(&taken), (1..watch.behind_from().unwrap()).collect::<Vec<_>>());
        assert!(hub.caught_up(watch, puts + 1));
    }
    hub.remove(&watches[0]);
    assert_eq!(bell.queued_bytes.load(Ordering::Relaxed), 0);
    hub.publish(puts + 1, vec![event("a", puts + 1, 1)]);
    assert!(watches[1..].iter().all(|watch| revisions(&hub.take(watch)) == [puts + 1]));
}

/// A snapshot replaced the state: events between are in no entry that this member applied.
#[test]
fn a_skip_leaves_watches_behind_from_where_they_were() {
    let (hub, bell) = (Hub::default(), Arc::default());
    let (watch, _) = hub.add(1, wanted("a", ""), 0, &bell);
    let (future, _) = hub.add(2, wanted("a", ""), 50, &bell);
    hub.publish(1, vec![event("a", 1, 1)]);
    assert_eq!(revisions(&hub.take(&watch)), [1]);
    hub.publish(2, vec![event("z", 2, 1)]);
    hub.skip_to(20);
    assert_eq!((revisions(&hub.take(&watch)), watch.behind_from()), (vec![], Some(3)));
    assert_eq!(future.behind_from(), None);
    hub.skip_to(10);
    assert_eq!(hub.revision(), 20);
}

#[test]
fn progress_is_known_when_all_is_handed_out() {
    let (hub, bell) = (Hub::default(), Arc::default());
    let (one, _) = hub.add(1, wanted("a", ""), 0, &bell);
    let (two, _) = hub.add(2, wanted("b", ""), 0, &bell);
    hub.publish(1, vec![event("a", 1, 1)]);
    assert_eq!(hub.progress([&one, &two].into_iter()), None);
    assert_eq!(hub.progress([&two].into_iter()), Some(1));
    hub.take(&one);
    assert_eq!(hub.progress([&one, &two].into_iter()), Some(1));
}

#[tokio::test]
async fn a_bell_rings_for_the_first_event_and_for_falling_behind() {
    let (hub, bell) = (Hub::default(), Arc::<Bell>::default());
    let (watch, _) = hub.add(7, wanted("a", ""), 0, &bell);
    hub.publish(1, vec![event("a", 1, 1)]);
    hub.publish(2, vec![event("a", 2, 1)]);
    assert_eq!(bell.rung().await, [7]);
    assert!(futures_util::FutureExt::now_or_never(bell.rung()).is_none());
    hub.take(&watch);
    hub.skip_to(9);
    assert_eq!(bell.rung().await, [7]);
}
