// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/* From page to page: a read that has arrived is put on its session's list, and the context that takes the list runs the steps and
 * begins what they ask for.
 *
 * On a ring that waits for interrupts completions run in any context and on any processor, steps only in the task that submitted,
 * where submitting may sleep. One task work at a time attends to the list: the completion that finds the session without one begins
 * it. While it runs, reads arrive without waking anybody, and it may spin a little for the next one. A ring that polls takes the list where
 * it polls. Either way the steps of a session run one after the other. Nothing is allocated for a hop: each read has its bio and its part of the session's memory. */
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/clock.h>
#include <linux/sched/signal.h>
#include <linux/sched/stat.h>
#include "compat.h"
#include "walk.h"

/* Polls after which a read that the device has no room for is not tried again. */
#define AGAIN_MAX 100000

/* Lists that one task work takes before the ring's other completions have their turn. */
#define ROUNDS_MAX 16

/* Hops without spinning after one for which it was in vain, at most; each further such hop doubles them. */
#define SPINS_SKIPPED_MAX 256

FBW_TASK_WORK(fbw_task_work, cmd, flags);

/* Extents may be looked at, and a read may begin, until put_read(). Not any more once the session is closing. */
static bool get_read(struct fbw_session *session, struct fbw_read *read)
{
	/* Whoever closes looks at it after saying so: it is seen there as false, or the closing is seen here. */
	WRITE_ONCE(read->is_flying, false);
	atomic_inc(&session->in_flight);
	smp_mb__after_atomic();
	return !READ_ONCE(session->closing);
}

static void put_read(struct fbw_session *session)
{
	if (atomic_dec_and_test(&session->in_flight) && READ_ONCE(session->closing))
		wake_up(&session->idle);
}

/* Stops attending to the list. Returns false if a read has come meanwhile that nobody else attends to. */
static bool leave(struct fbw_session *session)
{
	atomic_set_release(&session->attended, 0);
	smp_mb__after_atomic();
	return llist_empty(&session->ready) || atomic_xchg(&session->attended, 1);
}

/* Has the list attended to by a task work of the first walk in it. The caller has set `attended`, so that nobody else takes the list,
 * and its walks' commands are not over. The caller's own read may have been taken before that, and its command be gone. */
static void summon(struct fbw_session *session)
{
	struct llist_node *first;

	do {
		first = READ_ONCE(session->ready.first);
		if (first) {
			io_uring_cmd_complete_in_task(llist_entry(first, struct fbw_slot, ready)->cmd, fbw_task_work);
			return;
		}
	} while (!leave(session));
}

static void fbw_end_io(struct bio *bio)
{
	struct fbw_read *read = container_of(bio, struct fbw_read, bio);
	struct fbw_slot *slot = read->slot;
	struct fbw_session *session = slot->session;
	bool polled = slot->polled;

	/* The walk may be over, and its session released, before the last line: the memory of both stays until then. */
	rcu_read_lock();
	read->status = bio->bi_status;
	WRITE_ONCE(read->is_flying, false);
	if (!atomic_fetch_or(1U << read->place, &slot->arrived)) {
		llist_add(&slot->ready, &session->ready);
		if (!polled && !atomic_xchg(&session->attended, 1))
			summon(session);
	}
	put_read(session);
	rcu_read_unlock();
}

static void end_walk(struct fbw_slot *slot, u32 state, u32 code, u64 at)
{
	slot->state = state;
	slot->code = code;
	slot->failed_at = at;
}

/* Where a page lies on the device. The extents are sorted and without gaps, and the caller has them by get_read(). */
static bool find_sector(const struct fbw_session *session, u64 at, sector_t *sector)
{
	u32 low = 0, high = session->extents_count;

	while (low < high) {
		u32 middle = (low + high) / 2;
		const struct fbw_extent *extent = &session->extents[middle];

		if (at < extent->at) {
			high = middle;
		} else if (at - extent->at >= extent->bytes) {
			low = middle + 1;
		} else {
			*sector = extent->sector + ((at - extent->at) >> SECTOR_SHIFT);
			return at - extent->at + session->page_bytes <= extent->bytes;
		}
	}
	return false;
}

