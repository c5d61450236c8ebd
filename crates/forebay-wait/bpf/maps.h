/* The maps, and the few steps that several programs share. */
#ifndef FOREBAY_MAPS_H
#define FOREBAY_MAPS_H

#include "state.h"

/* Set before loading. */
const volatile struct settings settings SEC(".rodata.settings") = {};

/* The processes to begin with; what they start is followed by itself. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, u8);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct clock);
} clocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct call_key);
	__type(value, struct call_stats);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct file_key);
	__type(value, struct file_state);
} files SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct file_key);
	__type(value, struct file_name);
} names SEC(".maps");

/* A name is too long for the stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct file_name);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, struct ring_op);
} ring_ops SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, struct aio_key);
	__type(value, struct aio);
} contexts SEC(".maps");

/* The processes of the tree, by number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);
	__type(value, struct owner);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct completion);
} completions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, u64);
	__type(value, struct device_request);
} requests SEC(".maps");

static const struct call_stats no_calls;
static const struct file_state no_state;
static const struct owner no_owner;

static __always_inline struct clock *the_clock(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&clocks, &zero);
}

static __always_inline struct thread *followed(struct task_struct *task)
{
	return bpf_task_storage_get(&threads, task, 0, 0);
}

#define IN_FLIGHT 1ULL
#define SLEEPER (1ULL << 32)

static __always_inline s32 sleeping_of(u64 counts)
{
	return (u32)counts ? counts >> 32 : 0;
}

/* Changes a process's counts; returns by how much that changes the number of threads that sleep while their process has
 * operations in flight. */
static __always_inline s32 count_owner(u32 process, u64 added)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, &process);
	u64 before;

	if (!owner)
		return 0;
	/* A thread that went to sleep when there was no room for its process. */
	if (added == -SLEEPER && !(owner->counts >> 32))
		return 0;
	before = __sync_fetch_and_add(&owner->counts, added);
	return sleeping_of(before + added) - sleeping_of(before);
}

/* Takes operations off that are over. The number may be that of a new process, which has none of them. */
static __always_inline s32 count_landed(u32 process, u64 operations)
{
	struct owner *owner = bpf_map_lookup_elem(&owners, &process);

	if (!owner)
		return 0;
	if (operations > (u32)owner->counts)
		operations = (u32)owner->counts;
	return operations ? count_owner(process, -operations) : 0;
}

/* Adds up the time since the last change, then makes the change. */
static __always_inline void change(u64 now, s32 running, s32 waiting, s32 iowait, s32 device, s32 sleeping)
{
	struct clock *clock = the_clock();
	u64 passed;

	if (!clock)
		return;
	bpf_spin_lock(&clock->lock);
	/* Another processor may have read its clock a moment later and got the lock first. */
	if (clock->last && !clock->ended && now > clock->last) {
		passed = now - clock->last;
		if (clock->waiting > 0) {
			clock->some_ns += passed;
			clock->wait_sum_ns += passed * clock->waiting;
			if (clock->device > 0)
				clock->some_device_ns += passed;
			if (clock->running <= 0) {
				clock->full_ns += passed;
				if (clock->device > 0)
					clock->full_device_ns += passed;
			}
		} else if (clock->sleeping > 0) {
			clock->maybe[MAYBE_SOME].passed_ns += passed;
			if (clock->device > 0)
				clock->maybe[MAYBE_SOME_DEVICE].passed_ns += passed;
			if (clock->running <= 0) {
				clock->maybe[MAYBE_FULL].passed_ns += passed;
				if (clock->device > 0)
					clock->maybe[MAYBE_FULL_DEVICE].passed_ns += passed;
			}
		}
		if (clock->iowait > 0) {
			clock->some_iowait_ns += passed;
			if (clock->running <= 0)
				clock->full_iowait_ns += passed;
		}
		if (clock->device > 0)
			clock->device_ns += passed;
	}
	if (clock->last && now > clock->last)
		clock->last = now;
	clock->running += running;
	clock->waiting += waiting;
	clock->iowait += iowait;
	clock->device += device;
	clock->sleeping += sleeping;
	bpf_spin_unlock(&clock->lock);
}

