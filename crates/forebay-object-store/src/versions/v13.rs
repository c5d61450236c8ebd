//! object_store 0.13, whose results have no extensions.

use std::ops::Range;

use object_store_013 as os;
use os::path::Path;
use os::{Attributes, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};

#[expect(clippy::duplicate_mod, reason = "the same source for each version of the trait")]
#[path = "adapter.rs"]
mod adapter;

fn put_result(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None }
}

fn get_result(
    payload: GetResultPayload,
    meta: ObjectMeta,
    range: Range<u64>,
    attributes: Attributes,
) -> GetResult {
    GetResult { payload, meta, range, attributes }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects }
}