/* Finds a page on the device, or ends the walk with the result that a read of the file would have had. What such a read can do
 * and this cannot (bytes that were added to the file, pages across two pieces) is for another engine. */
static bool place_read(struct fbw_slot *slot, struct fbw_read *read)
{
	struct fbw_session *session = slot->session;
	u64 at = read->at, size = i_size_read(session->inode);

	if (at > (u64)LLONG_MAX - session->page_bytes)
		end_walk(slot, FBW_STATE_IO, EINVAL, at);
	else if (at & (session->grain - 1))
		end_walk(slot, session->is_direct ? FBW_STATE_IO : FBW_STATE_ELSEWHERE, EINVAL, at);
	else if (at + session->page_bytes > size)
		end_walk(slot, FBW_STATE_SHORT, at < size ? size - at : 0, at);
	else if (!find_sector(session, at, &read->sector))
		end_walk(slot, FBW_STATE_ELSEWHERE, ENODATA, at);
	else
		return true;
	return false;
}

static void submit_read(struct fbw_slot *slot, struct fbw_read *read)
{
	struct fbw_session *session = slot->session;

	/* A ring that polls must not sleep for room that only its polling makes. Random pages have nothing to merge with. */
	bio_reset(&read->bio, session->bdev,
		  REQ_OP_READ | REQ_SYNC | REQ_IDLE | REQ_NOMERGE | (slot->polled ? REQ_POLLED | REQ_NOWAIT : 0));
	read->bio.bi_vcnt = read->bio.bi_max_vecs;
	read->bio.bi_iter.bi_sector = read->sector;
	read->bio.bi_iter.bi_size = session->page_bytes;
	read->bio.bi_end_io = fbw_end_io;
	/* Until the driver begins it, it is in no queue that could be polled; 0 would be the first one's number, which may have an interrupt. */
	read->bio.bi_cookie = BLK_QC_T_NONE;
	/* A poller that sees the flag sees all that was set above. */
	smp_store_release(&read->is_flying, true);
	submit_bio(&read->bio);
}

/* Begins the walk's reads, or ends it if there is one that cannot be: then none is begun. */
static void begin_reads(struct fbw_slot *slot, u32 count)
{
	struct fbw_session *session = slot->session;
	u32 i;

	for (i = 0; i < count; i++) {
		if (!get_read(session, &slot->reads[i])) {
			end_walk(slot, FBW_STATE_ELSEWHERE, ECANCELED, slot->reads[i].at);
			i++;
			goto none;
		}
		if (!place_read(slot, &slot->reads[i])) {
			i++;
			goto none;
		}
	}
	/* Set before: the first may arrive before the second is begun. */
	slot->pending = (1ULL << count) - 1;
	for (i = 0; i < count; i++)
		submit_read(slot, &slot->reads[i]);
	return;
none:
	while (i--)
		put_read(session);
}

/* Runs the step on a page that has come, and acts on its result. Returns the number of reads to begin. */
static u32 run_step(struct fbw_slot *slot, struct fbw_read *read)
{
	struct fbw_session *session = slot->session;
	struct fbw_frame *frame = &slot->frame;
	const struct fbw_ops *ops;
	u32 answer, count, i;

	frame->at = read->at;
	frame->count = 0;
	slot->step.page = slot->pages + (size_t)read->place * session->page_bytes;
	rcu_read_lock();
	ops = rcu_dereference(session->ops);
	if (unlikely(!ops)) {
		rcu_read_unlock();
		end_walk(slot, FBW_STATE_ELSEWHERE, ENODEV, read->at);
		return 0;
	}
	answer = ops->step(&slot->step);
	rcu_read_unlock();

	count = frame->count;
	if (answer == FBW_WAIT && slot->pending)
		return 0;
	if (answer == FBW_OVER) {
		end_walk(slot, FBW_STATE_DONE, 0, read->at);
	} else if (answer == FBW_FAIL) {
		end_walk(slot, FBW_STATE_FAILED, count, read->at);
	} else if (answer != FBW_READ || slot->pending || !count || count > session->reads_each) {
		end_walk(slot, FBW_STATE_ANSWER, answer, read->at);
	} else if (slot->hops >= slot->hops_max) {
		end_walk(slot, FBW_STATE_HOPS, slot->hops, read->at);
	} else {
		slot->hops++;
		for (i = 0; i < count; i++)
			slot->reads[i].at = frame->next[i];
		return count;
	}
	return 0;
}

