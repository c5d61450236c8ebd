// SPDX-License-Identifier: (MIT OR GPL-2.0-only)
/* The device: sessions are its open descriptors. One binds a file, maps the session's memory, gives it a program
 * (step.c), and starts walks by commands of io_uring's. */
#include <linux/bio.h>
#include <linux/capability.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include "compat.h"
#include "walk.h"

LIST_HEAD(fbw_sessions);
DEFINE_MUTEX(fbw_sessions_lock);

struct fbw_bind {
	u32 layout;
	s32 fd;
	u32 page_bytes;
	u32 slots;
	u32 reads_each;
	u32 refused;
	u32 polled;
	u32 extents;
	u32 spin_ns;
};
static_assert(sizeof(struct fbw_bind) == FBW_BIND_BYTES);
FBW_PLACE(fbw_bind, fd, FBW_BIND_FD);
FBW_PLACE(fbw_bind, slots, FBW_BIND_SLOTS);
FBW_PLACE(fbw_bind, refused, FBW_BIND_REFUSED);
FBW_PLACE(fbw_bind, extents, FBW_BIND_EXTENTS);
FBW_PLACE(fbw_bind, spin_ns, FBW_BIND_SPIN_NS);
static_assert(FBW_MODULE_BIND == _IOWR(0xfb, 1, struct fbw_bind));
static_assert(FBW_MODULE_UNBIND == _IO(0xfb, 2));

static int fbw_open(struct inode *inode, struct file *file)
{
	struct fbw_session *session = kzalloc(sizeof(*session), GFP_KERNEL_ACCOUNT);

	if (!session)
		return -ENOMEM;
	mutex_init(&session->lock);
	init_llist_head(&session->ready);
	init_waitqueue_head(&session->idle);
	atomic_set(&session->in_flight, 0);
	atomic_set(&session->attended, 0);
	file->private_data = session;
	mutex_lock(&fbw_sessions_lock);
	list_add(&session->all, &fbw_sessions);
	mutex_unlock(&fbw_sessions_lock);
	return 0;
}

static void free_memory(struct fbw_session *session)
{
	vfree(session->memory);
	kvfree(session->slots);
	kvfree(session->reads);
	kvfree(session->vecs);
	session->memory = NULL;
	session->slots = NULL;
	session->reads = NULL;
	session->vecs = NULL;
}

/* A read's bio is made once, and reset for each hop: its table of memory stays. */
static void make_read(struct fbw_session *session, struct fbw_slot *slot, u32 place, u32 vecs_each)
{
	u8 *page = slot->pages + (size_t)place * session->page_bytes;
	struct fbw_read *read = &slot->reads[place];
	u32 i;

	read->slot = slot;
	read->place = place;
	read->vecs = session->vecs + (read - session->reads) * vecs_each;
	for (i = 0; i < vecs_each; i++) {
		u8 *part = page + i * PAGE_SIZE;

		bvec_set_page(&read->vecs[i], vmalloc_to_page(part), min_t(u32, session->page_bytes, PAGE_SIZE),
			      offset_in_page(part));
	}
	/* Without the device, which would take a reference that only the end of a read gives back. */
	bio_init(&read->bio, NULL, read->vecs, vecs_each, REQ_OP_READ);
}

