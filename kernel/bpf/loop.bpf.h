/* SPDX-License-Identifier: (MIT OR GPL-2.0-only) */
/* The loop that runs a step inside io_uring: a program defines fbw_step() and includes walk.bpf.h.
 *
 * One call of fbw_loop_step() begins what user space has put into slots, gives every page that has come to its walk's step,
 * and submits all reads that were asked for. The kernel calls it again when there are completions, and returns to user
 * space when it says stop. Everything lies in memory that user space can write at any time: what is read from there is
 * checked or masked where it is used, and the kernel's verifier has proved that. */
#ifndef FOREBAY_LOOP_BPF_H
#define FOREBAY_LOOP_BPF_H

#include "common.bpf.h"

/* What of the kernel's types is used; the loader finds their true layout in the running kernel. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct iou_ctx {
};
struct iou_loop_params {
	u32 cq_wait_idx;
};
#pragma clang attribute pop

/* Filled by user space, and found by name. */
struct io_uring_bpf_ops {
	int (*loop_step)(struct iou_ctx *, struct iou_loop_params *);
	u32 ring_fd;
};

enum { IOU_LOOP_CONTINUE, IOU_LOOP_STOP };
enum { IOU_REGION_MEM, IOU_REGION_CQ, IOU_REGION_SQ };

extern int bpf_io_uring_submit_sqes(struct iou_ctx *ring, u32 count) __ksym;
extern u8 *bpf_io_uring_get_region(struct iou_ctx *ring, u32 region, const unsigned long rdwr_buf_size) __ksym;

/* Set before the program is loaded; the verifier sees constants. Powers of two: page_bytes, reads_each, reads, cq_entries. */
struct loop_settings {
	u32 memory_bytes; /* of the shared memory */
	u32 page_bytes;
	u32 reads_each;	 /* pages of one walk */
	u32 reads_shift; /* its logarithm */
	u32 reads;	 /* pages of all walks */
	u32 sq_entries;	 /* more than reads */
	u32 cq_entries;
	u32 cq_bytes;	 /* of the ring's own memory */
	u32 cq_head_at;
	u32 cq_tail_at;
	u32 cqes_at;
	u32 poke_fd;
	u64 pages_address; /* where user space has the pages */
};
const volatile struct loop_settings settings SEC(".rodata.settings");

#define POKE (~0ULL)
#define OP_READ_FIXED 4
#define OP_POLL_ADD 6
#define POLL_IN 1
#define FIXED_FILE 1

struct sqe {
	u8 opcode;
	u8 flags;
	u16 ioprio;
	s32 fd;
	u64 off;
	u64 addr;
	u32 len;
	u32 rw_flags;
	u64 user_data;
	u16 buf_index;
	u16 personality;
	s32 splice_fd;
	u64 pad[2];
};

struct cqe {
	u64 user_data;
	s32 res;
	u32 flags;
};

struct control {
	u32 new_count;
	u32 done_count;
	u32 under_way;
	u32 stop_after;
	u32 arm_poke;
	u32 poked;
	u32 broken;
	u32 queued;
	u64 steps;
	u8 gap[FBW_CONTROL_NEW - 40];
	u32 fresh[FBW_SLOTS_MAX];
	u32 done[FBW_SLOTS_MAX];
};

FBW_PLACE(control, new_count, FBW_CONTROL_NEW_COUNT);
FBW_PLACE(control, done_count, FBW_CONTROL_DONE_COUNT);
FBW_PLACE(control, under_way, FBW_CONTROL_UNDER_WAY);
FBW_PLACE(control, stop_after, FBW_CONTROL_STOP_AFTER);
FBW_PLACE(control, arm_poke, FBW_CONTROL_ARM_POKE);
FBW_PLACE(control, poked, FBW_CONTROL_POKED);
FBW_PLACE(control, broken, FBW_CONTROL_BROKEN);
FBW_PLACE(control, queued, FBW_CONTROL_QUEUED);
FBW_PLACE(control, steps, FBW_CONTROL_STEPS);
FBW_PLACE(control, fresh, FBW_CONTROL_NEW);
FBW_PLACE(control, done, FBW_CONTROL_DONE);
_Static_assert(sizeof(struct control) <= FBW_SLOTS_AT, "the control block");
_Static_assert(FBW_SLOTS_AT + FBW_SLOTS_MAX * FBW_SLOT_BYTES == FBW_PAGES_AT, "slots and pages");
_Static_assert(sizeof(struct sqe) == 64 && sizeof(struct cqe) == 16, "what the kernel gives and takes");

