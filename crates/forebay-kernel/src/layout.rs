//! What user space and the programs in the kernel have in common: the numbers of `kernel/include/forebay_walk.h`.
//!
//! Made by `scripts/build-kernel-bpf` from that header; a change belongs there. What is not used here belongs to the
//! programs in the kernel alone.
#![allow(dead_code, reason = "the header is the one list of numbers for both sides")]

/// Walks of one session under way at once.
pub(crate) const SLOTS_MAX: usize = 64;
/// Reads that one step may ask for.
pub(crate) const READS_MAX: usize = 16;
/// Of a walk: its arguments, its state between steps, its result.
pub(crate) const SCRATCH_BYTES: usize = 256;
/// Of a walk in the shared memory, without its pages.
pub(crate) const SLOT_BYTES: usize = 512;
/// The smallest page; pages are powers of two.
pub(crate) const PAGE_BYTES_MIN: usize = 512;
/// The largest.
pub(crate) const PAGE_BYTES_MAX: usize = 65536;
/// Hops after which a walk fails, unless it was given fewer.
pub(crate) const HOPS_MAX: usize = 64;
/// Where the slots begin, bytes.
pub(crate) const SLOTS_AT: usize = 4096;
/// Where the pages begin, bytes.
pub(crate) const PAGES_AT: usize = 36864;
/// Slots that user space has filled since the last run.
pub(crate) const CONTROL_NEW_COUNT: usize = 0;
/// Slots whose walk is over since user space last looked.
pub(crate) const CONTROL_DONE_COUNT: usize = 4;
/// Walks begun and not over.
pub(crate) const CONTROL_UNDER_WAY: usize = 8;
/// Return to user space when so many are over.
pub(crate) const CONTROL_STOP_AFTER: usize = 12;
/// 1: watch the descriptor that wakes the loop up from another thread.
pub(crate) const CONTROL_ARM_POKE: usize = 16;
/// 1: that descriptor was written to.
pub(crate) const CONTROL_POKED: usize = 20;
/// Not 0: the loop cannot go on, and why.
pub(crate) const CONTROL_BROKEN: usize = 24;
/// Submissions of the present run; the program's own.
pub(crate) const CONTROL_QUEUED: usize = 28;
/// Times that the program ran.
pub(crate) const CONTROL_STEPS: usize = 32;
/// The slots that were filled, a word each.
pub(crate) const CONTROL_NEW: usize = 128;
/// The slots that are over, a word each.
pub(crate) const CONTROL_DONE: usize = 384;
/// One of the FBW_STATE_ numbers.
pub(crate) const SLOT_STATE: usize = 0;
/// Reads that were begun, a fan-out counted once.
pub(crate) const SLOT_HOPS: usize = 4;
/// Hops after which it fails.
pub(crate) const SLOT_HOPS_MAX: usize = 8;
/// Reads in flight, or to be begun when the slot is new.
pub(crate) const SLOT_COMING: usize = 12;
/// Why it failed; FBW_STATE_ says whether this is an errno or the program's own number.
pub(crate) const SLOT_CODE: usize = 16;
/// The slot's page that was inspected last.
pub(crate) const SLOT_PLACE: usize = 20;
/// The position of the page that failed it.
pub(crate) const SLOT_FAILED_AT: usize = 24;
/// Positions of the reads, bytes in the file, a double word each.
pub(crate) const SLOT_AT: usize = 32;
/// The loop: 0 for the session's own file, or the descriptor of another one, plus 1.
pub(crate) const SLOT_FILE: usize = 160;
/// The scratch.
pub(crate) const SLOT_SCRATCH: usize = 256;
pub(crate) const PAGES_PAD: usize = 4096;
/// Not in use.
pub(crate) const STATE_FREE: usize = 0;
/// Under way, or new.
pub(crate) const STATE_WALKING: usize = 1;
/// Over, with a result in the scratch.
pub(crate) const STATE_DONE: usize = 2;
/// Its step said so; the code is the step's own.
pub(crate) const STATE_FAILED: usize = 3;
/// A read failed; the code is an errno.
pub(crate) const STATE_IO: usize = 4;
/// The file ended inside of a page; the code is the bytes that there were.
pub(crate) const STATE_SHORT: usize = 5;
/// Too many hops.
pub(crate) const STATE_HOPS: usize = 6;
/// The step returned an invalid result: no read, too many, or more while some are in flight.
pub(crate) const STATE_ANSWER: usize = 7;
/// This engine cannot go on with it, another one may; the code is an errno.
pub(crate) const STATE_ELSEWHERE: usize = 8;
/// Read the pages named; the step runs again with each.
pub(crate) const READ: usize = 0;
/// Run again with the next page in flight.
pub(crate) const WAIT: usize = 1;
/// The walk is over, the result is in the scratch.
pub(crate) const OVER: usize = 2;
/// The walk is over and failed.
pub(crate) const FAIL: usize = 3;
/// The ring's memory is smaller than the program was configured for.
pub(crate) const BROKEN_MEMORY: usize = 1;
/// The kernel did not take all submissions.
pub(crate) const BROKEN_SUBMIT: usize = 2;
/// A completion that belongs to no walk.
pub(crate) const BROKEN_COMPLETION: usize = 3;
/// Changes when anything does that both sides must know.
pub(crate) const MODULE_LAYOUT: usize = 2;
/// Ioctl: binds the session to a file; takes and fills the structure below.
pub(crate) const MODULE_BIND: usize = 0xc024fb01;
/// Ioctl: ends that; returns when no read is in flight, and the file is free.
pub(crate) const MODULE_UNBIND: usize = 0xfb02;
/// The command; the slot's number is its first word, the second 1 if no more commands follow.
pub(crate) const MODULE_WALK: usize = 1;
/// FBW_MODULE_LAYOUT as user space knows it.
pub(crate) const BIND_LAYOUT: usize = 0;
/// The file, opened for reading.
pub(crate) const BIND_FD: usize = 4;
/// Of a page.
pub(crate) const BIND_PAGE_BYTES: usize = 8;
/// Walks at once.
pub(crate) const BIND_SLOTS: usize = 12;
/// Pages of one walk.
pub(crate) const BIND_READS_EACH: usize = 16;
/// Result: the reason, one of the FBW_REFUSED_ numbers, beside the errno.
pub(crate) const BIND_REFUSED: usize = 20;
/// Result: 1 if the device can be polled.
pub(crate) const BIND_POLLED: usize = 24;
/// Result: extents of the file on the device.
pub(crate) const BIND_EXTENTS: usize = 28;
/// How long the task waits for a read without sleeping, ns; FBW_SPIN_NS_MAX at most.
pub(crate) const BIND_SPIN_NS: usize = 32;
/// All of it.
pub(crate) const BIND_BYTES: usize = 36;
/// The longest such wait.
pub(crate) const SPIN_NS_MAX: usize = 200000;
/// User space knows another layout.
pub(crate) const REFUSED_LAYOUT: usize = 1;
/// Bytes of a page, slots or reads that cannot be.
pub(crate) const REFUSED_NUMBERS: usize = 2;
/// The session is bound already, or has been.
pub(crate) const REFUSED_BOUND: usize = 3;
/// Neither a regular file nor a block device.
pub(crate) const REFUSED_KIND: usize = 4;
/// Not opened for reading.
pub(crate) const REFUSED_MODE: usize = 5;
/// Pinning takes the file's owner or CAP_FOWNER.
pub(crate) const REFUSED_OWNER: usize = 6;
/// A file system whose extents may move: only ext2, ext3, ext4 and XFS are known not to.
pub(crate) const REFUSED_FILE_SYSTEM: usize = 7;
/// Encrypted by the file system.
pub(crate) const REFUSED_ENCRYPTED: usize = 8;
/// Fs-verity checks every read, a walk would not.
pub(crate) const REFUSED_VERITY: usize = 9;
/// Memory, not a device.
pub(crate) const REFUSED_DAX: usize = 10;
/// The data lies in the inode.
pub(crate) const REFUSED_INLINE: usize = 11;
/// Holes, unwritten or shared (reflink) extents, or a realtime file.
pub(crate) const REFUSED_HOLES: usize = 12;
/// In use as swap.
pub(crate) const REFUSED_SWAP: usize = 13;
/// Mapped for shared writing.
pub(crate) const REFUSED_MAPPED: usize = 14;
/// Pages smaller than the device's blocks.
pub(crate) const REFUSED_BLOCK: usize = 15;
/// Too many pieces.
pub(crate) const REFUSED_EXTENTS: usize = 16;
/// The positions that it requests, a double word each.
pub(crate) const FRAME_NEXT: usize = 0;
/// The position of the page that it sees.
pub(crate) const FRAME_AT: usize = 128;
/// The number of positions, or the reason of FBW_FAIL; a word.
pub(crate) const FRAME_COUNT: usize = 136;
/// All of it.
pub(crate) const FRAME_BYTES: usize = 144;
/// The first word of a node.
pub(crate) const TREE_MAGIC: usize = 0x6b6c6177;
pub(crate) const TREE_MAGIC_AT: usize = 0;
/// Two bytes.
pub(crate) const TREE_LEVEL_AT: usize = 4;
/// Two bytes, at least 1.
pub(crate) const TREE_COUNT_AT: usize = 6;
/// The node's own position, bytes in the file.
pub(crate) const TREE_POSITION_AT: usize = 8;
/// Where the records begin.
pub(crate) const TREE_RECORDS_AT: usize = 24;
/// Separator, then its target.
pub(crate) const TREE_RECORD_BYTES: usize = 16;
/// This is not the node that belongs here.
pub(crate) const TREE_DAMAGED: usize = 1;
/// The key.
pub(crate) const LOOKUP_KEY: usize = 0;
/// Its value.
pub(crate) const LOOKUP_VALUE: usize = 8;
/// That of the node to come.
pub(crate) const LOOKUP_LEVEL: usize = 16;
/// Names the way down.
pub(crate) const COUNT_KEY: usize = 0;
/// The least separator that counts.
pub(crate) const COUNT_LOW: usize = 8;
/// The greatest.
pub(crate) const COUNT_HIGH: usize = 16;
/// How many there were.
pub(crate) const COUNT_FOUND: usize = 24;
/// Leaves read.
pub(crate) const COUNT_LEAVES: usize = 32;
/// Leaves in flight.
pub(crate) const COUNT_COMING: usize = 40;
/// That of the node to come.
pub(crate) const COUNT_LEVEL: usize = 48;
/// Nodes stand at multiples of it.
pub(crate) const TABLE_UNIT: usize = 4096;
/// The table's number, four bytes.
pub(crate) const TABLE_TABLE_AT: usize = 4;
/// The node's own place in units, four bytes.
pub(crate) const TABLE_POSITION_AT: usize = 8;
/// A byte; 0 for a leaf.
pub(crate) const TABLE_LEVEL_AT: usize = 12;
/// The node's length in units, a byte.
pub(crate) const TABLE_UNITS_AT: usize = 13;
/// Records, two bytes, at least 1.
pub(crate) const TABLE_COUNT_AT: usize = 14;
/// Where they end, two bytes.
pub(crate) const TABLE_END_AT: usize = 16;
/// Where the slots begin.
pub(crate) const TABLE_SLOTS_AT: usize = 18;
/// A record's place, two bytes, and the length of its key's rest, two bytes.
pub(crate) const TABLE_SLOT_BYTES: usize = 4;
/// In that length: the value is tagged, which no inner node's is.
pub(crate) const TABLE_TAGGED: usize = 0x8000;
/// This is not the node that belongs here, or a place in it cannot be right.
pub(crate) const TABLE_DAMAGED: usize = 1;
/// The next node has more than one unit: it is read another way.
pub(crate) const TABLE_LARGER: usize = 2;
/// The first record that may be it, four bytes.
pub(crate) const SEARCH_LOW: usize = 64;
/// The one behind the last.
pub(crate) const SEARCH_HIGH: usize = 68;
/// The table's number.
pub(crate) const DESCENT_TABLE: usize = 0;
/// That of the node to come.
pub(crate) const DESCENT_LEVEL: usize = 8;
/// Bytes of the key.
pub(crate) const DESCENT_KEY_LEN: usize = 16;
/// The key.
pub(crate) const DESCENT_KEY: usize = 128;
/// The longest one.
pub(crate) const DESCENT_KEY_MAX: usize = 128;
/// The table's number.
pub(crate) const RANGE_TABLE: usize = 0;
/// That of the node to come.
pub(crate) const RANGE_LEVEL: usize = 8;
/// Bytes of the least key that counts.
pub(crate) const RANGE_LOW_LEN: usize = 16;
/// Bytes of the key that all keys which count are below.
pub(crate) const RANGE_HIGH_LEN: usize = 24;
/// How many there were.
pub(crate) const RANGE_FOUND: usize = 32;
/// Leaves read.
pub(crate) const RANGE_LEAVES: usize = 40;
/// Leaves in flight.
pub(crate) const RANGE_COMING: usize = 48;
/// 1: the range may go on behind the leaves read.
pub(crate) const RANGE_MORE: usize = 56;
/// The least key that counts.
pub(crate) const RANGE_LOW: usize = 128;
/// The key that all keys which count are below.
pub(crate) const RANGE_HIGH: usize = 192;
/// The longest of these two.
pub(crate) const RANGE_KEY_MAX: usize = 64;
