//! A naive model of etcd: all events since the start, which are scanned for each request.

use std::collections::BTreeMap;

use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::response_op;
use crate::proto::etcdserverpb::*;
use crate::proto::mvccpb::{Event, KeyValue};
use crate::proto::peer::command::Change;
use crate::proto::peer::outcome::Result as Response;
use crate::proto::peer::{Done, Outcome};
use crate::refusal::Refusal;

type Map = BTreeMap<Vec<u8>, KeyValue>;

#[derive(Clone)]
pub(super) struct Model {
    pub(super) revision: i64,
    pub(super) compacted: i64,
    /// Main revisions and events, in order.
    pub(super) history: Vec<(i64, Event)>,
    pub(super) leases: BTreeMap<i64, i64>,
    /// Events of the last entry.
    pub(super) last: Vec<Event>,
    /// Events of the entry that is applied.
    fresh: Vec<Event>,
    now: Map,
    before: Map,
    /// Why the transaction that is carried out cannot be.
    refusal: Option<Refusal>,
}

impl Model {
    pub(super) fn new() -> Model {
        let (history, leases, now, before) = (Vec::new(), BTreeMap::new(), Map::new(), Map::new());
        let (last, fresh) = (Vec::new(), Vec::new());
        Model { revision: 1, compacted: -1, history, leases, last, fresh, now, before, refusal: None }
    }

    pub(super) fn apply(&mut self, change: &Change) -> Outcome {
        let saved = self.clone();
        self.before = self.now.clone();
        self.last.clear();
        let result = match self.carry_out(change) {
            Ok(result) => {
                self.revision += i64::from(!self.fresh.is_empty());
                let revision = self.revision;
                self.history.extend(self.fresh.iter().map(|event| (revision, event.clone())));
                self.last = std::mem::take(&mut self.fresh);
                result
            }
            Err(refusal) => {
                *self = saved;
                self.last.clear();
                Response::Refusal(refusal.into())
            }
        };
        Outcome { revision: self.revision, result: Some(result) }
    }

    fn carry_out(&mut self, change: &Change) -> Result<Response, Refusal> {
        Ok(match change {
            Change::Put(request) => {
                self.check_lease(request)?;
                self.check_before(request)?;
                Response::Put(self.put(request))
            }
            Change::DeleteRange(request) => Response::DeleteRange(self.delete(request)),
            Change::Txn(request) => {
                self.check_txn(request)?;
                let response = self.txn(request);
                if let Some(refusal) = self.refusal.take() {
                    return Err(refusal);
                }
                Response::Txn(response)
            }
            Change::Compact(request) => {
                if request.revision <= self.compacted {
                    return Err(Refusal::Compacted);
                }
                if request.revision > self.revision {
                    return Err(Refusal::FutureRevision);
                }
                self.compacted = request.revision;
                Response::Done(Done::default())
            }
            Change::LeaseGrant(request) => {
                if request.ttl > 9_000_000_000 {
                    return Err(Refusal::LeaseTtlTooLarge);
                }
                if self.leases.contains_key(&request.id) {
                    return Err(Refusal::LeaseExists);
                }
                self.leases.insert(request.id, request.ttl);
                Response::Done(Done::default())
            }
            Change::LeaseRevoke(request) => {
                self.leases.remove(&request.id).ok_or(Refusal::LeaseNotFound)?;
                for key in self.lease_keys(request.id) {
                    self.delete_key(&key);
                }
                Response::Done(Done::default())
            }
            Change::Attributes(_)
            | Change::Alarm(_)
            | Change::Clean(_)
            | Change::Checkpoint(_)
            | Change::Auth(_)
            | Change::Format(_) => Response::Done(Done::default()),
        })
    }

    pub(super) fn lease_keys(&self, id: i64) -> Vec<Vec<u8>> {
        self.now.values().filter(|pair| pair.lease == id).map(|pair| pair.key.to_vec()).collect()
    }

    fn seen_revision(&self) -> i64 {
        self.revision + i64::from(!self.fresh.is_empty())
    }

