//! A request for the tests of the remote cell.

use super::*;
use crate::base::class::Class;
use crate::io::op::{Durability, Flush, OpBuffer, OpKind};

pub(crate) const KEY: OpKey = OpKey { index: 5, generation: 3 };

pub(crate) fn request() -> RemotePtr {
    let request = OpRequest {
        kind: OpKind::Nop,
        class: Class::DEFAULT,
        durability: Durability::None,
        flush: Flush::Queued,
        offset: 0,
        len: 0,
        asked: 0,
        buffer: OpBuffer::None,
    };
    RemoteCell::request(None, request)
}