static int make_memory(struct fbw_session *session)
{
	u32 reads = session->slots_count * session->reads_each, i, place;
	u32 vecs_each = max_t(u32, session->page_bytes / PAGE_SIZE, 1);

	session->memory_bytes = PAGE_ALIGN(FBW_PAGES_AT + (size_t)reads * session->page_bytes + FBW_PAGES_PAD);
	/* As vmalloc_user() has it, and counted as the caller's: that one cannot be. */
	session->memory = __vmalloc(session->memory_bytes, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	session->slots = kvcalloc(session->slots_count, sizeof(*session->slots), GFP_KERNEL_ACCOUNT);
	session->reads = kvcalloc(reads, sizeof(*session->reads), GFP_KERNEL_ACCOUNT);
	session->vecs = kvcalloc((size_t)reads * vecs_each, sizeof(*session->vecs), GFP_KERNEL_ACCOUNT);
	if (!session->memory || !session->slots || !session->reads || !session->vecs)
		return -ENOMEM;
	session->wanted = (const u32 *)(session->memory + FBW_CONTROL_STOP_AFTER);
	for (i = 0; i < session->slots_count; i++) {
		struct fbw_slot *slot = &session->slots[i];

		slot->session = session;
		slot->shared = (struct fbw_shared *)(session->memory + FBW_SLOTS_AT + i * FBW_SLOT_BYTES);
		slot->pages = session->memory + FBW_PAGES_AT +
			      (size_t)i * session->reads_each * session->page_bytes;
		slot->reads = session->reads + i * session->reads_each;
		slot->step.page_bytes = session->page_bytes;
		slot->step.scratch = slot->shared->scratch;
		slot->step.frame = &slot->frame;
		for (place = 0; place < session->reads_each; place++)
			make_read(session, slot, place, vecs_each);
	}
	return 0;
}

static int bind_session(struct fbw_session *session, struct fbw_bind *bind)
{
	int error;

	if (bind->layout != FBW_MODULE_LAYOUT) {
		bind->refused = FBW_REFUSED_LAYOUT;
		return -EPROTO;
	}
	if (!is_power_of_2(bind->page_bytes) || bind->page_bytes < FBW_PAGE_BYTES_MIN ||
	    bind->page_bytes > FBW_PAGE_BYTES_MAX || !bind->slots || bind->slots > FBW_SLOTS_MAX ||
	    !bind->reads_each || bind->reads_each > FBW_READS_MAX) {
		bind->refused = FBW_REFUSED_NUMBERS;
		return -EINVAL;
	}
	if (session->is_ready || session->closing) {
		bind->refused = FBW_REFUSED_BOUND;
		return -EBUSY;
	}
	session->page_bytes = bind->page_bytes;
	session->slots_count = bind->slots;
	session->reads_each = bind->reads_each;
	session->spin_ns = min_t(u32, bind->spin_ns, FBW_SPIN_NS_MAX);
	error = fbw_bind_file(session, bind->fd, &bind->refused);
	if (error)
		return error;
	error = make_memory(session);
	if (error) {
		free_memory(session);
		fbw_unbind_file(session);
		return error;
	}
	bind->polled = session->is_pollable;
	bind->extents = session->extents_count;
	smp_store_release(&session->is_ready, true);
	return 0;
}

/* No read begins any more; those in flight land. Walks under way end where they would go on. */
static void unbind_session(struct fbw_session *session)
{
	WRITE_ONCE(session->closing, true);
	smp_mb();
	if (session->is_ready)
		fbw_wait_idle(session);
	fbw_unbind_file(session);
}

static long fbw_ioctl(struct file *file, unsigned int what, unsigned long argument)
{
	struct fbw_session *session = file->private_data;
	void __user *place = (void __user *)argument;
	struct fbw_bind bind;
	long error;

	switch (what) {
	case FBW_MODULE_BIND:
		if (copy_from_user(&bind, place, sizeof(bind)))
			return -EFAULT;
		bind.refused = 0;
		bind.polled = 0;
		bind.extents = 0;
		mutex_lock(&session->lock);
		error = bind_session(session, &bind);
		mutex_unlock(&session->lock);
		if (copy_to_user(place, &bind, sizeof(bind)))
			return error ?: -EFAULT;
		return error;
	case FBW_MODULE_UNBIND:
		mutex_lock(&session->lock);
		unbind_session(session);
		mutex_unlock(&session->lock);
		return 0;
	default:
		return -ENOTTY;
	}
}

/* Nobody has the descriptor any more, nor the memory, nor a command in flight. */
static int fbw_release(struct inode *inode, struct file *file)
{
	struct fbw_session *session = file->private_data;

	mutex_lock(&fbw_sessions_lock);
	list_del(&session->all);
	RCU_INIT_POINTER(session->ops, NULL);
	mutex_unlock(&fbw_sessions_lock);
	unbind_session(session);
	/* The last completion may still be on its way out. */
	synchronize_rcu();
	free_memory(session);
	kfree(session);
	return 0;
}

static int fbw_mmap(struct file *file, struct vm_area_struct *area)
{
	struct fbw_session *session = file->private_data;
	size_t at;
	int error = 0;

	if (!smp_load_acquire(&session->is_ready))
		return -ENXIO;
	if (area->vm_pgoff || area->vm_end - area->vm_start != session->memory_bytes)
		return -EINVAL;
	/* remap_vmalloc_range() does the same, and takes vmalloc_user()'s memory alone. */
	vm_flags_set(area, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	for (at = 0; at < session->memory_bytes && !error; at += PAGE_SIZE)
		error = vm_insert_page(area, area->vm_start + at, vmalloc_to_page(session->memory + at));
	return error;
}

static int fbw_uring_cmd(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct fbw_session *session = cmd->file->private_data;
	u32 number = READ_ONCE(fbw_command_of(cmd)[0]), is_last = READ_ONCE(fbw_command_of(cmd)[1]);
	const struct io_ring_ctx *ring = cmd_to_io_kiocb(cmd)->ctx;
	const void *other;
	struct fbw_slot *slot;

	if (cmd->cmd_op != FBW_MODULE_WALK)
		return -ENOTTY;
	if (!smp_load_acquire(&session->is_ready))
		return -ENXIO;
	if (number >= session->slots_count)
		return -EINVAL;
	/* Steps of one session never run at the same time: its ring has one task, which submits, polls and runs the task work. */
	if (!(ring->flags & IORING_SETUP_DEFER_TASKRUN) || issue_flags & IO_URING_F_UNLOCKED)
		return -EOPNOTSUPP;
	if (issue_flags & IO_URING_F_IOPOLL && !session->is_pollable)
		return -EOPNOTSUPP;
	other = READ_ONCE(session->ring);
	if (other != ring && (other || cmpxchg(&session->ring, NULL, ring)))
		return -EXDEV;
	slot = &session->slots[array_index_nospec(number, session->slots_count)];
	if (test_and_set_bit_lock(0, &slot->busy))
		return -EBUSY;
	*io_uring_cmd_to_pdu(cmd, struct fbw_slot *) = slot;
	if (fbw_begin(slot, cmd, issue_flags & IO_URING_F_IOPOLL))
		return 0;
	if (is_last && !(issue_flags & IO_URING_F_IOPOLL))
		fbw_attend(session, issue_flags);
	return -EIOCBQUEUED;
}

static int fbw_uring_cmd_iopoll(struct io_uring_cmd *cmd, struct io_comp_batch *batch, unsigned int poll_flags)
{
	return fbw_poll(*io_uring_cmd_to_pdu(cmd, struct fbw_slot *), poll_flags);
}

static const struct file_operations fbw_operations = {
	.owner = THIS_MODULE,
	.open = fbw_open,
	.release = fbw_release,
	.unlocked_ioctl = fbw_ioctl,
	.mmap = fbw_mmap,
	.uring_cmd = fbw_uring_cmd,
	.uring_cmd_iopoll = fbw_uring_cmd_iopoll,
};

struct fbw_session *fbw_session_of(struct file *file)
{
	return file->f_op == &fbw_operations ? file->private_data : NULL;
}

/* Root's own: a session takes memory, and pins files. Whoever wants it otherwise has udev. */
static struct miscdevice fbw_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "forebay_walk",
	.fops = &fbw_operations,
	.mode = 0600,
};

static int __init fbw_start(void)
{
	int error = fbw_register_steps();

	return error ?: misc_register(&fbw_device);
}

static void __exit fbw_stop(void)
{
	misc_deregister(&fbw_device);
}

module_init(fbw_start);
module_exit(fbw_stop);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_AUTHOR("The Forebay contributors");
MODULE_DESCRIPTION("Dependent reads inside the kernel, with a BPF program for each step");