/* The next submission of this run: the kernel takes them from the queue's beginning. Their number lives in memory, not in
 * a variable, so that the verifier need not follow its every value. */
static __always_inline struct sqe *submission(struct control *control, u8 *sq)
{
	u32 n = control->queued;

	control->queued = n + 1;
	return (struct sqe *)(sq + (n & (settings.sq_entries - 1)) * sizeof(struct sqe));
}

/* The file is the ring's file 0, or one that the calling thread has open: io_uring looks its descriptor up, whatever number it
 * is given, with the rights of an ordinary read. */
static __always_inline void read_page(struct sqe *sqe, u32 page, u64 at, u32 file)
{
	u32 is_own = !file;

	sqe->opcode = OP_READ_FIXED;
	sqe->flags = is_own * FIXED_FILE;
	sqe->ioprio = 0;
	sqe->fd = file - 1 + is_own;
	/* -1 would mean the descriptor's own position; other negative places are refused. */
	sqe->off = at == ~0ULL ? 1ULL << 63 : at;
	sqe->addr = settings.pages_address + (u64)page * settings.page_bytes;
	sqe->len = settings.page_bytes;
	sqe->rw_flags = 0;
	sqe->user_data = page;
	sqe->buf_index = 0;
	sqe->personality = 0;
	sqe->splice_fd = 0;
	sqe->pad[0] = 0;
	sqe->pad[1] = 0;
}

/* Asks to be notified when another thread writes to the descriptor. It moves no bytes: whatever the ring's end leaves
 * behind, nothing is written to memory later. */
static __always_inline void arm_poke(struct sqe *sqe)
{
	read_page(sqe, 0, 0, 0);
	sqe->opcode = OP_POLL_ADD;
	sqe->flags = 0;
	sqe->fd = settings.poke_fd;
	sqe->addr = 0;
	sqe->len = 0;
	sqe->rw_flags = POLL_IN;
	sqe->user_data = POKE;
}

/* Writes the submissions for a slot's reads. */
static __always_inline void begin_reads(struct control *control, struct fbw_shared *slot, u32 first, u8 *sq)
{
	struct bpf_iter_num it;
	u32 count = slot->coming, file = slot->file;
	int *i;

	bpf_iter_num_new(&it, 0, settings.reads_each);
	while ((i = bpf_iter_num_next(&it))) {
		u32 place = *i;

		if (place >= count)
			break;
		read_page(submission(control, sq), first + place, slot->at[place & (FBW_READS_MAX - 1)], file);
	}
	bpf_iter_num_destroy(&it);
}

static __always_inline struct fbw_shared *slot_of(u8 *memory, u32 number)
{
	return (struct fbw_shared *)(memory + FBW_SLOTS_AT + (number & (FBW_SLOTS_MAX - 1)) * FBW_SLOT_BYTES);
}

static __always_inline void end_walk(struct fbw_shared *slot, u32 state, u32 code, u64 at)
{
	slot->state = state;
	slot->code = code;
	slot->failed_at = at;
}

/* What a step may ask for: sets the slot's reads going, or ends the walk. */
static __always_inline void judge(struct fbw_shared *slot, u32 answer, u32 count, u64 at)
{
	if (answer == FBW_WAIT && slot->coming)
		return;
	if (answer == FBW_OVER) {
		end_walk(slot, FBW_STATE_DONE, 0, at);
	} else if (answer == FBW_FAIL) {
		end_walk(slot, FBW_STATE_FAILED, count, at);
	} else if (answer != FBW_READ || slot->coming || !count || count > settings.reads_each) {
		end_walk(slot, FBW_STATE_ANSWER, answer, at);
	} else if (slot->hops >= slot->hops_max) {
		end_walk(slot, FBW_STATE_HOPS, slot->hops, at);
	} else {
		slot->hops++;
		slot->coming = count;
	}
}

