/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* What the module's files have in common. */
#ifndef FOREBAY_MODULE_WALK_H
#define FOREBAY_MODULE_WALK_H

#include <linux/atomic.h>
#include <linux/bio.h>
#include <linux/fs.h>
#include <linux/llist.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include <linux/wait.h>
#include "forebay_slot.h"

struct io_comp_batch;
struct io_uring_cmd;

/* What a step says, in memory of the kernel's own. */
struct fbw_frame {
	u64 next[FBW_READS_MAX];
	u64 at;
	u32 count;
	u32 gap;
};
static_assert(sizeof(struct fbw_frame) == FBW_FRAME_BYTES);
FBW_PLACE(fbw_frame, at, FBW_FRAME_AT);
FBW_PLACE(fbw_frame, count, FBW_FRAME_COUNT);

/* One call of a program: it gets at what it may see by the kfuncs of step.c. */
struct fbw_step {
	const u8 *page;
	u32 page_bytes;
	u8 *scratch;
	struct fbw_frame *frame;
};

/* What a program fills, and how it is found: the session's descriptor in the loading process. */
struct fbw_ops {
	int (*step)(struct fbw_step *step);
	u32 session_fd;
};

/* A piece of the file that lies in one piece on the device. */
struct fbw_extent {
	u64 at;		/* bytes in the file */
	u64 bytes;
	sector_t sector;
};

/* One of a walk's reads. */
struct fbw_read {
	struct bio bio;
	struct bio_vec *vecs;
	struct fbw_slot *slot;
	u64 at;
	u32 place;
	u32 again;		/* times that the device had no room for it */
	bool is_flying;		/* it was submitted and has not landed */
	sector_t sector;
	blk_status_t status;
};

/* A walk. Whoever holds it may go on with it: the command that began it, then the task work or poll that took it from the
 * session's ready list. Completions only touch `arrived` and `ready`. */
struct fbw_slot {
	struct fbw_session *session;
	struct fbw_shared *shared;
	u8 *pages;
	struct fbw_read *reads;
	struct io_uring_cmd *cmd;
	unsigned long busy;
	atomic_t arrived;	/* reads that have, a bit each */
	struct llist_node ready;
	u32 pending;		/* reads that were begun and not looked at, a bit each */
	u32 state;
	u32 hops;
	u32 hops_max;
	u32 code;
	u32 place;
	u64 failed_at;
	bool polled;
	struct fbw_step step;
	struct fbw_frame frame;
};

/* An open descriptor of the device. */
struct fbw_session {
	struct list_head all;
	struct mutex lock;		/* binding and unbinding */
	struct fbw_ops __rcu *ops;
	u8 *memory;
	size_t memory_bytes;
	u32 slots_count;
	u32 reads_each;
	u32 page_bytes;
	struct fbw_slot *slots;
	struct fbw_read *reads;
	struct bio_vec *vecs;
	bool is_ready;			/* set when all of it is there */

	struct file *file;
	struct inode *inode;
	struct block_device *bdev;
	struct fbw_pin *pin;
	struct fbw_extent *extents;
	u32 extents_count;
	u32 grain;			/* positions are multiples of it */
	bool is_direct;
	bool is_pollable;

	const void *ring;		/* the one ring that walks here; only compared */
	struct llist_head ready;	/* walks of which a read has arrived */
	atomic_t attended;		/* a task work takes that list, or will */
	const u32 *wanted;		/* walks that user space waits for, in the shared memory */
	u64 spin_ns;			/* how long the task work waits for the next read without sleeping */
	u32 spins_skipped;		/* times that it did not, after the last in vain */
	u32 spins_to_skip;		/* those of them that are left */
	atomic_t in_flight;		/* reads, and one while something looks at the extents */
	bool closing;
	wait_queue_head_t idle;
};

/* bind.c */
int fbw_bind_file(struct fbw_session *session, int fd, u32 *refused);
void fbw_unbind_file(struct fbw_session *session);

/* hop.c */
bool fbw_begin(struct fbw_slot *slot, struct io_uring_cmd *cmd, bool polled);
void fbw_attend(struct fbw_session *session, unsigned int flags);
int fbw_poll(struct fbw_slot *slot, unsigned int poll_flags);
void fbw_wait_idle(struct fbw_session *session);

/* device.c */
struct fbw_session *fbw_session_of(struct file *file);
extern struct list_head fbw_sessions;
extern struct mutex fbw_sessions_lock;

/* step.c */
int fbw_register_steps(void);

#endif
