//! The maps' contents as the BPF programs lay them out (`bpf/state.h`), read without unsafe code.

/// Reads native-endian numbers one after the other; beyond the end reads as 0.
pub(crate) struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some((head, rest)) = self.0.split_first_chunk::<N>() {
            bytes = *head;
            self.0 = rest;
        }
        bytes
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn i64(&mut self) -> i64 {
        i64::from_ne_bytes(self.take())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }
}

/// `struct file_key`; device 0 and inode 0 mean no file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileKey {
    pub(crate) ino: u64,
    pub(crate) dev: u32,
}

impl FileKey {
    /// Reads the key, and the word behind it: padding of a file's key, the row of a call's.
    pub(crate) fn read(bytes: &[u8]) -> (Self, u32) {
        let mut words = Words::new(bytes);
        (Self { ino: words.u64(), dev: words.u32() }, words.u32())
    }
}

/// Classes of sizes (`SIZES`).
pub(crate) const SIZES: usize = 18;

/// `struct call_stats`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallStats {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) time_ns: u64,
    pub(crate) wait_ns: u64,
    pub(crate) waits: u64,
    pub(crate) longest_ns: u64,
    pub(crate) sequential: u64,
    pub(crate) placed: u64,
    pub(crate) hits: u64,
    pub(crate) buffered: u64,
    pub(crate) direct: u64,
    pub(crate) durable: u64,
    pub(crate) errors: u64,
    pub(crate) sizes: [u64; SIZES],
}

impl CallStats {
    #[cfg(test)]
    pub(crate) const BYTES: usize = (13 + SIZES) * 8;

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut words = Words::new(bytes);
        Self {
            count: words.u64(),
            bytes: words.u64(),
            time_ns: words.u64(),
            wait_ns: words.u64(),
            waits: words.u64(),
            longest_ns: words.u64(),
            sequential: words.u64(),
            placed: words.u64(),
            hits: words.u64(),
            buffered: words.u64(),
            direct: words.u64(),
            durable: words.u64(),
            errors: words.u64(),
            sizes: std::array::from_fn(|_| words.u64()),
        }
    }
}

/// `struct file_state`, without the fields that only the programs use.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileState {
    pub(crate) busy_ns: u64,
    pub(crate) device_ns: u64,
    pub(crate) queue_ns: u64,
    pub(crate) device_read_bytes: u64,
    pub(crate) device_written_bytes: u64,
    pub(crate) device_requests: u64,
    pub(crate) most: u64,
}

impl FileState {
    #[cfg(test)]
    pub(crate) const BYTES: usize = 14 * 8;

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut words = Words::new(bytes);
        for _ in 0..5 {
            words.u64();
        }
        let busy_ns = words.u64();
        words.u64();
        let (device_ns, queue_ns) = (words.u64(), words.u64());
        let (device_read_bytes, device_written_bytes) = (words.u64(), words.u64());
        let device_requests = words.u64();
        words.i64();
        let most = words.i64().max(0).unsigned_abs();
        Self { busy_ns, device_ns, queue_ns, device_read_bytes, device_written_bytes, device_requests, most }
    }
}

const PARTS: usize = 8;
const PART_BYTES: usize = 96;
/// The size of `struct file_name`.
#[cfg(test)]
pub(crate) const NAME_BYTES: usize = 8 + PARTS * PART_BYTES;

/// Joins the names of a `struct file_name`, which stand innermost first. A path whose outer names were left out starts with dots.
pub(crate) fn path(bytes: &[u8]) -> String {
    let mut words = Words::new(bytes);
    let (parts, more) = (words.u32() as usize, words.u32() != 0);
    let mut path = if more { "...".to_owned() } else { String::new() };
    for part in words.0.chunks(PART_BYTES).take(parts.min(PARTS)).rev() {
        let end = part.iter().position(|byte| *byte == 0).unwrap_or(part.len());
        path.push('/');
        path.push_str(&String::from_utf8_lossy(part.get(..end).unwrap_or_default()));
    }
    if path.is_empty() { "/".to_owned() } else { path }
}

/// `struct clock`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    pub(crate) some_ns: u64,
    pub(crate) full_ns: u64,
    pub(crate) some_iowait_ns: u64,
    pub(crate) full_iowait_ns: u64,
    pub(crate) some_device_ns: u64,
    pub(crate) full_device_ns: u64,
    pub(crate) device_ns: u64,
    pub(crate) wait_sum_ns: u64,
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    pub(crate) threads: u64,
    pub(crate) processes: u64,
    pub(crate) lost_files: u64,
    pub(crate) lost_ops: u64,
    pub(crate) unseen_ops: u64,
    /// What may be a wait, by the kinds of `MAYBE_`: some, full, and both with a request at a device.
    pub(crate) maybe: [Maybe; 4],
}

/// `struct maybe`, without the field that only the programs use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Maybe {
    pub(crate) passed_ns: u64,
    pub(crate) taken_ns: u64,
}

impl Maybe {
    fn read(words: &mut Words<'_>) -> Self {
        let maybe = Self { passed_ns: words.u64(), taken_ns: words.u64() };
        words.u64();
        maybe
    }

    /// Returns the part of which it is not known whether it was a wait.
    pub(crate) fn open_ns(self) -> u64 {
        self.passed_ns.saturating_sub(self.taken_ns)
    }
}

impl Clock {
    pub(crate) const BYTES: usize = 6 * 4 + 16 * 8 + 2 * 4 + 4 * 3 * 8;

    /// Returns the bytes of a clock that has not started and ends with process `root`.
    pub(crate) fn fresh(root: u32) -> Vec<u8> {
        let mut bytes = vec![0; Self::BYTES];
        if let Some(place) = bytes.get_mut(20..24) {
            place.copy_from_slice(&root.to_ne_bytes());
        }
        bytes
    }

    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut words = Words::new(bytes);
        for _ in 0..6 {
            words.u32();
        }
        words.u64();
        Self {
            some_ns: words.u64(),
            full_ns: words.u64(),
            some_iowait_ns: words.u64(),
            full_iowait_ns: words.u64(),
            some_device_ns: words.u64(),
            full_device_ns: words.u64(),
            device_ns: words.u64(),
            wait_sum_ns: words.u64(),
            begun: words.u64(),
            ended: words.u64(),
            threads: words.u64(),
            processes: words.u64(),
            lost_files: words.u64(),
            lost_ops: words.u64(),
            unseen_ops: words.u64(),
            maybe: {
                words.u64();
                std::array::from_fn(|_| Maybe::read(&mut words))
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parts: &[&str], more: u32) -> Vec<u8> {
        let mut bytes = (parts.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(more.to_ne_bytes());
        for part in parts {
            let mut slot = [0; PART_BYTES];
            slot[..part.len()].copy_from_slice(part.as_bytes());
            bytes.extend(slot);
        }
        bytes.resize(NAME_BYTES, 0);
        bytes
    }

    #[test]
    fn paths_stand_innermost_first() {
        assert_eq!(path(&name(&["index.db", "data", "srv"], 0)), "/srv/data/index.db");
        assert_eq!(path(&name(&["index.db", "data"], 1)), ".../data/index.db");
        assert_eq!(path(&name(&[], 0)), "/");
        assert_eq!(path(&[]), "/");
    }

    #[test]
    fn a_fresh_clock_knows_its_process_only() {
        let bytes = Clock::fresh(77);
        assert_eq!(bytes.len(), Clock::BYTES);
        assert_eq!(u32::from_ne_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]), 77);
        assert_eq!(Clock::read(&bytes).begun, 0);
    }
}
