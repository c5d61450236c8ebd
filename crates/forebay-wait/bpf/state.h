/* What the programs keep. src/layout.rs has the same structures for the reading side; a test compares their sizes with
 * those in the object. */
#ifndef FOREBAY_STATE_H
#define FOREBAY_STATE_H

#include "kernel.h"

/* How a system call names its file, size and place. User space fills `call_of` with one of these for each call number
 * that is about files, and 0 for the others. The number in the low byte is the row of the result (src/calls.rs). */
#define SHAPE_FD 1	   /* file: argument 0 */
#define SHAPE_READ_WRITE 2 /* file: 0, size: 2, place: the file's own position */
#define SHAPE_AT 3	   /* file: 0, size: 2, place: 3 */
#define SHAPE_VECTOR 4	   /* file: 0, size: what it returns, place: the file's own position */
#define SHAPE_VECTOR_AT 5  /* file: 0, size: what it returns, place: 3 */
#define SHAPE_VECTOR_FLAGS 6 /* the same, flags: 5 */
#define SHAPE_SEND 7	   /* sendfile: from 1, to 0, size: what it returns */
#define SHAPE_SPLICE 8	   /* the same, from 0, to 2 */
#define SHAPE_OPEN 9	   /* file: the descriptor that it returns */
#define SHAPE_PATH 10	   /* a name; no file of its own */
#define SHAPE_RING 11	   /* io_uring_enter */
#define SHAPE_SUBMIT 12	   /* io_submit: context: 0, number: 1, operations: 2 */
#define SHAPE_GETEVENTS 13 /* io_getevents: context: 0, least number: 1, events: 3 */
#define SHAPE_EVENT 14	   /* a wait for events, a completion among them: epoll_wait, poll, select, futex */
#define SHAPE_SOCKET 15	   /* moves bytes of a socket: what the thread woke for was no file */

#define CALL_FAULT 1 /* rows that are no system call */
#define CALL_RING_READ 2
#define CALL_RING_WRITE 3
#define CALL_RING_SYNC 4
#define CALL_RING_OTHER 5
#define CALL_READ 6
#define CALL_WRITE 7
#define CALL_CLOSE 10
#define CALL_AIO 17

#define CALLS 512     /* system call numbers that are looked at */
#define RING_CALLS 128 /* operations of io_uring */

#define RUNNING 1
#define WAITING 2
#define IDLE 3
#define GONE 4

/* What may be: kinds of time in which no thread surely waits, and one sleeps while its process has operations in flight. */
#define MAYBE_SOME 0	    /* whatever the others do */
#define MAYBE_FULL 1	    /* and none runs */
#define MAYBE_SOME_DEVICE 2 /* the same with a request at a device */
#define MAYBE_FULL_DEVICE 3
#define MAYBES 4

#define SIZES 18     /* 512 bytes or less, then doubling; the last is 64 MiB and more */
#define STREAMS 4    /* sequential readers of one file that are told apart */
#define PARTS 8      /* the innermost names of a path that are kept */
#define PART_BYTES 96

struct settings {
	u16 call_of[CALLS];	    /* shape << 8 | row, or 0 */
	u8 ring_call_of[RING_CALLS]; /* a CALL_RING_ number, or 0 */
	u32 page_shift;
	u32 o_direct;	   /* the flags, which differ between architectures */
	u32 o_dsync;
	u32 begin_at_exec; /* the measurement begins when `root` executes its program */
};

struct file_key {
	u64 ino;
	u32 dev;
	u32 pad;
};

struct call_key {
	u64 ino;
	u32 dev;
	u32 call;
};

struct call_stats {
	u64 count;
	u64 bytes;	/* that the calls moved */
	u64 time_ns;	/* from entry to return, of ring operations from submission to completion */
	u64 wait_ns;	/* standing still */
	u64 waits;	/* calls that stood still at all */
	u64 longest_ns;
	u64 sequential; /* calls that began where another had ended */
	u64 placed;	/* calls whose place is known */
	u64 hits;	/* buffered reads that neither waited nor brought pages in */
	u64 buffered;	/* buffered reads */
	u64 direct;	/* calls on a file opened with O_DIRECT */
	u64 durable;	/* writes that return only when they are durable */
	u64 errors;
	u64 sizes[SIZES];
};

struct file_state {
	u64 ends[STREAMS];
	u64 next_end;
	u64 busy_ns;	/* while at least one call or operation was under way */
	u64 busy_until;
	u64 device_ns;	/* sum over requests, issue to completion */
	u64 queue_ns;	/* sum over requests, allocation to issue */
	u64 device_read_bytes;
	u64 device_written_bytes;
	u64 device_requests;
	s64 now;	/* calls and operations under way */
	s64 most;
};

struct file_name {
	u32 parts;
	u32 more;	/* outer names were left out */
	char part[PARTS][PART_BYTES];
};

