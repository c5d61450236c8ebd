//! The peers: one file each, all with the same two small functions, `random` and (where it makes sense) `scan`.

pub(crate) mod bare;
pub(crate) mod buffered;
pub(crate) mod compio;
pub(crate) mod forebay;
pub(crate) mod glommio;
pub(crate) mod monoio;
pub(crate) mod std_threads;
pub(crate) mod tokio_fs;
pub(crate) mod tokio_spawn_blocking;
pub(crate) mod tokio_uring;
pub(crate) mod worker_ring;
