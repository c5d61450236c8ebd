//! I/O memory: the arena, its regions and caches, and the blocks that programs hold. Imports `base`.

pub(crate) mod arena;
pub(crate) mod block;
pub(crate) mod lent;
#[cfg(target_os = "linux")]
pub(crate) mod sealed;
