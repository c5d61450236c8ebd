/* The tree of threads: who is in it, who runs, who stands still. */
#ifndef FOREBAY_THREADS_H
#define FOREBAY_THREADS_H

#include "files.h"

/* A wait is over, or the measurement is: gives its time to what the thread was doing. */
static __always_inline void end_wait(struct thread *thread, u64 now)
{
	u64 waited = now > thread->since ? now - thread->since : 0;
	struct call_stats *stats;

	if (thread->shape == SHAPE_RING && thread->call) {
		thread->ring_wait += waited;
		return;
	}
	if (thread->call) {
		thread->call_wait += waited;
		return;
	}
	/* Outside of calls it is a fault, on the file of the last file fault, or else on memory. */
	stats = row_of(&thread->file, CALL_FAULT);
	if (!stats)
		return;
	ADD(stats->wait_ns, waited);
	ADD(stats->time_ns, waited);
	ADD(stats->waits, 1);
	longest(&stats->longest_ns, waited);
	if (thread->named) {
		struct file_state *state = bpf_map_lookup_elem(&files, &thread->file);
		if (state)
			busy(state, thread->since, now);
	} else {
		ADD(stats->count, 1);
	}
}

/* Whether a thread that goes to sleep now sleeps for I/O. */
static __always_inline int sleeps_for_storage(struct thread *thread)
{
	struct ring *ring;

	if (thread->shape == SHAPE_RING && thread->call) {
		ring = thread->ring ? bpf_map_lookup_elem(&rings, &thread->ring) : 0;
		return ring && ring->in_flight > 0;
	}
	/* In a call on a file, or in a fault on one: also where the kernel does not say iowait (a journal, FUSE, NFS). */
	return thread->call || thread->named;
}

static __always_inline void add_thread(struct task_struct *task, u8 state, u8 iowait, u64 now)
{
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct clock *clock = the_clock();

	if (!thread || thread->state)
		return;
	thread->state = state;
	thread->since = now;
	thread->iowait = iowait;
	if (clock)
		ADD(clock->threads, 1);
	change(now, state == RUNNING, state == WAITING, state == WAITING && iowait, 0);
}

static __always_inline void woken(struct task_struct *task)
{
	struct thread *thread = followed(task);
	u64 now;

	if (!thread || (thread->state != WAITING && thread->state != IDLE))
		return;
	now = bpf_ktime_get_ns();
	if (thread->state == WAITING) {
		end_wait(thread, now);
		change(now, 1, -1, thread->iowait ? -1 : 0, 0);
	} else {
		change(now, 1, 0, 0, 0);
	}
	thread->state = RUNNING;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(sched_wakeup, struct task_struct *task)
{
	woken(task);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next, unsigned int state)
{
	struct thread *thread;
	u8 iowait;
	u64 now;

	/* A thread that starts to run was woken, whatever was missed. */
	woken(next);
	if (preempt || !state)
		return 0;
	thread = followed(prev);
	if (!thread || thread->state != RUNNING)
		return 0;
	now = bpf_ktime_get_ns();
	iowait = BPF_CORE_READ_BITFIELD(prev, in_iowait);
	thread->since = now;
	if (iowait || sleeps_for_storage(thread)) {
		thread->state = WAITING;
		thread->iowait = iowait;
		change(now, -1, 1, iowait ? 1 : 0, 0);
	} else {
		thread->state = IDLE;
		change(now, -1, 0, 0, 0);
	}
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct clock *clock;

	if (!followed(parent))
		return 0;
	add_thread(child, RUNNING, 0, bpf_ktime_get_ns());
	clock = the_clock();
	if (clock && child->pid == child->tgid)
		ADD(clock->processes, 1);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(sched_process_exec, struct task_struct *task)
{
	struct thread *thread = followed(task);
	struct clock *clock = the_clock();
	u64 now;

	if (!thread || !clock)
		return 0;
	/* The command begins when its program replaces ours. */
	if (!clock->begun && task->tgid == (int)clock->root) {
		now = bpf_ktime_get_ns();
		clock->begun = now;
		clock->last = now;
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(sched_process_exit, struct task_struct *task)
{
	struct thread *thread = followed(task);
	struct clock *clock = the_clock();
	u64 now;

	if (!thread || !clock)
		return 0;
	now = bpf_ktime_get_ns();
	if (thread->state == RUNNING)
		change(now, -1, 0, 0, 0);
	thread->state = GONE;
	if (task->tgid == (int)clock->root && BPF_CORE_READ(task, signal, live.counter) == 0 && !clock->ended)
		clock->ended = now;
	return 0;
}

/* Run once before the command starts, or when a running process is looked at: takes in the threads that exist. */
SEC("iter/task")
int take_in(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	u64 now = bpf_ktime_get_ns();
	struct clock *clock;
	u8 iowait;
	u32 process;

	clock = the_clock();
	if (!clock)
		return 0;
	if (!task) {
		/* The end of the list. */
		if (!settings.begin_at_exec) {
			clock->begun = now;
			clock->last = now;
		}
		return 0;
	}
	process = task->tgid;
	if (!bpf_map_lookup_elem(&processes, &process))
		return 0;
	if (task->pid == task->tgid)
		ADD(clock->processes, 1);
	iowait = BPF_CORE_READ_BITFIELD(task, in_iowait);
	if (task->__state == 0)
		add_thread(task, RUNNING, 0, now);
	else
		add_thread(task, iowait ? WAITING : IDLE, iowait, now);
	return 0;
}

#endif
