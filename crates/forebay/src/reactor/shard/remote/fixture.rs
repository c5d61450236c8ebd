//! A request for the tests of the remote cell.

use super::*;
use crate::base::class::Class;
use crate::io::op::{OpBuffer, OpKind};

pub(crate) const KEY: OpKey = OpKey { index: 5, generation: 3 };

pub(crate) fn request() -> RemotePtr {
    RemoteCell::request(None, OpRequest::new(OpKind::Nop, Class::DEFAULT, 0, 0, OpBuffer::None))
}
