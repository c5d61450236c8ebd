//! The lookup as a [`Program`]: the step in Rust for the reactor, and the objects that `hash_chain.bpf.c`
//! became for the engines in the kernel. Both steps do the same.

use forebay_kernel::{Next, Program, Scratch};

/// A lookup of a key in a table of this many buckets, whose first pages lie one behind the other.
pub(crate) struct HashChain {
    pub(crate) buckets: u64,
}

// Places in a walk's scratch: `struct lookup` of hash_chain.bpf.c.
const KEY: usize = 0;
const BUCKET: usize = 8;
const FOUND: usize = 16;
const VALUE: usize = 24;

impl Program for HashChain {
    type Args = u64;
    type Output = Option<u64>;

    fn name(&self) -> &'static str {
        "hash-chain"
    }

    fn page_bytes(&self) -> u32 {
        4096
    }

    fn object(&self) -> Option<&[u8]> {
        Some(include_bytes!("hash_chain.loop.bpf.o"))
    }

    fn module_object(&self) -> Option<&[u8]> {
        Some(include_bytes!("hash_chain.module.bpf.o"))
    }

    fn begin(&self, key: &u64, scratch: &mut Scratch) -> u64 {
        let bucket = bucket_of(*key, self.buckets);
        scratch.set_u64(KEY, *key);
        scratch.set_u64(BUCKET, bucket);
        bucket * 4096
    }

    fn step(&self, page: &[u8], _at: u64, scratch: &mut Scratch) -> Next {
        let word = |at: usize| {
            page.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
        };
        let (next, bucket, count) = (word(0), word(8) & 0xffff_ffff, word(8) >> 32);
        if bucket != scratch.u64(BUCKET) || count > 255 {
            return Next::Fail(1);
        }
        let record = (1..=count as usize).find(|record| word(record * 16) == scratch.u64(KEY));
        if let Some(record) = record {
            scratch.set_u64(VALUE, word(record * 16 + 8));
            scratch.set_u64(FOUND, 1);
        }
        if record.is_some() || next == 0 { Next::Over } else { Next::read(next) }
    }

    fn end(&self, scratch: &Scratch, _page: &[u8]) -> Option<u64> {
        (scratch.u64(FOUND) == 1).then(|| scratch.u64(VALUE))
    }
}

/// The bucket that a key belongs to.
pub(crate) fn bucket_of(key: u64, buckets: u64) -> u64 {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % buckets
}
