/* The tree of threads: who is in it, who runs, who stands still. */
#ifndef FOREBAY_THREADS_H
#define FOREBAY_THREADS_H

#include "aio.h"

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

/* Whether a thread that goes to sleep now surely sleeps for I/O. */
static __always_inline int sleeps_for_storage(struct thread *thread, u32 process, u8 iowait)
{
	struct ring *ring;

	if (thread->shape == SHAPE_GETEVENTS && thread->call)
		return iowait || aio_in_flight(process, thread->context);

	if (thread->shape == SHAPE_RING && thread->call) {
		ring = thread->ring ? bpf_map_lookup_elem(&rings, &thread->ring) : 0;
		/* The kernel says iowait for any operation, one on a socket, too. */
		return ring ? ring->in_flight > 0 : iowait;
	}
	/* In a call on a file, or in a fault on one: also where the kernel does not say iowait (a journal, FUSE, NFS). */
	return iowait || (thread->call ? !thread->other_end : thread->named);
}

/* A thread that sleeps for something else counts with its process: that may have operations in flight. */
static __always_inline void add_thread(struct task_struct *task, u8 state, u8 iowait, u64 now)
{
	struct thread *thread = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	struct clock *clock = the_clock();
	u32 process = task->tgid;

	if (!thread || thread->state)
		return;
	bpf_map_update_elem(&owners, &process, &no_owner, BPF_NOEXIST);
	thread->state = state;
	thread->since = now;
	thread->iowait = iowait;
	if (clock)
		ADD(clock->threads, 1);
	change(now, state == RUNNING, state == WAITING, iowait, 0, state == IDLE ? count_owner(process, SLEEPER) : 0);
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
		change(now, 1, -1, thread->iowait ? -1 : 0, 0, 0);
		thread->state = RUNNING;
		thread->apart = 0;
		return;
	}
	change(now, 1, 0, thread->iowait ? -1 : 0, 0, count_owner(task->tgid, -SLEEPER));
	thread->state = RUNNING;
	thread->apart = !thread->event;
	if (!thread->event)
		return;
	thread->woken = now;
	copy_maybes(thread->maybe_to);
	thread->ended = 1;
	if (thread->cause)
		give(&thread->cause_file, thread->cause_call, settle(thread, thread->cause, thread->cause_followed));
}

/* Run by what wakes the thread, which may be a completion. */
SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *task)
{
	u32 zero = 0;
	struct completion *completion = bpf_map_lookup_elem(&completions, &zero);
	struct thread *thread;

	if (!completion || !completion->process || completion->process != task->tgid)
		return 0;
	thread = followed(task);
	if (!thread || thread->state != IDLE || !thread->event)
		return 0;
	not_before(thread->maybe_from, completion->maybe_since);
	thread->cause = completion->busy_since;
	thread->cause_file = completion->file;
	thread->cause_call = completion->call;
	thread->cause_followed = completion->followed;
	completion->process = 0;
	return 0;
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
	struct completion *completion;
	struct thread *thread;
	u32 zero = 0;
	u8 iowait;
	u64 now;

	completion = bpf_map_lookup_elem(&completions, &zero);
	if (completion && completion->process)
		completion->process = 0;
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
	thread->iowait = iowait;
	if (thread->context)
		reap(thread, prev->tgid, now);
	thread->ended = 0;
	thread->cause = 0;
	if (sleeps_for_storage(thread, prev->tgid, iowait)) {
		thread->state = WAITING;
		change(now, -1, 1, iowait ? 1 : 0, 0, 0);
	} else {
		thread->state = IDLE;
		change(now, -1, 0, iowait ? 1 : 0, 0, count_owner(prev->tgid, SLEEPER));
		copy_maybes(thread->maybe_from);
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
	u32 process;
	u64 now;

	if (!thread || !clock)
		return 0;
	now = bpf_ktime_get_ns();
	if (thread->state == RUNNING)
		change(now, -1, 0, 0, 0, 0);
	thread->state = GONE;
	process = task->tgid;
	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&owners, &process);
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
	/* A ring's own threads do not run the program, and those that come later are not followed either. */
	if (!bpf_map_lookup_elem(&processes, &process) || (task->flags & IO_WORKER))
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
