use std::collections::BTreeMap;

use forebay_test::draw::Random;

use super::bloom::{self, Hash};
use super::build::{Content, common, separator};
use super::*;

mod packed_fuzz;
mod packed_leaves;

const HERE: Identity = Identity { table: 7, position: 21, level: LEAF };

#[derive(Clone, Debug)]
enum Thing {
    Inline(Vec<u8>, Option<u64>),
    Blob(BlobAt, Option<u64>),
    Deleted,
}

impl Thing {
    fn random(random: &mut Random) -> Thing {
        let expires_s = (random.below(3) == 0).then(|| random.word());
        match random.below(4) {
            0 => Thing::Deleted,
            1 => {
                let (offset, len) = (random.below(1 << 40), random.below(16 << 20) as u32);
                let value_len = len + if random.below(2) == 0 { 0 } else { 1 + random.below(1000) as u32 };
                let value_len = if value_len as usize > VALUE_BYTES_MAX { len } else { value_len };
                let file = if random.below(2) == 0 { 0 } else { random.word() as u32 };
                let crc = random.word() as u32;
                Thing::Blob(BlobAt { file, offset, len, crc, value_len }, expires_s)
            }
            _ => {
                let len = random.below(60);
                Thing::Inline(random.bytes(len), expires_s)
            }
        }
    }

