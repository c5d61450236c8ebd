/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* The interface between a walk inside the kernel and the program that starts it: the layout of the shared memory, the
 * results of a step, and the layout of the pages that the programs here read. Every number stands here once; the Rust side
 * (crates/forebay-kernel/src/layout.rs) is made from the #define lines by scripts/build-kernel-bpf, and both sides assert
 * that their structures have these places. All numbers are little-endian. */
#ifndef FOREBAY_WALK_H
#define FOREBAY_WALK_H

/* Sizes. */
#define FBW_SLOTS_MAX 64	/* walks of one session under way at once */
#define FBW_READS_MAX 16	/* reads that one step may ask for */
#define FBW_SCRATCH_BYTES 256	/* of a walk: its arguments, its state between steps, its result */
#define FBW_SLOT_BYTES 512	/* of a walk in the shared memory, without its pages */
#define FBW_PAGE_BYTES_MIN 512	/* the smallest page; pages are powers of two */
#define FBW_PAGE_BYTES_MAX 65536	/* the largest */
#define FBW_HOPS_MAX 64		/* hops after which a walk fails, unless it was given fewer */

/* The shared memory: the control block, then the slots, then the pages. */
#define FBW_SLOTS_AT 4096	/* where the slots begin, bytes */
#define FBW_PAGES_AT 36864	/* where the pages begin, bytes */

/* The control block. */
#define FBW_CONTROL_NEW_COUNT 0	/* slots that user space has filled since the last run */
#define FBW_CONTROL_DONE_COUNT 4	/* slots whose walk is over since user space last looked */
#define FBW_CONTROL_UNDER_WAY 8	/* walks begun and not over */
#define FBW_CONTROL_STOP_AFTER 12	/* return to user space when so many are over */
#define FBW_CONTROL_ARM_POKE 16	/* 1: watch the descriptor that wakes the loop up from another thread */
#define FBW_CONTROL_POKED 20	/* 1: that descriptor was written to */
#define FBW_CONTROL_BROKEN 24	/* not 0: the loop cannot go on, and why */
#define FBW_CONTROL_QUEUED 28	/* submissions of the present run; the program's own */
#define FBW_CONTROL_STEPS 32	/* times that the program ran */
#define FBW_CONTROL_NEW 128	/* the slots that were filled, a word each */
#define FBW_CONTROL_DONE 384	/* the slots that are over, a word each */

/* A slot. */
#define FBW_SLOT_STATE 0	/* one of the FBW_STATE_ numbers */
#define FBW_SLOT_HOPS 4	/* reads that were begun, a fan-out counted once */
#define FBW_SLOT_HOPS_MAX 8	/* hops after which it fails */
#define FBW_SLOT_COMING 12	/* reads in flight, or to be begun when the slot is new */
#define FBW_SLOT_CODE 16	/* why it failed; FBW_STATE_ says whether this is an errno or the program's own number */
#define FBW_SLOT_PLACE 20	/* the slot's page that was inspected last */
#define FBW_SLOT_FAILED_AT 24	/* the position of the page that failed it */
#define FBW_SLOT_AT 32	/* positions of the reads, bytes in the file, a double word each */
#define FBW_SLOT_FILE 160	/* the loop: 0 for the session's own file, or the descriptor of another one, plus 1 */
#define FBW_SLOT_SCRATCH 256	/* the scratch */

/* Bytes behind the last page that a step may look at, and that mean nothing: searches without branches do. */
#define FBW_PAGES_PAD 4096

/* The states of a walk. */
#define FBW_STATE_FREE 0	/* not in use */
#define FBW_STATE_WALKING 1	/* under way, or new */
#define FBW_STATE_DONE 2	/* over, with a result in the scratch */
#define FBW_STATE_FAILED 3	/* its step said so; the code is the step's own */
#define FBW_STATE_IO 4		/* a read failed; the code is an errno */
#define FBW_STATE_SHORT 5	/* the file ended inside of a page; the code is the bytes that there were */
#define FBW_STATE_HOPS 6	/* too many hops */
#define FBW_STATE_ANSWER 7	/* the step returned an invalid result: no read, too many, or more while some are in flight */
#define FBW_STATE_ELSEWHERE 8	/* this engine cannot go on with it, another one may; the code is an errno */

/* The results of a step. */
#define FBW_READ 0	/* read the pages named; the step runs again with each */
#define FBW_WAIT 1	/* run again with the next page in flight */
#define FBW_OVER 2	/* the walk is over, the result is in the scratch */
#define FBW_FAIL 3	/* the walk is over and failed */