struct thread {
	u64 since;	/* when the present wait began */
	u64 call_start;
	u64 call_wait;
	u64 place;
	u64 size;
	struct file_key file;	/* of the call, or of the fault */
	struct file *last_file; /* what the call before was about */
	struct inode *last_inode;
	struct file_key last_key;
	u64 ring;		/* the ring that io_uring_enter waits on */
	u64 ring_wait;		/* not yet given to a file */
	u64 woken;		/* when the last sleep for events ended */
	u64 maybe_from[MAYBES]; /* what the clock had when it began */
	u64 maybe_to[MAYBES];	/* and when it ended */
	u64 cause;		/* since when the ring was busy whose completion ended it, where another thread ran that */
	u64 context;		/* libaio's, which it used last */
	u64 events;		/* where io_getevents puts them */
	u64 least;		/* how many it waits for */
	struct file_key cause_file;
	u32 cause_call;
	u32 submitted; /* by the present io_submit */
	u8 cause_followed; /* and that thread is one of the tree */
	u8 event;	   /* the present call waits for events */
	u8 ended;	   /* a sleep for events is over, and what ended it is not known yet */
	u8 apart;	   /* the last sleep was for something that no completion ends */
	u32 call;		/* 0: in no call that counts */
	u8 shape;
	u8 state;
	u8 iowait;	/* the present wait is one in the kernel's own account */
	u8 placed;
	u8 direct;
	u8 brought_in;	/* the call added pages to the page cache */
	u8 named;	/* `file` is set */
	u8 durable;
	u8 other_end; /* of the call is a pipe or a socket, which it may sleep for */
	u8 one_file;  /* the present io_submit has operations on one only */
};

/* A process. Both counts are in one number, so that each change sees the one before. */
struct owner {
	u64 counts; /* threads that sleep << 32 | operations on files in flight */
};

/* A completion that this processor has just run, until it wakes a thread or runs another one. */
struct completion {
	u64 busy_since; /* of the ring */
	u64 maybe_since[MAYBES];
	struct file_key file;
	u32 call;
	u32 process; /* 0: none */
	u32 followed;
	u32 pad;
};

struct ring {
	s64 in_flight; /* operations on files */
	u64 busy_since; /* since when there is one */
	u64 maybe_since[MAYBES]; /* what the clock had then */
	struct file_key last; /* completed last */
	u32 last_call;
	u32 pad;
};

/* A context of libaio. No tracepoint tells of its completions, but the kernel numbers them: each puts the tail forward. */
struct aio_key {
	u64 context;
	u32 process;
	u32 pad;
};

struct aio {
	u64 kernel; /* its structure there */
	u64 busy_since;
	u64 maybe_since[MAYBES];
	s64 in_flight;
	s64 uncollected; /* completions that no io_getevents has returned */
	u64 wait;	 /* not yet given to a file */
	u32 tail;  /* as far as completions are counted */
	u32 polls; /* it waits for sockets as well, so completions say nothing */
};

struct ring_op {
	u64 start;
	u64 place;
	struct file_key file;
	u32 call;
	u32 size;
	u32 process;
	u8 placed;
	u8 direct;
	u8 durable;
	u8 pad;
};

struct device_request {
	u64 queued;
	u64 issued;
	struct file_key file;
	u8 named;
	u8 pad[7];
};

/* A kind of time that may be a wait. A sleep that turns out to have been one takes its part of it. */
struct maybe {
	u64 passed_ns;
	u64 taken_ns;
	u64 taken_until; /* on the scale of `passed_ns` */
};

/* How long which situation lasted. Every change of a thread or of the device adds the time since the last one. */
struct clock {
	struct bpf_spin_lock lock;
	s32 running;
	s32 waiting;
	s32 iowait;
	s32 device;
	u32 root; /* the process whose end is the end of the measurement */
	u64 last;
	u64 some_ns;	    /* at least one thread waits */
	u64 full_ns;	    /* at least one waits and none runs */
	u64 some_iowait_ns; /* the same, of the waits that the kernel calls iowait */
	u64 full_iowait_ns;
	u64 some_device_ns; /* at least one waits, and a request is at a device: one of the tree, of one of
				its files, or of the kernel itself (journal, writeback) */
	u64 full_device_ns;
	u64 device_ns;	    /* such a request is at a device */
	u64 wait_sum_ns;    /* summed over threads */
	u64 begun;
	u64 ended;	    /* when the last thread of the first process ended */
	u64 threads;	    /* that were followed */
	u64 processes;
	u64 lost_files;	    /* calls on files for which there was no room */
	u64 lost_ops;	    /* ring operations or device requests for which there was no room */
	u64 unseen_ops;	    /* operations whose end is not to be seen */
	s32 sleeping;	    /* threads that sleep while their process has operations in flight */
	u32 pad;
	struct maybe maybe[MAYBES];
};

#endif
