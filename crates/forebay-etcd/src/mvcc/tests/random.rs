//! Thousands of random requests, compared with the model.

use forebay_test::draw;

use super::harness::{Node, compact, delete, grant, operation, put, raise, range, revoke, txn};
use super::model::Model;
use crate::mvcc::{Failure, View, is_in_key_order};
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
};
use crate::proto::peer::Clean;
use crate::proto::peer::command::Change;

/// Random numbers of a seed, and requests with them.
pub(super) struct Random {
    numbers: draw::Random,
    /// The number of bytes that occur in keys, and the length of keys.
    bytes: u64,
    length: u64,
    /// Whether changes raise the state's format.
    raises: bool,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { numbers: draw::Random(seed), bytes: 5, length: 3, raises: false }
    }

    /// With changes that raise the state's format, of every other seed.
    pub(super) fn raising(seed: u64) -> Random {
        Random { raises: seed % 2 == 1, ..Random::new(seed) }
    }

    /// At most twelve keys: etcd's sort keeps the order of equal keys up to this number.
    pub(super) fn with_few_keys(seed: u64) -> Random {
        Random { bytes: 3, length: 2, ..Random::new(seed) }
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.numbers.below(limit)
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    /// A key: few of them, with zeros, and some a prefix of another.
    fn key(&mut self) -> Vec<u8> {
        const BYTES: [u8; 5] = [0, b'a', 255, 1, b'b'];
        (0..=self.below(self.length)).map(|_| BYTES[self.below(self.bytes) as usize]).collect()
    }

    /// The end of a range.
    fn end(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => vec![0],
            1 => Vec::new(),
            _ => self.key(),
        }
    }

    fn lease(&mut self) -> i64 {
        [0, 0, 1, 2, 3, -4][self.below(6) as usize]
    }

    fn put(&mut self) -> PutRequest {
        let value = vec![b'v'; self.below(4) as usize * if self.one_in(50) { 5000 } else { 1 }];
        let mut request = put(self.key(), [&value[..], &self.below(5).to_string().into_bytes()].concat());
        request.prev_kv = self.one_in(2);
        request.ignore_value = self.one_in(6);
        request.ignore_lease = self.one_in(6);
        if request.ignore_value {
            request.value.clear();
        }
        if !request.ignore_lease {
            request.lease = self.lease();
        }
        request
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        let end = if self.one_in(3) { self.end() } else { Vec::new() };
        DeleteRangeRequest { prev_kv: self.one_in(2), ..delete(self.key(), end) }
    }

    fn revision(&mut self, model: &Model) -> i64 {
        self.below(model.revision as u64 + 4) as i64 - 1
    }

    pub(super) fn range(&mut self, model: &Model) -> RangeRequest {
        let mut request = range(self.key(), self.end());
        if self.one_in(4) {
            request = range([0], [0]);
        }
        if self.one_in(2) {
            request.revision = self.revision(model);
        } else if self.one_in(3) {
            request.revision = model.revision;
        }
        request.limit = [0, 0, 1, 2, 5, i64::MAX][self.below(6) as usize];
        request.sort_order = self.below(3) as i32;
        request.sort_target = self.below(5) as i32;
        request.keys_only = self.one_in(4);
        request.count_only = self.one_in(6);
        for filter in [
            &mut request.min_mod_revision,
            &mut request.max_mod_revision,
            &mut request.min_create_revision,
            &mut request.max_create_revision,
        ] {
            if self.one_in(8) {
                *filter = self.revision(model);
            }
        }
        request
    }

    fn compare(&mut self, model: &Model) -> Compare {
        let target = self.below(5) as i32;
        let union = match CompareTarget::try_from(target).unwrap() {
            CompareTarget::Version => TargetUnion::Version(self.below(4) as i64),
            CompareTarget::Create => TargetUnion::CreateRevision(self.revision(model)),
            CompareTarget::Mod => TargetUnion::ModRevision(self.revision(model)),
            CompareTarget::Value => TargetUnion::Value(self.below(5).to_string().into_bytes()),
            CompareTarget::Lease => TargetUnion::Lease(self.lease()),
        };
        let result = self.below(4) as i32;
        CompareResult::try_from(result).unwrap();
        let range_end = if self.one_in(3) { self.end() } else { Vec::new() };
        Compare { result, target, key: self.key(), target_union: Some(union), range_end }
    }

    fn operations(&mut self, model: &Model, depth: u32) -> Vec<RequestOp> {
        let count = self.below(4);
        (0..count)
            .map(|_| match self.below(7) {
                0 | 1 => operation(self.put()),
                2 => operation(self.delete()),
                3 if depth < 3 => operation(self.txn(model, depth + 1)),
                _ => operation(self.range(model)),
            })
            .collect()
    }

    fn txn(&mut self, model: &Model, depth: u32) -> TxnRequest {
        let compares = self.below(3);
        let compares = (0..compares).map(|_| self.compare(model)).collect();
        txn(compares, self.operations(model, depth), self.operations(model, depth))
    }

    pub(super) fn change(&mut self, model: &Model) -> Change {
        if self.raises && self.one_in(40) {
            return raise();
        }
        match self.below(20) {
            0..=7 => Change::Put(self.put()),
            8..=10 => Change::DeleteRange(self.delete()),
            11..=15 => Change::Txn(self.txn(model, 0)),
            16 if self.one_in(3) => Change::Clean(Clean {}),
            16 => compact(self.revision(model)),
            17 | 18 => {
                grant([1, 2, 3, -4][self.below(4) as usize], if self.one_in(9) { i64::MAX } else { 60 })
            }
            _ => revoke([1, 2, 3, -4, 5][self.below(5) as usize]),
        }
    }
}

