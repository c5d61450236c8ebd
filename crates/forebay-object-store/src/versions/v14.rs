//! object_store 0.14.

use std::ops::Range;

use object_store as os;
use os::path::Path;
use os::{Attributes, Extensions, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};

#[path = "adapter.rs"]
mod adapter;

fn put_result(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None, extensions: Extensions::default() }
}

fn get_result(
    payload: GetResultPayload,
    meta: ObjectMeta,
    range: Range<u64>,
    attributes: Attributes,
) -> GetResult {
    GetResult { payload, meta, range, attributes, extensions: Extensions::default() }
}

fn list_result(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects, extensions: Extensions::default() }
}