/* Why a loop is broken. */
#define FBW_BROKEN_MEMORY 1	/* the ring's memory is smaller than the program was configured for */
#define FBW_BROKEN_SUBMIT 2	/* the kernel did not take all submissions */
#define FBW_BROKEN_COMPLETION 3	/* a completion that belongs to no walk */

/* The module (kernel/module): a session is an open descriptor of its device. Bound to a file, it has the shared memory above
 * for mapping, with FBW_CONTROL_STOP_AFTER alone of the control block; a command of io_uring's walks one slot, and completes when
 * the walk is over. */
#define FBW_MODULE_LAYOUT 2	/* changes when anything does that both sides must know */
#define FBW_MODULE_BIND 0xc024fb01	/* ioctl: binds the session to a file; takes and fills the structure below */
#define FBW_MODULE_UNBIND 0xfb02	/* ioctl: ends that; returns when no read is in flight, and the file is free */
#define FBW_MODULE_WALK 1	/* the command; the slot's number is its first word, the second 1 if no more commands follow */

/* The arguments and results of binding: words. */
#define FBW_BIND_LAYOUT 0	/* FBW_MODULE_LAYOUT as user space knows it */
#define FBW_BIND_FD 4		/* the file, opened for reading */
#define FBW_BIND_PAGE_BYTES 8	/* of a page */
#define FBW_BIND_SLOTS 12	/* walks at once */
#define FBW_BIND_READS_EACH 16	/* pages of one walk */
#define FBW_BIND_REFUSED 20	/* result: the reason, one of the FBW_REFUSED_ numbers, beside the errno */
#define FBW_BIND_POLLED 24	/* result: 1 if the device can be polled */
#define FBW_BIND_EXTENTS 28	/* result: extents of the file on the device */
#define FBW_BIND_SPIN_NS 32	/* how long the task waits for a read without sleeping, ns; FBW_SPIN_NS_MAX at most */
#define FBW_BIND_BYTES 36	/* all of it */
#define FBW_SPIN_NS_MAX 200000	/* the longest such wait */

/* Why a file is not bound. */
#define FBW_REFUSED_LAYOUT 1	/* user space knows another layout */
#define FBW_REFUSED_NUMBERS 2	/* bytes of a page, slots or reads that cannot be */
#define FBW_REFUSED_BOUND 3	/* the session is bound already, or has been */
#define FBW_REFUSED_KIND 4	/* neither a regular file nor a block device */
#define FBW_REFUSED_MODE 5	/* not opened for reading */
#define FBW_REFUSED_OWNER 6	/* pinning takes the file's owner or CAP_FOWNER */
#define FBW_REFUSED_FILE_SYSTEM 7	/* a file system whose extents may move: only ext2, ext3, ext4 and XFS are known not to */
#define FBW_REFUSED_ENCRYPTED 8	/* encrypted by the file system */
#define FBW_REFUSED_VERITY 9	/* fs-verity checks every read, a walk would not */
#define FBW_REFUSED_DAX 10	/* memory, not a device */
#define FBW_REFUSED_INLINE 11	/* the data lies in the inode */
#define FBW_REFUSED_HOLES 12	/* holes, unwritten or shared (reflink) extents, or a realtime file */
#define FBW_REFUSED_SWAP 13	/* in use as swap */
#define FBW_REFUSED_MAPPED 14	/* mapped for shared writing */
#define FBW_REFUSED_BLOCK 15	/* pages smaller than the device's blocks */
#define FBW_REFUSED_EXTENTS 16	/* too many pieces */

/* The frame of a step in the module: FBW_FRAME_BYTES, private to the kernel. */
#define FBW_FRAME_NEXT 0	/* the positions that it requests, a double word each */
#define FBW_FRAME_AT 128	/* the position of the page that it sees */
#define FBW_FRAME_COUNT 136	/* the number of positions, or the reason of FBW_FAIL; a word */
#define FBW_FRAME_BYTES 144	/* all of it */

/* The tree of `forebay measure walk`: nodes of 512 or 4,096 bytes, each with a header and records of a separator and
 * its target: the position of a node of the level below, or in a leaf (level 0) the value. */