    fn header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.seen_revision(), ..Default::default() })
    }

    fn check_lease(&self, request: &PutRequest) -> Result<(), Refusal> {
        let is_there = request.lease == 0 || self.leases.contains_key(&request.lease);
        if is_there { Ok(()) } else { Err(Refusal::LeaseNotFound) }
    }

    fn check_before(&self, request: &PutRequest) -> Result<(), Refusal> {
        let keeps = request.ignore_value || request.ignore_lease;
        if keeps && !self.before.contains_key(&request.key) { Err(Refusal::KeyNotFound) } else { Ok(()) }
    }

    fn put(&mut self, request: &PutRequest) -> PutResponse {
        let prev = self.now.get(&request.key).cloned();
        if prev.is_none() && (request.ignore_value || request.ignore_lease) {
            // The same transaction has deleted it, by a range whose end only means the end of all keys. etcd's members panic here.
            self.refusal = Some(Refusal::KeyNotFound);
        }
        let main = self.revision + 1;
        let mut pair = KeyValue {
            key: request.key.clone().into(),
            value: request.value.clone().into(),
            lease: request.lease,
            create_revision: main,
            mod_revision: main,
            version: 1,
        };
        if let Some(prev) = &prev {
            pair.create_revision = prev.create_revision;
            pair.version = prev.version + 1;
            if request.ignore_value {
                pair.value = prev.value.clone();
            }
            if request.ignore_lease {
                pair.lease = prev.lease;
            }
        }
        self.now.insert(request.key.clone(), pair.clone());
        self.fresh.push(Event { r#type: 0, kv: Some(pair), prev_kv: prev.clone() });
        PutResponse { header: None, prev_kv: prev.filter(|_| request.prev_kv) }
    }

    fn delete_key(&mut self, key: &[u8]) {
        let prev = self.now.remove(key);
        let pair =
            KeyValue { key: key.to_vec().into(), mod_revision: self.revision + 1, ..Default::default() };
        self.fresh.push(Event { r#type: 1, kv: Some(pair), prev_kv: prev });
    }

    fn delete(&mut self, request: &DeleteRangeRequest) -> DeleteRangeResponse {
        let found = within(&self.now, &request.key, &request.range_end);
        for pair in &found {
            self.delete_key(&pair.key);
        }
        let deleted = found.len() as i64;
        DeleteRangeResponse { header: None, deleted, prev_kvs: if request.prev_kv { found } else { vec![] } }
    }

    fn at(&self, revision: i64) -> Map {
        let mut map = Map::new();
        for (_, event) in self.history.iter().take_while(|(main, _)| *main <= revision) {
            let pair = event.kv.clone().unwrap();
            if event.r#type == 0 {
                drop(map.insert(pair.key.to_vec(), pair))
            } else {
                drop(map.remove(&pair.key[..]))
            }
        }
        map
    }

    pub(super) fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Refusal> {
        let current = self.seen_revision();
        if request.revision > current {
            return Err(Refusal::FutureRevision);
        }
        let revision = if request.revision <= 0 { current } else { request.revision };
        if revision < self.compacted {
            return Err(Refusal::Compacted);
        }
        let mut pairs = if revision == current {
            within(&self.now, &request.key, &request.range_end)
        } else {
            within(&self.at(revision), &request.key, &request.range_end)
        };
        let count = pairs.len() as i64;
        if request.count_only {
            pairs.clear();
        }
        let keep = |pair: &KeyValue| {
            (request.min_mod_revision == 0 || pair.mod_revision >= request.min_mod_revision)
                && (request.max_mod_revision == 0 || pair.mod_revision <= request.max_mod_revision)
                && (request.min_create_revision == 0 || pair.create_revision >= request.min_create_revision)
                && (request.max_create_revision == 0 || pair.create_revision <= request.max_create_revision)
        };
        pairs.retain(keep);
        let filters = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ];
        // etcd reads no more than one above the limit then, and sorts these.
        if request.sort_order() == SortOrder::None && request.limit > 0 && filters == [0; 4] {
            pairs.truncate((request.limit as usize).saturating_add(1));
        }
        let rank = |pair: &KeyValue| match request.sort_target() {
            SortTarget::Key => (0, pair.key.to_vec()),
            SortTarget::Version => (pair.version, vec![]),
            SortTarget::Create => (pair.create_revision, vec![]),
            SortTarget::Mod => (pair.mod_revision, vec![]),
            SortTarget::Value => (0, pair.value.to_vec()),
        };
        pairs.sort_by_key(&rank);
        if request.sort_order() == SortOrder::Descend {
            pairs.sort_by_key(|pair| std::cmp::Reverse(rank(pair)));
        }
        let more = request.limit > 0 && pairs.len() as i64 > request.limit;
        if more {
            pairs.truncate(request.limit as usize);
        }
        if request.keys_only {
            pairs.iter_mut().for_each(|pair| pair.value.clear());
        }
        Ok(RangeResponse { header: None, kvs: pairs, more, count })
    }

    fn branch<'a>(&self, request: &'a TxnRequest) -> (bool, &'a [RequestOp]) {
        let is_success = request.compare.iter().all(|compare| self.holds(compare));
        (is_success, if is_success { &request.success } else { &request.failure })
    }

    fn check_txn(&self, request: &TxnRequest) -> Result<(), Refusal> {
        for operation in self.branch(request).1 {
            match operation.request.as_ref().unwrap() {
                Request::RequestRange(range) if range.revision != 0 => {
                    if range.revision > self.revision {
                        return Err(Refusal::FutureRevision);
                    }
                    if range.revision < self.compacted {
                        return Err(Refusal::Compacted);
                    }
                }
                Request::RequestPut(put) => {
                    self.check_lease(put)?;
                    self.check_before(put)?;
                }
                Request::RequestTxn(txn) => self.check_txn(txn)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, request: &TxnRequest) -> TxnResponse {
        let (succeeded, operations) = self.branch(request);
        let mut responses = Vec::new();
        for operation in operations {
            let response = match operation.request.as_ref().unwrap() {
                Request::RequestRange(range) => {
                    let mut response = self.range(range).unwrap();
                    response.header = self.header();
                    response_op::Response::ResponseRange(response)
                }
                Request::RequestPut(put) => {
                    let mut response = self.put(put);
                    response.header = self.header();
                    response_op::Response::ResponsePut(response)
                }
                Request::RequestDeleteRange(delete) => {
                    let mut response = self.delete(delete);
                    response.header = self.header();
                    response_op::Response::ResponseDeleteRange(response)
                }
                Request::RequestTxn(txn) => {
                    let mut response = self.txn(txn);
                    response.header = Some(ResponseHeader::default());
                    response_op::Response::ResponseTxn(response)
                }
            };
            responses.push(ResponseOp { response: Some(response) });
        }
        TxnResponse { header: None, succeeded, responses }
    }

    /// Compares with what was before the entry.
    fn holds(&self, compare: &Compare) -> bool {
        let found = within(&self.before, &compare.key, &compare.range_end);
        if found.is_empty() {
            return compare.target() != CompareTarget::Value && holds_for(compare, &KeyValue::default());
        }
        found.iter().all(|pair| holds_for(compare, pair))
    }

    /// Returns the events from a revision on; those of the compacted revision only as far as etcd has them still.
    pub(super) fn events(&self, from: i64) -> Vec<Event> {
        let live = self.at(self.compacted);
        let mut events = Vec::new();
        for (main, event) in self.history.iter().filter(|(main, _)| *main >= from) {
            let mut event = event.clone();
            if *main == self.compacted {
                let pair = event.kv.as_ref().unwrap();
                let is_live = live.get(&pair.key[..]).is_some_and(|live| live == pair);
                assert!(
                    is_live
                        || event.r#type == 1
                        || live.get(&pair.key[..]).is_none_or(|live| live.mod_revision == *main)
                );
                event.prev_kv = None;
            }
            events.push(event);
        }
        events
    }
}

fn within(map: &Map, key: &[u8], range_end: &[u8]) -> Vec<KeyValue> {
    let is_in = |found: &[u8]| match range_end {
        [] => found == key,
        [0] => found >= key,
        end => found >= key && found < end,
    };
    map.values().filter(|pair| is_in(&pair.key)).cloned().collect()
}

fn holds_for(compare: &Compare, pair: &KeyValue) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let order = match (&compare.target_union, compare.target()) {
        (Some(TargetUnion::Version(wanted)), CompareTarget::Version) => pair.version.cmp(wanted),
        (Some(TargetUnion::CreateRevision(wanted)), CompareTarget::Create) => {
            pair.create_revision.cmp(wanted)
        }
        (Some(TargetUnion::ModRevision(wanted)), CompareTarget::Mod) => pair.mod_revision.cmp(wanted),
        (Some(TargetUnion::Lease(wanted)), CompareTarget::Lease) => pair.lease.cmp(wanted),
        (Some(TargetUnion::Value(wanted)), CompareTarget::Value) => pair.value[..].cmp(wanted),
        _ => panic!("the test makes no such compares"),
    };
    match compare.result() {
        CompareResult::Equal => order == Equal,
        CompareResult::NotEqual => order != Equal,
        CompareResult::Greater => order == Greater,
        CompareResult::Less => order == Less,
    }
}
