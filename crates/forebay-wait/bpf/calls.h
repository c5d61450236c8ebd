/* System calls and faults on files. */
#ifndef FOREBAY_CALLS_H
#define FOREBAY_CALLS_H

#include "threads.h"

static __always_inline u64 argument(struct pt_regs *registers, int number)
{
	if (bpf_core_field_exists(struct pt_regs, di))
		return number == 0   ? registers->di
		       : number == 1 ? registers->si
		       : number == 2 ? registers->dx
		       : number == 3 ? registers->r10
				     : registers->r9;
	return ((struct pt_regs___arm64 *)registers)->regs[number];
}

SEC("tp_btf/sys_enter")
int BPF_PROG(sys_enter, struct pt_regs *registers, long id)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = followed(task);
	struct file_state *state;
	struct file *file;
	u32 entry;
	u8 shape;

	if (!thread)
		return 0;
	thread->call = 0;
	thread->named = 0;
	thread->event = 0;
	thread->file.ino = 0;
	thread->file.dev = 0;
	if ((u64)id >= CALLS)
		return 0;
	entry = settings.call_of[id & (CALLS - 1)];
	if (!entry)
		return 0;
	shape = entry >> 8;
	if (shape >= SHAPE_EVENT) {
		if (shape == SHAPE_EVENT)
			thread->event = 1;
		else
			thread->ended = 0;
		return 0;
	}
	thread->shape = shape;
	thread->call_wait = 0;
	thread->placed = 0;
	thread->direct = 0;
	thread->durable = 0;
	thread->other_end = 0;
	thread->brought_in = 0;
	thread->size = 0;
	thread->ring = 0;
	if (shape < SHAPE_OPEN) {
		file = file_of_descriptor(task, argument(registers, 0));
		if (shape == SHAPE_SEND)
			file = file_of_copy(thread, file_of_descriptor(task, argument(registers, 1)), file);
		else if (shape == SHAPE_SPLICE)
			file = file_of_copy(thread, file, file_of_descriptor(task, argument(registers, 2)));
		if (!file)
			return 0;
		if (!is_storage_again(thread, file)) {
			if (is_anonymous(file))
				thread->event = (entry & 0xff) == CALL_READ;
			else
				thread->ended = 0;
			return 0;
		}
		thread->named = 1;
		if ((entry & 0xff) == CALL_CLOSE)
			thread->last_file = 0;
		state = state_of(&thread->file, file);
		if (state)
			longest((u64 *)&state->most, ADD(state->now, 1) + 1);
		if (shape == SHAPE_READ_WRITE || shape == SHAPE_AT)
			thread->size = argument(registers, 2);
		if ((entry & 0xff) == CALL_WRITE)
			thread->durable = is_durable(file) ||
					  (shape == SHAPE_VECTOR_FLAGS && (argument(registers, 5) & RWF_DURABLE));
		if (shape == SHAPE_AT || shape == SHAPE_VECTOR_AT || shape == SHAPE_VECTOR_FLAGS) {
			thread->place = argument(registers, 3);
			thread->placed = 1;
		} else if (shape == SHAPE_READ_WRITE || shape == SHAPE_VECTOR) {
			thread->place = BPF_CORE_READ(file, f_pos);
			thread->placed = 1;
		}
	}
	thread->call_start = bpf_ktime_get_ns();
	thread->call = entry & 0xff;
	if (shape < SHAPE_RING) {
		thread->ended = 0;
		return 0;
	}
	thread->event = shape != SHAPE_SUBMIT;
	if (shape == SHAPE_RING)
		return 0;
	thread->context = argument(registers, 0);
	if (shape == SHAPE_GETEVENTS) {
		thread->least = argument(registers, 1);
		thread->events = argument(registers, 3);
		return 0;
	}
	submit(task, thread, argument(registers, 1), argument(registers, 2), thread->call_start);
	return 0;
}

/* Adds a call that is over, or as much of it as there was when the measurement ended. */
static __always_inline void count_call(struct thread *thread, s64 result, u64 now)
{
	u64 time = now > thread->call_start ? now - thread->call_start : 0;
	int moves = thread->shape >= SHAPE_READ_WRITE && thread->shape <= SHAPE_SPLICE;
	int reads = thread->call == CALL_READ;
	struct file_state *state = 0;
	struct call_stats *stats;
	u64 moved = 0;

	stats = row_of(&thread->file, thread->call);
	if (thread->named) {
		state = bpf_map_lookup_elem(&files, &thread->file);
		if (state) {
			ADD(state->now, -1);
			busy(state, thread->call_start, now);
		}
	}
	if (!stats)
		return;
	ADD(stats->count, 1);
	ADD(stats->time_ns, time);
	if (thread->call_wait) {
		ADD(stats->wait_ns, thread->call_wait);
		ADD(stats->waits, 1);
	}
	longest(&stats->longest_ns, time);
	if (result < 0) {
		ADD(stats->errors, 1);
		return;
	}
	if (!moves)
		return;
	moved = result;
	ADD(stats->bytes, moved);
	ADD(stats->sizes[size_class(thread->size ? thread->size : moved)], 1);
	if (thread->durable)
		ADD(stats->durable, 1);
	if (thread->direct) {
		ADD(stats->direct, 1);
	} else if (reads) {
		ADD(stats->buffered, 1);
		if (!thread->call_wait && !thread->brought_in)
			ADD(stats->hits, 1);
	}
	if (state && thread->placed && moved) {
		ADD(stats->placed, 1);
		if (goes_on(state, thread->place, moved))
			ADD(stats->sequential, 1);
	}
}