/// Reads a range as the server sends long responses.
async fn pair_by_pair(view: &View, request: &RangeRequest) -> Result<RangeResponse, Failure> {
    let (mut pairs, mut kvs) = (view.pairs(request).await?, Vec::new());
    while let Some(pair) = pairs.next().await? {
        kvs.push(pair);
    }
    let (more, count) = pairs.count_rest().await?;
    Ok(RangeResponse { header: None, kvs, more, count })
}

/// The rule is etcd's own: a transaction that puts a key twice, or deletes and puts it, does not get here.
pub(super) fn is_proposed(change: &Change) -> bool {
    match change {
        Change::Txn(txn) => crate::mvcc::check_txn(txn, &crate::mvcc::Limits::default()).is_ok(),
        Change::Put(put) => crate::mvcc::check_put(put).is_ok(),
        _ => true,
    }
}

async fn run(seed: u64, changes: usize) {
    let (mut random, mut node, mut model) = (Random::raising(seed), Node::new().await, Model::new());
    let mut made = 0;
    while made < changes {
        let count = if random.one_in(3) { 2 + random.below(6) as usize } else { 1 };
        let (mut group, mut expected, mut events) = (Vec::new(), Vec::new(), Vec::new());
        while group.len() < count {
            let change = random.change(&model);
            if is_proposed(&change) {
                expected.push(model.apply(&change));
                events.extend((!model.last.is_empty()).then(|| model.last.clone()));
                group.push(change);
            }
        }
        made += count;
        let applied = node.apply_all(&group).await;
        assert_eq!(applied, (expected, events), "seed {seed}, changes until {made}: {group:?}");
        if random.one_in(40) {
            if random.one_in(2) {
                node.store.flush().await.unwrap();
            } else {
                node.reopen().await;
            }
        }
        let view = node.view().await;
        assert_eq!((view.revision(), view.compacted()), (model.revision, model.compacted));
        for _ in 0..3 {
            let request = random.range(&model);
            let refused = |failure| match failure {
                Failure::Refused(refusal) => refusal,
                failure => panic!("{failure:?}"),
            };
            let found = view.range(&request).await.map_err(refused);
            assert_eq!(found, model.range(&request), "seed {seed}, change {made}: {request:?}");
            if is_in_key_order(&request) {
                let read = pair_by_pair(&view, &request).await.map_err(refused);
                assert_eq!(read, found, "seed {seed}, change {made}: {request:?}");
            }
        }
        if random.one_in(10) {
            let from = random.revision(&model);
            let bytes_max = random.below(2000) as usize;
            compare_events(&node, &model, from, bytes_max).await;
        }
        for id in [1, 2, 3, -4, 5] {
            assert_eq!(view.lease(id).await.unwrap(), model.leases.get(&id).copied());
            assert_eq!(view.lease_keys(id).await.unwrap(), model.lease_keys(id));
        }
    }
    let mut leases = node.view().await.leases().await.unwrap();
    leases.sort_unstable();
    assert_eq!(leases, model.leases.into_iter().collect::<Vec<_>>());
}

async fn compare_events(node: &Node, model: &Model, mut from: i64, bytes_max: usize) {
    let view = node.view().await;
    let wanted = |key: &[u8]| key[0] != b'a';
    if from < model.compacted {
        let refused = view.events(from, wanted, bytes_max).await;
        assert!(matches!(refused, Err(Failure::Refused(crate::refusal::Refusal::Compacted))));
        return;
    }
    let mut expected = model.events(from);
    expected.retain(|event| wanted(&event.kv.as_ref().unwrap().key));
    let mut events = Vec::new();
    while from <= model.revision {
        let (found, next) = view.events(from, wanted, bytes_max).await.unwrap();
        assert!(next > from);
        assert!(found.iter().all(|event| (from..next).contains(&event.kv.as_ref().unwrap().mod_revision)));
        events.extend(found);
        from = next;
    }
    assert_eq!(events, expected);
}

#[tokio::test]
async fn random_requests_give_what_the_model_gives() {
    for seed in 1..=4 {
        run(seed, 700).await;
    }
}

/// Longer: `cargo test -p forebay-etcd --release -- --ignored many_random`.
#[tokio::test]
#[ignore = "it takes minutes"]
async fn many_random_requests_give_what_the_model_gives() {
    for seed in 100..160 {
        run(seed, 2000).await;
    }
}