/* One read has arrived. Answers how many are to be begun. */
static u32 look_at(struct fbw_slot *slot, struct fbw_read *read)
{
	if (read->status == BLK_STS_AGAIN && slot->polled && slot->state == FBW_STATE_WALKING) {
		if (read->again++ < AGAIN_MAX && get_read(slot->session, read)) {
			submit_read(slot, read);
			return 0;
		}
		if (read->again <= AGAIN_MAX)
			put_read(slot->session);
		end_walk(slot, FBW_STATE_ELSEWHERE, EAGAIN, read->at);
	}
	slot->pending &= ~(1U << read->place);
	if (slot->state != FBW_STATE_WALKING)
		return 0;
	slot->place = read->place;
	if (unlikely(read->status)) {
		end_walk(slot, FBW_STATE_IO, -blk_status_to_errno(read->status), read->at);
		return 0;
	}
	return run_step(slot, read);
}

/* Tells user space. The slot is free before the command is over. */
static void tell(struct fbw_slot *slot)
{
	struct fbw_shared *shared = slot->shared;

	WRITE_ONCE(shared->hops, slot->hops);
	WRITE_ONCE(shared->code, slot->code);
	WRITE_ONCE(shared->place, slot->place);
	WRITE_ONCE(shared->failed_at, slot->failed_at);
	WRITE_ONCE(shared->state, slot->state);
	slot->cmd = NULL;
	clear_bit_unlock(0, &slot->busy);
}

/* Goes on with a walk of which reads have arrived. Answers whether it is over. */
static bool go_on(struct fbw_slot *slot, bool is_ending)
{
	unsigned long arrived = atomic_xchg(&slot->arrived, 0);
	u32 place, begin = 0;

	if (unlikely(is_ending) && slot->state == FBW_STATE_WALKING)
		end_walk(slot, FBW_STATE_ELSEWHERE, ECANCELED, slot->reads[0].at);
	for_each_set_bit(place, &arrived, FBW_READS_MAX)
		begin += look_at(slot, &slot->reads[place]);
	if (slot->pending)
		return false;
	if (begin)
		begin_reads(slot, begin);
	return slot->state != FBW_STATE_WALKING;
}

/* Takes the list of walks that can go on. Answers how many are over. */
static int drain(struct fbw_session *session, unsigned int flags)
{
	struct llist_node *taken = llist_del_all(&session->ready), *node;
	bool is_ending = current->flags & (PF_EXITING | PF_KTHREAD);
	struct fbw_slot *slot, *next;
	struct blk_plug plug;
	u32 count = 0;
	int over = 0;

	if (!taken)
		return 0;
	llist_for_each(node, taken)
		count++;
	/* Submitted together, with requests that were allocated together. */
	blk_start_plug(&plug);
	plug.nr_ios = min_t(u32, count, 32);
	/* The last to arrive is the first in the list. */
	taken = llist_reverse_order(taken);
	llist_for_each_entry_safe(slot, next, taken, ready) {
		struct io_uring_cmd *cmd = slot->cmd;

		if (go_on(slot, is_ending)) {
			tell(slot);
			fbw_cmd_done(cmd, 0, flags);
			over++;
		}
	}
	blk_finish_plug(&plug);
	return over;
}

/* Waits for the next read without leaving the processor: no interrupt has to wake the task, which costs more than the step. Only for
 * as long as the session allows, while nobody else wants the processor, and not after it was in vain. Returns whether one has arrived. */
static bool spin(struct fbw_session *session)
{
	u64 until;

	if (!session->spin_ns)
		return false;
	if (session->spins_to_skip) {
		session->spins_to_skip--;
		return false;
	}
	until = local_clock() + session->spin_ns;
	while (llist_empty(&session->ready)) {
		/* A read may have come since the list was looked at. */
		if (!atomic_read(&session->in_flight) || need_resched() || !single_task_running() || signal_pending(current))
			return !llist_empty(&session->ready);
		if (local_clock() > until) {
			session->spins_skipped = min_t(u32, 2 * session->spins_skipped + 1, SPINS_SKIPPED_MAX);
			session->spins_to_skip = session->spins_skipped;
			return false;
		}
		cpu_relax();
	}
	session->spins_skipped = 0;
	return true;
}