static __always_inline void copy_maybes(u64 *to)
{
	struct clock *clock = the_clock();

	if (!clock)
		return;
#pragma unroll
	for (int kind = 0; kind < MAYBES; kind++)
		to[kind] = clock->maybe[kind].passed_ns;
}

static __always_inline void begin_busy(u64 *busy_since, u64 *maybe_since, u64 now)
{
	*busy_since = now;
	copy_maybes(maybe_since);
}

/* A sleep counts from when there was an operation in flight to sleep for. */
static __always_inline void not_before(u64 *from, const u64 *since)
{
#pragma unroll
	for (int kind = 0; kind < MAYBES; kind++)
		if (since[kind] > from[kind])
			from[kind] = since[kind];
}

static __always_inline void count_lost_file(void)
{
	struct clock *clock = the_clock();
	if (clock)
		__sync_fetch_and_add(&clock->lost_files, 1);
}

static __always_inline void count_lost_op(void)
{
	struct clock *clock = the_clock();
	if (clock)
		__sync_fetch_and_add(&clock->lost_ops, 1);
}

static __always_inline void count_unseen_ops(u64 number)
{
	struct clock *clock = the_clock();
	if (clock)
		__sync_fetch_and_add(&clock->unseen_ops, number);
}

/* The row of a file and a call. When there is no room for another file, all further ones share file 0. */
static __noinline struct call_stats *row_of(const struct file_key *file, u32 call)
{
	struct call_key key = {.ino = file->ino, .dev = file->dev, .call = call};
	struct call_stats *stats = bpf_map_lookup_elem(&calls, &key);

	if (stats)
		return stats;
	bpf_map_update_elem(&calls, &key, &no_calls, BPF_NOEXIST);
	stats = bpf_map_lookup_elem(&calls, &key);
	if (stats)
		return stats;
	count_lost_file();
	key.ino = 0;
	key.dev = 0;
	stats = bpf_map_lookup_elem(&calls, &key);
	if (stats)
		return stats;
	bpf_map_update_elem(&calls, &key, &no_calls, BPF_NOEXIST);
	return bpf_map_lookup_elem(&calls, &key);
}

#define ADD(field, amount) __sync_fetch_and_add(&(field), (amount))

/* A wait that is over goes to the file and the call that it was for. */
static __always_inline void give(const struct file_key *file, u32 call, u64 waited)
{
	struct call_stats *stats;

	if (!waited)
		return;
	stats = row_of(file, call);
	if (!stats)
		return;
	ADD(stats->wait_ns, waited);
	ADD(stats->waits, 1);
}

static __always_inline void longest(u64 *most, u64 now)
{
	if (now > *most)
		*most = now;
}

/* 0 for up to 512 bytes, then one more for each doubling. */
static __always_inline u32 size_class(u64 size)
{
	u64 rest = size ? (size - 1) >> 9 : 0;
	u32 class = 0;

	if (rest >> 16) {
		class += 16;
		rest >>= 16;
	}
	if (rest >> 8) {
		class += 8;
		rest >>= 8;
	}
	if (rest >> 4) {
		class += 4;
		rest >>= 4;
	}
	if (rest >> 2) {
		class += 2;
		rest >>= 2;
	}
	class += rest >> 1 ? 2 : rest & 1;
	return class < SIZES ? class : SIZES - 1;
}

/* Whether the access goes on where an earlier one on this file ended. */
static __always_inline int goes_on(struct file_state *state, u64 place, u64 size)
{
	u64 slot;
#pragma unroll
	for (int stream = 0; stream < STREAMS; stream++) {
		if (state->ends[stream] == place) {
			state->ends[stream] = place + size;
			return 1;
		}
	}
	slot = __sync_fetch_and_add(&state->next_end, 1) & (STREAMS - 1);
	state->ends[slot] = place + size;
	return 0;
}

/* Time in which the file had something under way: what this interval adds to those that ended before it. */
static __always_inline void busy(struct file_state *state, u64 start, u64 now)
{
	u64 from = state->busy_until > start ? state->busy_until : start;

	if (now <= from)
		return;
	state->busy_until = now;
	ADD(state->busy_ns, now - from);
}

#endif
