/* Sleeps that a completion ended, and the operations of libaio. */
#ifndef FOREBAY_AIO_H
#define FOREBAY_AIO_H

#include "files.h"

/* A sleep for events turns out to have been one for a file: a completion ended it. The thread has waited for that ring since
 * it slept and the ring had an operation in flight; returns how long. Where another thread of the tree ran the completion and
 * passed it on, only time counts in which none waits surely: otherwise the two would count twice. */
static __always_inline u64 settle(struct thread *thread, u64 busy_since, int passed_on)
{
	struct clock *clock = the_clock();
	u64 from, waited = 0, taken = 0;

	thread->ended = 0;
	if (!clock)
		return 0;
	from = busy_since > thread->since ? busy_since : thread->since;
	if (thread->woken > from)
		waited = thread->woken - from;
	bpf_spin_lock(&clock->lock);
#pragma unroll
	for (int kind = 0; kind < MAYBES; kind++) {
		struct maybe *maybe = &clock->maybe[kind];
		u64 to = thread->maybe_to[kind];

		from = maybe->taken_until > thread->maybe_from[kind] ? maybe->taken_until : thread->maybe_from[kind];
		if (to <= from)
			continue;
		maybe->taken_ns += to - from;
		maybe->taken_until = to;
		if (kind == MAYBE_SOME)
			taken = to - from;
	}
	if (passed_on && waited > taken)
		waited = taken;
	clock->wait_sum_ns += waited;
	bpf_spin_unlock(&clock->lock);
	return waited;
}

#define CONTEXTS 16	 /* of a process that are looked through */
#define OPERATIONS 8	 /* of one call that are looked at */
#define IOCB_CMD_POLL 5

/* Whether this kernel has libaio, in the form that is read here. */
static __always_inline int has_contexts(void)
{
	return bpf_core_field_exists(struct mm_struct, ioctx_table) && bpf_core_field_exists(struct kioctx_table, table) &&
	       bpf_core_field_exists(struct kioctx, tail);
}

static __always_inline struct kioctx *find_context(struct task_struct *task, u64 number)
{
	struct kioctx_table *table;
	struct kioctx *context;

	table = BPF_CORE_READ(task, mm, ioctx_table);
	if (!table)
		return 0;
	for (u32 place = 0; place < CONTEXTS; place++) {
		if (place >= BPF_CORE_READ(table, nr))
			break;
		context = 0;
		if (bpf_probe_read_kernel(&context, sizeof(context), &table->table[place]) || !context)
			continue;
		if (BPF_CORE_READ(context, user_id) == number)
			return context;
	}
	return 0;
}

/* Counts the completions of a context since the last time; returns how many. A context that is gone has nothing in flight. */
static __always_inline s64 completions_of(struct aio *aio, const struct aio_key *key, u64 now)
{
	struct kioctx *context = (void *)aio->kernel;
	u32 events = BPF_CORE_READ(context, nr_events), before = aio->tail, tail;
	s64 over;
	s32 sleeping;

	if (BPF_CORE_READ(context, user_id) != key->context || !events) {
		over = aio->in_flight;
		bpf_map_delete_elem(&contexts, key);
	} else {
		tail = BPF_CORE_READ(context, tail);
		if (tail == before || __sync_val_compare_and_swap(&aio->tail, before, tail) != before)
			return 0;
		over = tail > before ? tail - before : tail + events - before;
		ADD(aio->in_flight, -over);
		ADD(aio->uncollected, over);
	}
	if (over <= 0 || aio->polls)
		return 0;
	sleeping = count_landed(key->process, over);
	if (sleeping)
		change(now, 0, 0, 0, 0, sleeping);
	return over;
}

/* Counts completions of the context that the thread used last. The first thing after a sleep, they are what ended it. */
static __always_inline void reap(struct thread *thread, u32 process, u64 now)
{
	struct aio_key key = {.context = thread->context, .process = process};
	struct aio *aio = bpf_map_lookup_elem(&contexts, &key);
	struct file_key none = {};
	u64 busy_since, waited;
	s64 uncollected;

	if (!aio || !has_contexts())
		return;
	busy_since = aio->busy_since;
	uncollected = aio->uncollected;
	if (thread->ended)
		not_before(thread->maybe_from, aio->maybe_since);
	if (!completions_of(aio, &key, now) || !thread->ended)
		return;
	waited = settle(thread, busy_since, 0);
	/* The event that is collected next names the file, unless others lie before it. They stay there where a program takes
	 * events from the context's memory, without a call. */
	aio = uncollected > 0 ? 0 : bpf_map_lookup_elem(&contexts, &key);
	if (aio)
		ADD(aio->wait, waited);
	else
		give(&none, CALL_AIO, waited);
}

/* Makes the file of an operation that of the thread's call. */
static __always_inline int name_operation(struct task_struct *task, struct thread *thread, u32 descriptor)
{
	struct file *file = file_of_descriptor(task, descriptor);

	if (!file || !is_storage_again(thread, file))
		return 0;
	state_of(&thread->file, file);
	return 1;
}

