/* Which file a descriptor is, and what it is called. */
#ifndef FOREBAY_FILES_H
#define FOREBAY_FILES_H

#include "maps.h"

static __always_inline struct file *file_of_descriptor(struct task_struct *task, u32 descriptor)
{
	struct files_struct *all = task->files;
	struct file **slots, *file = 0;
	struct fdtable *table;

	if (!all)
		return 0;
	table = all->fdt;
	if (!table || descriptor >= table->max_fds)
		return 0;
	slots = table->fd;
	if (bpf_probe_read_kernel(&file, sizeof(file), slots + descriptor))
		return 0;
	return file;
}

static __always_inline void key_of_inode(struct file_key *key, struct inode *inode)
{
	key->ino = BPF_CORE_READ(inode, i_ino);
	key->dev = BPF_CORE_READ(inode, i_sb, s_dev);
	key->pad = 0;
}

/* Writes the innermost names of a path, from the last one outwards, across mount points; `outer` is where the file was
 * opened, or null for a path within its own file system. */
static __noinline int write_name(struct file_key *key, struct dentry *dentry, struct vfsmount *outer)
{
	struct mount *mount = 0, *above;
	struct dentry *parent, *top = 0;
	struct file_name *name;
	u32 zero = 0;

	name = bpf_map_lookup_elem(&scratch, &zero);
	if (!name || !key)
		return 0;
	name->parts = 0;
	name->more = 1;
	if (outer) {
		mount = (void *)outer - bpf_core_field_offset(struct mount, mnt);
		top = BPF_CORE_READ(outer, mnt_root);
	}
	/* A step goes to the parent, or through one mount point. */
	for (int step = 0; step < PARTS + 4; step++) {
		parent = BPF_CORE_READ(dentry, d_parent);
		if (dentry == top || dentry == parent) {
			above = mount ? BPF_CORE_READ(mount, mnt_parent) : 0;
			if (above == mount || dentry != top) {
				name->more = 0;
				break;
			}
			dentry = BPF_CORE_READ(mount, mnt_mountpoint);
			mount = above;
			top = BPF_CORE_READ(mount, mnt.mnt_root);
			continue;
		}
		if (name->parts >= PARTS)
			break;
		bpf_probe_read_kernel_str(name->part[name->parts & (PARTS - 1)], PART_BYTES,
					  BPF_CORE_READ(dentry, d_name.name));
		name->parts++;
		dentry = parent;
	}
	bpf_map_update_elem(&names, key, name, BPF_NOEXIST);
	return 0;
}

static __always_inline struct file_state *new_state(struct file_key *key, struct dentry *dentry,
						    struct vfsmount *outer)
{
	if (!bpf_map_update_elem(&files, key, &no_state, BPF_NOEXIST) && dentry)
		write_name(key, dentry, outer);
	return bpf_map_lookup_elem(&files, key);
}

/* The state of a file; its first use also notes its name. */
static __always_inline struct file_state *state_of(struct file_key *key, struct file *file)
{
	struct file_state *state = bpf_map_lookup_elem(&files, key);

	return state ? state : new_state(key, BPF_CORE_READ(file, f_path.dentry), BPF_CORE_READ(file, f_path.mnt));
}

/* How far into a name its place in the inode's list of them is. */
static __always_inline u64 alias_offset(void)
{
	if (bpf_core_field_exists(struct dentry, d_u))
		return bpf_core_field_offset(struct dentry, d_u.d_alias);
	return bpf_core_field_offset(struct dentry___unnamed, d_alias);
}

/* The same for a file that is only known by its inode; its name is the one it has within its file system. */
static __always_inline struct file_state *state_of_inode(struct file_key *key, struct inode *inode)
{
	struct file_state *state = bpf_map_lookup_elem(&files, key);
	struct hlist_node *alias;

	if (state)
		return state;
	alias = BPF_CORE_READ(inode, i_dentry.first);
	return new_state(key, alias ? (void *)alias - alias_offset() : 0, 0);
}

/* An eventfd, epoll, a timer, a ring: nothing of it is on storage. */
static __always_inline int is_anonymous(struct file *file)
{
	return BPF_CORE_READ(file, f_inode, i_sb, s_magic) == ANONYMOUS_INODES;
}

/* A regular file, a directory or a block device, which a call may wait for. */
static __always_inline int is_on_storage(struct file *file)
{
	u32 type = BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT;

	return type == S_IFREG || type == S_IFDIR || type == S_IFBLK;
}

/* Fills in `key` when `file` is one of these. */
static __always_inline int is_storage(struct file *file, struct file_key *key)
{
	if (!is_on_storage(file))
		return 0;
	key_of_inode(key, BPF_CORE_READ(file, f_mapping, host));
	return 1;
}

static __always_inline int is_direct(struct file *file)
{
	return (BPF_CORE_READ(file, f_flags) & settings.o_direct) != 0;
}

/* Whether each write to it has to be durable before it returns: by its open flags (O_SYNC has the bit of O_DSYNC, too), by
 * the file's own attribute, or by how its file system is mounted. */
static __always_inline int is_durable(struct file *file)
{
	return (BPF_CORE_READ(file, f_flags) & settings.o_dsync) ||
	       (BPF_CORE_READ(file, f_inode, i_flags) & S_SYNC) ||
	       (BPF_CORE_READ(file, f_inode, i_sb, s_flags) & SB_SYNCHRONOUS);
}

/* The same as `is_storage` for a thread's call, quick when it is about the file of its last one. What the thread opens
 * or closes itself makes it look again. */
static __always_inline int is_storage_again(struct thread *thread, struct file *file)
{
	struct inode *inode = BPF_CORE_READ(file, f_inode);

	thread->direct = is_direct(file);
	if (file == thread->last_file && inode == thread->last_inode) {
		thread->file = thread->last_key;
		return 1;
	}
	if (!is_storage(file, &thread->file))
		return 0;
	thread->last_file = file;
	thread->last_inode = inode;
	thread->last_key = thread->file;
	return 1;
}

/* The file of a call that moves bytes from one descriptor to another: the one on storage, where both are the first. */
static __always_inline struct file *file_of_copy(struct thread *thread, struct file *from, struct file *to)
{
	int reads = is_on_storage(from), writes = is_on_storage(to);

	thread->other_end = reads != writes;
	return reads || !writes ? from : to;
}

#endif
