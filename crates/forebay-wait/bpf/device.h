/* Requests at block devices: how long each was queued above, and how long the device had it. */
#ifndef FOREBAY_DEVICE_H
#define FOREBAY_DEVICE_H

#include "rings.h"

#define OPERATION_BITS 0xff
#define OPERATION_READ 0
#define OPERATION_WRITE 1
#define KERNEL_THREAD 0x00200000 /* PF_KTHREAD */

/* The first page of those that are managed as one. Bit 0 marks a page that is not it; what goes with that bit is the first
 * one's address or, in newer kernels, the mask that makes it of the page's own: ones, then zeros. */
static __always_inline struct page *first_page(struct page *page)
{
	unsigned long info, rest;

	if (bpf_core_field_exists(struct page, compound_head))
		info = BPF_CORE_READ(page, compound_head);
	else if (bpf_core_field_exists(struct page___info, compound_info))
		info = BPF_CORE_READ((struct page___info *)page, compound_info);
	else
		return page;
	if (!(info & 1))
		return page;
	info -= 1;
	rest = ~info;
	return (struct page *)(rest & (rest + 1) ? info : (unsigned long)page & info);
}

/* The file behind the first page of a request that the kernel makes by itself (writeback, a throttled request). */
static __always_inline int file_of_pages(struct request *request, struct file_key *key)
{
	struct page *page = BPF_CORE_READ(request, bio, bi_io_vec, bv_page);
	unsigned long mapping;

	if (!page)
		return 0;
	mapping = (unsigned long)BPF_CORE_READ(first_page(page), mapping);
	/* The low bits mark memory that belongs to no file. */
	if (!mapping || (mapping & 3))
		return 0;
	key_of_inode(key, BPF_CORE_READ((struct address_space *)mapping, host));
	return key->ino != 0;
}

/* Whether the request belongs to what is measured, and to which file. A journal's thread writes for whoever waits in
 * fsync, and the thread that lets throttled requests go stands for those who sent them: so the kernel's own count. */
static __always_inline int belongs(struct request *request, struct device_request *entry)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct thread *thread = followed(task);
	u32 process = task->tgid;

	/* Readahead and direct I/O are the call's. */
	if (thread && thread->named) {
		entry->file = thread->file;
		entry->named = 1;
		return 1;
	}
	if (file_of_pages(request, &entry->file))
		entry->named = bpf_map_lookup_elem(&files, &entry->file) != 0;
	/* A ring's own threads issue operations that block. */
	return thread || entry->named || (task->flags & KERNEL_THREAD) ||
	       ((task->flags & IO_WORKER) && bpf_map_lookup_elem(&owners, &process));
}

SEC("tp_btf/block_io_start")
int BPF_PROG(block_io_start, struct request *request)
{
	struct device_request entry = {};
	u64 number = (u64)request;

	if (!belongs(request, &entry))
		return 0;
	entry.queued = bpf_ktime_get_ns();
	/* A flush of the device's cache is not issued as this request: it is at the device from now on. */
	if ((BPF_CORE_READ(request, cmd_flags) >> bpf_core_enum_value(enum req_flag_bits, __REQ_PREFLUSH) & 1) &&
	    !BPF_CORE_READ(request, __data_len))
		entry.issued = entry.queued;
	if (bpf_map_update_elem(&requests, &number, &entry, BPF_ANY))
		count_lost_op();
	else if (entry.issued)
		change(entry.issued, 0, 0, 0, 1, 0);
	return 0;
}

SEC("tp_btf/block_rq_issue")
int BPF_PROG(block_rq_issue, struct request *request)
{
	u64 number = (u64)request;
	struct device_request *entry = bpf_map_lookup_elem(&requests, &number);

	/* A request that was put back is issued again: it has been at the device since the first time. */
	if (!entry || entry->issued)
		return 0;
	entry->issued = bpf_ktime_get_ns();
	change(entry->issued, 0, 0, 0, 1, 0);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(block_rq_complete, struct request *request, int error, unsigned int bytes)
{
	u64 number = (u64)request, now;
	struct device_request *entry = bpf_map_lookup_elem(&requests, &number);
	struct file_state *state;
	u32 operation;

	if (!entry)
		return 0;
	operation = BPF_CORE_READ(request, cmd_flags) & OPERATION_BITS;
	state = entry->named ? bpf_map_lookup_elem(&files, &entry->file) : 0;
	if (state && operation == OPERATION_READ)
		ADD(state->device_read_bytes, bytes);
	if (state && operation == OPERATION_WRITE)
		ADD(state->device_written_bytes, bytes);
	if (!error && bytes < BPF_CORE_READ(request, __data_len))
		return 0;
	now = bpf_ktime_get_ns();
	if (entry->issued) {
		change(now, 0, 0, 0, -1, 0);
		if (state) {
			ADD(state->device_requests, 1);
			ADD(state->device_ns, now - entry->issued);
			ADD(state->queue_ns, entry->issued - entry->queued);
		}
	}
	bpf_map_delete_elem(&requests, &number);
	return 0;
}

#endif