/* Events were collected. The last that had to be there ended the wait in this call, the first one a sleep for events before. */
static __always_inline void collected(struct task_struct *task, struct thread *thread, s64 number)
{
	struct aio_key key = {.context = thread->context, .process = task->tgid};
	struct aio *aio = bpf_map_lookup_elem(&contexts, &key);
	struct file_key none = {};
	struct operation operation;
	struct event event;
	u64 waited, last = thread->least;

	if (number <= 0)
		return;
	if (last > number)
		last = number;
	if (last)
		last--;
	/* Their data differ when something else is in the operation's memory since. */
	if (!bpf_probe_read_user(&event, sizeof(event), (void *)(thread->events + last * sizeof(event))) &&
	    !bpf_probe_read_user(&operation, sizeof(operation), (void *)event.operation) && operation.data == event.data)
		name_operation(task, thread, operation.descriptor);
	if (!aio)
		return;
	ADD(aio->uncollected, -number);
	waited = aio->wait;
	if (waited && __sync_val_compare_and_swap(&aio->wait, waited, 0) == waited)
		give(last ? &none : &thread->file, CALL_AIO, waited);
}

/* Whether a wait for a context's events is one for files. Of a context that is older than the measurement it is not known; the
 * others have had their operations since. */
static __always_inline int aio_in_flight(u32 process, u64 context)
{
	struct aio_key key = {.context = context, .process = process};
	struct aio *aio = bpf_map_lookup_elem(&contexts, &key);

	return aio ? !aio->polls && aio->in_flight > 0 : !settings.begin_at_exec;
}

/* Operations are about to be submitted: they count from here on, so that none ends before. */
static __always_inline void submit(struct task_struct *task, struct thread *thread, s64 number, u64 operations, u64 now)
{
	struct aio_key key = {.context = thread->context, .process = task->tgid};
	struct aio *aio = bpf_map_lookup_elem(&contexts, &key), fresh = {};
	struct kioctx *context;
	struct operation operation = {};
	u32 files = 0, descriptor = 0;
	u64 pointer = 0;
	s32 sleeping;

	thread->submitted = 0;
	if (number <= 0 || number > 65536)
		return;
	if (!has_contexts()) {
		count_unseen_ops(number);
		return;
	}
	if (!aio) {
		context = find_context(task, key.context);
		if (!context) {
			count_unseen_ops(number);
			return;
		}
		fresh.kernel = (u64)context;
		fresh.tail = BPF_CORE_READ(context, tail);
		bpf_map_update_elem(&contexts, &key, &fresh, BPF_NOEXIST);
		aio = bpf_map_lookup_elem(&contexts, &key);
		if (!aio) {
			count_unseen_ops(number);
			return;
		}
	}
	reap(thread, key.process, now);
	thread->one_file = number <= OPERATIONS;
	for (int place = 0; place < OPERATIONS && place < number; place++) {
		if (bpf_probe_read_user(&pointer, sizeof(pointer), (void *)(operations + place * sizeof(u64))) ||
		    bpf_probe_read_user(&operation, sizeof(operation), (void *)pointer)) {
			thread->one_file = 0;
			break;
		}
		if (place && operation.descriptor != descriptor)
			thread->one_file = 0;
		descriptor = operation.descriptor;
		if (operation.opcode != IOCB_CMD_POLL) {
			files++;
		} else if (!aio->polls) {
			aio->polls = 1;
			sleeping = aio->in_flight > 0 ? count_landed(key.process, aio->in_flight) : 0;
			if (sleeping)
				change(now, 0, 0, 0, 0, sleeping);
		}
	}
	if (aio->polls && files)
		count_unseen_ops(files);
	thread->submitted = number;
	if (ADD(aio->in_flight, number) <= 0)
		begin_busy(&aio->busy_since, aio->maybe_since, now);
	sleeping = aio->polls ? 0 : count_owner(key.process, number);
	if (sleeping)
		change(now, 0, 0, 0, 0, sleeping);
	/* Requests that the device gets in this call are the file's. */
	if (thread->one_file)
		thread->named = name_operation(task, thread, descriptor);
}

/* The kernel took only some of them. */
static __always_inline void submitted(struct thread *thread, u32 process, s64 taken, u64 now)
{
	struct aio_key key = {.context = thread->context, .process = process};
	struct aio *aio = bpf_map_lookup_elem(&contexts, &key);
	s64 left = thread->submitted - (taken > 0 ? taken : 0);
	s32 sleeping;

	/* The call is over, the operations are not. */
	thread->named = 0;
	if (!aio || left <= 0)
		return;
	ADD(aio->in_flight, -left);
	sleeping = aio->polls ? 0 : count_landed(process, left);
	if (sleeping)
		change(now, 0, 0, 0, 0, sleeping);
}

#endif