/* Waiting on a ring counts for the file whose completion ended it. */
static __always_inline void settle_ring(struct thread *thread, const struct file_key *file, u32 call)
{
	give(file, call, thread->ring_wait);
	thread->ring_wait = 0;
}

SEC("tp_btf/sys_exit")
int BPF_PROG(sys_exit, struct pt_regs *registers, long result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = followed(task);
	struct ring *ring;
	struct file *file;
	u64 now;

	if (!thread)
		return 0;
	if (thread->context && (thread->event || thread->call)) {
		now = bpf_ktime_get_ns();
		if (thread->call && thread->shape == SHAPE_SUBMIT)
			submitted(thread, task->tgid, result, now);
		reap(thread, task->tgid, now);
		if (thread->call && thread->shape == SHAPE_GETEVENTS)
			collected(task, thread, result);
	}
	thread->event = 0;
	if (!thread->call)
		return 0;
	now = bpf_ktime_get_ns();
	if (thread->shape == SHAPE_RING) {
		ring = thread->ring ? bpf_map_lookup_elem(&rings, &thread->ring) : 0;
		if (ring)
			settle_ring(thread, &ring->last, ring->last_call);
		else
			settle_ring(thread, &thread->file, CALL_RING_OTHER);
		goto out;
	}
	if (thread->shape == SHAPE_OPEN && result >= 0) {
		thread->last_file = 0;
		file = file_of_descriptor(task, result);
		/* What is no file on storage (a terminal, /dev/null) does not count. */
		if (!file || !is_storage(file, &thread->file))
			goto out;
		state_of(&thread->file, file);
	}
	count_call(thread, result, now);
out:
	thread->call = 0;
	thread->named = 0;
	thread->file.ino = 0;
	thread->file.dev = 0;
	return 0;
}

/* Every fault of a program begins here (where the architecture tells); which kind it is turns out later. */
SEC("tp_btf/page_fault_user")
int BPF_PROG(page_fault_user)
{
	struct thread *thread = followed(bpf_get_current_task_btf());

	if (!thread || thread->call)
		return 0;
	thread->named = 0;
	thread->file.ino = 0;
	thread->file.dev = 0;
	return 0;
}

SEC("tp_btf/mm_filemap_fault")
int BPF_PROG(mm_filemap_fault, struct address_space *mapping, unsigned long index)
{
	struct thread *thread = followed(bpf_get_current_task_btf());
	struct call_stats *stats;
	struct file_state *state;
	u64 place, page;

	/* Inside a call (a buffer that is mapped from a file) the wait is the call's. */
	if (!thread || thread->call)
		return 0;
	page = 1ULL << settings.page_shift;
	place = (u64)index << settings.page_shift;
	/* The kernel asks again after it has let go of the lock: that is one fault. */
	if (thread->named && thread->place == place)
		return 0;
	key_of_inode(&thread->file, BPF_CORE_READ(mapping, host));
	thread->named = 1;
	thread->place = place;
	thread->shape = 0;
	stats = row_of(&thread->file, CALL_FAULT);
	state = state_of_inode(&thread->file, BPF_CORE_READ(mapping, host));
	if (!stats || !state)
		return 0;
	if (!state->most)
		state->most = 1;
	ADD(stats->count, 1);
	ADD(stats->bytes, page);
	ADD(stats->placed, 1);
	ADD(stats->sizes[size_class(page)], 1);
	if (goes_on(state, place, page))
		ADD(stats->sequential, 1);
	return 0;
}

SEC("tp_btf/mm_filemap_add_to_page_cache")
int BPF_PROG(mm_filemap_add_to_page_cache, struct folio *folio)
{
	struct thread *thread = followed(bpf_get_current_task_btf());

	if (thread)
		thread->brought_in = 1;
	return 0;
}

/* Run once when the measurement ends: what is still under way counts as far as it went. */
SEC("iter/task")
int take_out(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	u64 now = bpf_ktime_get_ns();
	struct thread *thread;
	struct clock *clock;
	struct ring *ring;

	if (!task) {
		change(now, 0, 0, 0, 0, 0);
		clock = the_clock();
		if (clock && !clock->ended)
			clock->ended = now;
		return 0;
	}
	thread = followed(task);
	if (!thread || thread->state == GONE)
		return 0;
	if (thread->state == WAITING) {
		end_wait(thread, now);
		thread->since = now;
	}
	if (thread->call && thread->shape == SHAPE_RING) {
		ring = thread->ring ? bpf_map_lookup_elem(&rings, &thread->ring) : 0;
		if (ring)
			settle_ring(thread, &ring->last, ring->last_call);
	} else if (thread->call && thread->call_wait) {
		count_call(thread, 0, now);
		thread->call = 0;
	}
	return 0;
}

#endif