/* Goes on with walks until as many are over as user space waits for, or nothing comes. The caller has set `attended`. */
static void attend(struct fbw_session *session, unsigned int flags)
{
	u32 wanted = max_t(u32, READ_ONCE(*session->wanted), 1), over = 0, rounds = 0;

	do {
		over += drain(session, flags);
	} while (over < wanted && ++rounds < ROUNDS_MAX && (!llist_empty(&session->ready) || spin(session)));
	if (!leave(session))
		summon(session);
}

/* Only the command of this task work has one: those of the others in the list can be completed here. */
FBW_TASK_WORK(fbw_task_work, cmd, flags)
{
	FBW_TASK_WORK_BEGIN(cmd, flags);

	attend(fbw_session_of(cmd->file), flags);
}

/* Spins for walks that were just begun, in the task that began them. */
void fbw_attend(struct fbw_session *session, unsigned int flags)
{
	/* Otherwise a task work is on its way, whose command must not be completed here. */
	if (!session->spin_ns || atomic_xchg(&session->attended, 1))
		return;
	/* io_uring has one around more than two submissions, and ends it itself only if it is still the task's. Reads in it are not with
	 * the device, and those of the next steps would come to lie in it, too. */
	if (current->plug)
		blk_finish_plug(current->plug);
	attend(session, flags);
}

/* Begins a walk with what user space has put into its slot. Answers whether it is over already; otherwise the command is
 * completed later. */
bool fbw_begin(struct fbw_slot *slot, struct io_uring_cmd *cmd, bool polled)
{
	struct fbw_shared *shared = slot->shared;
	u32 i;

	slot->cmd = cmd;
	slot->polled = polled;
	slot->state = FBW_STATE_WALKING;
	slot->hops = 1;
	slot->hops_max = clamp_t(u32, READ_ONCE(shared->hops_max), 1, FBW_HOPS_MAX);
	slot->code = 0;
	slot->place = 0;
	slot->failed_at = 0;
	slot->pending = 0;
	slot->reads[0].at = READ_ONCE(shared->at[0]);
	for (i = 0; i < slot->session->reads_each; i++)
		slot->reads[i].again = 0;
	begin_reads(slot, 1);
	if (slot->state == FBW_STATE_WALKING)
		return false;
	tell(slot);
	return true;
}

static void poll_read(struct fbw_read *read, unsigned int poll_flags)
{
	DEFINE_IO_COMP_BATCH(batch);

	bio_poll(&read->bio, &batch, poll_flags);
	if (batch.complete && !rq_list_empty(&batch.req_list))
		batch.complete(&batch);
}

/* Polls for a walk until one of its session is over. The ring's lock is held: no other context takes the list. */
int fbw_poll(struct fbw_slot *slot, unsigned int poll_flags)
{
	struct fbw_session *session = slot->session;
	int over = drain(session, 0);

	while (!over) {
		u32 flying = slot->pending & ~atomic_read(&slot->arrived);

		/* For one of the walk's own reads: what else lies in that queue comes along. If it has landed meanwhile, the session
		 * may be unbound, and the device gone, unless something is counted as in flight. */
		if (flying && atomic_inc_not_zero(&session->in_flight)) {
			poll_read(&slot->reads[__ffs(flying)], poll_flags);
			put_read(session);
		}
		over = drain(session, 0);
		if (poll_flags & BLK_POLL_ONESHOT || need_resched() || signal_pending(current))
			break;
	}
	return over;
}

/* Waits until no read is in flight, after `closing` was set. Queues that do not interrupt are asked: a read that is seen as
 * flying here is not begun again. */
void fbw_wait_idle(struct fbw_session *session)
{
	u32 i;

	while (!wait_event_timeout(session->idle, !atomic_read(&session->in_flight), 1)) {
		for (i = 0; i < session->slots_count * session->reads_each; i++) {
			struct fbw_read *read = &session->reads[i];

			if (smp_load_acquire(&read->is_flying) && READ_ONCE(read->slot->polled))
				poll_read(read, BLK_POLL_ONESHOT);
		}
	}
}
