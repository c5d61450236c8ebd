//! The tests of both writers as one program, one module a subject.

mod collective;
mod collective_world;
#[path = "../../../forebay/tests/common/mod.rs"]
mod common;
mod limits;
#[cfg(feature = "_mutants")]
mod mutants;
mod rank_hosts;
mod rank_kills;
mod ranks;
mod suite;
mod sweep_world;
mod worlds;
mod write_combiner;
mod write_combiner_world;

#[global_allocator]
static ALLOCATOR: forebay_test::allocations::CountingAllocator = forebay_test::allocations::CountingAllocator;
