//! Common parts of the tests: planted trees, the available engines, and results in a form that can be
//! compared.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod child;
pub(crate) mod scene;

use std::path::Path;

use forebay::{Config, Engine, File, Open};
use forebay_kernel::{Count, CountResult, EngineKind, Error, KernelWalk, Options, Program};

const MAGIC: u64 = 0x6b6c_6177;
const HEADER: usize = 24;
const RECORD: usize = 16;

/// A tree as `forebay measure walk` plants it, small and with records of our own.
pub(crate) struct Tree {
    pub(crate) node_bytes: usize,
    pub(crate) fan_out: usize,
    pub(crate) levels: u64,
    pub(crate) nodes: u64,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn mix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Tree {
    pub(crate) fn new(node_bytes: usize, fan_out: usize, levels: u64, nodes: u64) -> Tree {
        let bytes = vec![0; (levels * nodes) as usize * node_bytes];
        let mut tree = Tree { node_bytes, fan_out, levels, nodes, bytes };
        for node in 0..nodes {
            for level in 0..levels {
                tree.fill(level, node);
            }
        }
        tree
    }

    pub(crate) fn position(&self, level: u64, node: u64) -> u64 {
        (node * self.levels + level) * self.node_bytes as u64
    }

    /// Returns the position where a lookup of this depth starts.
    pub(crate) fn root(&self, depth: u64, key: u64) -> u64 {
        self.position(depth - 1, mix(key ^ 77) % self.nodes)
    }

    fn fill(&mut self, level: u64, node: u64) {
        let position = self.position(level, node);
        let at = position as usize;
        let head = MAGIC | level << 32 | (self.fan_out as u64) << 48;
        self.put(at, head);
        self.put(at + 8, position);
        self.put(at + 16, mix(position));
        for record in 0..self.fan_out {
            let word = mix(position << 12 ^ record as u64);
            let step = u64::MAX / self.fan_out as u64;
            let separator = if record == 0 { 0 } else { step * record as u64 + word % 1000 };
            let leads_to = if level == 0 { word } else { self.position(level - 1, word % self.nodes) };
            self.put(at + HEADER + record * RECORD, separator);
            self.put(at + HEADER + record * RECORD + 8, leads_to);
        }
    }

    pub(crate) fn put(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    fn records(&self, position: u64) -> Vec<(u64, u64)> {
        let at = position as usize + HEADER;
        let places = (0..self.fan_out).map(|record| at + record * RECORD);
        places.map(|place| (self.word(place), self.word(place + 8))).collect()
    }

    fn level(&self, position: u64) -> u64 {
        self.word(position as usize) >> 32 & 0xffff
    }

    fn child(&self, position: u64, key: u64) -> u64 {
        let wanted = mix(key + self.level(position) + 1);
        let records = self.records(position);
        let found = records.iter().rev().find(|(separator, _)| *separator <= wanted);
        found.unwrap_or(&records[0]).1
    }

    /// Returns the value of a lookup, by a search of every node from its end to its start.
    pub(crate) fn lookup(&self, root: u64, key: u64) -> u64 {
        let mut position = root;
        while self.level(position) > 0 {
            position = self.child(position, key);
        }
        self.child(position, key)
    }

    /// Returns the result of a count, separator by separator.
    pub(crate) fn count(&self, count: &Count) -> (u64, u64) {
        let mut position = count.root;
        while self.level(position) > 1 {
            position = self.child(position, count.key);
        }
        let inside = |leaf: u64| {
            let of_leaf = self.records(leaf).into_iter();
            of_leaf.filter(|(separator, _)| (count.low..=count.high).contains(separator)).count() as u64
        };
        if self.level(position) == 0 {
            return (inside(position), 1);
        }
        let records = self.records(position);
        let first = records.iter().rposition(|(separator, _)| *separator <= count.low).unwrap_or(0);
        let leaves: Vec<u64> = records[first..]
            .iter()
            .take_while(|(separator, _)| *separator <= count.high)
            .take(16)
            .map(|(_, leaf)| *leaf)
            .collect();
        (leaves.iter().map(|leaf| inside(*leaf)).sum(), leaves.len() as u64)
    }

    /// Writes the tree to a file and opens it past the page cache, where the file system can.
    pub(crate) fn plant(&self, engine: &Engine, path: &Path) -> File {
        std::fs::write(path, &self.bytes).expect("the directory takes files");
        std::fs::File::open(path).and_then(|file| file.sync_all()).expect("and writes them out");
        engine.open(path, Open::read()).wait().expect("a file that was just written")
    }
}

pub(crate) fn engine() -> Engine {
    Engine::start(Config::new()).expect("an engine")
}

/// Returns the engines that this machine has. FOREBAY_KERNEL_ENGINES names those that it must have
/// (`bpf-loop`, `module`, `module-polled`), so that a test that is to run in a virtual machine cannot pass by
/// falling back.
pub(crate) fn engines<P: Program>(
    engine: &Engine,
    file: &File,
    program: impl Fn() -> P,
    options: Options,
) -> Vec<(EngineKind, KernelWalk<P>)> {
    engines_but(engine, file, program, options, None)
}

/// Returns the engines like `engines`, where this engine is refused with an error that contains these words.
pub(crate) fn engines_but<P: Program>(
    engine: &Engine,
    file: &File,
    program: impl Fn() -> P,
    options: Options,
    refused: Option<(EngineKind, &str)>,
) -> Vec<(EngineKind, KernelWalk<P>)> {
    let kinds = [
        (EngineKind::Reactor, "reactor", false),
        (EngineKind::BpfLoop, "bpf-loop", false),
        (EngineKind::Module, "module", false),
        (EngineKind::Module, "module-polled", true),
    ];
    let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
    let mut all = Vec::new();
    for (kind, name, polled) in kinds {
        let only = options.only(kind).polled(polled);
        match KernelWalk::open_with(engine, file, program(), only) {
            Ok(walk) => {
                assert_eq!(walk.engine(), kind);
                all.push((kind, walk));
            }
            Err(Error::Unavailable(why))
                if refused.is_some_and(|(refused, words)| refused == kind && why.contains(words)) => {}
            Err(Error::Unavailable(why)) => {
                assert!(!demanded.split(',').any(|demanded| demanded == name), "{name} is demanded: {why}");
                eprintln!("{name} is not possible here: {why}");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
    all
}

/// Returns a result in a form that is equal when the results are.
pub(crate) fn told<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(Error::Io { offset, hop, source, .. }) => {
            format!("I/O error {:?} at {offset}, hop {hop}", source.raw_os_error())
        }
        Err(error) => format!("{error:?}"),
    }
}

pub(crate) fn counted(counted: CountResult) -> (u64, u64) {
    (counted.found, counted.leaves)
}

/// Returns whether the module is loaded here. Where it is demanded, it must be.
pub(crate) fn has_module() -> bool {
    let demanded = std::env::var("FOREBAY_KERNEL_ENGINES").unwrap_or_default();
    match forebay_kernel::probe(EngineKind::Module) {
        Ok(()) => true,
        Err(why) => {
            assert!(!demanded.contains("module"), "the module is demanded: {why}");
            eprintln!("the module is not possible here: {why}");
            false
        }
    }
}

/// Drops all capabilities: this thread, and those that it starts, may do only what any user may.
pub(crate) fn drop_capabilities() {
    set_capabilities(&[0; 6]);
}

fn set_capabilities(sets: &[u32; 6]) {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    // SAFETY: the kernel reads a header and two sets of three words, which is the size of the array.
    let answer = unsafe { libc::syscall(libc::SYS_capset, &raw const header, sets.as_ptr()) };
    assert_eq!(answer, 0, "capabilities can always be given up");
}

/// Makes this process run as another user without other processes, who keeps these capabilities and no
/// others.
pub(crate) fn become_another_user(capabilities: &[u32]) {
    let user = 1_500_000_000 + std::process::id();
    let wanted = capabilities.iter().fold(0_u64, |set, capability| set | 1 << capability);
    // SAFETY: system calls with plain numbers; libc changes the user of all threads.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0), 0, "capabilities can be kept");
        assert_eq!(libc::setresuid(user, user, user), 0, "root may be anybody");
    }
    let words = [wanted as u32, (wanted >> 32) as u32];
    // Effective, permitted, inheritable; the lower 32 bits, then the upper 32 bits.
    set_capabilities(&[words[0], words[0], 0, words[1], words[1], 0]);
}