    fn content(&self) -> Content<'_> {
        match self {
            Thing::Inline(bytes, expires_s) => Content::Inline { bytes, expires_s: *expires_s },
            Thing::Blob(at, expires_s) => Content::Blob { at: *at, expires_s: *expires_s },
            Thing::Deleted => Content::Deleted,
        }
    }

    fn assert_is(&self, node: &[u8], entry: &read::Entry) {
        match (self, &entry.payload) {
            (Thing::Inline(bytes, expires_s), Payload::Inline(range)) => {
                assert_eq!((&node[range.clone()], entry.expires_s), (&bytes[..], *expires_s));
            }
            (Thing::Blob(at, expires_s), Payload::Blob(found)) => {
                assert_eq!((at, expires_s), (found, &entry.expires_s));
            }
            (Thing::Deleted, Payload::Deleted) => assert_eq!(entry.expires_s, None),
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a leaf of random records, as many as fit, and the records.
fn leaf(random: &mut Random) -> (Vec<u8>, BTreeMap<Vec<u8>, Thing>) {
    let len = random.below(12);
    let prefix = random.bytes(len);
    let mut all = BTreeMap::new();
    for _ in 0..random.below(120) + 1 {
        let len = random.below(20) + 1;
        all.insert([&prefix[..], &random.bytes(len)].concat(), Thing::random(random));
    }
    let mut builder = Builder::default();
    let mut model = BTreeMap::new();
    for (key, thing) in all {
        let content = thing.content();
        let len = builder.len_with(&key, content.len());
        if len > UNIT {
            break;
        }
        builder.push(&key, content);
        assert_eq!(builder.len(), len);
        model.insert(key, thing);
    }
    let mut node = vec![0; UNIT];
    assert!(builder.finish(&mut node, HERE) && builder.is_empty());
    (node, model)
}

#[test]
fn what_was_built_is_read_and_found() {
    let mut random = Random(1);
    for _ in 0..300 {
        let (bytes, model) = leaf(&mut random);
        let node = Node::checked(&bytes, HERE).unwrap();
        node.check_records().unwrap();
        assert_eq!(node.count(), model.len());
        let mut key = Vec::new();
        for (index, (expected, thing)) in model.iter().enumerate() {
            node.key(index, &mut key).unwrap();
            assert_eq!(&key, expected);
            assert_eq!(node.search(&key).unwrap(), Ok(index));
            thing.assert_is(&bytes, &node.entry(index).unwrap());
        }
        for _ in 0..50 {
            let len = random.below(16);
            let mut key = random.bytes(len);
            if random.below(2) == 0 {
                key.splice(0..0, node.prefix().iter().copied());
            }
            let below = model.range(..key.clone()).count();
            let expected = if model.contains_key(&key) { Ok(below) } else { Err(below) };
            assert_eq!(node.search(&key).unwrap(), expected);
        }
        assert!(node.entry(model.len()).is_err() && node.suffix(usize::MAX).is_err());
    }
}

#[test]
fn four_records_of_16_and_1000_bytes_fit_as_soon_as_a_byte_is_common() {
    let value = [1; 1000];
    let content = Content::Inline { bytes: &value, expires_s: None };
    let fits = |keys: [[u8; 16]; 4]| {
        let mut builder = Builder::default();
        for key in &keys {
            builder.push(key, content);
        }
        builder.len() <= UNIT
    };
    let key = |front: [u8; 2], last: u8| {
        let mut key = [9; 16];
        key[..2].copy_from_slice(&front);
        key[15] = last;
        key
    };
    assert!(fits([key([1, 1], 0), key([1, 2], 0), key([1, 3], 0), key([1, 4], 0)]));
    assert!(!fits([key([1, 1], 0), key([1, 2], 0), key([1, 3], 0), key([2, 1], 0)]));
}

#[test]
fn every_flipped_bit_and_every_other_node_is_noticed() {
    let (bytes, _) = leaf(&mut Random(5));
    check(&bytes, HERE).unwrap();
    let mut damaged = bytes.clone();
    for bit in 0..UNIT * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&damaged, HERE).is_err(), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    for other in [
        Identity { table: 8, ..HERE },
        Identity { position: 20, ..HERE },
        Identity { level: 1, ..HERE },
        Identity { level: FILTER, ..HERE },
    ] {
        assert!(check(&bytes, other).is_err() && !is(&bytes, other), "{other:?}");
    }
    assert_eq!(check(&vec![0; UNIT], HERE), Err("zeros stand where a node should"));
    assert!(check(&[], HERE).is_err() && check(&bytes[..UNIT - 1], HERE).is_err());
    assert!(check(&[&bytes[..], &bytes[..]].concat(), HERE).is_err());
}

/// Nodes with a correct checksum and wrong fields: reads return results or errors, and never panic or return
/// a place outside of the node.
#[test]
fn nonsense_with_a_right_checksum_is_no_panic() {
    let mut random = Random(9);
    for round in 0..20_000 {
        let (mut bytes, _) =
            if round % 50 == 0 { leaf(&mut random) } else { (vec![0; UNIT], BTreeMap::new()) };
        for _ in 0..random.below(40) + 1 {
            let at = match random.below(3) {
                0 => 14 + random.below(12),
                1 => 14 + random.below(400),
                _ => random.below(UNIT as u64),
            };
            bytes[at as usize] =
                if random.below(2) == 0 { random.below(8) as u8 } else { random.word() as u8 };
        }
        seal(&mut bytes, HERE);
        let Ok(node) = Node::checked(&bytes, HERE) else { continue };
        let mut key = Vec::new();
        for index in (0..node.count()).take(64).chain([node.count()]) {
            let _ = (node.suffix(index), node.key(index, &mut key), node.child(index));
            if let Ok(read::Entry { payload: Payload::Inline(range), .. }) = node.entry(index) {
                assert!(bytes.get(range).is_some());
            }
        }
        let _ = (node.search(&random.bytes(3)), node.search_child(b""), node.check_records());
    }
}

#[test]
fn an_inner_node_leads_to_the_child() {
    let mut builder = Builder::default();
    let child = |position| Child { position, units: 1 };
    for (index, separator) in ["", "b", "dd", "f"].iter().enumerate() {
        builder.push(separator.as_bytes(), Content::Child(child(index as u32 + 1)));
    }
    let here = Identity { level: 1, ..HERE };
    let mut bytes = vec![0; UNIT];
    assert!(builder.finish(&mut bytes, here));
    let node = Node::checked(&bytes, here).unwrap();
    for (key, position) in [("a", 1), ("b", 2), ("c", 2), ("d", 2), ("dd", 3), ("e", 3), ("zz", 4)] {
        let index = node.search_child(key.as_bytes()).unwrap();
        assert_eq!(node.child(index).unwrap(), child(position), "{key}");
    }
}

#[test]
fn children_are_encoded_and_nonsense_is_none() {
    for child in [Child { position: 1, units: 1 }, Child { position: u32::MAX - 9, units: 9 }] {
        assert_eq!(Child::decode(child.encode()), Some(child));
    }
    for word in [0, 1, 1 << 56, 1 | 10 << 56, 1 << 40 | 1 << 56 | 1, u64::MAX, u64::from(u32::MAX) | 1 << 56]
    {
        assert_eq!(Child::decode(word), None, "{word:x}");
    }
}

#[test]
fn separators_separate_and_are_short() {
    let mut random = Random(3);
    for _ in 0..2000 {
        let mut keys = [(); 2].map(|()| {
            let len = random.below(6) + 1;
            (0..len).map(|_| random.below(3) as u8).collect::<Vec<_>>()
        });
        keys.sort();
        let [below, key] = &keys;
        if below == key {
            continue;
        }
        let separator = separator(below, key);
        assert!(below.as_slice() < separator && separator <= key.as_slice());
        assert_eq!(separator.len(), common(below, key) + 1);
    }
    let long = vec![7; 100];
    assert_eq!((common(&long, &long), common(&long, &long[..33]), common(b"", &long)), (100, 33, 0));
}

#[test]
fn a_filter_forgets_no_key_and_knows_ninety_eight_of_a_hundred_others() {
    for keys in [1u64, 100, 3225, 3226, 50_000] {
        let partitions = bloom::partitions(keys);
        let mut bytes = vec![vec![0; UNIT]; partitions as usize];
        let hash = |key: u64| Hash::of(&key.to_be_bytes());
        for key in 0..keys {
            let hash = hash(key);
            bloom::insert(&mut bytes[hash.partition(partitions) as usize], hash, partitions);
        }
        let says = |key| {
            let hash = hash(key);
            bloom::contains(&bytes[hash.partition(partitions) as usize], hash, partitions)
        };
        assert!((0..keys).all(says), "{keys}");
        let wrong = (1 << 40..(1 << 40) + 20_000).filter(|key| says(*key)).count();
        assert!(wrong < 400, "{wrong} of 20,000 for {keys} keys");
        assert!(bytes.iter().all(|partition| partition[..64].iter().all(|byte| *byte == 0)));
    }
    assert_eq!((bloom::partitions(3225), bloom::partitions(3226)), (1, 2));
    assert!(bloom::contains(&[], Hash(1), 1), "a partition that is not there knows nothing");
}
