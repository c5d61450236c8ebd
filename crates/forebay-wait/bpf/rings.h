/* io_uring: operations from submission to completion. */
#ifndef FOREBAY_RINGS_H
#define FOREBAY_RINGS_H

#include "calls.h"

/* Flags of a request; their bits are those of IOSQE_FIXED_FILE, IOSQE_IO_LINK, IOSQE_IO_HARDLINK, IOSQE_CQE_SKIP_SUCCESS. */
#define FIXED_FILE 1
#define LINKED (4 | 8)
#define NO_COMPLETION 64

/* An operation is over: for its ring and its process. */
static __always_inline void landed(struct ring *ring, u32 process, u64 now)
{
	s32 sleeping = count_landed(process, 1);

	if (ring)
		ADD(ring->in_flight, -1);
	if (sleeping)
		change(now, 0, 0, 0, 0, sleeping);
}

static __always_inline void add_ring(u64 ring)
{
	struct ring fresh = {.last_call = CALL_RING_OTHER};

	bpf_map_update_elem(&rings, &ring, &fresh, BPF_NOEXIST);
}

SEC("tp_btf/io_uring_create")
int BPF_PROG(io_uring_create, int descriptor, void *ring)
{
	if (followed(bpf_get_current_task_btf()))
		add_ring((u64)ring);
	return 0;
}

SEC("tp_btf/io_uring_cqring_wait")
int BPF_PROG(io_uring_cqring_wait, void *ring, int wanted)
{
	struct thread *thread = followed(bpf_get_current_task_btf());
	u64 number = (u64)ring;

	if (!thread || thread->shape != SHAPE_RING)
		return 0;
	/* A ring that is older than the measurement. */
	if (!bpf_map_lookup_elem(&rings, &number))
		add_ring(number);
	thread->ring = number;
	return 0;
}

/* A registered file. */
static __always_inline struct file *file_of_table(struct io_ring_ctx *ring, u32 number)
{
	struct io_ring_ctx___before *before = (void *)ring;
	struct io_rsrc_node **nodes, *node = 0;
	struct io_fixed_file *files;

	if (bpf_core_field_exists(struct io_file_table, data) && bpf_core_field_exists(struct io_rsrc_data, nodes)) {
		if (number >= BPF_CORE_READ(ring, file_table.data.nr))
			return 0;
		nodes = BPF_CORE_READ(ring, file_table.data.nodes);
		if (bpf_probe_read_kernel(&node, sizeof(node), nodes + number) || !node)
			return 0;
		return (struct file *)(BPF_CORE_READ(node, file_ptr) & ~7UL);
	}
	if (!bpf_core_field_exists(struct io_file_table___before, files) ||
	    number >= BPF_CORE_READ(before, nr_user_files))
		return 0;
	files = BPF_CORE_READ(before, file_table.files);
	return (struct file *)(BPF_CORE_READ(files + number, file_ptr) & ~7UL);
}

/* The file is bound to the request only when it is issued; here there is the number that names it. */
static __always_inline struct file *file_of_request(struct io_kiocb *request)
{
	u32 number = BPF_CORE_READ(request, cqe.fd);

	if (BPF_CORE_READ(request, flags) & FIXED_FILE)
		return file_of_table(BPF_CORE_READ(request, ctx), number);
	return file_of_descriptor(bpf_get_current_task_btf(), number);
}