#define FBW_TREE_MAGIC 0x6b6c6177	/* the first word of a node */
#define FBW_TREE_MAGIC_AT 0
#define FBW_TREE_LEVEL_AT 4	/* two bytes */
#define FBW_TREE_COUNT_AT 6	/* two bytes, at least 1 */
#define FBW_TREE_POSITION_AT 8	/* the node's own position, bytes in the file */
#define FBW_TREE_RECORDS_AT 24	/* where the records begin */
#define FBW_TREE_RECORD_BYTES 16	/* separator, then its target */

/* Why the tree's programs fail. */
#define FBW_TREE_DAMAGED 1	/* this is not the node that belongs here */

/* The scratch of the tree's lookup. */
#define FBW_LOOKUP_KEY 0	/* the key */
#define FBW_LOOKUP_VALUE 8	/* its value */
#define FBW_LOOKUP_LEVEL 16	/* that of the node to come */

/* The scratch of the tree's count: how many separators of the leaves lie in a range. The way down to level 1 is that of
 * the lookup of a key; there up to 16 children whose part of the words meets the range are read at once. */
#define FBW_COUNT_KEY 0		/* names the way down */
#define FBW_COUNT_LOW 8		/* the least separator that counts */
#define FBW_COUNT_HIGH 16	/* the greatest */
#define FBW_COUNT_FOUND 24	/* how many there were */
#define FBW_COUNT_LEAVES 32	/* leaves read */
#define FBW_COUNT_COMING 40	/* leaves in flight */
#define FBW_COUNT_LEVEL 48	/* that of the node to come */

/* The nodes of forebay-kv's tables (FORMAT.md of the crate): a header, slots, the keys' common prefix, records. */
#define FBW_TABLE_UNIT 4096	/* nodes stand at multiples of it */
#define FBW_TABLE_TABLE_AT 4	/* the table's number, four bytes */
#define FBW_TABLE_POSITION_AT 8	/* the node's own place in units, four bytes */
#define FBW_TABLE_LEVEL_AT 12	/* a byte; 0 for a leaf */
#define FBW_TABLE_UNITS_AT 13	/* the node's length in units, a byte */
#define FBW_TABLE_COUNT_AT 14	/* records, two bytes, at least 1 */
#define FBW_TABLE_END_AT 16	/* where they end, two bytes */
#define FBW_TABLE_SLOTS_AT 18	/* where the slots begin */
#define FBW_TABLE_SLOT_BYTES 4	/* a record's place, two bytes, and the length of its key's rest, two bytes */
#define FBW_TABLE_TAGGED 0x8000	/* in that length: the value is tagged, which no inner node's is */

/* Why a table's programs fail. */
#define FBW_TABLE_DAMAGED 1	/* this is not the node that belongs here, or a place in it cannot be right */
#define FBW_TABLE_LARGER 2	/* the next node has more than one unit: it is read another way */

/* In the scratch of each program for tables: the rest of a search within a node. */
#define FBW_SEARCH_LOW 64	/* the first record that may be it, four bytes */
#define FBW_SEARCH_HIGH 68	/* the one behind the last */

/* The scratch of a table's descent, from an inner node to the leaf in which a key is, if it is anywhere. */
#define FBW_DESCENT_TABLE 0	/* the table's number */
#define FBW_DESCENT_LEVEL 8	/* that of the node to come */
#define FBW_DESCENT_KEY_LEN 16	/* bytes of the key */
#define FBW_DESCENT_KEY 128	/* the key */
#define FBW_DESCENT_KEY_MAX 128	/* the longest one */

/* The scratch of a table's count, from an inner node: how many records of the table's leaves have keys in a range. At level 1 up to
 * 16 leaves that meet the range are read at once. */
#define FBW_RANGE_TABLE 0	/* the table's number */
#define FBW_RANGE_LEVEL 8	/* that of the node to come */
#define FBW_RANGE_LOW_LEN 16	/* bytes of the least key that counts */
#define FBW_RANGE_HIGH_LEN 24	/* bytes of the key that all keys which count are below */
#define FBW_RANGE_FOUND 32	/* how many there were */
#define FBW_RANGE_LEAVES 40	/* leaves read */
#define FBW_RANGE_COMING 48	/* leaves in flight */
#define FBW_RANGE_MORE 56	/* 1: the range may go on behind the leaves read */
#define FBW_RANGE_LOW 128	/* the least key that counts */
#define FBW_RANGE_HIGH 192	/* the key that all keys which count are below */
#define FBW_RANGE_KEY_MAX 64	/* the longest of these two */

#endif
