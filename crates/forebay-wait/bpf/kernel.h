/* What the programs read of the kernel's structures: only the fields they use. The loader finds each by name in the
 * running kernel's BTF, so neither their order nor what stands between them matters here. */
#ifndef FOREBAY_KERNEL_H
#define FOREBAY_KERNEL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;
typedef __s64 s64;

#define KERNEL_TYPE __attribute__((preserve_access_index))

#define RWF_DURABLE (0x2 | 0x4) /* RWF_DSYNC, RWF_SYNC */

#define IO_WORKER 0x10 /* PF_IO_WORKER: io_uring's own threads of a process */

#define ANONYMOUS_INODES 0x09041934 /* the file system of eventfds, epoll and rings */

#define SB_SYNCHRONOUS 0x10
#define S_SYNC 0x1

#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFBLK 0060000
#define S_IFREG 0100000

struct super_block {
	u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
} KERNEL_TYPE;

struct hlist_node {
	struct hlist_node *next;
} KERNEL_TYPE;

struct hlist_head {
	struct hlist_node *first;
} KERNEL_TYPE;

struct inode {
	u16 i_mode;
	unsigned int i_flags;
	struct super_block *i_sb;
	unsigned long i_ino;
	struct hlist_head i_dentry;
} KERNEL_TYPE;

struct address_space {
	struct inode *host;
} KERNEL_TYPE;

struct qstr {
	const unsigned char *name;
} KERNEL_TYPE;

struct dentry {
	struct dentry *d_parent;
	struct qstr d_name;
	union {
		struct hlist_node d_alias;
	} d_u;
} KERNEL_TYPE;

/* Newer kernels (seen in 7.2) have no name for the union. */
struct dentry___unnamed {
	struct hlist_node d_alias;
} KERNEL_TYPE;

struct vfsmount {
	struct dentry *mnt_root;
} KERNEL_TYPE;

struct mount {
	struct mount *mnt_parent;
	struct dentry *mnt_mountpoint;
	struct vfsmount mnt;
} KERNEL_TYPE;

struct path {
	struct vfsmount *mnt;
	struct dentry *dentry;
} KERNEL_TYPE;

struct file {
	struct inode *f_inode;
	struct address_space *f_mapping;
	struct path f_path;
	unsigned int f_flags;
	s64 f_pos;
} KERNEL_TYPE;

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
} KERNEL_TYPE;

struct files_struct {
	struct fdtable *fdt;
} KERNEL_TYPE;

/* libaio's contexts. */
struct kioctx {
	unsigned long user_id;
	unsigned int nr_events;
	unsigned int tail;
} KERNEL_TYPE;

struct kioctx_table {
	unsigned int nr;
	struct kioctx *table[];
} KERNEL_TYPE;

/* Its operations (the beginning of iocb) and their events (io_event), in the program's memory. */
struct operation {
	u64 data;
	u32 key;
	u32 flags;
	u16 opcode;
	u16 priority;
	u32 descriptor;
};

struct event {
	u64 data; /* of the operation */
	u64 operation;
	s64 results[2];
};

struct mm_struct {
	struct kioctx_table *ioctx_table;
} KERNEL_TYPE;

typedef struct {
	int counter;
} KERNEL_TYPE atomic_t;

struct signal_struct {
	atomic_t live;
} KERNEL_TYPE;

struct task_struct {
	unsigned int __state;
	unsigned int flags;
	int pid;
	int tgid;
	struct mm_struct *mm;
	struct files_struct *files;
	struct signal_struct *signal;
	unsigned int in_iowait : 1;
} KERNEL_TYPE;

/* The arguments of a system call: the registers of x86-64, and those of arm64. */
struct pt_regs {
	unsigned long di, si, dx, r10, r9;
} KERNEL_TYPE;

struct pt_regs___arm64 {
	unsigned long regs[31];
} KERNEL_TYPE;

struct page {
	unsigned long compound_head;
	struct address_space *mapping;
} KERNEL_TYPE;

/* Newer kernels (seen in 7.2). */
struct page___info {
	unsigned long compound_info;
} KERNEL_TYPE;

struct folio {
	struct address_space *mapping;
} KERNEL_TYPE;

enum req_flag_bits {
	__REQ_PREFLUSH = 18,
};

struct bio_vec {
	struct page *bv_page;
} KERNEL_TYPE;

struct bio {
	struct bio_vec *bi_io_vec;
	u16 bi_vcnt;
} KERNEL_TYPE;

struct request {
	unsigned int cmd_flags;
	unsigned int __data_len;
	struct bio *bio;
} KERNEL_TYPE;

struct io_cqe {
	int fd;
	s32 res;
} KERNEL_TYPE;

struct io_rsrc_node {
	unsigned long file_ptr;
} KERNEL_TYPE;

struct io_rsrc_data {
	unsigned int nr;
	struct io_rsrc_node **nodes;
} KERNEL_TYPE;

struct io_file_table {
	struct io_rsrc_data data;
} KERNEL_TYPE;

struct io_ring_ctx {
	struct io_file_table file_table;
} KERNEL_TYPE;

/* Before 6.13 the registered files stand in the table itself. */
struct io_fixed_file {
	unsigned long file_ptr;
} KERNEL_TYPE;

struct io_file_table___before {
	struct io_fixed_file *files;
} KERNEL_TYPE;

struct io_ring_ctx___before {
	struct io_file_table___before file_table;
	unsigned int nr_user_files;
} KERNEL_TYPE;

struct io_kiocb {
	struct file *file;
	u8 opcode;
	u64 flags; /* 32 bits wide before 6.9, which the loader sees to */
	struct io_cqe cqe;
	struct io_ring_ctx *ctx;
} KERNEL_TYPE;

struct kiocb {
	s64 ki_pos;
} KERNEL_TYPE;

struct io_rw {
	struct kiocb kiocb;
	u32 len;
	u32 flags;
} KERNEL_TYPE;

struct bpf_iter__task {
	struct task_struct *task;
} KERNEL_TYPE;

#endif
