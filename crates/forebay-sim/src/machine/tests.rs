//! Helpers that the tests share: a machine with a clock, and operations that run to their completion.

mod calls;
mod data;
mod determinism;
mod faults;
mod power;

use std::cell::Cell;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay::internal::{self, At, Descriptor, DescriptorOwner, FdOwner, MetaRequest, OpenHow, SimFile};

use super::*;
use crate::fault::Fault;
use crate::source::Source;

pub(super) const KIB: usize = 1024;

/// A machine, its clock and its fate.
pub(super) struct Rig {
    pub(super) machine: Machine,
    pub(super) fate: Fate,
    pub(super) now_ns: u64,
    next_id: u64,
}

/// Returns page-aligned memory that a test and a machine share.
pub(super) fn memory(bytes: &[u8]) -> &'static [Cell<u8>] {
    let mut room = vec![0; bytes.len() + 4096];
    let start = room.as_ptr().align_offset(4096);
    room[start..start + bytes.len()].copy_from_slice(bytes);
    let room: &'static [Cell<u8>] = Cell::from_mut(Box::leak(room.into_boxed_slice())).as_slice_of_cells();
    &room[start..start + bytes.len()]
}

pub(super) const CREATE: OpenHow = OpenHow {
    read: true,
    write: true,
    create: true,
    create_new: false,
    truncate: false,
    direct: true,
    mode: 0o666,
};
pub(super) const BUFFERED: OpenHow = OpenHow { direct: false, ..CREATE };

impl Rig {
    pub(super) fn new(seed: u64, profile: Profile) -> Rig {
        Rig::with(Source::new(seed), [profile])
    }

    pub(super) fn with(source: Source, profiles: impl IntoIterator<Item = Profile>) -> Rig {
        let mut machine = Machine::new();
        profiles.into_iter().for_each(|profile| machine.mount(profile).unwrap());
        Rig { machine, fate: Fate::new(source), now_ns: 0, next_id: 1 }
    }

    pub(super) fn id(&mut self) -> IoId {
        self.next_id += 1;
        IoId(self.next_id)
    }

    /// Returns the next completion, with the clock set to its time.
    pub(super) fn next(&mut self) -> Option<Completion> {
        loop {
            if let Some(done) = self.machine.pop_due(self.now_ns, &mut self.fate) {
                return Some(done);
            }
            self.now_ns = self.now_ns.max(self.machine.next_event_ns()?);
        }
    }

    pub(super) fn start(
        &mut self,
        kind: OpKind,
        file: u32,
        offset: u64,
        memory: Option<&'static [Cell<u8>]>,
    ) -> IoId {
        let id = self.id();
        let len = memory.map_or(0, <[_]>::len) as u32;
        let io = SimIo { id, kind, file, offset, transfer: memory.map(Transfer::of), len, fua: false };
        self.machine.submit(io, self.now_ns, &mut self.fate);
        id
    }

    /// Writes with FUA. Returns 0 for a write that is durable.
    pub(super) fn write_with_fua(&mut self, file: u32, offset: u64, bytes: &[u8]) -> i32 {
        let end = offset + bytes.len() as u64;
        assert!(self.machine.has_fua(file, end), "a direct write within the file, to a disk with FUA");
        let (id, transfer) = (self.id(), Some(Transfer::of(memory(bytes))));
        let io =
            SimIo { id, kind: OpKind::Write, file, offset, transfer, len: bytes.len() as u32, fua: true };
        self.machine.submit(io, self.now_ns, &mut self.fate);
        self.result(id)
    }

    pub(super) fn result(&mut self, wanted: IoId) -> i32 {
        loop {
            match self.next() {
                Some(Completion::Io { id, result }) if id == wanted => return result,
                Some(_) => {}
                None => panic!("{wanted:?} never ended"),
            }
        }
    }

    pub(super) fn read(&mut self, file: u32, offset: u64, len: usize) -> Result<Vec<u8>, i32> {
        let memory = memory(&vec![0xee; len]);
        let id = self.start(OpKind::Read, file, offset, Some(memory));
        match self.result(id) {
            errno if errno < 0 => Err(-errno),
            bytes => Ok(memory[..bytes as usize].iter().map(Cell::get).collect()),
        }
    }

    pub(super) fn write(&mut self, file: u32, offset: u64, bytes: &[u8]) -> i32 {
        let id = self.start(OpKind::Write, file, offset, Some(memory(bytes)));
        self.result(id)
    }

    pub(super) fn sync(&mut self, kind: OpKind, file: u32) -> i32 {
        let id = self.start(kind, file, 0, None);
        self.result(id)
    }

    pub(super) fn ask(&mut self, request: MetaRequest) -> Result<MetaReply> {
        let id = self.id();
        self.machine.ask(id, request, self.now_ns, &mut self.fate);
        loop {
            match self.next().expect("calls end") {
                Completion::Meta { id: other, result } if other == id => return result,
                _ => {}
            }
        }
    }

    pub(super) fn opened(&mut self, request: MetaRequest) -> Result<OpenedFile> {
        let id = self.id();
        self.machine.ask(id, request, self.now_ns, &mut self.fate);
        loop {
            match self.next().expect("calls end") {
                Completion::Opened { id: other, result } if other == id => return result,
                _ => {}
            }
        }
    }

    pub(super) fn open(&mut self, path: &str, how: OpenHow) -> u32 {
        self.opened(MetaRequest::Open { path: path.into(), how }).unwrap().number
    }

    pub(super) fn done(&mut self, request: MetaRequest) {
        assert!(matches!(self.ask(request).unwrap(), MetaReply::Done));
    }

    pub(super) fn errno(&mut self, request: MetaRequest) -> i32 {
        self.ask(request).unwrap_err().raw_os_error().unwrap_or(-1)
    }

    pub(super) fn names(&mut self, path: &str) -> Vec<String> {
        match self.ask(MetaRequest::ReadDir { path: path.into() }).unwrap() {
            MetaReply::Entries(entries) => {
                entries.iter().map(|entry| entry.name().to_string_lossy().into_owned()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Returns the content of a file, or `None` when the file does not exist.
    pub(super) fn content(&mut self, path: &str) -> Option<Vec<u8>> {
        let how = OpenHow { create: false, ..BUFFERED };
        let file = self.opened(MetaRequest::Open { path: path.into(), how }).ok()?.number;
        let bytes = self.read(file, 0, 32 << 10).unwrap();
        self.machine.close(file);
        Some(bytes)
    }

    /// Cuts the power and switches it on again.
    pub(super) fn cut(&mut self) {
        self.machine.power_cut(&mut self.fate);
        assert!(!self.machine.is_on());
        self.machine.reboot(&mut self.fate);
    }
}

/// Returns an open file in the form in which calls name it.
pub(super) fn owner(number: u32) -> FdOwner {
    struct Owner(Descriptor);
    impl DescriptorOwner for Owner {
        fn descriptor(&self) -> &Descriptor {
            &self.0
        }
    }
    let null = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
    let closed = Arc::new(Mutex::new(Vec::new()));
    let device = Arc::new(internal::device("sim0"));
    let alignment = internal::alignment(None);
    Arc::new(Owner(Descriptor::Sim(SimFile { number, alignment, device, device_number: 0, closed, null })))
}

pub(super) fn path(path: &str) -> At {
    At::from(path)
}