SEC("tp_btf/io_uring_submit_req")
int BPF_PROG(io_uring_submit_req, struct io_kiocb *request)
{
	u64 ring_number = (u64)BPF_CORE_READ(request, ctx), number = (u64)request;
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = followed(task);
	struct ring_op op = {}, *before;
	struct file_state *state;
	struct ring *ring;
	struct file *file;
	struct io_rw *rw;
	u32 process = task->tgid;
	s32 sleeping;
	u64 flags;

	ring = bpf_map_lookup_elem(&rings, &ring_number);
	if (!ring) {
		/* A thread of the ring's own submits for its process. */
		if (!thread && !bpf_map_lookup_elem(&owners, &process))
			return 0;
		add_ring(ring_number);
		ring = bpf_map_lookup_elem(&rings, &ring_number);
		if (!ring)
			return 0;
	}
	op.call = settings.ring_call_of[BPF_CORE_READ(request, opcode) & 127];
	if (!op.call)
		return 0;
	file = file_of_request(request);
	if (!file || !is_storage(file, &op.file)) {
		/* Opening and the like have no file; sockets and pipes are not storage. */
		if (op.call != CALL_RING_OTHER || file)
			return 0;
	}
	flags = BPF_CORE_READ(request, flags);
	if (flags & NO_COMPLETION) {
		/* The last one of a chain tells when this one is over. */
		if (!(flags & LINKED))
			count_unseen_ops(1);
		return 0;
	}
	if (op.file.ino) {
		op.direct = is_direct(file);
		state = state_of(&op.file, file);
		if (state)
			longest((u64 *)&state->most, ADD(state->now, 1) + 1);
		/* Requests that the device gets while this one is issued are this file's. */
		if (thread && thread->shape == SHAPE_RING && thread->call) {
			thread->file = op.file;
			thread->named = 1;
		}
	}
	if (op.call == CALL_RING_READ || op.call == CALL_RING_WRITE) {
		rw = (struct io_rw *)request;
		op.place = BPF_CORE_READ(rw, kiocb.ki_pos);
		op.size = BPF_CORE_READ(rw, len);
		op.placed = 1;
		op.durable = op.call == CALL_RING_WRITE &&
			     ((BPF_CORE_READ(rw, flags) & RWF_DURABLE) || (file && is_durable(file)));
	}
	op.start = bpf_ktime_get_ns();
	op.process = process;
	/* Its memory was that of an operation which is over, though nothing told. */
	before = bpf_map_lookup_elem(&ring_ops, &number);
	if (before) {
		landed(ring, before->process, op.start);
		state = bpf_map_lookup_elem(&files, &before->file);
		if (state)
			ADD(state->now, -1);
	}
	if (bpf_map_update_elem(&ring_ops, &number, &op, BPF_ANY)) {
		count_lost_op();
		return 0;
	}
	if (ADD(ring->in_flight, 1) <= 0)
		begin_busy(&ring->busy_since, ring->maybe_since, op.start);
	sleeping = count_owner(process, IN_FLIGHT);
	if (sleeping)
		change(op.start, 0, 0, 0, 0, sleeping);
	return 0;
}

/* The thread that runs a completion is about to wake the one that waits for it. */
static __always_inline void note_completion(const struct ring *ring, const struct ring_op *op, u32 followed)
{
	u32 zero = 0;
	struct completion *completion = bpf_map_lookup_elem(&completions, &zero);

	if (!completion)
		return;
	completion->busy_since = ring->busy_since;
	__builtin_memcpy(completion->maybe_since, ring->maybe_since, sizeof(ring->maybe_since));
	completion->file = op->file;
	completion->call = op->call;
	completion->followed = followed;
	completion->process = op->process;
}

SEC("tp_btf/io_uring_complete")
int BPF_PROG(io_uring_complete, void *ring_pointer, void *request, void *completion)
{
	u64 number = (u64)request, ring_number = (u64)ring_pointer, now, time;
	struct ring_op *op = request ? bpf_map_lookup_elem(&ring_ops, &number) : 0;
	struct thread *thread;
	struct file_state *state;
	struct call_stats *stats;
	struct ring *ring;
	s32 result;

	if (!op)
		return 0;
	now = bpf_ktime_get_ns();
	time = now > op->start ? now - op->start : 0;
	result = BPF_CORE_READ((struct io_kiocb *)request, cqe.res);
	ring = bpf_map_lookup_elem(&rings, &ring_number);
	landed(ring, op->process, now);
	if (ring) {
		ring->last = op->file;
		ring->last_call = op->call;
	}
	thread = followed(bpf_get_current_task_btf());
	if (thread)
		settle_ring(thread, &op->file, op->call);
	if (ring && thread && thread->ended) {
		not_before(thread->maybe_from, ring->maybe_since);
		give(&op->file, op->call, settle(thread, ring->busy_since, 0));
	} else if (ring && !(thread && thread->apart)) {
		note_completion(ring, op, thread != 0);
	}
	state = bpf_map_lookup_elem(&files, &op->file);
	if (state) {
		ADD(state->now, -1);
		busy(state, op->start, now);
	}
	stats = row_of(&op->file, op->call);
	if (!stats)
		goto out;
	ADD(stats->count, 1);
	ADD(stats->time_ns, time);
	longest(&stats->longest_ns, time);
	if (op->direct)
		ADD(stats->direct, 1);
	if (result < 0) {
		ADD(stats->errors, 1);
		goto out;
	}
	if (op->placed) {
		ADD(stats->bytes, result);
		ADD(stats->sizes[size_class(op->size ? op->size : result)], 1);
		if (op->durable)
			ADD(stats->durable, 1);
		if (state && result) {
			ADD(stats->placed, 1);
			if (goes_on(state, op->place, result))
				ADD(stats->sequential, 1);
		}
	}
out:
	bpf_map_delete_elem(&ring_ops, &number);
	return 0;
}

#endif