/* A page has come, or has not. */
static __always_inline void arrived(u8 *memory, struct control *control, u32 page, s32 result, u8 *sq)
{
	u32 number = page >> settings.reads_shift, place = page & (settings.reads_each - 1);
	struct fbw_shared *slot = slot_of(memory, number);
	u64 at = slot->at[place & (FBW_READS_MAX - 1)];
	u32 answer, count = 0, coming = slot->coming;

	if (coming)
		slot->coming = --coming;
	if (slot->state == FBW_STATE_WALKING) {
		slot->place = place;
		if (result < 0) {
			end_walk(slot, FBW_STATE_IO, -result, at);
		} else if ((u32)result != settings.page_bytes) {
			end_walk(slot, FBW_STATE_SHORT, result, at);
		} else {
			answer = fbw_step(memory + FBW_PAGES_AT + page * settings.page_bytes, at, slot->scratch,
					  slot->at, &count);
			judge(slot, answer, count, at);
		}
	}
	/* While some were coming, there are no new ones. */
	if (coming)
		return;
	if (slot->state == FBW_STATE_WALKING) {
		begin_reads(control, slot, number << settings.reads_shift, sq);
	} else {
		/* The slot is given back when the last of its reads has landed. */
		u32 done = control->done_count;

		control->done[done & (FBW_SLOTS_MAX - 1)] = number;
		control->done_count = done + 1;
		control->under_way--;
	}
}

SEC("struct_ops.s/fbw_loop_step")
int fbw_loop_step(u64 *arguments)
{
	struct iou_ctx *ring = (struct iou_ctx *)arguments[0];
	struct iou_loop_params *params = (struct iou_loop_params *)arguments[1];
	u8 *memory, *cq, *sq;
	struct control *control;
	struct bpf_iter_num it;
	u32 *cq_head, *cq_tail, count;
	int *i;

	memory = bpf_io_uring_get_region(ring, IOU_REGION_MEM, settings.memory_bytes);
	if (!memory)
		return IOU_LOOP_STOP;
	control = (struct control *)memory;
	cq = bpf_io_uring_get_region(ring, IOU_REGION_CQ, settings.cq_bytes);
	sq = bpf_io_uring_get_region(ring, IOU_REGION_SQ, settings.sq_entries * sizeof(struct sqe));
	if (!cq || !sq) {
		control->broken = FBW_BROKEN_MEMORY;
		return IOU_LOOP_STOP;
	}
	control->steps++;
	control->queued = 0;

	cq_head = (u32 *)(cq + settings.cq_head_at);
	cq_tail = (u32 *)(cq + settings.cq_tail_at);
	bpf_iter_num_new(&it, 0, FBW_SLOTS_MAX);
	while ((i = bpf_iter_num_next(&it))) {
		u32 head = *(volatile u32 *)cq_head;
		struct cqe *cqe;
		u64 page;

		/* One completion begins the reads of one walk at most. */
		if (head == *(volatile u32 *)cq_tail || control->queued + FBW_READS_MAX > settings.sq_entries)
			break;
		cqe = (struct cqe *)(cq + settings.cqes_at + (head & (settings.cq_entries - 1)) * sizeof(*cqe));
		page = cqe->user_data;
		*cq_head = head + 1;
		if (page == POKE) {
			control->poked = 1;
			continue;
		}
		if (page >= settings.reads) {
			control->broken = FBW_BROKEN_COMPLETION;
			break;
		}
		arrived(memory, control, page, cqe->res, sq);
	}
	bpf_iter_num_destroy(&it);

	/* There is room for all: as many submissions as pages, and some to spare. */
	count = control->new_count;
	bpf_iter_num_new(&it, 0, FBW_SLOTS_MAX);
	while ((i = bpf_iter_num_next(&it))) {
		u32 number, taken = *i;

		if (taken >= count)
			break;
		number = control->fresh[taken & (FBW_SLOTS_MAX - 1)] & ((settings.reads >> settings.reads_shift) - 1);
		begin_reads(control, slot_of(memory, number), number << settings.reads_shift, sq);
		control->under_way++;
	}
	bpf_iter_num_destroy(&it);
	control->new_count = 0;
	if (control->arm_poke) {
		control->arm_poke = 0;
		arm_poke(submission(control, sq));
	}
	count = control->queued;
	if (count && bpf_io_uring_submit_sqes(ring, count) != count)
		control->broken = FBW_BROKEN_SUBMIT;

	if (control->broken || control->poked || control->done_count >= control->stop_after || !control->under_way)
		return IOU_LOOP_STOP;
	params->cq_wait_idx = *(volatile u32 *)cq_head + 1;
	return IOU_LOOP_CONTINUE;
}

SEC(".struct_ops.link")
struct io_uring_bpf_ops fbw_loop = {
	.loop_step = (void *)fbw_loop_step,
};

#endif
