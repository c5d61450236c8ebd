//! The tree that the rows look up keys in, as `forebay measure walk` plants one, and those keys.

use std::error::Error;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_kernel::Lookup;

pub(crate) const NODE: usize = 512;
pub(crate) const LEVELS: u64 = 6;
const FAN_OUT: u64 = 30;
const NODES: u64 = (64 << 20) / NODE as u64 / LEVELS;
const SEED: u64 = 0x5eed;

pub(crate) type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The keys of one lane, each looked up with as many reads as was said.
pub(crate) struct Keys {
    state: u64,
    reads: u64,
}

impl Keys {
    /// `reads` is 1 to [`LEVELS`].
    pub(crate) fn new(lane: u32, reads: u64) -> Keys {
        Keys { state: mix(u64::from(lane) + 99), reads }
    }

    pub(crate) fn next(&mut self) -> Lookup {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let key = mix(self.state);
        let level = self.reads - 1;
        Lookup { root: position(level, scaled(mix(key ^ SEED), NODES)), level: level as u16, key }
    }

    pub(crate) fn verify(&self, lookup: &Lookup, value: u64) -> Answer<()> {
        let mut at = lookup.root;
        for level in (0..=u64::from(lookup.level)).rev() {
            let record = scaled(mix(lookup.key.wrapping_add(level + 1)), FAN_OUT);
            at = leads_to(at, level, record);
        }
        if at == value { Ok(()) } else { Err(format!("{lookup:?} gave {value:#x} and not {at:#x}").into()) }
    }
}

/// Writes the tree.
pub(crate) fn plant(path: &Path) -> Answer<()> {
    let file = fs::File::create(path)?;
    let mut bytes = Vec::with_capacity(1 << 20);
    for index in 0..NODES * LEVELS {
        let (at, level) = (index * NODE as u64, index % LEVELS);
        let head = 0x6b6c_6177 | level << 32 | FAN_OUT << 48;
        let mut words = vec![head, at, mix(at ^ 1)];
        for record in 0..FAN_OUT {
            words.extend([least(record), leads_to(at, level, record)]);
        }
        words.resize(NODE / 8, 0);
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        if bytes.len() >= 1 << 20 || index + 1 == NODES * LEVELS {
            file.write_all_at(&bytes, at + NODE as u64 - bytes.len() as u64)?;
            bytes.clear();
        }
    }
    Ok(file.sync_all()?)
}

fn position(level: u64, node: u64) -> u64 {
    (node * LEVELS + level) * NODE as u64
}

/// Returns the smallest word that a record covers.
fn least(record: u64) -> u64 {
    ((u128::from(record) << 64).div_ceil(u128::from(FAN_OUT))) as u64
}

fn leads_to(at: u64, level: u64, record: u64) -> u64 {
    let word = mix(SEED ^ (at / NODE as u64) << 8 ^ record);
    if level == 0 { word } else { position(level - 1, scaled(word, NODES)) }
}

fn scaled(word: u64, bound: u64) -> u64 {
    ((u128::from(word) * u128::from(bound)) >> 64) as u64
}

fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
